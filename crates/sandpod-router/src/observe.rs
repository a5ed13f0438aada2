//! The facts that the router takes from Pods and `Sandbox` objects. Each object is reduced to them as soon as it arrives.

use std::net::IpAddr;

use crate::target::SandboxRef;

#[cfg(feature = "server")]
pub(crate) mod read;

/// The Pod of a sandbox.
#[derive(Clone, Debug, PartialEq)]
pub struct PodState {
    /// Its sandbox.
    pub sandbox: SandboxRef,
    /// The UID of the sandbox.
    pub uid: String,
    /// The UID of the Pod itself.
    pub pod_uid: String,
    /// Its address, if it takes requests.
    pub address: Option<IpAddr>,
    /// Whether it has neither ended nor been deleted.
    pub is_running: bool,
}

/// A `Sandbox`.
#[derive(Clone, Debug, PartialEq)]
pub struct SandboxState {
    /// Its name.
    pub sandbox: SandboxRef,
    /// Its UID.
    pub uid: String,
    /// The claim that owns it.
    pub claim: Option<String>,
    /// Whether it has no Pod until it is resumed.
    pub is_suspended: bool,
}

impl SandboxState {
    pub(crate) fn claim_ref(&self) -> Option<SandboxRef> {
        Some(SandboxRef::new(&self.sandbox.namespace, self.claim.as_deref()?))
    }
}
