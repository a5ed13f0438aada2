//! Transfers of directories.

mod names;
mod reader;
mod writer;

use std::path::Path;

use sandpod_protocol::v1::upload_tree_request::Part as Sent;
use sandpod_protocol::v1::{self, DownloadTreeRequest, UploadHeader, UploadTreeRequest};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;

use super::Sandbox;
use super::transfer::{TRIES, stalled, too_many_tries};
use crate::connection::{CallSlot, STALL_LIMIT, StreamKind};
use crate::error::Error;
use reader::TreeReader;
use writer::TreeWriter;

/// Progress of a transfer. It starts at zero again when a lost stream restarts the transfer.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct TreeProgress {
    /// Number of files, directories and links.
    pub entries: u64,
    /// Bytes of file contents.
    pub bytes: u64,
}

/// Result of a transfer.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct TreeSummary {
    /// Number of regular files.
    pub files: u64,
    /// Number of directories, without the root.
    pub directories: u64,
    /// Number of symbolic links.
    pub links: u64,
    /// Bytes of all file contents.
    pub bytes: u64,
    /// Number of sockets, devices and pipes, which are not transferred.
    pub skipped: u64,
    /// Number of downloaded links that were omitted because they lead outside or cannot be created on this machine.
    pub links_left_out: u64,
}

/// Limits of a download. They hold whatever the sandbox sends.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct TreeLimits {
    /// Number of files, directories and links.
    pub entries: u64,
    /// Bytes of file contents.
    pub bytes: u64,
}

impl Default for TreeLimits {
    fn default() -> Self {
        Self { entries: 1_000_000, bytes: 64 << 30 }
    }
}

impl Sandbox {
    /// Copies the content of a local directory into a directory of the sandbox, over existing files. Keeps modes, times and
    /// links, and follows no link. Each file is complete or missing; if the transfer fails, files that were copied before remain.
    pub async fn upload_tree(
        &self,
        local_dir: impl AsRef<Path>,
        path: &str,
        mut progress: impl FnMut(TreeProgress) + Send,
    ) -> Result<TreeSummary, Error> {
        let operation = self.connection.begin_operation();
        let mut attempts = self.changes("uploading", path).on(StreamKind::Bulk).stalled_after(None);
        for _ in 0..TRIES {
            let slot = attempts.next().await?;
            let reader = TreeReader::new(local_dir.as_ref())?;
            let operation = Some(operation.to_message(attempts.is_repeated()));
            let header = UploadHeader { operation, path: path.to_owned(), mode: None };
            let transfer = send(&slot, reader, header, &mut progress);
            if let Some(outcome) = attempts.answer(transfer).await? {
                return outcome;
            }
        }
        Err(too_many_tries("uploading", path))
    }

    /// Copies the content of a directory of the sandbox into a local directory, over existing files. Writes nothing outside of
    /// it, whatever the sandbox sends: no link is followed, and links that lead outside are omitted. Each file is complete or
    /// missing; if the transfer fails, files that were copied before remain.
    pub async fn download_tree(
        &self,
        path: &str,
        local_dir: impl AsRef<Path>,
        limits: TreeLimits,
        mut progress: impl FnMut(TreeProgress) + Send,
    ) -> Result<TreeSummary, Error> {
        let mut attempts = self.asks("downloading", path).on(StreamKind::Bulk);
        'tries: for _ in 0..TRIES {
            let slot = attempts.next().await?;
            let mut client = slot.channel.files();
            let request = DownloadTreeRequest { path: path.to_owned() };
            let Some(response) = attempts.answer(client.download_tree(request)).await? else { continue };
            let mut stream = response.into_inner();
            let local_dir = local_dir.as_ref().to_owned();
            let mut writer = blocking(move || TreeWriter::new(&local_dir, limits)).await?;
            loop {
                let Some(message) = attempts.answer(stream.message()).await? else { continue 'tries };
                let Some(message) = message else { return writer.finish() };
                writer = blocking(move || writer.take(message)).await?;
                progress(writer.progress());
            }
        }
        Err(too_many_tries("downloading", path))
    }
}

/// Runs blocking disk I/O on a thread of its own.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(Error::Local(format!("the transfer failed on this machine: {error}"))))
}

/// Sends one attempt of an upload and returns the guest's answer.
async fn send(
    slot: &CallSlot,
    reader: TreeReader,
    header: UploadHeader,
    progress: &mut (impl FnMut(TreeProgress) + Send),
) -> Result<Result<TreeSummary, Error>, tonic::Status> {
    let path = header.path.clone();
    let (sender, receiver) = mpsc::channel(1);
    let mut client = slot.channel.files();
    let answer = client.upload_tree(ReceiverStream::new(receiver));
    tokio::pin!(answer);
    let answer = tokio::select! {
        biased;
        answer = &mut answer => Ok(answer),
        pumped = pump(reader, header, sender, progress) => match pumped {
            Ok(()) => timeout(STALL_LIMIT, answer).await.map_err(|_| stalled(&path)),
            Err(error) => Err(error),
        },
    };
    match answer {
        Ok(answer) => answer.map(|response| summary(response.into_inner().summary)),
        Err(error) => Ok(Err(error)),
    }
}

/// Sends the parts of an upload. If the receiver is closed, the call's answer has the reason.
async fn pump(
    mut reader: TreeReader,
    header: UploadHeader,
    sender: mpsc::Sender<UploadTreeRequest>,
    progress: &mut (impl FnMut(TreeProgress) + Send),
) -> Result<(), Error> {
    let path = header.path.clone();
    let mut part = Some(Sent::Header(header));
    while part.is_some() {
        let sent = timeout(STALL_LIMIT, sender.send(UploadTreeRequest { part })).await;
        if sent.map_err(|_| stalled(&path))?.is_err() {
            return Ok(());
        }
        (part, reader) = blocking(move || Ok((reader.next()?, reader))).await?;
        progress(reader.progress());
    }
    Ok(())
}

fn summary(summary: Option<v1::TreeSummary>) -> Result<TreeSummary, Error> {
    let missing = || Error::Protocol("the answer to an uploaded tree has no summary".to_owned());
    let v1::TreeSummary { files, directories, links, bytes, skipped } = summary.ok_or_else(missing)?;
    Ok(TreeSummary { files, directories, links, bytes, skipped, links_left_out: 0 })
}
