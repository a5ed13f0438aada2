//! The policy of a sandbox, as it is configured.

use std::collections::BTreeSet;

use sandpod_client::{Bytes, Network, Policy};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::commands::CommandRules;
use super::operation::Operation;
use super::paths::{Root, Traversal, intersection, is_below, normalised};
use crate::{Error, ErrorKind, Result};

/// Limits of paths, commands and network: part of a configuration or of a request, with the same names in TOML and
/// JSON.
///
/// Paths are those in the sandbox. The guest enforces the policy for file calls, on the path that its kernel resolves.
/// The kernel enforces `allow_prefixes`, `read_prefixes` and `network` for commands. docs/policy.md has examples.
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
    /// Whether results show paths of the sandbox instead of paths below `root_dir`.
    pub show_real_paths: bool,
    /// Whether a path that is already below `root_dir` is used unchanged.
    pub accept_real_paths: bool,
    /// The treatment of `..` in paths below `root_dir`.
    pub traversal: Traversal,
    /// Directories that checked operations may use. None: all directories.
    pub allow_prefixes: Option<Vec<String>>,
    /// Directories that checked operations may not use.
    pub deny_prefixes: Vec<String>,
    /// The operations to which `allow_prefixes` and `deny_prefixes` apply.
    pub checked: Checked,
    /// Whether `deny_prefixes` also apply to commands. The kernel cannot deny a directory below an allowed one.
    pub deny_scope: DenyScope,
    /// Directories that file calls and commands may read. Programs must be below one of them. None: all directories.
    pub read_prefixes: Option<Vec<String>>,
    /// Network access of commands. None: the access of the sandbox.
    #[serde(with = "network")]
    pub network: Option<Network>,
    /// Whether a sandbox is rejected if its kernel cannot enforce the policy for commands.
    pub policy_required: bool,
    /// Denied programs, with words that a command must have. A guard rail, not a security boundary.
    pub deny_commands: Vec<String>,
    /// Texts that no command may contain. A guard rail, not a security boundary.
    pub deny_texts: Vec<String>,
}

/// The operations to which prefixes apply.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub enum Checked {
    /// All operations that change files, including commands.
    #[default]
    Changes,
    /// All operations. For commands, `read_prefixes` limits reads.
    All,
    /// The listed operations. If one of them runs commands, all changes are included.
    These(BTreeSet<Operation>),
}

/// The scope of `deny_prefixes`.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DenyScope {
    /// File calls and commands. A policy that cannot be enforced for commands is rejected.
    #[default]
    All,
    /// File calls only.
    FileTools,
}

impl Checked {
    /// Returns whether prefixes apply to the operation.
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
    /// Parses a policy from JSON and checks it.
    pub fn from_json(json: &str) -> Result<Self> {
        let policy: Self = serde_json::from_str(json)
            .map_err(|error| unusable(&error.to_string(), "See docs/policy.md."))?;
        policy.check()?;
        Ok(policy)
    }

    /// Checks that the policy is valid and can be enforced.
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
                let why = format!("the prefix '{prefix}' is not an absolute path, or contains '..'");
                return Err(unusable(&why, "Name the directory that it means."));
            }
        }
        self.check_denied()?;
        // The guest takes an empty list of writable roots as no restriction.
        if self.binds_commands() && self.allow_prefixes.as_ref().is_some_and(Vec::is_empty) {
            let next =
                "Name a directory that they may write to, or the file operations that it binds in checked.";
            return Err(unusable("allow_prefixes is empty, which cannot be enforced for commands", next));
        }
        self.command_rules().map(drop)
    }

    /// Rejects denied prefixes that overlap allowed ones. The kernel only knows allowed directories, so it cannot
    /// enforce an exception for commands.
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

    /// Returns the policy that the sandbox is bound to, for all its clients. None if it is empty.
    pub(crate) fn bound(&self) -> Result<Option<Policy>> {
        let client_rules = self.client_rules().as_ref().map(Self::to_bytes).transpose()?.unwrap_or_default();
        let policy = Policy { client_rules, ..self.enforced().unwrap_or_default() };
        Ok((policy != Policy::default()).then_some(policy))
    }

    /// Returns the rules that only clients check: rules on commands, and prefixes that the guest does not enforce for all
    /// calls. `root_dir` is the view of one handle, so it is not among them.
    fn client_rules(&self) -> Option<Self> {
        let enforces_prefixes = self.binds_commands() || self.allow_prefixes.is_none();
        let enforces_denials = self.checked == Checked::All || self.deny_prefixes.is_empty();
        let rules = if enforces_prefixes && enforces_denials {
            Self::default()
        } else {
            Self {
                allow_prefixes: self.allow_prefixes.clone(),
                deny_prefixes: self.deny_prefixes.clone(),
                checked: self.checked.clone(),
                deny_scope: self.deny_scope,
                ..Self::default()
            }
        };
        let rules =
            Self { deny_commands: self.deny_commands.clone(), deny_texts: self.deny_texts.clone(), ..rules };
        (rules != Self::default()).then_some(rules)
    }

    fn to_bytes(&self) -> Result<Bytes> {
        let no_json = |cause| unusable(&format!("it cannot be written as JSON: {cause}"), "Report this.");
        Ok(serde_json::to_vec(self).map_err(no_json)?.into())
    }

    /// Returns the policy whose rules a guest has kept for clients. None if there are none.
    pub(crate) fn of_client_rules(rules: &[u8]) -> Result<Option<Self>> {
        if rules.is_empty() {
            return Ok(None);
        }
        let unknown = |cause| {
            Error::new(
                ErrorKind::Unsupported,
                format!("The sandbox is bound to a policy that this version cannot read: {cause}."),
                "Use the version of sandpod that created the sandbox.",
            )
        };
        serde_json::from_slice(rules).map(Some).map_err(unknown)
    }

    /// Returns whether `bound` are the rules of this policy that only clients check.
    pub(crate) fn has_client_rules(&self, bound: &Self) -> bool {
        self.client_rules().as_ref() == Some(bound)
    }

    /// Returns the part of the policy that the guest and its kernel enforce. None if that part is empty.
    pub(crate) fn enforced(&self) -> Option<Policy> {
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
            client_rules: Bytes::new(),
        };
        (policy != Policy::default()).then_some(policy)
    }

    /// Returns the directories that the operation may use. None: all directories; an empty list: no directory.
    pub(crate) fn within(&self, operation: Operation) -> Option<Vec<String>> {
        let is_checked = self.checked.has(operation);
        let root = self.root_dir.as_deref().map(|dir| vec![normalised(dir)]);
        let allowed = self.allow_prefixes.as_deref().filter(|_| is_checked).map(normalised_all);
        match (root, allowed) {
            (Some(root), Some(allowed)) => Some(intersection(&root, &allowed)),
            (root, allowed) => root.or(allowed),
        }
    }

    /// Returns the directories that the operation may not use.
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

    /// Returns why an operation on a path is denied, if it is. It checks only the text of the path and is no
    /// enforcement.
    #[must_use]
    pub fn denies(&self, operation: Operation, path: &str) -> Option<String> {
        self.refusal(operation, path, path)
    }

    /// Returns why an operation is denied by the text of a path, if it is. `shown` is the path that the caller used.
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

/// Formats prefixes as a Python tuple, each with a trailing slash: the text that models know.
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

    #[expect(clippy::ref_option, reason = "serde defines the signature")]
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

    /// Row G1: only the listed operations are checked, and a prefix is a directory.
    #[test]
    fn g1_only_checked_operations_are_limited_to_allowed_prefixes() {
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
        assert_eq!(policy.enforced(), None, "commands are not bound");
    }

    /// Row G3.
    #[test]
    fn g3_prefixes_apply_to_the_resolved_path() {
        let policy = policy(json!({
            "root_dir": "/tmp", "accept_real_paths": true, "allow_prefixes": ["/tmp/src"], "checked": ["write"],
        }));
        policy.check().unwrap();
        let real = policy.root().unwrap().real("/src/main.py").unwrap();
        assert_eq!(policy.refusal(Operation::Write, &real, "/src/main.py"), None);
        assert_eq!(policy.within(Operation::Write).unwrap(), ["/tmp/src"]);
        assert_eq!(policy.within(Operation::Upload).unwrap(), ["/tmp"]);
    }

    /// Row G3: prefixes outside the root deny each checked call, with the text that models know.
    #[test]
    fn g3_prefixes_outside_the_root_deny_every_checked_operation() {
        let policy = policy(json!({ "root_dir": "/tmp", "allow_prefixes": ["/src"], "checked": ["write"] }));
        policy.check().unwrap();
        let message = "Path '/a' is not under any allowed prefix: ('/src/',)";
        assert_eq!(policy.refusal(Operation::Write, "/tmp/a", "/a").as_deref(), Some(message));
        assert_eq!(policy.within(Operation::Write).unwrap(), Vec::<String>::new());
        assert_eq!(policy.within(Operation::Read).unwrap(), ["/tmp"]);
    }

    #[test]
    fn empty_allow_prefixes_deny_every_checked_operation() {
        let policy = policy(json!({ "allow_prefixes": [], "checked": ["write"] }));
        policy.check().unwrap();
        let message = "Path '/a' is not under any allowed prefix: ()";
        assert_eq!(policy.refusal(Operation::Write, "/a", "/a").as_deref(), Some(message));
        assert_eq!(policy.within(Operation::Write), Some(Vec::new()));
        let error = refused(json!({ "allow_prefixes": [] }));
        assert!(error.contains("which cannot be enforced for commands"), "{error}");
    }

    /// Row G6.
    #[test]
    fn g6_denied_prefix_applies_to_every_spelling_but_not_to_reads() {
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
        assert_eq!(policy.enforced(), None, "reads are allowed, so the guest does not enforce it");
    }

    #[test]
    fn checking_all_operations_denies_reads_in_the_whole_sandbox() {
        let policy =
            policy(json!({ "deny_prefixes": ["/secret/"], "checked": "all", "deny_scope": "file_tools" }));
        assert!(policy.refusal(Operation::Read, "/secret/key", "/secret/key").is_some());
        let bound = policy.bound().unwrap().unwrap();
        assert_eq!((bound.denied, bound.denied_for_files_only), (vec!["/secret".to_owned()], true));
    }

    #[test]
    fn allowed_prefixes_are_bound_for_commands() {
        let policy = policy(json!({
            "allow_prefixes": ["/workspace/"], "read_prefixes": ["/usr"], "network": "none", "policy_required": true,
        }));
        let bound = policy.bound().unwrap().unwrap();
        assert_eq!(
            (bound.writable, bound.readable),
            (vec!["/workspace".to_owned()], vec!["/usr".to_owned()])
        );
        assert!(bound.required && bound.network == Some(Network::None));
    }

    #[test]
    fn unenforceable_denial_is_rejected_unless_it_is_for_file_tools() {
        let error = refused(json!({ "deny_prefixes": ["/etc"] }));
        assert!(error.contains("'/etc'") && error.contains("deny_scope to 'file_tools'"), "{error}");
        refused(json!({ "allow_prefixes": ["/w"], "deny_prefixes": ["/w/secret"] }));
        policy(json!({ "allow_prefixes": ["/w"], "deny_prefixes": ["/etc"] })).check().unwrap();
        policy(json!({ "deny_prefixes": ["/etc"], "checked": ["write"] })).check().unwrap();
    }

    /// Row G5.
    #[test]
    fn g5_relative_root_is_rejected_with_the_documented_message() {
        let error = refused(json!({ "root_dir": "app" }));
        assert!(error.contains("root_dir must be an absolute path, got: app"), "{error}");
    }

    #[test]
    fn invalid_policies_are_rejected() {
        refused(json!({ "allow_prefixes": ["tmp"] }));
        refused(json!({ "deny_prefixes": ["/a/../b"], "deny_scope": "file_tools" }));
        refused(json!({ "deny_commands": [""] }));
        for nonsense in [json!({ "checked": "some" }), json!({ "network": "maybe" }), json!({ "allow": [] })]
        {
            assert!(serde_json::from_value::<SandboxPolicy>(nonsense).is_err());
        }
    }

    #[test]
    fn policy_survives_serialization() {
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
