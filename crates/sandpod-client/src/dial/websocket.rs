//! A guest's stream inside a WebSocket.

use std::io;

use bytes::Bytes;
use futures::{SinkExt as _, Stream, StreamExt as _, future};
use tokio_tungstenite::client_async_with_config;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::handshake::client::Request;
use tokio_tungstenite::tungstenite::http::{HeaderName, HeaderValue};
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_util::io::{CopyToBytes, SinkWriter, StreamReader};

use super::{ByteStream, DialError};

/// Path of the WebSocket on the guest.
const PATH: &str = "/sandpod/v1/stream";
/// Maximum size of a message and of a frame from a guest.
const MAX_MESSAGE_BYTES: usize = 1 << 20;

/// Opens a guest's stream as a WebSocket on a connection to its runtime API. `host` is the value of the Host header and may
/// be followed by a path; proxies route by it and by `headers`.
pub async fn websocket(
    connection: impl ByteStream + 'static,
    host: &str,
    headers: &[(String, String)],
) -> Result<Box<dyn ByteStream>, DialError> {
    let config = WebSocketConfig::default()
        .max_message_size(Some(MAX_MESSAGE_BYTES))
        .max_frame_size(Some(MAX_MESSAGE_BYTES));
    let request = request(host, headers)?;
    let opened = client_async_with_config(request, connection, Some(config)).await;
    let (socket, _) = opened.map_err(|error| refused(host, error))?;
    let (sink, messages) = socket.split();
    let sink = sink.sink_map_err(io::Error::other);
    let sink = sink.with(|bytes: Bytes| future::ready(io::Result::Ok(Message::Binary(bytes))));
    let (reader, writer) = (StreamReader::new(content(messages)), SinkWriter::new(CopyToBytes::new(sink)));
    Ok(Box::new(tokio::io::join(reader, writer)))
}

fn request(host: &str, headers: &[(String, String)]) -> Result<Request, DialError> {
    let url = format!("ws://{}{PATH}", host.trim_end_matches('/'));
    let asked = url.into_client_request().map_err(|error| refused(host, error))?;
    headers.iter().try_fold(asked, |mut request, (name, value)| {
        let unusable = |what: &str| DialError::Denied(format!("cannot send header {name:?}: invalid {what}"));
        let value = HeaderValue::from_str(value).map_err(|_| unusable("value"))?;
        let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| unusable("name"))?;
        request.headers_mut().insert(name, value);
        Ok(request)
    })
}

/// Returns the content of binary messages. A guest sends no others.
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

fn refused(host: &str, error: Error) -> DialError {
    match error {
        Error::Http(response) if response.status().is_client_error() => {
            let status = response.status();
            DialError::Denied(format!("{host} refused the WebSocket of a guest's stream: {status}"))
        }
        error => DialError::Unreachable(format!("cannot open a WebSocket to the guest at {host}: {error}")),
    }
}
