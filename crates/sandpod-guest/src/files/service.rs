//! The gRPC side of file operations and searches. It only dispatches.

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
use super::resolver::PathResolver;
use super::tree::{TreeReader, TreeUploads};
use super::upload::Uploads;
use super::{apply, delete, edit, info, read, rename, write};
use crate::search;
use crate::session::binding::Binding;
use crate::session::records::Records;

/// Maximum size of a cached file that is read inline, because reading it is faster than waking a thread.
const MAX_INLINE_READ_BYTES: u64 = 64 << 10;

/// Implements the protocol's `Files` service.
pub(crate) struct FileService {
    records: Records,
    uploads: Uploads,
    trees: TreeUploads,
    binding: Arc<Binding>,
    resolver: PathResolver,
}

impl FileService {
    /// Makes a service with the rules of the binding, whose working directory is the default root of searches.
    pub(crate) fn new(records: Records, binding: Arc<Binding>, resolver: PathResolver) -> Self {
        let (uploads, trees) = (Uploads::new(records.clone()), TreeUploads::new(records.clone()));
        Self { records, uploads, trees, binding, resolver }
    }

    /// Returns a resolver with the rules that apply to a call.
    fn resolver(&self, metadata: &MetadataMap) -> Result<PathResolver, Failure> {
        let rules = self.binding.file_rules();
        Ok(self.resolver.with_rules(match bounds(metadata)? {
            Some(bounds) => rules.within(&bounds)?.into(),
            None => rules,
        }))
    }

    /// Runs a read-only operation on a blocking thread.
    async fn run<M: Send + 'static, T: Send + 'static>(
        &self,
        request: Request<M>,
        work: impl FnOnce(&M, &PathResolver) -> Result<T, Failure> + Send + 'static,
    ) -> Result<Response<T>, Status> {
        let resolver = self.resolver(request.metadata())?;
        Ok(Response::new(blocking(move || work(request.get_ref(), &resolver)).await?))
    }

    /// Runs a read-only operation, inline if it is quick.
    async fn run_inline_if<M: Send + 'static, T: Send + 'static>(
        &self,
        is_quick: bool,
        request: Request<M>,
        work: impl FnOnce(&M, &PathResolver) -> Result<T, Failure> + Send + 'static,
    ) -> Result<Response<T>, Status> {
        if !is_quick {
            return self.run(request, work).await;
        }
        let resolver = self.resolver(request.metadata())?;
        Ok(Response::new(work(request.get_ref(), &resolver)?))
    }

    /// Receives the parts of an upload from any source.
    pub(crate) async fn receive(
        &self,
        parts: impl Stream<Item = Result<UploadRequest, Status>> + Unpin + Send,
    ) -> Result<WriteResponse, Status> {
        self.uploads.upload(parts, self.resolver(&MetadataMap::new())?).await
    }

    /// Runs a changing operation once.
    async fn once<M: Message + Default + 'static>(
        &self,
        operation: Option<Operation>,
        metadata: &MetadataMap,
        work: impl FnOnce(&PathResolver) -> Result<M, Failure> + Send + 'static,
    ) -> Result<Response<M>, Status> {
        let resolver = self.resolver(metadata)?;
        Ok(Response::new(self.records.once(operation, |_| blocking(move || work(&resolver))).await?))
    }
}

/// Decodes the bounds of a call, if it has any.
fn bounds(metadata: &MetadataMap) -> Result<Option<Bounds>, Failure> {
    let unclear = || Failure::new(ErrorCode::InvalidArgument, "the bounds of this call cannot be decoded");
    let Some(encoded) = metadata.get_bin(BOUNDS_METADATA) else { return Ok(None) };
    let encoded = encoded.to_bytes().map_err(|_| unclear())?;
    Bounds::decode(encoded).map(Some).map_err(|_| unclear())
}

/// Starts work on a blocking thread. It continues even if the returned future is dropped.
pub(crate) fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> BlockingTask<T> {
    let (sender, outcome) = oneshot::channel();
    // Boxed, because `spawn_blocking` is compiled for each type of closure. The receiver may be gone.
    let work: Box<dyn FnOnce() + Send> = Box::new(|| drop(sender.send(work())));
    task::spawn_blocking(work);
    BlockingTask(outcome)
}

/// Work on a blocking thread. Resolves to its result.
pub(crate) struct BlockingTask<T>(oneshot::Receiver<Result<T, Failure>>);

impl<T> Future for BlockingTask<T> {
    type Output = Result<T, Failure>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context).map(|outcome| {
            outcome.unwrap_or_else(|_| {
                Err(Failure::new(ErrorCode::Internal, "the guest failed during this call"))
            })
        })
    }
}

/// Streams parts. One part is read ahead while the previous one is sent, so that a slow client occupies no thread.
fn stream_parts<P: Send + 'static>(
    parts: impl Iterator<Item = Result<P, Failure>> + Send + 'static,
) -> impl Stream<Item = Result<P, Failure>> + Send {
    stream::unfold(next_part_of(parts), |next| async {
        let (part, parts) = next.await.unwrap_or_default()?;
        Some((part, next_part_of(parts)))
    })
}

/// Starts to read the next part.
fn next_part_of<P: Send + 'static, I: Iterator<Item = P> + Send + 'static>(
    mut parts: I,
) -> BlockingTask<Option<(P, I)>> {
    blocking(move || Ok(parts.next().map(|part| (part, parts))))
}

#[tonic::async_trait]
impl Files for FileService {
    type DownloadTreeStream = Pin<Box<dyn Stream<Item = Result<DownloadTreeResponse, Status>> + Send>>;
    type DownloadStream = Pin<Box<dyn Stream<Item = Result<DownloadResponse, Status>> + Send>>;

    async fn stat(&self, request: Request<StatRequest>) -> Result<Response<StatResponse>, Status> {
        let is_quick = self.resolver.cached_lookup(&request.get_ref().path).is_some();
        self.run_inline_if(is_quick, request, info::stat).await
    }

    async fn list(&self, request: Request<ListRequest>) -> Result<Response<ListResponse>, Status> {
        self.run(request, info::list).await
    }

    async fn read(&self, request: Request<ReadRequest>) -> Result<Response<ReadResponse>, Status> {
        let is_quick = self
            .resolver
            .cached_lookup(&request.get_ref().path)
            .is_some_and(|file| file.size <= MAX_INLINE_READ_BYTES);
        self.run_inline_if(is_quick, request, read::read).await
    }

    async fn write(&self, request: Request<WriteRequest>) -> Result<Response<WriteResponse>, Status> {
        let (metadata, _, mut request) = request.into_parts();
        self.once(request.operation.take(), &metadata, move |resolver| write::write(&request, resolver)).await
    }

    async fn edit(&self, request: Request<EditRequest>) -> Result<Response<EditResponse>, Status> {
        let (metadata, _, mut request) = request.into_parts();
        self.once(request.operation.take(), &metadata, move |resolver| edit::edit(&request, resolver)).await
    }

    async fn delete(&self, request: Request<DeleteRequest>) -> Result<Response<DeleteResponse>, Status> {
        let (metadata, _, mut request) = request.into_parts();
        self.once(request.operation.take(), &metadata, move |resolver| delete::delete(&request, resolver))
            .await
    }

    async fn apply_edits(
        &self,
        request: Request<ApplyEditsRequest>,
    ) -> Result<Response<ApplyEditsResponse>, Status> {
        let (metadata, _, mut request) = request.into_parts();
        self.once(request.operation.take(), &metadata, move |resolver| apply::apply(&request, resolver)).await
    }

    async fn r#move(&self, request: Request<MoveRequest>) -> Result<Response<MoveResponse>, Status> {
        let (metadata, _, mut request) = request.into_parts();
        self.once(request.operation.take(), &metadata, move |resolver| rename::move_path(&request, resolver))
            .await
    }

    async fn upload_tree(
        &self,
        request: Request<Streaming<UploadTreeRequest>>,
    ) -> Result<Response<UploadTreeResponse>, Status> {
        let resolver = self.resolver(request.metadata())?;
        Ok(Response::new(self.trees.upload(request.into_inner(), resolver).await?))
    }

    async fn download_tree(
        &self,
        request: Request<DownloadTreeRequest>,
    ) -> Result<Response<Self::DownloadTreeStream>, Status> {
        let resolver = self.resolver(request.metadata())?;
        let reading = blocking(move || TreeReader::new(&request.get_ref().path, &resolver)).await?;
        let parts = stream_parts(reading).map(|part| Ok(DownloadTreeResponse { part: Some(part?) }));
        Ok(Response::new(Box::pin(parts)))
    }

    async fn upload(
        &self,
        request: Request<Streaming<UploadRequest>>,
    ) -> Result<Response<WriteResponse>, Status> {
        let resolver = self.resolver(request.metadata())?;
        Ok(Response::new(self.uploads.upload(request.into_inner(), resolver).await?))
    }

    async fn download(
        &self,
        request: Request<DownloadRequest>,
    ) -> Result<Response<Self::DownloadStream>, Status> {
        let resolver = self.resolver(request.metadata())?;
        let download = blocking(move || Download::new(request.get_ref(), &resolver)).await?;
        let parts = stream_parts(download).map(|part| Ok(DownloadResponse { part: Some(part?) }));
        Ok(Response::new(Box::pin(parts)))
    }

    async fn glob(&self, request: Request<GlobRequest>) -> Result<Response<GlobResponse>, Status> {
        self.run(request, search::glob).await
    }

    async fn grep(&self, request: Request<GrepRequest>) -> Result<Response<GrepResponse>, Status> {
        let working_dir = self.binding.working_dir();
        self.run(request, move |request, resolver| search::grep(request, &working_dir, resolver)).await
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use sandpod_protocol::v1::BindRequest;
    use sandpod_protocol::v1::download_response::Part;

    use super::*;
    use crate::disabled_kernel_features::DisabledKernelFeatures;
    use crate::files::testing::text;
    use crate::policy::Probe;

    /// Makes a service that is bound to a working directory.
    fn service(working_dir: &Path) -> FileService {
        let state = tempfile::tempdir().unwrap();
        let binding = Binding::restore(state.path().to_owned(), false);
        let working_dir = text(working_dir);
        let request = BindRequest { claim: "c".to_owned(), working_dir, ..BindRequest::default() };
        binding.bind(request, Probe::begin(DisabledKernelFeatures::default()).result(), true, drop).unwrap();
        FileService::new(Records::default(), Arc::new(binding), PathResolver::default())
    }

    fn call(number: u64) -> Operation {
        Operation { session: "s".to_owned(), number, ..Operation::default() }
    }

    #[tokio::test]
    async fn a_repeated_change_is_made_once() {
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
    async fn a_failure_is_sent_with_its_code_and_path() {
        let request = StatRequest { path: "/no/such".to_owned(), follow: false };
        let status = service(Path::new("/")).stat(Request::new(request)).await.unwrap_err();
        let failure = Failure::from(&status);
        assert_eq!((failure.code(), failure.path()), (ErrorCode::NotFound, Some("/no/such")));
    }
}
