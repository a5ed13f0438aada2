//! A validated policy.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use sandpod_protocol::v1::network::Rule;
use sandpod_protocol::v1::{self, ErrorCode};
use sandpod_protocol::{Failure, limits};

use crate::files::absolute;

/// Restrictions of commands.
#[derive(Debug, Default)]
pub(crate) struct Rules {
    /// `None`: every file.
    pub(super) roots: Option<Roots>,
    /// `None`: not specified.
    pub(super) network: Option<Network>,
    /// Whether a command is refused if the kernel cannot enforce the rules.
    pub(super) required: bool,
}

/// Directories in which files may be accessed.
#[derive(Debug)]
pub(super) struct Roots {
    /// Readable directories besides the writable ones; `None`: everywhere.
    pub(super) readable: Option<Vec<PathBuf>>,
    pub(super) writable: Vec<PathBuf>,
}

/// Sockets that commands may use.
#[derive(Debug)]
pub(super) enum Network {
    Open,
    Ports { connect: BTreeSet<u16>, listen: BTreeSet<u16> },
    None,
}

impl Rules {
    /// Validates a policy. Its paths are not resolved.
    pub(crate) fn new(policy: &v1::Policy) -> Result<Self, Failure> {
        let readable = paths("readable", &policy.readable)?;
        let writable = paths("writable", &policy.writable)?;
        let denied = paths("denied", &policy.denied)?;
        let roots = match (readable.is_empty(), writable.is_empty()) {
            (true, true) => None,
            (no_readable, _) => Some(Roots { readable: (!no_readable).then_some(readable), writable }),
        };
        if !policy.denied_for_files_only {
            check_denied(roots.as_ref(), &denied)?;
        }
        let network = policy.network.as_ref().and_then(|network| network.rule.as_ref());
        Ok(Self { roots, network: network.map(Network::new).transpose()?, required: policy.required })
    }

    /// Refuses rules of a command that are wider than those of the sandbox.
    pub(crate) fn check_within(&self, bound: &Self) -> Result<(), Failure> {
        if let (Some(wanted), Some(bound)) = (&self.roots, &bound.roots) {
            wanted.check_within(bound)?;
        }
        match (&self.network, &bound.network) {
            (Some(wanted), Some(bound)) => wanted.check_within(bound),
            _ => Ok(()),
        }
    }
}

impl Roots {
    fn check_within(&self, bound: &Self) -> Result<(), Failure> {
        if let Some(path) = self.writable.iter().find(|path| !is_below(path, &bound.writable)) {
            return Err(wider(&format!("'{}' is not below one of its writable roots", path.display())));
        }
        let (Some(wanted), Some(readable)) = (&self.readable, &bound.readable) else { return Ok(()) };
        let outside = |path: &&PathBuf| !is_below(path, readable) && !is_below(path, &bound.writable);
        match wanted.iter().find(outside) {
            Some(path) => Err(wider(&format!("'{}' is not below one of its roots", path.display()))),
            None => Ok(()),
        }
    }
}

impl Network {
    fn new(rule: &Rule) -> Result<Self, Failure> {
        match rule {
            Rule::Open(true) => Ok(Self::Open),
            Rule::None(true) => Ok(Self::None),
            Rule::Open(false) | Rule::None(false) => {
                Err(invalid("a network rule must be true: leave it out, or name another"))
            }
            Rule::Ports(rule) => {
                let connect = ports(&rule.connect)?;
                if connect.contains(&0) {
                    return Err(invalid("no connection to port 0 is possible: name ports from 1 to 65535"));
                }
                Ok(Self::Ports { connect, listen: ports(&rule.listen)? })
            }
        }
    }

    fn check_within(&self, bound: &Self) -> Result<(), Failure> {
        match (self, bound) {
            (Self::None, _) | (_, Self::Open) => Ok(()),
            (_, Self::None) => Err(wider("it has no network")),
            (Self::Open, Self::Ports { .. }) => Err(wider("its network is not open, but has certain ports")),
            (
                Self::Ports { connect, listen },
                Self::Ports { connect: bound_connect, listen: bound_listen },
            ) => match connect.difference(bound_connect).chain(listen.difference(bound_listen)).next() {
                Some(port) => Err(wider(&format!("port {port} is not one of its ports"))),
                None => Ok(()),
            },
        }
    }
}

/// Validates a policy and resolves the links in its paths, now: a link that is put there later has no
/// effect.
pub(crate) fn resolve(mut policy: v1::Policy) -> Result<v1::Policy, Failure> {
    Rules::new(&policy)?;
    for path in policy.readable.iter_mut().chain(&mut policy.writable).chain(&mut policy.denied) {
        // A target that is not UTF-8 leaves the path unresolved: behind a link it then allows nothing.
        if let Ok(real) = real_path(Path::new(path)).into_os_string().into_string() {
            *path = real;
        }
    }
    Ok(policy)
}

/// Resolves a path. The part that does not exist yet is appended as it is.
pub(crate) fn real_path(path: &Path) -> PathBuf {
    let above = path.ancestors().find_map(|above| Some((above, above.canonicalize().ok()?)));
    let Some((above, real)) = above else { return path.to_owned() };
    match path.strip_prefix(above) {
        Ok(rest) if !rest.as_os_str().is_empty() => real.join(rest),
        _ => real,
    }
}

/// Validates the paths of one kind.
pub(crate) fn paths(what: &str, paths: &[String]) -> Result<Vec<PathBuf>, Failure> {
    let most = limits::MAX_POLICY_PATHS;
    if paths.len() > most {
        let message = format!("the policy has {} {what} paths, but at most {most} are allowed", paths.len());
        return Err(Failure::new(ErrorCode::TooLarge, message));
    }
    paths.iter().map(|path| root(path)).collect()
}

fn root(path: &str) -> Result<PathBuf, Failure> {
    let root = absolute(path)?;
    if root.components().any(|part| part == std::path::Component::ParentDir) {
        return Err(invalid("a path of a policy has a '..' in it: name the directory that it means").at(path));
    }
    Ok(root)
}

fn ports(ports: &[u32]) -> Result<BTreeSet<u16>, Failure> {
    let most = limits::MAX_POLICY_PORTS;
    if ports.len() > most {
        let message = format!("the policy has {} ports, but at most {most} are allowed", ports.len());
        return Err(Failure::new(ErrorCode::TooLarge, message));
    }
    let port = |port: &u32| {
        u16::try_from(*port).map_err(|_| invalid(&format!("there is no port {port}: the last is 65535")))
    };
    ports.iter().map(port).collect()
}

/// Refuses denied paths that lie within allowed ones: Landlock rules only allow, and cannot except.
fn check_denied(roots: Option<&Roots>, denied: &[PathBuf]) -> Result<(), Failure> {
    let overlaps = |denied: &&PathBuf| match roots {
        None | Some(Roots { readable: None, .. }) => true,
        Some(Roots { readable: Some(readable), writable }) => {
            readable.iter().chain(writable).any(|root| denied.starts_with(root) || root.starts_with(denied))
        }
    };
    let Some(path) = denied.iter().find(overlaps) else { return Ok(()) };
    let message = format!(
        "the kernel cannot deny commands access to '{}', because it overlaps an allowed path: allow less, or let \
         the denied paths bind file calls only",
        path.display()
    );
    Err(Failure::new(ErrorCode::Policy, message).at(path.to_string_lossy()))
}

fn is_below(path: &Path, roots: &[PathBuf]) -> bool {
    roots.iter().any(|root| path.starts_with(root))
}

fn wider(why: &str) -> Failure {
    let message = format!("a command's policy only narrows that of its sandbox, and {why}");
    Failure::new(ErrorCode::Policy, message)
}

fn invalid(message: &str) -> Failure {
    Failure::new(ErrorCode::InvalidArgument, message)
}
