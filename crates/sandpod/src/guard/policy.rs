//! What a sandbox's callers may do, as its owner writes it down.

use std::collections::BTreeSet;

use sandpod_client::{Network, Policy};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::commands::CommandRules;
use super::operation::Operation;
use super::paths::{Root, Traversal, intersection, is_below, normalised};
use crate::{Error, Result};

/// What a sandbox's callers may do: part of a configuration or of a request, in TOML and JSON under the same names.
///
/// Paths are those in the sandbox. File calls are held to it by the guest, which asks its kernel where a path leads;
/// commands are held to `allow_prefixes`, `read_prefixes` and `network` by the kernel itself. docs/policy.md has examples.
///
/// ```
/// let policy: sandpod::SandboxPolicy = serde_json::from_str(
///     r#"{ "allow_prefixes": ["/workspace", "/tmp"], "network": "none", "deny_commands": ["git push"] }"#,
/// )?;
/// assert!(policy.check().is_ok());
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct SandboxPolicy {
    /// The directory that file calls see as `/`.
    pub root_dir: Option<String>,
    /// Paths in results are those in the sandbox, not those below `root_dir`.
    pub show_real_paths: bool,
    /// A path that is below `root_dir` already is taken as it is.
    pub accept_real_paths: bool,
    /// What becomes of `..` in paths, where there is a `root_dir`.
    pub traversal: Traversal,
    /// What is checked leads below one of these; none: anywhere.
    pub allow_prefixes: Option<Vec<String>>,
    /// What is checked leads below none of these.
    pub deny_prefixes: Vec<String>,
    /// Which operations the two prefixes bind.
    pub checked: Checked,
    /// Whether `deny_prefixes` must hold for commands, too, which a kernel can't promise below what is allowed.
    pub deny_scope: DenyScope,
    /// Roots that may be read, by files calls and commands; programs have to be below one. None: everything may be read.
    pub read_prefixes: Option<Vec<String>>,
    /// Whom commands reach; none: whomever the sandbox reaches.
    #[serde(with = "network")]
    pub network: Option<Network>,
    /// No sandbox rather than one whose kernel can't hold commands to this.
    pub policy_required: bool,
    /// Programs, with words that they must have to be refused: a guard rail and no wall.
    pub deny_commands: Vec<String>,
    /// Texts that no command may hold: the same.
    pub deny_texts: Vec<String>,
}

/// Which operations prefixes bind.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub enum Checked {
    /// Everything that changes files, commands included.
    #[default]
    Changes,
    /// Reading them, too. What commands read is bound by `read_prefixes`.
    All,
    /// These. If commands are among them, all changes are.
    These(BTreeSet<Operation>),
}

/// For whom what is denied must hold.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DenyScope {
    /// Everybody: a policy for which that can't be promised is refused.
    #[default]
    All,
    /// File calls: commands are not held to it.
    FileTools,
}

impl Checked {
    /// Whether an operation is bound.
    #[must_use]
    pub fn has(&self, operation: Operation) -> bool {
        let is_change = operation.is_change() || operation.is_command();
        match self {
            Self::Changes => is_change,
            Self::All => true,
            Self::These(these) if these.iter().any(|one| one.is_command()) => {
                is_change || these.contains(&operation)
            }
            Self::These(these) => these.contains(&operation),
        }
    }
}

impl SandboxPolicy {
    /// Whether it makes sense, and its promises can be kept.
    pub fn check(&self) -> Result<()> {
        if let Some(dir) = self.root_dir.as_deref().filter(|dir| !dir.starts_with('/')) {
            return Err(unusable(
                &format!("root_dir must be an absolute path, got: {dir}"),
                "Begin it with a slash.",
            ));
        }
        let prefixes =
            self.allow_prefixes.iter().chain(&self.read_prefixes).flatten().chain(&self.deny_prefixes);
        for prefix in prefixes {
            if !prefix.starts_with('/') || prefix.split('/').any(|part| part == "..") {
                let why = format!("the prefix '{prefix}' is no absolute path, or has a '..' in it");
                return Err(unusable(&why, "Name the directory that it means."));
            }
        }
        self.check_denied()?;
        // The sandbox would take no writable roots for all of them.
        if self.binds_commands() && self.allow_prefixes.as_ref().is_some_and(Vec::is_empty) {
            let next =
                "Name a directory that they may write to, or the file operations that it binds in checked.";
            return Err(unusable("allow_prefixes is empty, and commands can't be held to that", next));
        }
        self.command_rules().map(drop)
    }

    /// A kernel knows what is allowed and nothing else: an exception from that can't be kept for commands.
    fn check_denied(&self) -> Result<()> {
        let binds_commands = self.binds_commands() && self.deny_scope == DenyScope::All;
        let allowed = self.allow_prefixes.as_deref().map(normalised_all);
        let overlaps = |denied: &&String| {
            let denied = normalised(denied);
            let touches = |dir: &String| is_below(&denied, dir) || is_below(dir, &denied);
            allowed.as_ref().is_none_or(|allowed| allowed.iter().any(touches))
        };
        match self.deny_prefixes.iter().find(overlaps).filter(|_| binds_commands) {
            None => Ok(()),
            Some(path) => Err(unusable(
                &format!(
                    "commands can't be kept from '{path}' of deny_prefixes, for it is in what is allowed"
                ),
                "Allow less with allow_prefixes, or set deny_scope to 'file_tools': then it binds file calls only.",
            )),
        }
    }

    fn binds_commands(&self) -> bool {
        self.checked.has(Operation::Execute)
    }

    /// What the sandbox is bound to, whoever uses it; none: nothing.
    pub(crate) fn bound(&self) -> Option<Policy> {
        let writable = self.allow_prefixes.as_deref().filter(|_| self.binds_commands()).map(normalised_all);
        let denied =
            if self.checked == Checked::All { normalised_all(&self.deny_prefixes) } else { Vec::new() };
        let policy = Policy {
            readable: self.read_prefixes.as_deref().map(normalised_all).unwrap_or_default(),
            writable: writable.unwrap_or_default(),
            denied_for_files_only: !denied.is_empty(),
            denied,
            network: self.network.clone(),
            required: self.policy_required,
        };
        (policy != Policy::default()).then_some(policy)
    }

    /// Below which directories calls may lead; none: anywhere. An empty list is nowhere.
    pub(crate) fn within(&self, operation: Operation) -> Option<Vec<String>> {
        let is_checked = self.checked.has(operation);
        let root = self.root_dir.as_deref().map(|dir| vec![normalised(dir)]);
        let allowed = self.allow_prefixes.as_deref().filter(|_| is_checked).map(normalised_all);
        match (root, allowed) {
            (Some(root), Some(allowed)) => Some(intersection(&root, &allowed)),
            (root, allowed) => root.or(allowed),
        }
    }

    /// Below which directories calls lead nowhere.
    pub(crate) fn denied(&self, operation: Operation) -> Vec<String> {
        if self.checked.has(operation) { normalised_all(&self.deny_prefixes) } else { Vec::new() }
    }

    pub(crate) fn root(&self) -> Option<Root> {
        let root =
            |dir: &String| Root::new(dir, self.show_real_paths, self.accept_real_paths, self.traversal);
        self.root_dir.as_ref().map(root)
    }

    pub(crate) fn command_rules(&self) -> Result<CommandRules> {
        CommandRules::new(&self.deny_commands, &self.deny_texts)
    }

    /// Why an operation on a path is refused, if it is: by the path's text alone, so for an answer and not as a wall.
    #[must_use]
    pub fn denies(&self, operation: Operation, path: &str) -> Option<String> {
        self.refusal(operation, path, path)
    }

    /// Why an operation on a path is refused, by its text; `shown` is what the caller calls it.
    pub(crate) fn refusal(&self, operation: Operation, real: &str, shown: &str) -> Option<String> {
        if !self.checked.has(operation) {
            return None;
        }
        let real = normalised(real);
        if self.deny_prefixes.iter().any(|prefix| is_below(&real, &normalised(prefix))) {
            return Some(format!("Policy denied: {} not allowed under '{shown}'", operation.noun()));
        }
        let allowed = self.allow_prefixes.as_ref()?;
        if allowed.iter().any(|prefix| is_below(&real, &normalised(prefix))) {
            return None;
        }
        Some(format!("Path '{shown}' is not under any allowed prefix: {}", tuple(allowed)))
    }
}

/// Prefixes as Python shows a tuple of them, each with a slash at its end: the words that models know.
fn tuple(prefixes: &[String]) -> String {
    let all: Vec<_> = prefixes.iter().map(|prefix| format!("'{}/'", prefix.trim_end_matches('/'))).collect();
    format!("({}{})", all.join(", "), if all.len() == 1 { "," } else { "" })
}

fn normalised_all(paths: &[String]) -> Vec<String> {
    paths.iter().map(|path| normalised(path)).collect()
}

fn unusable(why: &str, next: &str) -> Error {
    Error::invalid(format!("The policy can't be used: {why}."), next)
}

impl Serialize for Checked {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        match self {
            Self::Changes => serializer.serialize_str("changes"),
            Self::All => serializer.serialize_str("all"),
            Self::These(these) => these.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Checked {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Word(String),
            These(BTreeSet<Operation>),
        }
        match Written::deserialize(deserializer) {
            Ok(Written::These(these)) => Ok(Self::These(these)),
            Ok(Written::Word(word)) if word == "changes" => Ok(Self::Changes),
            Ok(Written::Word(word)) if word == "all" => Ok(Self::All),
            _ => Err(D::Error::custom("it is 'changes', 'all' or a list of operations such as 'write'")),
        }
    }
}

/// `"none"`, `"open"` or `{ connect = […], listen = […] }`.
mod network {
    use super::{Deserialize, Deserializer, Network, Serialize, Serializer};
    use serde::de::Error as _;

    #[derive(Deserialize, Serialize)]
    #[serde(untagged)]
    enum Written {
        Word(String),
        Ports(Ports),
    }

    #[derive(Deserialize, Serialize)]
    #[serde(deny_unknown_fields)]
    struct Ports {
        #[serde(default)]
        connect: Vec<u16>,
        #[serde(default)]
        listen: Vec<u16>,
    }

    #[expect(clippy::ref_option, reason = "serde calls it so")]
    pub(super) fn serialize<S: Serializer>(
        network: &Option<Network>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let written = network.clone().map(|network| match network {
            Network::Open => Written::Word("open".to_owned()),
            Network::None => Written::Word("none".to_owned()),
            Network::Ports { connect, listen } => Written::Ports(Ports { connect, listen }),
        });
        written.serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Network>, D::Error> {
        let unclear = || D::Error::custom("network is 'none', 'open' or lists of ports, connect and listen");
        Ok(match Option::<Written>::deserialize(deserializer).map_err(|_| unclear())? {
            None => None,
            Some(Written::Word(word)) if word == "none" => Some(Network::None),
            Some(Written::Word(word)) if word == "open" => Some(Network::Open),
            Some(Written::Word(_)) => return Err(unclear()),
            Some(Written::Ports(Ports { connect, listen })) => Some(Network::Ports { connect, listen }),
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn policy(fields: serde_json::Value) -> SandboxPolicy {
        serde_json::from_value(fields).unwrap()
    }

    fn refused(fields: serde_json::Value) -> String {
        policy(fields).check().unwrap_err().to_string()
    }

    /// Row G1: only what is named is checked; a prefix is a directory, not the beginning of a name.
    #[test]
    fn g1_what_is_checked_leads_below_an_allowed_prefix_and_nothing_else_is_asked() {
        let policy = policy(json!({ "allow_prefixes": ["/tmp"], "checked": ["write", "edit", "delete"] }));
        policy.check().unwrap();
        let message = "Path '/x' is not under any allowed prefix: ('/tmp/',)";
        assert_eq!(policy.refusal(Operation::Write, "/x", "/x").as_deref(), Some(message));
        assert!(policy.refusal(Operation::Edit, "/tmp/x/../../evil", "/e").is_some());
        assert!(policy.refusal(Operation::Delete, "/tmpfoo", "/tmpfoo").is_some());
        for allowed in ["/tmp", "/tmp/", "/tmp/a/b", "/x/../tmp/a"] {
            assert_eq!(policy.refusal(Operation::Write, allowed, allowed), None);
        }
        for unchecked in [Operation::Upload, Operation::Read, Operation::Execute] {
            assert_eq!(policy.refusal(unchecked, "/x", "/x"), None);
        }
        assert_eq!(policy.bound(), None, "commands are not bound");
    }

    /// Row G3.
    #[test]
    fn g3_prefixes_are_those_of_the_resolved_path() {
        let policy = policy(json!({
            "root_dir": "/tmp", "accept_real_paths": true, "allow_prefixes": ["/tmp/src"], "checked": ["write"],
        }));
        policy.check().unwrap();
        let real = policy.root().unwrap().real("/src/main.py").unwrap();
        assert_eq!(policy.refusal(Operation::Write, &real, "/src/main.py"), None);
        assert_eq!(policy.within(Operation::Write).unwrap(), ["/tmp/src"]);
        assert_eq!(policy.within(Operation::Upload).unwrap(), ["/tmp"]);
    }

    /// Row G3: a list that allows nothing below the root refuses each call, with the words that models know.
    #[test]
    fn g3_prefixes_outside_the_root_allow_nothing_that_is_checked() {
        let policy = policy(json!({ "root_dir": "/tmp", "allow_prefixes": ["/src"], "checked": ["write"] }));
        policy.check().unwrap();
        let message = "Path '/a' is not under any allowed prefix: ('/src/',)";
        assert_eq!(policy.refusal(Operation::Write, "/tmp/a", "/a").as_deref(), Some(message));
        assert_eq!(policy.within(Operation::Write).unwrap(), Vec::<String>::new());
        assert_eq!(policy.within(Operation::Read).unwrap(), ["/tmp"]);
    }

    #[test]
    fn an_empty_list_of_prefixes_allows_nothing_that_is_checked() {
        let policy = policy(json!({ "allow_prefixes": [], "checked": ["write"] }));
        policy.check().unwrap();
        let message = "Path '/a' is not under any allowed prefix: ()";
        assert_eq!(policy.refusal(Operation::Write, "/a", "/a").as_deref(), Some(message));
        assert_eq!(policy.within(Operation::Write), Some(Vec::new()));
        let error = refused(json!({ "allow_prefixes": [] }));
        assert!(error.contains("commands can't be held to that"), "{error}");
    }

    /// Row G6.
    #[test]
    fn g6_a_denied_prefix_is_denied_however_it_is_written_and_reads_are_not_asked() {
        let policy = policy(json!({ "deny_prefixes": ["/etc"], "deny_scope": "file_tools" }));
        policy.check().unwrap();
        let denied = |operation, path: &str| policy.refusal(operation, path, path);
        let message =
            |noun: &str, path: &str| Some(format!("Policy denied: {noun} not allowed under '{path}'"));
        assert_eq!(denied(Operation::Write, "/etc/passwd"), message("writes", "/etc/passwd"));
        assert_eq!(denied(Operation::Write, "/app/../etc"), message("writes", "/app/../etc"));
        assert_eq!(denied(Operation::Edit, "//etc/./x"), message("edits", "//etc/./x"));
        assert_eq!(denied(Operation::Write, "/etcetera"), None);
        assert_eq!(denied(Operation::Read, "/etc/passwd"), None);
        assert_eq!(policy.bound(), None, "reads are allowed, so the sandbox is not bound to it");
    }

    #[test]
    fn reads_are_denied_when_asked_for_and_then_for_everybody_in_the_sandbox() {
        let policy =
            policy(json!({ "deny_prefixes": ["/secret/"], "checked": "all", "deny_scope": "file_tools" }));
        assert!(policy.refusal(Operation::Read, "/secret/key", "/secret/key").is_some());
        let bound = policy.bound().unwrap();
        assert_eq!((bound.denied, bound.denied_for_files_only), (vec!["/secret".to_owned()], true));
    }

    #[test]
    fn allowed_prefixes_bind_commands_by_the_kernel() {
        let policy = policy(json!({
            "allow_prefixes": ["/workspace/"], "read_prefixes": ["/usr"], "network": "none", "policy_required": true,
        }));
        let bound = policy.bound().unwrap();
        assert_eq!(
            (bound.writable, bound.readable),
            (vec!["/workspace".to_owned()], vec!["/usr".to_owned()])
        );
        assert!(bound.required && bound.network == Some(Network::None));
    }

    #[test]
    fn a_denial_that_commands_can_not_be_held_to_is_refused_unless_that_is_known() {
        let error = refused(json!({ "deny_prefixes": ["/etc"] }));
        assert!(error.contains("'/etc'") && error.contains("deny_scope to 'file_tools'"), "{error}");
        refused(json!({ "allow_prefixes": ["/w"], "deny_prefixes": ["/w/secret"] }));
        policy(json!({ "allow_prefixes": ["/w"], "deny_prefixes": ["/etc"] })).check().unwrap();
        policy(json!({ "deny_prefixes": ["/etc"], "checked": ["write"] })).check().unwrap();
    }

    /// Row G5.
    #[test]
    fn g5_a_relative_root_is_refused_in_these_words() {
        let error = refused(json!({ "root_dir": "app" }));
        assert!(error.contains("root_dir must be an absolute path, got: app"), "{error}");
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        refused(json!({ "allow_prefixes": ["tmp"] }));
        refused(json!({ "deny_prefixes": ["/a/../b"], "deny_scope": "file_tools" }));
        refused(json!({ "deny_commands": [""] }));
        for nonsense in [json!({ "checked": "some" }), json!({ "network": "maybe" }), json!({ "allow": [] })]
        {
            assert!(serde_json::from_value::<SandboxPolicy>(nonsense).is_err());
        }
    }

    #[test]
    fn what_is_written_is_read_again() {
        let fields = json!({
            "root_dir": "/app", "checked": ["write", "edit"], "traversal": "refuse",
            "network": { "connect": [443], "listen": [] }, "deny_commands": ["curl"],
        });
        let policy = policy(fields);
        assert_eq!(
            serde_json::from_value::<SandboxPolicy>(serde_json::to_value(&policy).unwrap()).unwrap(),
            policy
        );
    }
}
