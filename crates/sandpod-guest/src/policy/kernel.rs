//! What this kernel can hold commands to: tried, not guessed.

use std::fs::File;
use std::io;
use std::sync::{Arc, LazyLock};
use std::thread;

use ::landlock::ABI;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketType};
use sandpod_protocol::v1::Enforced;

use super::landlock;
use super::restriction::Restriction;
use super::rules::{Network, Roots, Rules};
use crate::without::Without;

/// The first Landlock that knows of truncating files; before it, a command could empty those that it may
/// not write.
const HOLDS_FILES: ABI = ABI::V3;
/// The first Landlock that knows of TCP.
const HOLDS_PORTS: ABI = ABI::V4;

/// The last Landlock that knows of files only.
const FILES_ONLY: ABI = ABI::V3;

/// What works here.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kernel {
    pub(super) landlock: ABI,
    pub(super) seccomp: bool,
}

/// What works here, as a thread of its own finds out while the guest starts: what is tried holds that thread for good.
#[derive(Clone)]
pub(crate) struct Probe(Arc<LazyLock<Kernel, Box<dyn FnOnce() -> Kernel + Send>>>);

impl Probe {
    /// Begins to try what the guest may use.
    pub(crate) fn begin(without: Without) -> Self {
        let trying = thread::Builder::new().spawn(move || Kernel::feel(without));
        let found = move || trying.ok().and_then(|thread| thread.join().ok()).unwrap_or(Kernel::NOTHING);
        Self(Arc::new(LazyLock::new(Box::new(found))))
    }

    /// What works; waits for the thread if it is not done yet.
    pub(crate) fn result(&self) -> Kernel {
        **self.0
    }
}

impl Kernel {
    const NOTHING: Self = Self { landlock: ABI::Unsupported, seccomp: false };

    /// Tries everything on the calling thread, which is good for nothing else from then on.
    fn feel(without: Without) -> Self {
        let landlock = match landlock::version() {
            _ if without.landlock => ABI::Unsupported,
            version if without.landlock_network && version > FILES_ONLY => FILES_ONLY,
            version => version,
        };
        let wanted = Self { landlock, seccomp: !without.seccomp };
        let no_files = Rules {
            roots: Some(Roots { readable: Some(Vec::new()), writable: Vec::new() }),
            ..Rules::default()
        };
        let no_network = Rules { network: Some(Network::None), ..Rules::default() };
        let holds_files = wanted.holds(&no_files, || match File::open("/") {
            Err(error) => error.kind() == io::ErrorKind::PermissionDenied,
            Ok(_) => false,
        });
        let holds_network = Self { landlock: ABI::Unsupported, ..wanted }.holds(&no_network, || {
            rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).err() == Some(Errno::PERM)
        });
        Self {
            landlock: if holds_files { wanted.landlock } else { ABI::Unsupported },
            seccomp: holds_network,
        }
    }

    /// Whether the calling thread, once it has entered a restriction, feels it.
    fn holds(self, rules: &Rules, is_felt: fn() -> bool) -> bool {
        let restriction = Restriction::new(self, &[rules]);
        restriction.is_ok_and(|restriction| restriction.enter().is_ok()) && is_felt()
    }

    /// What commands are held to, if a policy asks for it.
    pub(crate) fn enforced(self) -> Enforced {
        Enforced {
            files: self.landlock >= HOLDS_FILES,
            network: self.seccomp,
            ports: self.seccomp && self.landlock >= HOLDS_PORTS,
            processes: self.landlock >= landlock::SETS_APART,
            ..Enforced::default()
        }
    }

    /// Says what of required rules can't be held here.
    pub(crate) fn check(self, rules: &Rules) -> Result<(), String> {
        let enforced = self.enforced();
        let missing = match &rules.network {
            _ if !rules.required => None,
            _ if rules.roots.is_some() && !enforced.files => {
                Some("to its roots (Landlock of Linux 6.2 does it)")
            }
            Some(Network::None) if !enforced.network => Some("to no network (a seccomp filter does it)"),
            Some(Network::Ports { .. }) if !enforced.ports => {
                Some("to its ports (Landlock of Linux 6.7 does it)")
            }
            _ => None,
        };
        missing.map_or(Ok(()), |what| {
            Err(format!(
                "this kernel cannot hold commands {what}, and the policy is required: use another kernel, or do not \
                 require it"
            ))
        })
    }
}
