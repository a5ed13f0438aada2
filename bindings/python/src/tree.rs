//! Transfers of directories and their progress.

use std::sync::Arc;

use pyo3::prelude::*;
use sandpod_client::TreeProgress;
use tokio::sync::{Mutex, watch};

use crate::bridge::Call;
use crate::errors::{OperationError, forked};
use crate::runtime::Resident;

/// The progress of a transfer. Python polls it, so that no callback runs on a worker thread of the runtime.
#[pyclass(frozen, module = "sandpod._native")]
pub(crate) struct Progress(Resident<Arc<Mutex<watch::Receiver<TreeProgress>>>>);

impl Progress {
    /// Returns the callback of a transfer, and the progress that Python polls.
    pub(crate) fn channel() -> (impl FnMut(TreeProgress) + Send, Self) {
        let (sender, receiver) = watch::channel(TreeProgress::default());
        let tell = move |progress| {
            sender.send_replace(progress);
        };
        (tell, Self(Resident::new(Arc::new(Mutex::new(receiver)))))
    }
}

#[pymethods]
impl Progress {
    /// Waits for a change and returns the current progress, or None after the end of the transfer.
    fn next(&self) -> PyResult<Call> {
        let receiver = self.0.get().ok_or_else(|| forked("transfer", "Begin it again here."))?.clone();
        Ok(Call::new(async move {
            let mut receiver = receiver.lock().await;
            let changed = receiver.changed().await.is_ok();
            let progress = changed.then(|| *receiver.borrow_and_update());
            Ok::<_, OperationError>(progress.map(|TreeProgress { entries, bytes }| Step { entries, bytes }))
        }))
    }
}

#[derive(IntoPyObject)]
struct Step {
    entries: u64,
    bytes: u64,
}

/// The counts of a finished transfer.
#[derive(IntoPyObject)]
pub(crate) struct TreeSummary {
    files: u64,
    directories: u64,
    links: u64,
    bytes: u64,
    skipped: u64,
    links_left_out: u64,
}

impl From<sandpod_client::TreeSummary> for TreeSummary {
    fn from(summary: sandpod_client::TreeSummary) -> Self {
        let sandpod_client::TreeSummary { files, directories, links, bytes, skipped, links_left_out } =
            summary;
        Self { files, directories, links, bytes, skipped, links_left_out }
    }
}
