//! The fixed paths and addresses of the testbed. There is one testbed per machine, for all checkouts.

use std::path::{Path, PathBuf};

/// The directory for all files of a running testbed. `down` deletes it.
pub(super) const STATE: &str = "/var/lib/sandpod-testbed";
/// The lock file that `up` and `down` hold, so that only one of them runs at a time.
pub(super) const LOCK: &str = "/var/lib/sandpod-testbed.lock";
/// The cgroup that holds every container of the testbed.
pub(super) const CGROUP: &str = "sandpod-testbed";
/// The node's name.
pub(super) const NODE: &str = "testbed";

/// The interface of this machine that leads to the testbed's network namespace.
pub(super) const LINK: &str = "sandpod0";
/// All addresses of the testbed. This machine never routes them elsewhere.
pub(super) const RANGE: &str = "10.231.0.0/20";
pub(super) const HOST_ADDRESS: &str = "10.231.0.1";
pub(super) const NODE_ADDRESS: &str = "10.231.0.2";
pub(super) const LINK_PREFIX: u8 = 30;
pub(super) const POD_RANGE: &str = "10.231.4.0/22";
pub(super) const SERVICE_RANGE: &str = "10.231.8.0/24";
/// The Service of the API server: the first address of the range.
pub(super) const API_SERVICE_ADDRESS: &str = "10.231.8.1";

/// A path below the state directory.
pub(super) fn state(path: &str) -> PathBuf {
    Path::new(STATE).join(path)
}

/// The kubeconfig of `user`.
pub(super) fn kubeconfig(user: &str) -> PathBuf {
    state(&format!("{user}.kubeconfig"))
}
