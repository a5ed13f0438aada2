//! Transfers of directories and their progress.

use std::sync::Arc;

use napi::Env;
use napi::bindgen_prelude::Object;
use napi_derive::napi;
use sandpod_client::TreeProgress;
use tokio::sync::{Mutex, watch};

use crate::bridge::promise;
use crate::errors::Failed;

/// The progress of a transfer. JavaScript polls it, so that a callback never delays the transfer.
#[napi]
pub struct Progress(Arc<Mutex<watch::Receiver<TreeProgress>>>, Option<watch::Sender<TreeProgress>>);

impl Progress {
    /// Returns the callback of a transfer. It can be taken once.
    pub(crate) fn take(&mut self) -> impl FnMut(TreeProgress) + Send + use<> {
        let sender = self.1.take();
        move |progress| {
            if let Some(sender) = &sender {
                sender.send_replace(progress);
            }
        }
    }
}

#[napi]
impl Progress {
    #[napi(constructor)]
    pub fn new() -> Self {
        let (sender, receiver) = watch::channel(TreeProgress::default());
        Self(Arc::new(Mutex::new(receiver)), Some(sender))
    }

    /// Waits for a change and returns the current progress, or nothing after the end of the transfer.
    #[napi]
    pub fn next<'env>(&self, env: &'env Env) -> napi::Result<Object<'env>> {
        let receiver = self.0.clone();
        promise(env, None, async move {
            let mut receiver = receiver.lock().await;
            let changed = receiver.changed().await.is_ok();
            Ok::<_, Failed>(changed.then(|| Step::from(*receiver.borrow_and_update())))
        })
    }
}

#[napi(object, object_from_js = false)]
pub struct Step {
    pub entries: f64,
    pub bytes: f64,
}

impl From<TreeProgress> for Step {
    fn from(progress: TreeProgress) -> Self {
        Self { entries: number(progress.entries), bytes: number(progress.bytes) }
    }
}

/// The counts of a finished transfer.
#[napi(object, object_from_js = false)]
pub struct TreeSummary {
    pub files: f64,
    pub directories: f64,
    pub links: f64,
    pub bytes: f64,
    pub skipped: f64,
    pub links_left_out: f64,
}

impl From<sandpod_client::TreeSummary> for TreeSummary {
    fn from(summary: sandpod_client::TreeSummary) -> Self {
        Self {
            files: number(summary.files),
            directories: number(summary.directories),
            links: number(summary.links),
            bytes: number(summary.bytes),
            skipped: number(summary.skipped),
            links_left_out: number(summary.links_left_out),
        }
    }
}

/// Converts a count to a JavaScript number, which is exact up to 2⁵³.
#[expect(clippy::cast_precision_loss, reason = "no file has 2⁵³ bytes")]
pub(crate) fn number(value: u64) -> f64 {
    value as f64
}

/// Converts a JavaScript number to a count.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it saturates, and NaN is 0")]
pub(crate) fn whole(value: f64) -> u64 {
    value as u64
}
