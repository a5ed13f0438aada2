//! Sandpod's stream in a WebSocket, for connections that carry HTTP only. Its bytes are in binary messages.

use std::io;

use bytes::Bytes;
use futures_util::{SinkExt as _, Stream, StreamExt as _, future};
use http::{Method, Request, Response, StatusCode, header};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_util::io::{CopyToBytes, SinkWriter, StreamReader};
use tonic::body::Body;

use crate::Guest;

/// Path of the stream on an HTTP port.
pub(crate) const PATH: &str = "/sandpod/v1/stream";
/// Maximum size of a message and of a frame.
const MAX_MESSAGE_BYTES: usize = 1 << 20;
/// Size of the read and write buffers.
const BUFFER_BYTES: usize = 32 << 10;

/// Accepts the WebSocket handshake, and serves the stream in it once the upgrade is done. Returns an error for an
/// invalid request.
pub(crate) fn upgrade(request: Request<Incoming>, guest: &Guest) -> Result<Response<Body>, &'static str> {
    let accept = accept_key(&request)?;
    let guest = guest.clone();
    tokio::spawn(async move {
        if let Ok(upgraded) = hyper::upgrade::on(request).await {
            // A broken stream needs no handling here: its client opens another one.
            let _ = guest.serve_metered(TokioIo::new(upgraded), byte_stream).await;
        }
    });
    let response = Response::builder()
        .status(StatusCode::SWITCHING_PROTOCOLS)
        .header(header::CONNECTION, "upgrade")
        .header(header::UPGRADE, "websocket")
        .header(header::SEC_WEBSOCKET_ACCEPT, accept)
        .body(Body::empty());
    response.map_err(|_| "the WebSocket key is not one")
}

/// Computes the answer to the client's key, if the request is a valid WebSocket handshake.
fn accept_key<B>(request: &Request<B>) -> Result<String, &'static str> {
    let has = |name, word: &str| {
        let values = request.headers().get_all(name).into_iter().filter_map(|value| value.to_str().ok());
        values.flat_map(|value| value.split(',')).any(|part| part.trim().eq_ignore_ascii_case(word))
    };
    if request.method() != Method::GET
        || !has(header::CONNECTION, "upgrade")
        || !has(header::UPGRADE, "websocket")
    {
        return Err("only a WebSocket is answered here: ask for an upgrade");
    }
    if !has(header::SEC_WEBSOCKET_VERSION, "13") {
        return Err("the WebSocket version is not 13, the only one that is spoken here");
    }
    let key = request.headers().get(header::SEC_WEBSOCKET_KEY).ok_or("the WebSocket key is missing")?;
    Ok(derive_accept_key(key.as_bytes()))
}

/// The bytes of a WebSocket's binary messages. Reading answers pings.
async fn byte_stream<S>(stream: S) -> impl AsyncRead + AsyncWrite + Send + Unpin + use<S>
where
    S: AsyncRead + AsyncWrite + Send + Unpin,
{
    let config = WebSocketConfig::default()
        .read_buffer_size(BUFFER_BYTES)
        .write_buffer_size(BUFFER_BYTES)
        .max_message_size(Some(MAX_MESSAGE_BYTES))
        .max_frame_size(Some(MAX_MESSAGE_BYTES));
    let socket = WebSocketStream::from_raw_socket(stream, Role::Server, Some(config)).await;
    let (sink, messages) = socket.split();
    let sink = sink.sink_map_err(io::Error::other);
    let sink = sink.with(|bytes: Bytes| future::ready(io::Result::Ok(Message::Binary(bytes))));
    tokio::io::join(StreamReader::new(content(messages)), SinkWriter::new(CopyToBytes::new(sink)))
}

/// The content of binary messages; text is an error.
fn content(
    messages: impl Stream<Item = Result<Message, Error>> + Send + Unpin,
) -> impl Stream<Item = io::Result<Bytes>> + Send + Unpin {
    messages.filter_map(|message| {
        future::ready(match message {
            Ok(Message::Binary(bytes)) if !bytes.is_empty() => Some(Ok(bytes)),
            Ok(Message::Text(_)) => Some(Err(io::Error::other("text in a WebSocket that carries bytes"))),
            Ok(_) => None,
            Err(error) => Some(Err(io::Error::other(error))),
        })
    })
}
