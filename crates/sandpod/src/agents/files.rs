//! Transfers of several files in one call.

use std::sync::atomic::{AtomicU64, Ordering};

use futures::{StreamExt as _, stream};
use sandpod_client::{Bytes, Error};

use crate::Sandbox;

/// The number of files that one call transfers at the same time.
const CONCURRENCY: usize = 8;

/// The number of bytes that one download may keep in memory, whatever size the sandbox reports for its files.
pub const MAX_DOWNLOAD_BYTES: u64 = 1 << 30;

/// Writes files of any size. Each has its own outcome, in the order given.
pub async fn upload_files(sandbox: &Sandbox, files: Vec<(String, Bytes)>) -> Vec<Result<(), Error>> {
    let upload = |(path, content): (String, Bytes)| {
        let sandbox = sandbox.clone();
        async move { sandbox.upload_bytes(&path, content).await.map(drop) }
    };
    stream::iter(files).map(upload).buffered(CONCURRENCY).collect().await
}

/// Reads whole files, together at most [`MAX_DOWNLOAD_BYTES`]. Each has its own outcome, in the order given.
pub async fn download_files(sandbox: &Sandbox, paths: Vec<String>) -> Vec<Result<Bytes, Error>> {
    let room = AtomicU64::new(MAX_DOWNLOAD_BYTES);
    let download = |path: String| {
        let (sandbox, room) = (sandbox.clone(), &room);
        async move {
            let content = sandbox.download(&path, room.load(Ordering::Relaxed)).await?;
            let size = content.len() as u64;
            let left = |left: u64| Some(left.saturating_sub(size));
            let _ = room.fetch_update(Ordering::Relaxed, Ordering::Relaxed, left);
            Ok(content)
        }
    };
    stream::iter(paths).map(download).buffered(CONCURRENCY).collect().await
}
