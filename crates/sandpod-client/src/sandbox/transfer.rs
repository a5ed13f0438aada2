//! Transfers of contents of any size.

use std::io::{self, SeekFrom};

use bytes::{Bytes, BytesMut};
use sandpod_protocol::v1::download_response::Part as Received;
use sandpod_protocol::v1::upload_request::Part as Sent;
use sandpod_protocol::v1::{DownloadRequest, DownloadResponse, ErrorCode, Trailer, UploadHeader};
use sandpod_protocol::{Checksum, Failure, limits};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncSeek, AsyncSeekExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::Sandbox;
use super::files::Written;
use crate::connection::{CallSlot, STALL_LIMIT, StreamKind};
use crate::error::Error;

/// Maximum number of attempts of a transfer.
pub(super) const TRIES: usize = 5;
/// Maximum growth of a file between `stat` and the download.
const GROWTH: u64 = 16 << 20;
/// Minimum size of a content for which large memory pages pay off.
const LARGE: u64 = 4 << 20;

impl Sandbox {
    /// Creates or replaces a file with the whole content of `source`. The source is read again from its beginning if the stream
    /// is lost.
    pub async fn upload(
        &self,
        path: &str,
        source: impl AsyncRead + AsyncSeek + Send + Unpin,
    ) -> Result<Written, Error> {
        self.upload_with_mode(path, None, source).await
    }

    /// Like [`upload`](Self::upload), with permission bits. Default: those of the existing file, or 0644.
    pub async fn upload_with_mode(
        &self,
        path: &str,
        mode: Option<u32>,
        mut source: impl AsyncRead + AsyncSeek + Send + Unpin,
    ) -> Result<Written, Error> {
        let size = source.seek(SeekFrom::End(0)).await.map_err(|error| unreadable(&error))?;
        source.rewind().await.map_err(|error| unreadable(&error))?;
        if mode.is_none() && size <= limits::MAX_INLINE_BYTES as u64 {
            let mut content = Vec::new();
            source.take(size).read_to_end(&mut content).await.map_err(|error| unreadable(&error))?;
            return self.write_inline(path, content.into()).await;
        }
        self.send_all(path, mode, Reader(source)).await
    }

    /// [`write`](Self::write) of a content that does not fit into one message.
    pub(super) async fn write_in_chunks(&self, path: &str, content: Bytes) -> Result<Written, Error> {
        self.send_all(path, None, Whole { ahead: content.clone(), content }).await
    }

    async fn send_all(
        &self,
        path: &str,
        mode: Option<u32>,
        mut source: impl Source,
    ) -> Result<Written, Error> {
        let operation = self.connection.begin_operation();
        let mut attempts = self.changes("uploading", path).on(StreamKind::Bulk).stalled_after(None);
        for _ in 0..TRIES {
            let slot = attempts.next().await?;
            source.rewind().await.map_err(|error| unreadable(&error))?;
            let operation = Some(operation.to_message(attempts.is_repeated()));
            let header = UploadHeader { operation, path: path.to_owned(), mode };
            let transfer = send(&slot, &mut source, header);
            if let Some(outcome) = attempts.answer(transfer).await? {
                return outcome;
            }
        }
        Err(too_many_tries("uploading", path))
    }

    /// Downloads a whole file. Fails if it has more than `max_bytes`.
    pub async fn download(&self, path: &str, max_bytes: u64) -> Result<Bytes, Error> {
        let size = self.stat(path, true).await?.size;
        let mut content = room_for(size.min(max_bytes));
        let most =
            Most { bytes: max_bytes, why: "is the limit here: raise the limit or download it to a file" };
        self.receive(path, size, most, &mut content).await?;
        Ok(content.into())
    }

    /// Writes a whole file to `target` and returns the number of bytes: at most 16 MiB more than [`stat`](Self::stat)
    /// returned before. After an error the target's content is incomplete.
    pub async fn download_to(
        &self,
        path: &str,
        mut target: impl AsyncWrite + Send + Unpin,
    ) -> Result<u64, Error> {
        let size = self.stat(path, true).await?.size;
        let why = "is the limit after what stat returned: download it again";
        self.receive(path, size, Most { bytes: size.saturating_add(GROWTH), why }, &mut target).await
    }

    async fn receive(
        &self,
        path: &str,
        size: u64,
        most: Most,
        target: &mut (impl AsyncWrite + Send + Unpin),
    ) -> Result<u64, Error> {
        let kind = if size > limits::MAX_INLINE_BYTES as u64 { StreamKind::Bulk } else { StreamKind::Main };
        let mut attempts = self.asks("downloading", path).on(kind);
        let mut kept = Part::default();
        'tries: for _ in 0..TRIES {
            let slot = attempts.next().await?;
            let mut client = slot.channel.files();
            let request = DownloadRequest { path: path.to_owned() };
            let Some(response) = attempts.answer(client.download(request)).await? else { continue };
            let mut stream = response.into_inner();
            let mut download = Download::new(path, most, kept);
            loop {
                match attempts.answer(stream.message()).await? {
                    Some(Some(message)) => {
                        let new = download.take(message)?;
                        target.write_all(&new).await.map_err(|error| unwritable(&error))?;
                    }
                    Some(None) => break,
                    None => {
                        kept = download.interrupted();
                        continue 'tries;
                    }
                }
            }
            target.flush().await.map_err(|error| unwritable(&error))?;
            return download.finish();
        }
        Err(too_many_tries("downloading", path))
    }
}

/// Copies a content that is owned elsewhere, for a call such as [`Sandbox::write`].
#[must_use]
pub fn copied(content: &[u8]) -> Bytes {
    let mut copy = room_for(content.len() as u64);
    copy.extend_from_slice(content);
    copy.into()
}

/// Allocates memory for an announced size. If that fails, the buffer grows as content arrives.
fn room_for(bytes: u64) -> Vec<u8> {
    let mut room = Vec::new();
    if bytes >= LARGE && usize::try_from(bytes).is_ok_and(|bytes| room.try_reserve_exact(bytes).is_ok()) {
        prefer_large_pages(&room);
    }
    room
}

/// Requests large pages for a buffer: faulting in small pages takes longer than receiving the content.
#[expect(unsafe_code, reason = "advice on memory has no safe interface")]
fn prefer_large_pages(room: &Vec<u8>) {
    #[cfg(target_os = "linux")]
    {
        let (start, page) = (room.as_ptr().addr(), rustix::param::page_size());
        let first = start.next_multiple_of(page);
        let bytes = (start + room.capacity()).saturating_sub(first) / page * page;
        let first = room.as_ptr().with_addr(first).cast_mut().cast();
        // SAFETY: these pages belong to the vector, and the advice does not change their content.
        let _ = unsafe { rustix::mm::madvise(first, bytes, rustix::mm::Advice::LinuxHugepage) };
    }
}

/// Sends one attempt of an upload and returns the guest's answer.
async fn send(
    slot: &CallSlot,
    source: &mut impl Source,
    header: UploadHeader,
) -> Result<Result<Written, Error>, tonic::Status> {
    let path = header.path.clone();
    let (sender, receiver) = mpsc::channel(1);
    let answer = slot.channel.upload(receiver);
    tokio::pin!(answer);
    let answer = tokio::select! {
        biased;
        answer = &mut answer => Ok(answer),
        pumped = pump(source, header, sender) => match pumped {
            Ok(()) => timeout(STALL_LIMIT, answer).await.map_err(|_| stalled(&path)),
            Err(error) => Err(error),
        },
    };
    match answer {
        Ok(answer) => answer.map(|response| Ok(Written { atomic: response.into_inner().atomic })),
        Err(error) => Ok(Err(error)),
    }
}

/// Sends the parts of an upload. If the receiver is closed, the call's answer has the reason.
async fn pump(
    source: &mut impl Source,
    header: UploadHeader,
    sender: mpsc::Sender<Sent>,
) -> Result<(), Error> {
    let path = header.path.clone();
    let feed = async |part| {
        let sent = sender.send(part);
        timeout(STALL_LIMIT, sent).await.map(|sent| sent.is_ok()).map_err(|_| stalled(&path))
    };
    if !feed(Sent::Header(header)).await? {
        return Ok(());
    }
    let mut checksum = Checksum::default();
    loop {
        let chunk = source.next_chunk().await.map_err(|error| unreadable(&error))?;
        if chunk.is_empty() {
            break;
        }
        checksum.update(&chunk);
        if !feed(Sent::Chunk(chunk)).await? {
            return Ok(());
        }
    }
    feed(Sent::Trailer(Trailer { checksum: checksum.finish() })).await?;
    Ok(())
}

/// Content of an upload, which can be sent again from its beginning.
trait Source: Send {
    fn rewind(&mut self) -> impl Future<Output = io::Result<()>> + Send;

    /// Returns a full chunk, or the rest; empty at the end.
    fn next_chunk(&mut self) -> impl Future<Output = io::Result<Bytes>> + Send;
}

/// A source that is read.
struct Reader<R>(R);

impl<R: AsyncRead + AsyncSeek + Send + Unpin> Source for Reader<R> {
    async fn rewind(&mut self) -> io::Result<()> {
        self.0.rewind().await.map(drop)
    }

    async fn next_chunk(&mut self) -> io::Result<Bytes> {
        let mut chunk = BytesMut::with_capacity(limits::CHUNK_BYTES);
        let mut source = (&mut self.0).take(limits::CHUNK_BYTES as u64);
        while source.read_buf(&mut chunk).await? > 0 {}
        Ok(chunk.freeze())
    }
}

/// A source in memory. Its chunks are not copied.
struct Whole {
    content: Bytes,
    ahead: Bytes,
}

impl Source for Whole {
    async fn rewind(&mut self) -> io::Result<()> {
        self.ahead = self.content.clone();
        Ok(())
    }

    async fn next_chunk(&mut self) -> io::Result<Bytes> {
        Ok(self.ahead.split_to(self.ahead.len().min(limits::CHUNK_BYTES)))
    }
}

/// The beginning of a file: its length, and its checksum so far.
#[derive(Clone, Default)]
struct Part {
    bytes: u64,
    checksum: Checksum,
}

impl Part {
    fn add(&mut self, data: &[u8]) {
        self.bytes += data.len() as u64;
        self.checksum.update(data);
    }
}

/// The limit of a download, and the text of the error.
#[derive(Clone, Copy)]
struct Most {
    bytes: u64,
    why: &'static str,
}

/// One attempt of a download, checked as it arrives.
struct Download<'a> {
    path: &'a str,
    most: Most,
    /// What earlier attempts have passed to the caller.
    kept: Part,
    seen: Part,
    size: Option<u64>,
    is_whole: bool,
}

impl<'a> Download<'a> {
    fn new(path: &'a str, most: Most, kept: Part) -> Self {
        Self { path, most, kept, seen: Part::default(), size: None, is_whole: false }
    }

    /// Takes the next message and returns its content that is new to the caller.
    fn take(&mut self, message: DownloadResponse) -> Result<Bytes, Error> {
        match (message.part, self.size) {
            (Some(Received::Header(info)), None) => self.begin(info.size).map(|()| Bytes::new()),
            (Some(Received::Chunk(chunk)), Some(size)) if !self.is_whole => self.chunk(chunk, size),
            (Some(Received::Trailer(trailer)), Some(size)) if !self.is_whole => {
                self.end(&trailer, size).map(|()| Bytes::new())
            }
            _ => Err(Error::Protocol("the parts of a download are out of order".to_owned())),
        }
    }

    fn begin(&mut self, size: u64) -> Result<(), Error> {
        let Most { bytes: most, why } = self.most;
        if size > most {
            return Err(self.failure(ErrorCode::TooLarge, &format!("has {size} bytes, and {most} {why}")));
        }
        if size < self.kept.bytes {
            return Err(self.changed());
        }
        self.size = Some(size);
        Ok(())
    }

    fn chunk(&mut self, mut chunk: Bytes, size: u64) -> Result<Bytes, Error> {
        let room = size - self.seen.bytes;
        if chunk.is_empty() || chunk.len() as u64 > room {
            return Err(Error::Protocol("a download differs from its announced size".to_owned()));
        }
        let known = self.kept.bytes.saturating_sub(self.seen.bytes).min(chunk.len() as u64);
        let known = chunk.split_to(usize::try_from(known).unwrap_or(usize::MAX).min(chunk.len()));
        self.seen.add(&known);
        let is_rejoined = !known.is_empty() && self.seen.bytes == self.kept.bytes;
        if is_rejoined && self.seen.checksum.clone().finish() != self.kept.checksum.clone().finish() {
            return Err(self.changed());
        }
        self.seen.add(&chunk);
        Ok(chunk)
    }

    fn end(&mut self, trailer: &Trailer, size: u64) -> Result<(), Error> {
        let seen = self.seen.bytes;
        if seen != size {
            return Err(self.failure(
                ErrorCode::Corrupt,
                &format!("is incomplete: {seen} of its {size} bytes came. Download it again"),
            ));
        }
        if self.seen.checksum.clone().finish() != trailer.checksum {
            return Err(self.failure(ErrorCode::Corrupt, "arrived with another checksum. Download it again"));
        }
        self.is_whole = true;
        Ok(())
    }

    /// Returns what the caller has after a lost stream.
    fn interrupted(self) -> Part {
        if self.seen.bytes > self.kept.bytes { self.seen } else { self.kept }
    }

    fn finish(self) -> Result<u64, Error> {
        if self.is_whole {
            return Ok(self.seen.bytes);
        }
        Err(self.failure(ErrorCode::Corrupt, "is incomplete: it ended early. Download it again"))
    }

    fn changed(&self) -> Error {
        self.failure(
            ErrorCode::Changed,
            "was changed by another process during the download. Download it again",
        )
    }

    fn failure(&self, code: ErrorCode, what: &str) -> Error {
        Error::Failure(Failure::new(code, format!("{} {what}", self.path)).at(self.path))
    }
}

fn unreadable(error: &io::Error) -> Error {
    Error::Local(format!("cannot read the source of the upload: {error}. Nothing was written"))
}

fn unwritable(error: &io::Error) -> Error {
    Error::Local(format!("cannot write the download: {error}. Check the target and try again"))
}

pub(super) fn stalled(path: &str) -> Error {
    Error::Stalled { what: format!("uploading {path}"), limit: STALL_LIMIT }
}

pub(super) fn too_many_tries(verb: &str, path: &str) -> Error {
    Error::Lost { what: format!("{verb} {path}"), reason: format!("it broke {TRIES} times in a row") }
}
