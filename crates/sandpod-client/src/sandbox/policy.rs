//! What may be touched in a sandbox, and what of that its kernel holds.

use sandpod_protocol::v1::{self, network::Rule};

/// What calls may touch: for all of them by [`Binding`](crate::Binding), or for one command, which can only
/// narrow that. Everything that is not said stays as it is.
///
/// Commands are held by the sandbox's kernel, as far as it can: [`Enforced`] says how far.
///
/// ```
/// use sandpod_client::{Network, Policy};
///
/// // Everything may be read, two directories written, and nobody outside reached.
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
    /// Roots that may be read; programs and their libraries have to be below one. Without any, everything may
    /// be read.
    pub readable: Vec<String>,
    /// Roots that may be written, and read. Without any, everything may be written, but nothing if there are
    /// readable roots.
    pub writable: Vec<String>,
    /// Below a root, but not to be touched. Commands can't be held to it, so it is refused unless
    /// [`denied_for_files_only`](Self::denied_for_files_only) says that this is known.
    pub denied: Vec<String>,
    /// What is denied binds file calls and not commands.
    pub denied_for_files_only: bool,
    /// Whom commands reach.
    pub network: Option<Network>,
    /// Rather run nothing than a command that the kernel can't hold to this.
    pub required: bool,
}

/// Whom commands reach.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Network {
    /// Whomever the sandbox reaches.
    Open,
    /// Nobody: there are no sockets but Unix ones.
    None,
    /// TCP only, and only by these ports. Names are looked up by UDP, so without it addresses have to be numbers.
    Ports {
        /// Those that may be connected to.
        connect: Vec<u16>,
        /// Those that may be served; 0 is one that the kernel chooses.
        listen: Vec<u16>,
    },
}

/// What the guest can hold commands to on its kernel: tried, not guessed. Where one is false, that part of a
/// policy binds nothing, unless the policy is required.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "each says one thing of its own")]
#[non_exhaustive]
pub struct Enforced {
    /// The roots of commands.
    pub files: bool,
    /// [`Network::None`].
    pub network: bool,
    /// [`Network::Ports`].
    pub ports: bool,
    /// Commands under a policy can't trace processes that it doesn't bind, nor look into them. Without it a command that
    /// may not use the network can do so through such a process of its user.
    pub processes: bool,
    /// Commands can't signal the guest.
    pub signals: bool,
    /// The paths of file calls are resolved by the kernel itself, not step by step.
    pub kernel_paths: bool,
    /// A command that takes too much memory is ended before the sandbox is.
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

/// A guest that says nothing holds nothing.
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
