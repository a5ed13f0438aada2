//! Finds the restrictions that this kernel can enforce on commands, by trying them.

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
use crate::disabled_kernel_features::DisabledKernelFeatures;

/// The first Landlock version that restricts truncation; before it, a command could empty files that it may
/// not write.
const ENFORCES_FILES: ABI = ABI::V3;
/// The first Landlock version with TCP rules.
const ENFORCES_PORTS: ABI = ABI::V4;

/// The last Landlock version without network rules.
const FILES_ONLY: ABI = ABI::V3;

/// The restrictions that work here.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kernel {
    pub(super) landlock: ABI,
    pub(super) seccomp: bool,
}

/// Result of a thread that tries all restrictions while the guest starts. They apply to that thread permanently.
#[derive(Clone)]
pub(crate) struct Probe(Arc<LazyLock<Kernel, Box<dyn FnOnce() -> Kernel + Send>>>);

impl Probe {
    /// Starts to try the features that the guest may use.
    pub(crate) fn begin(disabled: DisabledKernelFeatures) -> Self {
        let trying = thread::Builder::new().spawn(move || Kernel::probe_all(disabled));
        let found = move || trying.ok().and_then(|thread| thread.join().ok()).unwrap_or(Kernel::NOTHING);
        Self(Arc::new(LazyLock::new(Box::new(found))))
    }

    /// Returns the result; blocks until the thread is done.
    pub(crate) fn result(&self) -> Kernel {
        **self.0
    }
}

impl Kernel {
    const NOTHING: Self = Self { landlock: ABI::Unsupported, seccomp: false };

    /// Tries all restrictions on the calling thread, which can do nothing else afterwards.
    fn probe_all(disabled: DisabledKernelFeatures) -> Self {
        let landlock = match landlock::version() {
            _ if disabled.landlock => ABI::Unsupported,
            version if disabled.landlock_network && version > FILES_ONLY => FILES_ONLY,
            version => version,
        };
        let wanted = Self { landlock, seccomp: !disabled.seccomp };
        let no_files = Rules {
            roots: Some(Roots { readable: Some(Vec::new()), writable: Vec::new() }),
            ..Rules::default()
        };
        let no_network = Rules { network: Some(Network::None), ..Rules::default() };
        let files = wanted.enforces(&no_files, || match File::open("/") {
            Err(error) => error.kind() == io::ErrorKind::PermissionDenied,
            Ok(_) => false,
        });
        let network = Self { landlock: ABI::Unsupported, ..wanted }.enforces(&no_network, || {
            rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).err() == Some(Errno::PERM)
        });
        Self { landlock: if files { wanted.landlock } else { ABI::Unsupported }, seccomp: network }
    }

    /// Returns whether a restriction has an effect on the calling thread.
    fn enforces(self, rules: &Rules, is_enforced: fn() -> bool) -> bool {
        let restriction = Restriction::new(self, &[rules]);
        restriction.is_ok_and(|restriction| restriction.enter().is_ok()) && is_enforced()
    }

    /// Returns the restrictions that are enforced on commands if a policy has them.
    pub(crate) fn enforced(self) -> Enforced {
        Enforced {
            files: self.landlock >= ENFORCES_FILES,
            network: self.seccomp,
            ports: self.seccomp && self.landlock >= ENFORCES_PORTS,
            processes: self.landlock >= landlock::ISOLATES_PROCESSES,
            ..Enforced::default()
        }
    }

    /// Returns an error if this kernel cannot enforce required rules.
    pub(crate) fn check(self, rules: &Rules) -> Result<(), String> {
        let enforced = self.enforced();
        let missing = match &rules.network {
            _ if !rules.required => None,
            _ if rules.roots.is_some() && !enforced.files => {
                Some("its roots (requires Landlock of Linux 6.2)")
            }
            Some(Network::None) if !enforced.network => Some("no network (requires seccomp filters)"),
            Some(Network::Ports { .. }) if !enforced.ports => {
                Some("its ports (requires Landlock of Linux 6.7)")
            }
            _ => None,
        };
        missing.map_or(Ok(()), |what| {
            Err(format!(
                "this kernel cannot restrict a command to {what}, and the policy is required: use another kernel, \
                 or do not require it"
            ))
        })
    }
}
