//! Receives a file of any size.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::{Stream, StreamExt as _};
use sandpod_protocol::v1::upload_request::Part;
use sandpod_protocol::v1::{ErrorCode, Trailer, UploadHeader, UploadRequest, WriteResponse};
use sandpod_protocol::{Checksum, Failure};
use tonic::Status;

use super::chunked_calls::{ChunkedCalls, Content};
use super::resolver::{PathResolver, Purpose};
use super::service::blocking;
use super::staged::Staged;
use crate::session::records::Records;

/// Uploads of files.
pub(super) struct Uploads(ChunkedCalls<Staged>);

impl Uploads {
    pub(super) fn new(records: Records) -> Self {
        let incomplete =
            "the upload's content never arrived completely: nothing was written, upload it again";
        Self(ChunkedCalls::new(records, incomplete))
    }

    /// Receives an upload's parts. An error of `parts` themselves means that the stream was lost.
    pub(super) async fn upload(
        &self,
        mut parts: impl Stream<Item = Result<UploadRequest, Status>> + Unpin + Send,
        resolver: PathResolver,
    ) -> Result<WriteResponse, Status> {
        let Some(Part::Header(mut header)) = next_part(&mut parts).await? else {
            return Err(Failure::new(ErrorCode::InvalidArgument, "an upload begins with its header").into());
        };
        let operation = header.operation.take();
        self.0.take(operation, receive(header, parts, resolver), Staged::lock_and_commit).await
    }
}

async fn next_part(
    parts: &mut (impl Stream<Item = Result<UploadRequest, Status>> + Unpin + Send),
) -> Result<Option<Part>, Status> {
    Ok(parts.next().await.transpose()?.and_then(|request| request.part))
}

/// Receives chunks up to the trailer. The outer error means that the stream was lost.
async fn receive(
    header: UploadHeader,
    mut parts: impl Stream<Item = Result<UploadRequest, Status>> + Unpin + Send,
    resolver: PathResolver,
) -> Result<Content<Staged>, Status> {
    let mut incoming = blocking(move || Incoming::new(header, &resolver));
    loop {
        // Received while the previous part is written.
        let part = next_part(&mut parts).await?;
        incoming = match (incoming.await, part) {
            (Ok(incoming), Some(Part::Chunk(chunk))) => blocking(|| incoming.append(chunk)),
            (Ok(incoming), Some(Part::Trailer(trailer))) => return Ok(incoming.finish(&trailer)),
            (Ok(_), _) => {
                let message = "an upload is chunks and then a trailer: it ended without its trailer";
                return Ok(Err(Failure::new(ErrorCode::Corrupt, message)));
            }
            (Err(failure), _) => return Ok(Err(failure)),
        };
    }
}

/// A file that is being received.
struct Incoming {
    staged: Staged,
    checksum: Checksum,
    path: String,
}

impl Incoming {
    fn new(header: UploadHeader, resolver: &PathResolver) -> Result<Self, Failure> {
        let location = resolver.resolve_for_create(&header.path, Purpose::WRITE)?;
        let staged = Staged::new(Arc::new(location), &resolver.temp_journal, header.mode)?;
        Ok(Self { staged, checksum: Checksum::default(), path: header.path })
    }

    #[expect(clippy::needless_pass_by_value, reason = "it comes from another thread")]
    fn append(mut self, chunk: Bytes) -> Result<Self, Failure> {
        self.staged.append(&chunk)?;
        self.checksum.update(&chunk);
        Ok(self)
    }

    fn finish(self, trailer: &Trailer) -> Content<Staged> {
        if self.checksum.finish() == trailer.checksum {
            return Ok(self.staged);
        }
        let message =
            format!("the content of '{}' arrived damaged: nothing was written, upload it again", self.path);
        Err(Failure::new(ErrorCode::Corrupt, message).at(self.path))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_util::stream;
    use sandpod_protocol::limits;
    use sandpod_protocol::v1::Operation;

    use super::*;
    use crate::files::testing::{code, mode, names, text};

    fn header(path: &Path, operation: Operation) -> UploadRequest {
        let header = UploadHeader { operation: Some(operation), path: text(path), ..UploadHeader::default() };
        UploadRequest { part: Some(Part::Header(header)) }
    }

    fn chunk(content: &'static str) -> UploadRequest {
        UploadRequest { part: Some(Part::Chunk(content.into())) }
    }

    fn trailer(content: &str) -> UploadRequest {
        let checksum = Checksum::of(content.as_bytes());
        UploadRequest { part: Some(Part::Trailer(Trailer { checksum })) }
    }

    fn first() -> Operation {
        Operation { session: "s".to_owned(), number: 1, ..Operation::default() }
    }

    fn repeat() -> Operation {
        Operation { repeated: true, ..first() }
    }

    async fn send(
        uploads: &Uploads,
        parts: impl IntoIterator<Item = UploadRequest, IntoIter: Send>,
    ) -> Result<WriteResponse, Status> {
        uploads.upload(stream::iter(parts.into_iter().map(Ok)), PathResolver::default()).await
    }

    /// Sends parts on a stream that is lost after them.
    async fn send_and_lose<const N: usize>(uploads: &Uploads, parts: [UploadRequest; N]) -> tonic::Code {
        let lost = Err(Status::unavailable("the stream is lost"));
        let parts = parts.into_iter().map(Ok).chain([lost]);
        uploads.upload(stream::iter(parts), PathResolver::default()).await.unwrap_err().code()
    }

    #[tokio::test]
    async fn the_chunks_become_the_file_and_its_directories() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("new/file");
        let uploads = Uploads::new(Records::default());
        let parts = [header(&path, first()), chunk("hello "), chunk("world"), trailer("hello world")];
        assert!(send(&uploads, parts).await.unwrap().atomic);
        assert_eq!(fs::read_to_string(&path).unwrap(), "hello world");
        assert!(!uploads.0.waits());
    }

    #[tokio::test]
    async fn a_wrong_checksum_and_a_missing_trailer_change_nothing() {
        for end in [Some(trailer("hello!")), None] {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("file");
            fs::write(&path, "old").unwrap();
            let parts = [header(&path, first()), chunk("hello")].into_iter().chain(end);
            let status = send(&Uploads::new(Records::default()), parts).await.unwrap_err();
            assert_eq!(Failure::from(&status).code(), ErrorCode::Corrupt);
            assert_eq!(fs::read_to_string(&path).unwrap(), "old");
            assert_eq!(names(dir.path()), ["file"]);
        }
    }

    #[tokio::test]
    async fn a_repeat_after_a_lost_stream_sends_the_content_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let uploads = Uploads::new(Records::default());
        let code = send_and_lose(&uploads, [header(&path, first()), chunk("hel")]).await;
        assert_eq!(code, tonic::Code::Unavailable);
        assert!(names(dir.path()).is_empty());
        send(&uploads, [header(&path, repeat()), chunk("hello"), trailer("hello")]).await.unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "hello");
        assert_eq!(names(dir.path()), ["file"]);
    }

    #[tokio::test]
    async fn a_repeat_of_a_finished_upload_is_answered_without_its_content() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let uploads = Uploads::new(Records::default());
        send(&uploads, [header(&path, first()), chunk("hello"), trailer("hello")]).await.unwrap();
        fs::write(&path, "changed since").unwrap();
        let read = AtomicUsize::new(0);
        let rest = (0..100).map(|_| {
            read.fetch_add(1, Ordering::SeqCst);
            chunk("other")
        });
        let parts = std::iter::once(header(&path, repeat())).chain(rest);
        assert!(send(&uploads, parts).await.unwrap().atomic);
        assert_eq!(fs::read_to_string(&path).unwrap(), "changed since");
        assert_eq!(read.load(Ordering::SeqCst), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn an_upload_that_is_not_resumed_ends() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let uploads = Uploads::new(Records::default());
        send_and_lose(&uploads, [header(&path, first())]).await;
        tokio::time::sleep(limits::ORPHAN_GRACE * 2).await;
        assert!(!uploads.0.waits());
        let late = send(&uploads, [header(&path, repeat()), chunk("x"), trailer("x")]).await;
        assert_eq!(code(late.map_err(|status| Failure::from(&status))), ErrorCode::Corrupt);
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn an_upload_must_begin_with_a_header_and_name_its_call() {
        let dir = tempfile::tempdir().unwrap();
        let uploads = Uploads::new(Records::default());
        for parts in [chunk("x"), header(&dir.path().join("file"), Operation::default())] {
            let status = send(&uploads, [parts, trailer("")]).await.unwrap_err();
            assert_eq!(Failure::from(&status).code(), ErrorCode::InvalidArgument);
        }
    }

    #[tokio::test]
    async fn an_upload_to_a_directory_fails_before_its_content_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let parts = [header(dir.path(), first()), chunk("x"), trailer("x")];
        let status = send(&Uploads::new(Records::default()), parts).await.unwrap_err();
        assert_eq!(Failure::from(&status).code(), ErrorCode::IsDirectory);
    }

    #[tokio::test]
    async fn a_requested_mode_is_set_on_new_and_replaced_files() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let uploads = Uploads::new(Records::default());
        for (number, asked) in [(1, 0o755), (2, 0o600)] {
            let operation = Some(Operation { session: "s".to_owned(), number, ..Operation::default() });
            let header = UploadHeader { operation, path: text(&path), mode: Some(asked) };
            let header = UploadRequest { part: Some(Part::Header(header)) };
            send(&uploads, [header, chunk("x"), trailer("x")]).await.unwrap();
            assert_eq!(mode(&path), asked);
        }
    }

    #[tokio::test]
    async fn a_second_stream_of_an_upload_ends_the_first() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let uploads = Uploads::new(Records::default());
        let stuck = stream::iter([Ok(header(&path, first())), Ok(chunk("hel"))]).chain(stream::pending());
        let second = async {
            tokio::task::yield_now().await;
            send(&uploads, [header(&path, repeat()), chunk("hello"), trailer("hello")]).await
        };
        let (first, second) = tokio::join!(uploads.upload(stuck, PathResolver::default()), second);
        assert_eq!(first.unwrap_err().code(), tonic::Code::Unavailable);
        assert!(second.unwrap().atomic);
        assert_eq!(fs::read_to_string(&path).unwrap(), "hello");
        assert_eq!(names(dir.path()), ["file"]);
    }

    #[tokio::test]
    async fn a_client_that_disconnects_during_an_upload_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, "old").unwrap();
        let uploads = Uploads::new(Records::default());
        let (sent, all_sent) = tokio::sync::oneshot::channel();
        let end = stream::once(async move {
            let _ = sent.send(());
            std::future::pending().await
        });
        let parts = stream::iter([Ok(header(&path, first())), Ok(chunk("half"))]).chain(Box::pin(end));
        tokio::select! {
            outcome = uploads.upload(parts, PathResolver::default()) => panic!("{outcome:?}"),
            _ = all_sent => {}
        }
        assert_eq!(names(dir.path()), ["file"]);
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
    }

    #[tokio::test]
    async fn uploads_in_any_chunks_download_unchanged() {
        use sandpod_protocol::v1::DownloadRequest;
        use sandpod_protocol::v1::download_response::Part as Down;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let uploads = Uploads::new(Records::default());
        let mut random = fastrand::Rng::with_seed(2);
        for number in 1..12 {
            let mut content = vec![0; random.usize(0..700_000)];
            random.fill(&mut content);
            let operation = Operation { session: "s".to_owned(), number, ..Operation::default() };
            let mut parts = vec![header(&path, operation)];
            let mut rest = content.as_slice();
            while !rest.is_empty() {
                let (piece, left) = rest.split_at(random.usize(1..=rest.len()));
                parts.push(UploadRequest { part: Some(Part::Chunk(Bytes::copy_from_slice(piece))) });
                rest = left;
            }
            let checksum = Checksum::of(&content);
            parts.push(UploadRequest { part: Some(Part::Trailer(Trailer { checksum })) });
            send(&uploads, parts).await.unwrap();
            let request = DownloadRequest { path: text(&path) };
            let down = crate::files::download::Download::new(&request, &PathResolver::default()).unwrap();
            let down: Vec<u8> = down
                .filter_map(|part| if let Down::Chunk(chunk) = part.unwrap() { Some(chunk) } else { None })
                .flatten()
                .collect();
            assert!(down == content, "{number}");
        }
    }
}
