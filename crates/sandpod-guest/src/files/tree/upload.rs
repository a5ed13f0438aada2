//! Receives a tree, once, however often its stream breaks. A repeat overwrites what has arrived already.

use futures_util::{Stream, StreamExt as _};
use sandpod_protocol::Failure;
use sandpod_protocol::v1::download_tree_response::Part;
use sandpod_protocol::v1::upload_tree_request::Part as Sent;
use sandpod_protocol::v1::{ErrorCode, TreeSummary, UploadHeader, UploadTreeRequest, UploadTreeResponse};
use tonic::Status;

use super::TreeWriter;
use crate::files::chunked_calls::{ChunkedCalls, Content};
use crate::files::resolver::PathResolver;
use crate::files::service::blocking;
use crate::session::records::Records;

/// Uploads of trees.
pub(crate) struct TreeUploads(ChunkedCalls<TreeSummary>);

impl TreeUploads {
    pub(crate) fn new(records: Records) -> Self {
        let incomplete = "the tree never arrived completely: the part that arrived is there, upload it again";
        Self(ChunkedCalls::new(records, incomplete))
    }

    /// Receives a tree's parts. An error of `parts` themselves means that the stream was lost.
    pub(crate) async fn upload(
        &self,
        mut parts: impl Stream<Item = Result<UploadTreeRequest, Status>> + Unpin + Send,
        resolver: PathResolver,
    ) -> Result<UploadTreeResponse, Status> {
        let first = parts.next().await.transpose()?.and_then(|request| request.part);
        let Some(Sent::Header(mut header)) = first else {
            return Err(Failure::new(ErrorCode::InvalidArgument, "a tree begins with its header").into());
        };
        let operation = header.operation.take();
        let answer = |summary| Ok(UploadTreeResponse { summary: Some(summary) });
        self.0.take(operation, receive(header, parts, resolver), answer).await
    }
}

/// Writes parts up to the summary. The outer error means that the stream was lost.
async fn receive(
    header: UploadHeader,
    mut parts: impl Stream<Item = Result<UploadTreeRequest, Status>> + Unpin + Send,
    resolver: PathResolver,
) -> Result<Content<TreeSummary>, Status> {
    let mut writer = blocking(move || TreeWriter::new(&header.path, header.mode, &resolver));
    loop {
        // Received while the previous part is written.
        let part = parts.next().await.transpose()?.and_then(|request| request.part);
        let part = match part {
            Some(Sent::Entry(entry)) => Part::Entry(entry),
            Some(Sent::Chunk(chunk)) => Part::Chunk(chunk),
            Some(Sent::Trailer(trailer)) => Part::Trailer(trailer),
            Some(Sent::Summary(summary)) => Part::Summary(summary),
            Some(Sent::Header(_)) | None => return Ok(writer.await.and_then(TreeWriter::finish)),
        };
        let is_last = matches!(part, Part::Summary(_));
        writer = match writer.await {
            Ok(mut writer) => blocking(move || writer.take(part).map(|()| writer)),
            Err(failure) => return Ok(Err(failure)),
        };
        if is_last {
            return Ok(writer.await.and_then(TreeWriter::finish));
        }
    }
}
