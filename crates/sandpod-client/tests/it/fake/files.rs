//! The file service of the fake guest.

use bytes::Bytes;
use futures::stream::{BoxStream, StreamExt as _};
use sandpod_protocol::v1::download_response::Part;
use sandpod_protocol::v1::files_server::Files;
use sandpod_protocol::v1::{self, ErrorCode};
use sandpod_protocol::{Checksum, Failure, limits};
use tonic::{Request, Response, Status};

use super::{Fake, Fault, Lie};

#[tonic::async_trait]
impl Files for Fake {
    type DownloadTreeStream = BoxStream<'static, Result<v1::DownloadTreeResponse, Status>>;
    type DownloadStream = BoxStream<'static, Result<v1::DownloadResponse, Status>>;

    async fn stat(&self, request: Request<v1::StatRequest>) -> Result<Response<v1::StatResponse>, Status> {
        self.fail().await?;
        let path = request.into_inner().path;
        if path == "/missing" {
            let failure = Failure::new(ErrorCode::NotFound, "there is no \u{1b}[31mfile /missing").at(path);
            return Err(failure.into());
        }
        let size = self.file.lock().unwrap().len() as u64;
        let info = v1::FileInfo {
            path,
            kind: 77,
            size,
            mode: u32::MAX,
            modified_ns: i64::MIN,
            ..Default::default()
        };
        Ok(Response::new(v1::StatResponse { info: Some(info) }))
    }

    async fn list(&self, _: Request<v1::ListRequest>) -> Result<Response<v1::ListResponse>, Status> {
        Err(Status::unimplemented("unknown method"))
    }

    async fn read(&self, _: Request<v1::ReadRequest>) -> Result<Response<v1::ReadResponse>, Status> {
        Ok(Response::new(v1::ReadResponse::default()))
    }

    async fn write(&self, request: Request<v1::WriteRequest>) -> Result<Response<v1::WriteResponse>, Status> {
        let request = request.into_inner();
        let fake = self.clone();
        let work = async move {
            *fake.file.lock().unwrap() = request.content;
            v1::WriteResponse { atomic: true }
        };
        self.once(request.operation, work).await
    }

    async fn edit(&self, request: Request<v1::EditRequest>) -> Result<Response<v1::EditResponse>, Status> {
        self.once(request.into_inner().operation, async { v1::EditResponse { occurrences: 1, atomic: true } })
            .await
    }

    async fn delete(
        &self,
        request: Request<v1::DeleteRequest>,
    ) -> Result<Response<v1::DeleteResponse>, Status> {
        self.once(request.into_inner().operation, async { v1::DeleteResponse {} }).await
    }

    async fn apply_edits(
        &self,
        _: Request<v1::ApplyEditsRequest>,
    ) -> Result<Response<v1::ApplyEditsResponse>, Status> {
        Err(Status::unimplemented("not yet"))
    }

    async fn r#move(&self, _: Request<v1::MoveRequest>) -> Result<Response<v1::MoveResponse>, Status> {
        Err(Status::unimplemented("not yet"))
    }

    async fn upload_tree(
        &self,
        _: Request<tonic::Streaming<v1::UploadTreeRequest>>,
    ) -> Result<Response<v1::UploadTreeResponse>, Status> {
        Err(Status::unimplemented("not yet"))
    }

    async fn download_tree(
        &self,
        _: Request<v1::DownloadTreeRequest>,
    ) -> Result<Response<Self::DownloadTreeStream>, Status> {
        let mut trees = self.trees.lock().unwrap();
        let (parts, is_last) = (trees.pop_front().unwrap_or_default(), trees.is_empty());
        let fake = self.clone();
        let ending = futures::stream::once(async move {
            if !is_last {
                fake.cut_after_sent_answers::<()>().await;
            }
        });
        let parts = futures::stream::iter(parts).map(|part| v1::DownloadTreeResponse { part: Some(part) });
        Ok(Response::new(parts.map(Ok).chain(ending.filter_map(|()| async { None })).boxed()))
    }

    async fn upload(
        &self,
        request: Request<tonic::Streaming<v1::UploadRequest>>,
    ) -> Result<Response<v1::WriteResponse>, Status> {
        let mut stream = request.into_inner();
        let (mut operation, mut content, mut checksum) = (None, Vec::new(), Bytes::new());
        while let Some(message) = stream.message().await? {
            match message.part.unwrap() {
                v1::upload_request::Part::Header(header) => operation = header.operation,
                v1::upload_request::Part::Chunk(_) if self.is_next(Fault::CutOnTheWay) => self.fail().await?,
                v1::upload_request::Part::Chunk(chunk) => content.extend_from_slice(&chunk),
                v1::upload_request::Part::Trailer(trailer) => checksum = trailer.checksum,
            }
        }
        assert_eq!(Checksum::of(&content), checksum);
        let fake = self.clone();
        let work = async move {
            *fake.file.lock().unwrap() = content.into();
            v1::WriteResponse { atomic: true }
        };
        self.once(operation, work).await
    }

    async fn download(
        &self,
        request: Request<v1::DownloadRequest>,
    ) -> Result<Response<Self::DownloadStream>, Status> {
        let path = request.into_inner().path;
        let lie = self.lies.lock().unwrap().pop_front().unwrap_or_default();
        let content = self.file.lock().unwrap().clone();
        let mut chunks: Vec<Bytes> =
            content.chunks(limits::CHUNK_BYTES).map(Bytes::copy_from_slice).collect();
        let mut checksum = Checksum::of(&content);
        match lie {
            Lie::Short => drop(chunks.pop()),
            Lie::Checksum => checksum = Bytes::from_static(b"nonsense"),
            Lie::TooMuch => chunks.push(Bytes::from_static(b"!")),
            Lie::EmptyChunks => chunks.insert(0, Bytes::new()),
            Lie::Cut | Lie::Stall => chunks.truncate(1),
            Lie::None | Lie::NoTrailer | Lie::NoHeader | Lie::Larger => {}
        }
        let more = if lie == Lie::Larger { 1 << 40 } else { 0 };
        let header = v1::FileInfo { path, size: content.len() as u64 + more, ..Default::default() };
        let header = (lie != Lie::NoHeader).then_some(Part::Header(header));
        let trailer = (lie != Lie::NoTrailer).then_some(Part::Trailer(v1::Trailer { checksum }));
        let fake = self.clone();
        let ending = async move {
            match lie {
                Lie::Cut => fake.cut_after_sent_answers().await,
                Lie::Stall => std::future::pending().await,
                _ => trailer,
            }
        };
        let parts = futures::stream::iter(header.into_iter().chain(chunks.into_iter().map(Part::Chunk)))
            .chain(futures::stream::once(ending).filter_map(std::future::ready))
            .map(|part| Ok(v1::DownloadResponse { part: Some(part) }));
        Ok(Response::new(parts.boxed()))
    }

    async fn glob(&self, _: Request<v1::GlobRequest>) -> Result<Response<v1::GlobResponse>, Status> {
        Ok(Response::new(v1::GlobResponse { matches: vec![v1::FileInfo::default()], truncated: 99 }))
    }

    async fn grep(&self, _: Request<v1::GrepRequest>) -> Result<Response<v1::GrepResponse>, Status> {
        Ok(Response::new(v1::GrepResponse::default()))
    }
}
