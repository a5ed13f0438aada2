//! File calls, each executed as a script job.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use data_encoding::HEXLOWER;
use futures::StreamExt as _;
use futures::stream::BoxStream;
use sandpod_protocol::v1::files_server;
use sandpod_protocol::v1::read_response::Content;
use sandpod_protocol::v1::{
    ApplyEditsRequest, ApplyEditsResponse, DeleteRequest, DeleteResponse, DownloadRequest, DownloadResponse,
    DownloadTreeRequest, DownloadTreeResponse, EditRequest, EditResponse, ErrorCode, FileInfo, GlobRequest,
    GlobResponse, GrepRequest, GrepResponse, ListRequest, ListResponse, MoveRequest, MoveResponse,
    ReadRequest, ReadResponse, StatRequest, StatResponse, Trailer, UploadRequest, UploadTreeRequest,
    UploadTreeResponse, WriteRequest, WriteResponse, download_response, upload_request,
};
use sandpod_protocol::{Checksum, Failure, limits};
use sandpod_text::edit::{self, MAX_BYTES};
use sandpod_text::page::{self, NoPage};
use sha2::{Digest as _, Sha256};
use tokio::sync::{Mutex, mpsc};
use tonic::metadata::MetadataMap;
use tonic::{Request, Response, Status, Streaming};

use crate::incoming::{Incoming, write};
use crate::policy::{Purpose, Rules};
use crate::script_job::{PART_BYTES, ScriptJobs, script};
use crate::session::{Binding, lacks};
use crate::{info, search};

/// Maximum number of attempts to edit a file that other processes change.
const ATTEMPTS: usize = 5;

/// The service. Clones share it.
#[derive(Clone)]
pub(crate) struct Files {
    jobs: Arc<ScriptJobs>,
    binding: Arc<Binding>,
    /// Held during an edit, so that edits of this process do not overwrite each other.
    editing: Arc<Mutex<()>>,
}

impl Files {
    pub(crate) fn new(jobs: Arc<ScriptJobs>, binding: Arc<Binding>) -> Self {
        Self { jobs, binding, editing: Arc::default() }
    }

    /// Returns the rules of a call with this metadata.
    async fn rules(&self, metadata: &MetadataMap) -> Result<Rules, Failure> {
        Rules::new(self.binding.bound().await?.policy, metadata)
    }

    /// Runs a script on a path, which is its first word, if the rules allow it; returns its output.
    async fn ask(
        &self,
        rules: &Rules,
        (path, purpose): (&str, Purpose),
        script: &str,
        words: &[&[u8]],
    ) -> Result<Bytes, Failure> {
        let path = absolute(path)?;
        let job = self.jobs.job();
        let words: Vec<_> = [path.as_bytes()].into_iter().chain(words.iter().copied()).collect();
        rules.admit(&job, &words, &[(path, purpose)]).await?;
        job.run(script, &[]).await.map_err(|failure| failure.at(path))
    }

    async fn look(&self, rules: Rules, request: StatRequest) -> Result<StatResponse, Failure> {
        let path = request.path.as_str();
        let (purpose, follow): (_, &[u8]) =
            if request.follow { (Purpose::LOOK, b"-L") } else { (Purpose::LOOK.of_link(), b"") };
        let said = self.ask(&rules, (path, purpose), script!("stat"), &[follow]).await?;
        let said = String::from_utf8_lossy(&said);
        let (line, target) = said.split_once('\n').unwrap_or((&said, ""));
        let link_target = target.strip_suffix('\n').unwrap_or(target).to_owned();
        Ok(StatResponse { info: Some(FileInfo { link_target, ..info::parse(line, path)? }) })
    }

    async fn entries(&self, rules: Rules, request: ListRequest) -> Result<ListResponse, Failure> {
        let path = request.path.as_str();
        let said = self.ask(&rules, (path, Purpose::LIST), script!("list"), &[]).await?;
        Ok(ListResponse { entries: info::parse_all(&String::from_utf8_lossy(&said), path) })
    }

    async fn page(&self, rules: Rules, request: ReadRequest) -> Result<ReadResponse, Failure> {
        if let Some(range) = request.range {
            let max_bytes = page::max_bytes(&request);
            let length = if range.length == 0 { max_bytes } else { range.length.min(max_bytes) };
            let (info, content) =
                self.piece(&rules, (&request.path, Purpose::READ), range.offset, length).await?;
            return Ok(ReadResponse { content: Some(Content::Binary(content)), info: Some(info) });
        }
        let (info, content) = self.whole(&rules, (&request.path, Purpose::READ)).await?;
        let content = page::page(&request, &content[..], info.size).map_err(|error| match error {
            NoPage::Unreadable(error) => Failure::from(error),
            NoPage::Refused(failure) => failure.at(&request.path),
        })?;
        Ok(ReadResponse { content: Some(content), info: Some(info) })
    }

    /// Reads a range of a file, with the file's metadata at that time.
    async fn piece(
        &self,
        rules: &Rules,
        (path, purpose): (&str, Purpose),
        offset: u64,
        length: u64,
    ) -> Result<(FileInfo, Bytes), Failure> {
        let (offset, length) = (offset.min(i64::MAX as u64 - 1).to_string(), length.to_string());
        let words = [offset.as_bytes(), length.as_bytes()];
        let mut said = self.ask(rules, (path, purpose), script!("read"), &words).await?;
        let end = said.iter().position(|byte| *byte == b'\n');
        let head = said.split_to(end.map_or(said.len(), |end| end + 1));
        Ok((info::parse(String::from_utf8_lossy(&head).trim_end(), path)?, said))
    }

    /// Reads a whole file that fits into memory. Starts again if the file changes meanwhile.
    async fn whole(
        &self,
        rules: &Rules,
        (path, purpose): (&str, Purpose),
    ) -> Result<(FileInfo, Bytes), Failure> {
        let part = PART_BYTES as u64;
        for _ in 0..ATTEMPTS {
            let (info, first) = self.piece(rules, (path, purpose), 0, part).await?;
            if info.size > MAX_BYTES {
                let message = format!(
                    "a file of {} bytes is too large to read at once (at most {MAX_BYTES}): read a range, or \
                     download it",
                    info.size
                );
                return Err(Failure::new(ErrorCode::TooLarge, message).at(path));
            }
            let mut content = BytesMut::from(&first[..]);
            let mut same = true;
            while same && (content.len() as u64) < info.size {
                let (now, more) = self.piece(rules, (path, purpose), content.len() as u64, part).await?;
                same = now == info && !more.is_empty();
                content.extend_from_slice(&more);
            }
            if same && content.len() as u64 >= info.size {
                return Ok((info, content.freeze()));
            }
        }
        Err(changed(path))
    }

    async fn replace(&self, rules: Rules, request: EditRequest) -> Result<EditResponse, Failure> {
        let replacement = edit::replacement(&request);
        edit::check(&replacement).map_err(|failure| failure.at(&request.path))?;
        let place = (request.path.as_str(), Purpose::EDIT);
        let _lock = self.editing.lock().await;
        for _ in 0..ATTEMPTS {
            let (_, content) = self.whole(&rules, place).await?;
            let old = edit::text_of(content.into(), &request.path)?;
            let replaced = edit::replace(&old, &replacement);
            let (new, occurrences) = replaced.map_err(|failure| failure.at(&request.path))?;
            let expected = HEXLOWER.encode(&Sha256::digest(&old));
            let mut incoming = Incoming::new(&self.jobs);
            incoming.add(new.as_bytes()).await?;
            match incoming.commit(&rules, place, None, Some(&expected)).await {
                Err(failure) if failure.code() == ErrorCode::Changed => {}
                atomic => return Ok(EditResponse { occurrences, atomic: atomic? }),
            }
        }
        Err(changed(&request.path))
    }

    async fn remove(&self, rules: Rules, request: DeleteRequest) -> Result<DeleteResponse, Failure> {
        let path = absolute(&request.path)?;
        if path.trim_end_matches('/').is_empty() {
            return Err(Failure::new(ErrorCode::InvalidArgument, "the root cannot be deleted").at(path));
        }
        let job = self.jobs.job();
        let only: &[u8] = if request.only_empty { b"empty" } else { b"" };
        rules.admit(&job, &[path.as_bytes(), only], &[(path, Purpose::DELETE)]).await?;
        let deleted = job.once("delete", script!("delete"), &[]).await;
        deleted.map(|_| DeleteResponse {}).map_err(|failure| failure.at(path))
    }

    async fn rename(&self, rules: Rules, request: MoveRequest) -> Result<MoveResponse, Failure> {
        let (from, to) = (absolute(&request.from)?, absolute(&request.to)?);
        let job = self.jobs.job();
        let replace: &[u8] = if request.replace { b"replace" } else { b"" };
        let words = [from.as_bytes(), to.as_bytes(), replace];
        rules.admit(&job, &words, &[(from, Purpose::MOVE), (to, Purpose::MOVE)]).await?;
        let moved = job.once("move", script!("move"), &[]).await.map_err(|failure| failure.at(from))?;
        Ok(MoveResponse { atomic: &moved[..] == b"atomic" })
    }

    async fn receive(
        &self,
        rules: Rules,
        mut parts: Streaming<UploadRequest>,
    ) -> Result<WriteResponse, Status> {
        use upload_request::Part;
        let Some(UploadRequest { part: Some(Part::Header(header)) }) = parts.message().await? else {
            return Err(incomplete().into());
        };
        absolute(&header.path)?;
        let (mut incoming, mut sum) = (Incoming::new(&self.jobs), Checksum::default());
        while let Some(message) = parts.message().await? {
            match message.part {
                Some(Part::Chunk(chunk)) => {
                    sum.update(&chunk);
                    incoming.add(&chunk).await?;
                }
                Some(Part::Trailer(trailer)) if trailer.checksum == sum.finish() => {
                    let place = (header.path.as_str(), Purpose::WRITE);
                    let atomic = incoming.commit(&rules, place, header.mode, None).await?;
                    return Ok(WriteResponse { atomic });
                }
                Some(Part::Trailer(_)) => {
                    let message = "the upload differs from its checksum: send it again";
                    return Err(Failure::new(ErrorCode::Corrupt, message).into());
                }
                _ => break,
            }
        }
        Err(incomplete().into())
    }

    /// Sends a file part by part. A file that changes meanwhile is an error, so that no two versions are mixed.
    async fn send(
        self,
        rules: Rules,
        path: String,
        to: &mpsc::Sender<Result<DownloadResponse, Status>>,
    ) -> Result<(), Failure> {
        use download_response::Part;
        let told = |part| async { to.send(Ok(DownloadResponse { part: Some(part) })).await.is_ok() };
        let (place, part) = ((path.as_str(), Purpose::READ), PART_BYTES as u64);
        let (info, mut piece) = self.piece(&rules, place, 0, part).await?;
        let (mut sum, mut sent) = (Checksum::default(), 0);
        let mut heard = told(Part::Header(info.clone())).await;
        while heard && !piece.is_empty() {
            sum.update(&piece);
            sent += piece.len() as u64;
            while heard && !piece.is_empty() {
                let chunk = piece.split_to(piece.len().min(limits::CHUNK_BYTES));
                heard = told(Part::Chunk(chunk)).await;
            }
            if heard && sent < info.size {
                let (now, next) = self.piece(&rules, place, sent, part).await?;
                if now != info {
                    return Err(changed(&path));
                }
                piece = next;
            }
        }
        if heard && sent != info.size {
            return Err(changed(&path));
        }
        told(Part::Trailer(Trailer { checksum: sum.finish().to_vec().into() })).await;
        Ok(())
    }
}

/// Checks a path.
pub(crate) fn absolute(path: &str) -> Result<&str, Failure> {
    sandpod_text::path::check(path)?;
    Ok(path)
}

fn incomplete() -> Failure {
    let message = "an upload must begin with its header and end with its trailer";
    Failure::new(ErrorCode::InvalidArgument, message)
}

fn changed(path: &str) -> Failure {
    let message = format!("'{path}' keeps changing: try again when no process writes to it");
    Failure::new(ErrorCode::Changed, message).at(path)
}

#[tonic::async_trait]
impl files_server::Files for Files {
    async fn stat(&self, request: Request<StatRequest>) -> Result<Response<StatResponse>, Status> {
        let rules = self.rules(request.metadata()).await?;
        Ok(self.look(rules, request.into_inner()).await.map(Response::new)?)
    }

    async fn list(&self, request: Request<ListRequest>) -> Result<Response<ListResponse>, Status> {
        let rules = self.rules(request.metadata()).await?;
        Ok(self.entries(rules, request.into_inner()).await.map(Response::new)?)
    }

    async fn read(&self, request: Request<ReadRequest>) -> Result<Response<ReadResponse>, Status> {
        let rules = self.rules(request.metadata()).await?;
        Ok(self.page(rules, request.into_inner()).await.map(Response::new)?)
    }

    async fn write(&self, request: Request<WriteRequest>) -> Result<Response<WriteResponse>, Status> {
        let rules = self.rules(request.metadata()).await?;
        let WriteRequest { path, content, .. } = request.into_inner();
        let atomic = write(&self.jobs, rules, &path, &content, None).await?;
        Ok(Response::new(WriteResponse { atomic }))
    }

    async fn edit(&self, request: Request<EditRequest>) -> Result<Response<EditResponse>, Status> {
        let rules = self.rules(request.metadata()).await?;
        Ok(self.replace(rules, request.into_inner()).await.map(Response::new)?)
    }

    async fn apply_edits(
        &self,
        _: Request<ApplyEditsRequest>,
    ) -> Result<Response<ApplyEditsResponse>, Status> {
        Err(lacks(&self.jobs, "apply_edits").into())
    }

    async fn r#move(&self, request: Request<MoveRequest>) -> Result<Response<MoveResponse>, Status> {
        let rules = self.rules(request.metadata()).await?;
        Ok(self.rename(rules, request.into_inner()).await.map(Response::new)?)
    }

    async fn delete(&self, request: Request<DeleteRequest>) -> Result<Response<DeleteResponse>, Status> {
        let rules = self.rules(request.metadata()).await?;
        Ok(self.remove(rules, request.into_inner()).await.map(Response::new)?)
    }

    async fn upload(
        &self,
        request: Request<Streaming<UploadRequest>>,
    ) -> Result<Response<WriteResponse>, Status> {
        let rules = self.rules(request.metadata()).await?;
        Ok(Response::new(self.receive(rules, request.into_inner()).await?))
    }

    type DownloadStream = BoxStream<'static, Result<DownloadResponse, Status>>;

    async fn download(
        &self,
        request: Request<DownloadRequest>,
    ) -> Result<Response<Self::DownloadStream>, Status> {
        let rules = self.rules(request.metadata()).await?;
        let (files, path) = (self.clone(), request.into_inner().path);
        absolute(&path)?;
        let (to, from) = mpsc::channel(2);
        tokio::spawn(async move {
            let sent = tokio::select! {
                sent = files.send(rules, path, &to) => sent,
                // The caller has dropped the call, or the sandbox is gone with its streams.
                () = to.closed() => return,
            };
            if let Err(failure) = sent {
                let _ = to.send(Err(failure.into())).await;
            }
        });
        let stream =
            futures::stream::unfold(from, |mut from| async { from.recv().await.map(|part| (part, from)) });
        Ok(Response::new(stream.boxed()))
    }

    async fn upload_tree(
        &self,
        _: Request<Streaming<UploadTreeRequest>>,
    ) -> Result<Response<UploadTreeResponse>, Status> {
        Err(lacks(&self.jobs, "upload_tree").into())
    }

    type DownloadTreeStream = futures::stream::Empty<Result<DownloadTreeResponse, Status>>;

    async fn download_tree(
        &self,
        _: Request<DownloadTreeRequest>,
    ) -> Result<Response<Self::DownloadTreeStream>, Status> {
        Err(lacks(&self.jobs, "download_tree").into())
    }

    async fn glob(&self, request: Request<GlobRequest>) -> Result<Response<GlobResponse>, Status> {
        let rules = self.rules(request.metadata()).await?;
        Ok(search::glob(&self.jobs, &rules, request.into_inner()).await.map(Response::new)?)
    }

    async fn grep(&self, request: Request<GrepRequest>) -> Result<Response<GrepResponse>, Status> {
        let rules = self.rules(request.metadata()).await?;
        let bound = self.binding.bound().await?;
        let dir = if bound.working_dir.is_empty() { "/" } else { &bound.working_dir };
        Ok(search::grep(&self.jobs, &rules, request.into_inner(), dir).await.map(Response::new)?)
    }
}
