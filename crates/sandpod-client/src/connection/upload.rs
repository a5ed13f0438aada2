//! Encodes an upload's parts as gRPC messages without copying the chunks. tonic would copy each chunk into a message, which
//! takes a considerable part of an upload's time.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{BufMut as _, Bytes, BytesMut};
use http_body::{Body, Frame};
use prost::Message as _;
use prost::encoding::{encode_varint, encoded_len_varint};
use sandpod_protocol::v1::UploadRequest;
use sandpod_protocol::v1::upload_request::Part;
use tokio::sync::mpsc;
use tower_service::Service;

use super::channel::Channel;

/// Sends one call with another body than the one that tonic encoded.
pub(super) struct UploadService {
    channel: Channel,
    parts: Option<Parts>,
}

impl UploadService {
    pub(super) fn new(channel: Channel, parts: mpsc::Receiver<Part>) -> Self {
        Self { channel, parts: Some(Parts { parts, chunk: None }) }
    }
}

impl Service<http::Request<tonic::body::Body>> for UploadService {
    type Response = <Channel as Service<http::Request<tonic::body::Body>>>::Response;
    type Error = <Channel as Service<http::Request<tonic::body::Body>>>::Error;
    type Future = <Channel as Service<http::Request<tonic::body::Body>>>::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.channel.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<tonic::body::Body>) -> Self::Future {
        let parts = self.parts.take();
        self.channel.call(request.map(|own| parts.map_or(own, tonic::body::Body::new)))
    }
}

/// Body of the call.
struct Parts {
    parts: mpsc::Receiver<Part>,
    /// The chunk whose message head was sent.
    chunk: Option<Bytes>,
}

impl Body for Parts {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let data = match self.chunk.take() {
            Some(chunk) => chunk,
            None => match ready!(self.parts.poll_recv(cx)) {
                Some(Part::Chunk(chunk)) => {
                    let beginning = beginning(&chunk);
                    self.chunk = Some(chunk);
                    beginning
                }
                Some(part) => whole(&UploadRequest { part: Some(part) }),
                None => return Poll::Ready(None),
            },
        };
        Poll::Ready(Some(Ok(Frame::data(data))))
    }
}

/// Encodes a whole message in gRPC framing.
fn whole(request: &UploadRequest) -> Bytes {
    let mut message = prefix(request.encoded_len());
    request.encode_raw(&mut message);
    message.freeze()
}

/// Encodes the message of a chunk up to the chunk itself.
fn beginning(chunk: &Bytes) -> Bytes {
    // The encoding of an empty chunk is its key and a length of one byte.
    let mut key = UploadRequest { part: Some(Part::Chunk(Bytes::new())) }.encode_to_vec();
    key.pop();
    let length = chunk.len() as u64;
    let mut message = prefix(key.len() + encoded_len_varint(length) + chunk.len());
    message.put_slice(&key);
    encode_varint(length, &mut message);
    message.freeze()
}

/// The gRPC prefix of an uncompressed message with this many bytes.
fn prefix(bytes: usize) -> BytesMut {
    let mut message = BytesMut::new();
    message.put_u8(0);
    message.put_u32(u32::try_from(bytes).unwrap_or(u32::MAX));
    message
}

#[cfg(test)]
mod tests {
    use sandpod_protocol::limits::CHUNK_BYTES;
    use sandpod_protocol::v1::Trailer;

    use super::*;

    #[tokio::test]
    async fn parts_equal_the_messages_encoded_as_a_whole() {
        let trailer = Part::Trailer(Trailer { checksum: Bytes::from_static(b"sum") });
        let sizes = [1, 127, 128, CHUNK_BYTES];
        let chunks = sizes.map(|size| Part::Chunk(Bytes::from(vec![b'x'; size])));
        let (sender, parts) = mpsc::channel(8);
        let mut expected = Vec::new();
        for part in chunks.into_iter().chain([trailer]) {
            sender.send(part.clone()).await.unwrap();
            expected.extend(whole(&UploadRequest { part: Some(part) }));
        }
        drop(sender);
        let mut body = Parts { parts, chunk: None };
        let mut sent = Vec::new();
        while let Some(frame) = std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
            sent.extend(frame.unwrap().into_data().unwrap());
        }
        assert_eq!(sent, expected);
    }
}
