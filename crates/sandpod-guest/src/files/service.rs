//! The gRPC side of file operations and searches: nothing but passing on.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::{Stream, StreamExt as _, stream};
use prost::Message;
use sandpod_protocol::v1::files_server::Files;
use sandpod_protocol::v1::{
    ApplyEditsRequest, ApplyEditsResponse, Bounds, DeleteRequest, DeleteResponse, DownloadRequest,
    DownloadResponse, DownloadTreeRequest, DownloadTreeResponse, EditRequest, EditResponse, ErrorCode,
    GlobRequest, GlobResponse, GrepRequest, GrepResponse, ListRequest, ListResponse, MoveRequest,
    MoveResponse, Operation, ReadRequest, ReadResponse, StatRequest, StatResponse, UploadRequest,
    UploadTreeRequest, UploadTreeResponse, WriteRequest, WriteResponse,
};
use sandpod_protocol::{BOUNDS_METADATA, Failure};
use tokio::sync::oneshot;
use tokio::task;
use tonic::metadata::MetadataMap;
use tonic::{Request, Response, Status, Streaming};

use super::download::Download;
use super::place::Reach;
use super::tree::{Reading, TreeUploads};
use super::upload::Uploads;
use super::{apply, delete, edit, info, moving, read, write};
use crate::search;
use crate::session::binding::Binding;
use crate::session::records::Records;

/// A file that is read sooner than a thread is woken.
const QUICK_BYTES: u64 = 64 << 10;

/// The service `Files` of the protocol.
pub(crate) struct FileService {
    records: Records,
    uploads: Uploads,
    trees: TreeUploads,
    binding: Arc<Binding>,
    reach: Reach,
}

impl FileService {
    /// A service by the rules of the binding, which also says where relative searches begin.
    pub(crate) fn new(records: Records, binding: Arc<Binding>, reach: Reach) -> Self {
        let (uploads, trees) = (Uploads::new(records.clone()), TreeUploads::new(records.clone()));
        Self { records, uploads, trees, binding, reach }
    }

    /// What a call with this metadata can reach now.
    fn reach(&self, metadata: &MetadataMap) -> Result<Reach, Failure> {
        let rules = self.binding.file_rules();
        Ok(self.reach.by(match bounds(metadata)? {
            Some(bounds) => rules.within(&bounds)?.into(),
            None => rules,
        }))
    }

    /// Does work that changes nothing.
    async fn answer<M: Send + 'static, T: Send + 'static>(
        &self,
        request: Request<M>,
        work: impl FnOnce(&M, &Reach) -> Result<T, Failure> + Send + 'static,
    ) -> Result<Response<T>, Status> {
        let reach = self.reach(request.metadata())?;
        Ok(Response::new(blocking(move || work(request.get_ref(), &reach)).await?))
    }

    /// Does work that changes nothing, and where it is quick without waking a thread for it.
    async fn answer_soon<M: Send + 'static, T: Send + 'static>(
        &self,
        is_quick: bool,
        request: Request<M>,
        work: impl FnOnce(&M, &Reach) -> Result<T, Failure> + Send + 'static,
    ) -> Result<Response<T>, Status> {
        if !is_quick {
            return self.answer(request, work).await;
        }
        let reach = self.reach(request.metadata())?;
        Ok(Response::new(work(request.get_ref(), &reach)?))
    }

    /// Takes the parts of an upload, wherever they come from.
    pub(crate) async fn receive(
        &self,
        parts: impl Stream<Item = Result<UploadRequest, Status>> + Unpin + Send,
    ) -> Result<WriteResponse, Status> {
        self.uploads.upload(parts, self.reach(&MetadataMap::new())?).await
    }

    /// Does work that changes something, once.
    async fn once<M: Message + Default + 'static>(
        &self,
        operation: Option<Operation>,
        metadata: &MetadataMap,
        work: impl FnOnce(&Reach) -> Result<M, Failure> + Send + 'static,
    ) -> Result<Response<M>, Status> {
        let reach = self.reach(metadata)?;
        Ok(Response::new(self.records.once(operation, |_| blocking(move || work(&reach))).await?))
    }
}

/// The bounds of a call, if it has some.
fn bounds(metadata: &MetadataMap) -> Result<Option<Bounds>, Failure> {
    let unclear = || Failure::new(ErrorCode::InvalidArgument, "the bounds of this call can't be read");
    let Some(encoded) = metadata.get_bin(BOUNDS_METADATA) else { return Ok(None) };
    let encoded = encoded.to_bytes().map_err(|_| unclear())?;
    Bounds::decode(encoded).map(Some).map_err(|_| unclear())
}

/// Begins work that waits for the disk where that holds up nobody. It goes on whether or not it is waited for.
pub(crate) fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Working<T> {
    let (sender, outcome) = oneshot::channel();
    // Boxed: each kind of task has code of its own, and there are many kinds of work. Who waits may have left.
    let work: Box<dyn FnOnce() + Send> = Box::new(|| drop(sender.send(work())));
    task::spawn_blocking(work);
    Working(outcome)
}

/// Work that a thread is at; resolves to its outcome.
pub(crate) struct Working<T>(oneshot::Receiver<Result<T, Failure>>);

impl<T> Future for Working<T> {
    type Output = Result<T, Failure>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context).map(|outcome| {
            outcome.unwrap_or_else(|_| {
                Err(Failure::new(ErrorCode::Internal, "the guest failed while it worked on this call"))
            })
        })
    }
}

/// A part is read while the one before is on its way, and no more, so that a slow client holds no thread.
fn in_parts<P: Send + 'static>(
    parts: impl Iterator<Item = Result<P, Failure>> + Send + 'static,
) -> impl Stream<Item = Result<P, Failure>> + Send {
    stream::unfold(next_of(parts), |next| async {
        let (part, parts) = next.await.unwrap_or_default()?;
        Some((part, next_of(parts)))
    })
}

/// Begins to read the next part.
fn next_of<P: Send + 'static, I: Iterator<Item = P> + Send + 'static>(
    mut parts: I,
) -> Working<Option<(P, I)>> {
    blocking(move || Ok(parts.next().map(|part| (part, parts))))
}

#[tonic::async_trait]
impl Files for FileService {
    type DownloadTreeStream = Pin<Box<dyn Stream<Item = Result<DownloadTreeResponse, Status>> + Send>>;
    type DownloadStream = Pin<Box<dyn Stream<Item = Result<DownloadResponse, Status>> + Send>>;

    async fn stat(&self, request: Request<StatRequest>) -> Result<Response<StatResponse>, Status> {
        let is_quick = self.reach.at_hand(&request.get_ref().path).is_some();
        self.answer_soon(is_quick, request, info::stat).await
    }

    async fn list(&self, request: Request<ListRequest>) -> Result<Response<ListResponse>, Status> {
        self.answer(request, info::list).await
    }

    async fn read(&self, request: Request<ReadRequest>) -> Result<Response<ReadResponse>, Status> {
        let is_quick =
            self.reach.at_hand(&request.get_ref().path).is_some_and(|file| file.size <= QUICK_BYTES);
        self.answer_soon(is_quick, request, read::read).await
    }

    async fn write(&self, request: Request<WriteRequest>) -> Result<Response<WriteResponse>, Status> {
        let (metadata, _, mut request) = request.into_parts();
        self.once(request.operation.take(), &metadata, move |reach| write::write(&request, reach)).await
    }

    async fn edit(&self, request: Request<EditRequest>) -> Result<Response<EditResponse>, Status> {
        let (metadata, _, mut request) = request.into_parts();
        self.once(request.operation.take(), &metadata, move |reach| edit::edit(&request, reach)).await
    }

    async fn delete(&self, request: Request<DeleteRequest>) -> Result<Response<DeleteResponse>, Status> {
        let (metadata, _, mut request) = request.into_parts();
        self.once(request.operation.take(), &metadata, move |reach| delete::delete(&request, reach)).await
    }

    async fn apply_edits(
        &self,
        request: Request<ApplyEditsRequest>,
    ) -> Result<Response<ApplyEditsResponse>, Status> {
        let (metadata, _, mut request) = request.into_parts();
        self.once(request.operation.take(), &metadata, move |reach| apply::apply(&request, reach)).await
    }

    async fn r#move(&self, request: Request<MoveRequest>) -> Result<Response<MoveResponse>, Status> {
        let (metadata, _, mut request) = request.into_parts();
        self.once(request.operation.take(), &metadata, move |reach| moving::move_path(&request, reach)).await
    }

    async fn upload_tree(
        &self,
        request: Request<Streaming<UploadTreeRequest>>,
    ) -> Result<Response<UploadTreeResponse>, Status> {
        let reach = self.reach(request.metadata())?;
        Ok(Response::new(self.trees.upload(request.into_inner(), reach).await?))
    }

    async fn download_tree(
        &self,
        request: Request<DownloadTreeRequest>,
    ) -> Result<Response<Self::DownloadTreeStream>, Status> {
        let reach = self.reach(request.metadata())?;
        let reading = blocking(move || Reading::new(&request.get_ref().path, &reach)).await?;
        let parts = in_parts(reading).map(|part| Ok(DownloadTreeResponse { part: Some(part?) }));
        Ok(Response::new(Box::pin(parts)))
    }

    async fn upload(
        &self,
        request: Request<Streaming<UploadRequest>>,
    ) -> Result<Response<WriteResponse>, Status> {
        let reach = self.reach(request.metadata())?;
        Ok(Response::new(self.uploads.upload(request.into_inner(), reach).await?))
    }

    async fn download(
        &self,
        request: Request<DownloadRequest>,
    ) -> Result<Response<Self::DownloadStream>, Status> {
        let reach = self.reach(request.metadata())?;
        let download = blocking(move || Download::new(request.get_ref(), &reach)).await?;
        let parts = in_parts(download).map(|part| Ok(DownloadResponse { part: Some(part?) }));
        Ok(Response::new(Box::pin(parts)))
    }

    async fn glob(&self, request: Request<GlobRequest>) -> Result<Response<GlobResponse>, Status> {
        self.answer(request, search::glob).await
    }

    async fn grep(&self, request: Request<GrepRequest>) -> Result<Response<GrepResponse>, Status> {
        let working_dir = self.binding.working_dir();
        self.answer(request, move |request, reach| search::grep(request, &working_dir, reach)).await
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use sandpod_protocol::v1::BindRequest;
    use sandpod_protocol::v1::download_response::Part;

    use super::*;
    use crate::files::testing::text;
    use crate::policy::Probe;
    use crate::without::Without;

    /// A service that is bound to a working directory.
    fn service(working_dir: &Path) -> FileService {
        let state = tempfile::tempdir().unwrap();
        let binding = Binding::restore(state.path().to_owned(), false);
        let working_dir = text(working_dir);
        let request = BindRequest { claim: "c".to_owned(), working_dir, ..BindRequest::default() };
        binding.bind(request, Probe::begin(Without::default()).result(), true, drop).unwrap();
        FileService::new(Records::default(), Arc::new(binding), Reach::default())
    }

    fn call(number: u64) -> Operation {
        Operation { session: "s".to_owned(), number, ..Operation::default() }
    }

    #[tokio::test]
    async fn a_change_is_made_once_however_often_it_is_asked_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = text(&dir.path().join("file"));
        let service = service(dir.path());
        let write = WriteRequest { operation: Some(call(1)), path: path.clone(), content: "a".into() };
        service.write(Request::new(write)).await.unwrap();
        let (old_text, new_text) = ("a".to_owned(), "aa".to_owned());
        let edit = EditRequest {
            operation: Some(call(2)),
            path: path.clone(),
            old_text,
            new_text,
            replace_all: true,
        };
        for _ in 0..3 {
            let response = service.edit(Request::new(edit.clone())).await.unwrap();
            assert_eq!(response.into_inner(), EditResponse { occurrences: 1, atomic: true });
        }
        assert_eq!(fs::read_to_string(&path).unwrap(), "aa");
        let delete = DeleteRequest { operation: Some(call(3)), path: path.clone(), only_empty: false };
        service.delete(Request::new(delete.clone())).await.unwrap();
        fs::write(&path, "made since").unwrap();
        service.delete(Request::new(delete)).await.unwrap();
        assert!(fs::exists(&path).unwrap());
    }

    #[tokio::test]
    async fn a_download_streams_its_parts() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, "content").unwrap();
        let request = DownloadRequest { path: text(&path) };
        let stream = service(dir.path()).download(Request::new(request)).await.unwrap();
        let parts: Vec<_> = stream.into_inner().map(|part| part.unwrap().part.unwrap()).collect().await;
        let [Part::Header(_), Part::Chunk(chunk), Part::Trailer(_)] = parts.as_slice() else {
            panic!("{parts:?}")
        };
        assert_eq!(chunk, "content");
    }

    #[tokio::test]
    async fn a_search_without_a_root_is_in_the_working_directory() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("file"), "needle").unwrap();
        let request = GrepRequest { pattern: "needle".to_owned(), ..GrepRequest::default() };
        let response = service(dir.path()).grep(Request::new(request)).await.unwrap();
        assert_eq!(response.get_ref().matches[0].path, text(&dir.path().join("file")));
    }

    #[tokio::test]
    async fn a_failure_travels_with_its_code_and_path() {
        let request = StatRequest { path: "/no/such".to_owned(), follow: false };
        let status = service(Path::new("/")).stat(Request::new(request)).await.unwrap_err();
        let failure = Failure::from(&status);
        assert_eq!((failure.code(), failure.path()), (ErrorCode::NotFound, Some("/no/such")));
    }
}
