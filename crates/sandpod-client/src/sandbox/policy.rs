//! Policies, and how far a sandbox's kernel enforces them.

use bytes::Bytes;
use sandpod_protocol::v1::{self, network::Rule};

/// Limits of calls: of all calls by [`Binding`](crate::Binding), or of one command, which can only narrow them. Empty fields
/// change nothing.
///
/// The sandbox's kernel enforces them on commands, as far as it can: see [`Enforced`].
///
/// ```
/// use sandpod_client::{Network, Policy};
///
/// // Read everything, write two directories, no network.
/// let policy = Policy {
///     writable: vec!["/workspace".to_owned(), "/tmp".to_owned()],
///     network: Some(Network::None),
///     required: true,
///     ..Policy::default()
/// };
/// # let _ = policy;
/// ```
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Policy {
    /// Directories that may be read; they must include programs and their libraries. Empty: everything may be read.
    pub readable: Vec<String>,
    /// Directories that may be read and written. Empty: everything may be written, or nothing if `readable` is not empty.
    pub writable: Vec<String>,
    /// Paths below these directories that are denied. The kernel cannot enforce this on commands, so it is an error unless
    /// [`denied_for_files_only`](Self::denied_for_files_only) is set.
    pub denied: Vec<String>,
    /// Accept that `denied` binds file calls and not commands.
    pub denied_for_files_only: bool,
    /// Network access of commands.
    pub network: Option<Network>,
    /// Refuse to run a command on which the kernel cannot enforce the policy.
    pub required: bool,
    /// Rules that the sandbox's clients check, in a format of theirs. The sandbox keeps them for later clients and does not
    /// enforce them. No effect in the policy of a command.
    pub client_rules: Bytes,
}

/// Network access of commands.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Network {
    /// As the sandbox has it.
    Open,
    /// No network: only Unix sockets.
    None,
    /// TCP only, and only these ports. DNS uses UDP, so addresses must be numeric.
    Ports {
        /// Ports that commands may connect to.
        connect: Vec<u16>,
        /// Ports that commands may listen on; 0 stands for a port that the kernel chooses.
        listen: Vec<u16>,
    },
}

/// The restrictions that the guest can enforce on its kernel, as tested by the guest. Where a field is false, that part of a
/// policy has no effect, unless the policy is required.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "each is independent")]
#[non_exhaustive]
pub struct Enforced {
    /// Directories of commands.
    pub files: bool,
    /// [`Network::None`].
    pub network: bool,
    /// [`Network::Ports`].
    pub ports: bool,
    /// Commands under a policy cannot trace or inspect processes that the policy does not bind. Without it, a command without
    /// network access can use such a process of its user to reach the network.
    pub processes: bool,
    /// Commands cannot signal the guest.
    pub signals: bool,
    /// The kernel resolves the paths of file calls in one step.
    pub kernel_paths: bool,
    /// A command that exceeds the memory limit is killed before the sandbox is.
    pub memory: bool,
}

impl From<Policy> for v1::Policy {
    fn from(policy: Policy) -> Self {
        Self {
            readable: policy.readable,
            writable: policy.writable,
            denied: policy.denied,
            denied_for_files_only: policy.denied_for_files_only,
            network: policy.network.map(Into::into),
            required: policy.required,
            client_rules: policy.client_rules,
        }
    }
}

impl From<Network> for v1::Network {
    fn from(network: Network) -> Self {
        let numbers = |ports: Vec<u16>| ports.into_iter().map(u32::from).collect();
        let rule = match network {
            Network::Open => Rule::Open(true),
            Network::None => Rule::None(true),
            Network::Ports { connect, listen } => {
                Rule::Ports(v1::Ports { connect: numbers(connect), listen: numbers(listen) })
            }
        };
        Self { rule: Some(rule) }
    }
}

/// A guest that sends nothing enforces nothing.
impl From<Option<v1::Enforced>> for Enforced {
    fn from(enforced: Option<v1::Enforced>) -> Self {
        let said = enforced.unwrap_or_default();
        Self {
            files: said.files,
            network: said.network,
            ports: said.ports,
            processes: said.processes,
            signals: said.signals,
            kernel_paths: said.kernel_paths,
            memory: said.memory,
        }
    }
}
