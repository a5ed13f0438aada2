//! Policies, as far as a stock runtime can enforce them: on file calls, not on commands.
//!
//! [`Rules`] are the limits of one file call: the policy of the sandbox and the bounds of the call. Before the call, a script
//! resolves its paths, and this process checks them. This is weaker than in a guest, which opens what it has checked: a
//! command that replaces a directory by a link between the two requests redirects the call. Therefore a policy that is
//! `required` is refused.

use bytes::Bytes;
use data_encoding::BASE64;
use prost::Message as _;
use sandpod_protocol::v1::{Bounds, ErrorCode, Policy};
use sandpod_protocol::{BOUNDS_METADATA, Failure, limits};
use serde::{Deserialize, Serialize};
use tonic::metadata::MetadataMap;

use crate::RuntimeKind;
use crate::script_job::{ScriptJob, ScriptJobs, script};

/// Returns the error for a required policy.
pub(crate) fn required(kind: RuntimeKind) -> String {
    format!(
        "policy: the stock runtime '{}' cannot enforce a policy on commands, and the policy is required: put sandpod's guest \
         into the template, allow pods/exec, or do not require it",
        kind.as_str()
    )
}

/// The access of a file call to a path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Purpose {
    doing: &'static str,
    access: Access,
    /// Whether the call works on a link itself, if the path ends in one.
    is_link: bool,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Access {
    Read,
    Change,
    /// Also everything below the path.
    ChangeWhole,
}

impl Purpose {
    pub(crate) const LOOK: Self = Self::new("look at", Access::Read);
    pub(crate) const LIST: Self = Self::new("list", Access::Read);
    pub(crate) const READ: Self = Self::new("read", Access::Read);
    pub(crate) const SEARCH: Self = Self::new("search", Access::Read);
    pub(crate) const WRITE: Self = Self::new("write", Access::Change);
    pub(crate) const EDIT: Self = Self::new("edit", Access::Change);
    pub(crate) const DELETE: Self = Self::new("delete", Access::ChangeWhole).of_link();
    pub(crate) const MOVE: Self = Self::new("move", Access::ChangeWhole).of_link();

    const fn new(doing: &'static str, access: Access) -> Self {
        Self { doing, access, is_link: false }
    }

    pub(crate) const fn of_link(self) -> Self {
        Self { is_link: true, ..self }
    }
}

/// The policy that a sandbox is bound to, as stored in its file.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub(crate) struct BoundPolicy {
    /// The policy as requested, for comparison with later requests.
    asked: String,
    roots: Roots,
}

/// The accessible directories, as [`normalised`] paths.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
struct Roots {
    readable: Vec<Vec<u8>>,
    writable: Vec<Vec<u8>>,
    denied: Vec<Vec<u8>>,
}

impl BoundPolicy {
    /// Checks a policy and resolves the links in its paths once: a link that a command creates there later allows nothing.
    pub(crate) async fn new(jobs: &std::sync::Arc<ScriptJobs>, policy: &Policy) -> Result<Self, Failure> {
        if policy.required {
            return Err(Failure::new(ErrorCode::Unsupported, required(jobs.kind())));
        }
        check(policy)?;
        let paths: Vec<_> =
            [&policy.readable, &policy.writable, &policy.denied].into_iter().flatten().collect();
        let mut real = Vec::new();
        if !paths.is_empty() {
            let job = jobs.job();
            job.put_words(&paths.iter().map(|path| path.as_bytes()).collect::<Vec<_>>()).await?;
            let numbers: Vec<_> = (1..=paths.len()).map(|number| number.to_string()).collect();
            real = real_paths(&job, &numbers).await?;
        }
        let denied = real.split_off(policy.readable.len() + policy.writable.len());
        let writable = real.split_off(policy.readable.len());
        Ok(Self { asked: Self::name(policy), roots: Roots { readable: real, writable, denied } })
    }

    /// Returns whether `policy` differs from the one that the sandbox is bound to.
    pub(crate) fn is_other(&self, policy: &Policy) -> bool {
        self.asked != Self::name(policy)
    }

    /// Returns the rules that the clients of the sandbox check.
    pub(crate) fn client_rules(&self) -> Bytes {
        let asked = BASE64.decode(self.asked.as_bytes()).ok();
        let asked = asked.and_then(|asked| Policy::decode(&*asked).ok());
        asked.map(|policy| policy.client_rules).unwrap_or_default()
    }

    fn name(policy: &Policy) -> String {
        BASE64.encode(&policy.encode_to_vec())
    }
}

/// The limits of one file call.
#[derive(Debug, Default)]
pub(crate) struct Rules {
    all: Vec<Roots>,
    /// Denied paths of the call, whose links are resolved during the call.
    denied: Vec<String>,
}

impl Rules {
    /// Returns the rules of a call with this metadata in a sandbox with this policy.
    pub(crate) fn new(bound: Option<BoundPolicy>, metadata: &MetadataMap) -> Result<Self, Failure> {
        let mut rules =
            Self { all: bound.into_iter().map(|bound| bound.roots).collect(), denied: Vec::new() };
        let unclear = || invalid("the bounds of this call are invalid");
        let Some(encoded) = metadata.get_bin(BOUNDS_METADATA) else { return Ok(rules) };
        let encoded = encoded.to_bytes().map_err(|_| unclear())?;
        let Bounds { within, denied } = Bounds::decode(encoded).map_err(|_| unclear())?;
        // Allowed directories are compared by name: a link that a command created there allows nothing.
        let within = roots("within", &within)?;
        let roots = Roots { readable: within.clone(), writable: within, denied: roots("denied", &denied)? };
        rules.all.push(roots);
        rules.denied = denied;
        Ok(rules)
    }

    /// Returns whether everything is allowed, so that no script has to resolve paths.
    pub(crate) fn are_none(&self) -> bool {
        self.all.iter().all(|roots| *roots == Roots::default())
    }

    /// Sends words to a job, and fails if one of its paths resolves to a place that the rules forbid. The paths are the first
    /// words. Returns the resolved paths if there are rules.
    pub(crate) async fn admit(
        &self,
        job: &ScriptJob,
        words: &[&[u8]],
        paths: &[(&str, Purpose)],
    ) -> Result<Vec<Vec<u8>>, Failure> {
        let denied = self.denied.iter().map(String::as_bytes);
        job.put_words(&words.iter().copied().chain(denied).collect::<Vec<_>>()).await?;
        if self.are_none() {
            return Ok(Vec::new());
        }
        let number = |(at, (_, purpose)): (usize, &(_, Purpose))| {
            format!("{}{}", at + 1, if purpose.is_link { "l" } else { "" })
        };
        let of_paths = paths.iter().enumerate().map(number);
        let of_denied = (0..self.denied.len()).map(|at| (words.len() + at + 1).to_string());
        let mut real = real_paths(job, &of_paths.chain(of_denied).collect::<Vec<_>>()).await?;
        let denied = real.split_off(paths.len());
        for ((path, purpose), real) in paths.iter().zip(&real) {
            let now = Roots { denied: denied.clone(), ..Roots::default() };
            if !self.allow(real, purpose.access) || !now.allow(real, purpose.access) {
                return Err(forbidden(path, *purpose));
            }
        }
        Ok(real)
    }

    /// Returns whether a path below a directory, which is no link, may be read.
    pub(crate) fn allow_below(&self, real: &[u8], name: &str) -> bool {
        self.allow(&normalised(&[real, b"/", name.as_bytes()].concat()), Access::Read)
    }

    fn allow(&self, real: &[u8], access: Access) -> bool {
        self.all.iter().all(|roots| roots.allow(real, access))
    }
}

impl Roots {
    /// Returns whether the rules allow this access to a resolved path.
    fn allow(&self, real: &[u8], access: Access) -> bool {
        let within = |roots: &[Vec<u8>]| roots.iter().any(|root| is_below(real, root));
        let unrestricted = match access {
            Access::Read => self.readable.is_empty(),
            Access::Change | Access::ChangeWhole => self.readable.is_empty() && self.writable.is_empty(),
        };
        let in_roots = within(&self.writable) || access == Access::Read && within(&self.readable);
        let takes_denied =
            access == Access::ChangeWhole && self.denied.iter().any(|denied| is_below(denied, real));
        (unrestricted || in_roots) && !within(&self.denied) && !takes_denied
    }
}

/// Resolves the paths in a job's words with these numbers.
async fn real_paths(job: &ScriptJob, numbers: &[String]) -> Result<Vec<Vec<u8>>, Failure> {
    let said = job.run(script!("real"), &[&numbers.join(" ")]).await?;
    let real: Vec<_> = said.split(|byte| *byte == 0).map(normalised).collect();
    match real.split_last() {
        Some((last, real)) if last.is_empty() && real.len() == numbers.len() => Ok(real.to_vec()),
        _ => Err(Failure::new(ErrorCode::Internal, "the script's report on resolved paths is invalid")),
    }
}

/// Removes empty components, `.` and `..`; `/` becomes empty. A component before `..` does not exist here, so it is no link.
fn normalised(path: &[u8]) -> Vec<u8> {
    let mut steps: Vec<&[u8]> = Vec::new();
    for step in path.split(|byte| *byte == b'/') {
        match step {
            b"" | b"." => {}
            b".." => drop(steps.pop()),
            step => steps.push(step),
        }
    }
    steps.into_iter().flat_map(|step| [b"/", step]).flatten().copied().collect()
}

fn is_below(path: &[u8], root: &[u8]) -> bool {
    path.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
}

/// Rejects an invalid policy, or one that no sandbox could enforce.
fn check(policy: &Policy) -> Result<(), Failure> {
    let readable = roots("readable", &policy.readable)?;
    let writable = roots("writable", &policy.writable)?;
    let denied = roots("denied", &policy.denied)?;
    let is_allowed = |denied: &Vec<u8>| {
        let touches = |root: &Vec<u8>| is_below(denied, root) || is_below(root, denied);
        readable.is_empty() || readable.iter().chain(&writable).any(touches)
    };
    match policy.denied.iter().zip(&denied).find(|(_, denied)| is_allowed(denied)) {
        Some((path, _)) if !policy.denied_for_files_only => {
            let message = format!(
                "the denied path '{path}' is in an allowed directory, and commands cannot be restricted like that: allow less, or state \
                 that the denied paths bind file calls only"
            );
            Err(Failure::new(ErrorCode::Policy, message).at(path))
        }
        _ => Ok(()),
    }
}

/// Checks the paths of one list.
fn roots(what: &str, paths: &[String]) -> Result<Vec<Vec<u8>>, Failure> {
    let most = limits::MAX_POLICY_PATHS;
    if paths.len() > most {
        let message = format!("the policy has {} {what} paths, and the limit is {most}", paths.len());
        return Err(Failure::new(ErrorCode::TooLarge, message));
    }
    let root = |path: &String| {
        sandpod_text::path::check(path)?;
        if path.split('/').any(|step| step == "..") {
            let message = "a path of a policy contains '..': use the path of the directory itself";
            return Err(invalid(message).at(path));
        }
        Ok(normalised(path.as_bytes()))
    };
    paths.iter().map(root).collect()
}

fn invalid(message: &str) -> Failure {
    Failure::new(ErrorCode::InvalidArgument, message)
}

fn forbidden(path: &str, purpose: Purpose) -> Failure {
    let message = format!(
        "cannot {} '{path}': the policy of this sandbox does not allow it. Use a path that it allows, or have its owner \
         change it",
        purpose.doing
    );
    Failure::new(ErrorCode::Policy, message).at(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owned(paths: &[&str]) -> Vec<String> {
        paths.iter().map(|path| (*path).to_owned()).collect()
    }

    fn rules(readable: &[&str], writable: &[&str], denied: &[&str]) -> Roots {
        let roots = |paths| roots("", &owned(paths)).unwrap();
        Roots { readable: roots(readable), writable: roots(writable), denied: roots(denied) }
    }

    #[test]
    fn reading_needs_a_root_and_changing_a_writable_one() {
        let rules = rules(&["/r"], &["/w/"], &["/w/no"]);
        let allow = |path: &str, access| rules.allow(path.as_bytes(), access);
        assert!(allow("/r/x", Access::Read) && allow("/r", Access::Read) && allow("/w/x", Access::Read));
        assert!(allow("/w/x", Access::Change) && !allow("/r/x", Access::Change));
        assert!(!allow("/rx", Access::Read) && !allow("", Access::Read));
        assert!(!allow("/w/no/x", Access::Read) && !allow("/w", Access::ChangeWhole));
        assert!(allow("/w", Access::Change) && allow("/w/other", Access::ChangeWhole));
    }

    #[test]
    fn writable_roots_alone_leave_everything_readable() {
        assert!(rules(&[], &["/w"], &[]).allow(b"/etc", Access::Read));
        assert!(!rules(&[], &["/w"], &[]).allow(b"/etc", Access::Change));
        assert!(rules(&[], &["/"], &[]).allow(b"/etc", Access::Change));
    }

    #[test]
    fn dot_dot_after_missing_directories_is_resolved() {
        assert_eq!(normalised(b"/w/none/../../etc//./x/"), b"/etc/x");
        assert_eq!(normalised(b"/.."), b"");
    }

    #[test]
    fn denied_path_in_an_allowed_directory_must_be_for_files_only() {
        let policy = |files_only| Policy {
            writable: owned(&["/w"]),
            denied: owned(&["/w/no"]),
            denied_for_files_only: files_only,
            ..Policy::default()
        };
        assert_eq!(check(&policy(false)).unwrap_err().code(), ErrorCode::Policy);
        check(&policy(true)).unwrap();
        assert!(roots("", &owned(&["/a/../b"])).is_err() && roots("", &owned(&["relative"])).is_err());
    }
}
