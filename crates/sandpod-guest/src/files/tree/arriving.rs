//! Receiving a tree, once, however often its stream breaks: a repeat writes what is there already again.

use futures_util::{Stream, StreamExt as _};
use sandpod_protocol::Failure;
use sandpod_protocol::v1::download_tree_response::Part;
use sandpod_protocol::v1::upload_tree_request::Part as Sent;
use sandpod_protocol::v1::{ErrorCode, TreeSummary, UploadHeader, UploadTreeRequest, UploadTreeResponse};
use tonic::Status;

use super::Writing;
use crate::files::arrival::{Arrivals, Content};
use crate::files::place::Reach;
use crate::files::service::blocking;
use crate::session::records::Records;

/// The trees that are on their way.
pub(crate) struct TreeUploads(Arrivals<TreeSummary>);

impl TreeUploads {
    pub(crate) fn new(records: Records) -> Self {
        let never_whole = "the tree never arrived as a whole: what came of it is there, upload it again";
        Self(Arrivals::new(records, never_whole))
    }

    /// Takes a tree's parts. An error of `parts` themselves is a lost stream.
    pub(crate) async fn upload(
        &self,
        mut parts: impl Stream<Item = Result<UploadTreeRequest, Status>> + Unpin + Send,
        reach: Reach,
    ) -> Result<UploadTreeResponse, Status> {
        let first = parts.next().await.transpose()?.and_then(|request| request.part);
        let Some(Sent::Header(mut header)) = first else {
            return Err(Failure::new(ErrorCode::InvalidArgument, "a tree begins with its header").into());
        };
        let operation = header.operation.take();
        let answer = |summary| Ok(UploadTreeResponse { summary: Some(summary) });
        self.0.take(operation, receive(header, parts, reach), answer).await
    }
}

/// Writes parts up to the summary. The outer error is a lost stream.
async fn receive(
    header: UploadHeader,
    mut parts: impl Stream<Item = Result<UploadTreeRequest, Status>> + Unpin + Send,
    reach: Reach,
) -> Result<Content<TreeSummary>, Status> {
    let mut writing = blocking(move || Writing::new(&header.path, header.mode, &reach));
    loop {
        // Comes while the one before is written.
        let part = parts.next().await.transpose()?.and_then(|request| request.part);
        let part = match part {
            Some(Sent::Entry(entry)) => Part::Entry(entry),
            Some(Sent::Chunk(chunk)) => Part::Chunk(chunk),
            Some(Sent::Trailer(trailer)) => Part::Trailer(trailer),
            Some(Sent::Summary(summary)) => Part::Summary(summary),
            Some(Sent::Header(_)) | None => return Ok(writing.await.and_then(Writing::finish)),
        };
        let is_last = matches!(part, Part::Summary(_));
        writing = match writing.await {
            Ok(mut writing) => blocking(move || writing.take(part).map(|()| writing)),
            Err(failure) => return Ok(Err(failure)),
        };
        if is_last {
            return Ok(writing.await.and_then(Writing::finish));
        }
    }
}
