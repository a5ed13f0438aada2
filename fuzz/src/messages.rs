//! Target `messages`: an input is one call. Its first line is the call's name, such as `Files/Stat` or, of sandboxd,
//! `ProcessService/Execute`. The rest is the message. For a call with several messages, each follows its length in two
//! bytes.

use std::path::Path;
use std::sync::LazyLock;

use bytes::{BufMut as _, Bytes, BytesMut};
use http::Request;
use http_body_util::{BodyExt as _, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use sandpod_guest::fuzzing::serve_grpc;
use sandpod_protocol::PREAMBLE;
use tokio::io::{AsyncReadExt as _, DuplexStream};

use crate::cell;
use crate::wire::{finish, guest, new_guest};

/// The prefix of sandboxd's names.
const SANDBOXD: &str = "process.v1";

const PROTOS: [&str; 4] = [
    include_str!("../../crates/sandpod-protocol/proto/sandpod/v1/files.proto"),
    include_str!("../../crates/sandpod-protocol/proto/sandpod/v1/process.proto"),
    include_str!("../../crates/sandpod-protocol/proto/sandpod/v1/session.proto"),
    include_str!("../../crates/sandpod-protocol/proto/process/v1/process.proto"),
];

/// A call of a protocol.
struct Call {
    /// `sandpod.v1`
    package: &'static str,
    /// `Files/Stat`
    name: String,
    takes_many: bool,
}

static CALLS: LazyLock<Vec<Call>> = LazyLock::new(|| PROTOS.iter().flat_map(|proto| calls(proto)).collect());

pub(crate) fn run(input: &[u8], planted: bool) {
    let Some(line) = input.iter().position(|byte| *byte == b'\n') else { return };
    let (name, message) = (&input[..line], &input[line + 1..]);
    let Some(call) = CALLS.iter().find(|call| call.name.as_bytes() == name) else { return };
    if planted {
        walk(message);
    }
    let messages = if call.takes_many { split(message) } else { vec![message] };
    finish(ask(call, body(&messages)));
}

/// Makes the call and panics if it gets no answer.
async fn ask(call: &Call, body: Bytes) {
    let stream = if call.package == SANDBOXD { sandboxd() } else { greeted().await };
    let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
    let (mut client, connection) = handshake.await.expect("the guest speaks HTTP/2");
    tokio::spawn(connection);
    let request = Request::post(format!("http://guest/{}.{}", call.package, call.name))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(Full::new(body))
        .expect("a call's name makes a URL");
    let (head, body) = client.send_request(request).await.expect("a call is answered").into_parts();
    let trailers =
        body.collect().await.expect("an answer has an end").trailers().cloned().unwrap_or_default();
    let status = head.headers.get("grpc-status").or_else(|| trailers.get("grpc-status"));
    assert!(status.is_some(), "{} was answered without a status: {head:?}", call.name);
}

/// Opens a stream to a guest, after Hello.
async fn greeted() -> DuplexStream {
    let mut stream = guest();
    let mut preamble = vec![0; PREAMBLE.len()];
    stream.read_exact(&mut preamble).await.expect("the guest speaks first");
    stream
}

/// Opens a stream to a guest that serves sandboxd's API.
fn sandboxd() -> DuplexStream {
    let guest = new_guest();
    let (ours, theirs) = tokio::io::duplex(64 << 10);
    tokio::spawn(async move { serve_grpc(&guest, Path::new(cell::WORK), theirs).await });
    ours
}

/// Returns the calls of a .proto file.
fn calls(proto: &'static str) -> Vec<Call> {
    let package = proto.lines().find_map(|line| line.strip_prefix("package ")?.strip_suffix(';'));
    let service = proto.lines().find_map(|line| line.strip_prefix("service ")?.strip_suffix(" {"));
    let calls = proto.lines().filter_map(|line| line.trim().strip_prefix("rpc ")?.split_once('('));
    let call = |(name, request): (&str, &str)| Call {
        package: package.unwrap_or_default(),
        name: format!("{}/{name}", service.unwrap_or_default()),
        takes_many: request.starts_with("stream "),
    };
    calls.map(call).collect()
}

/// Splits messages that follow their lengths.
fn split(mut input: &[u8]) -> Vec<&[u8]> {
    let mut messages = Vec::new();
    while let [high, low, rest @ ..] = input {
        let length = usize::from(u16::from_be_bytes([*high, *low])).min(rest.len());
        let (message, next) = rest.split_at(length);
        messages.push(message);
        input = next;
    }
    messages
}

/// Frames messages as gRPC does.
fn body(messages: &[&[u8]]) -> Bytes {
    let mut body = BytesMut::new();
    for message in messages {
        body.put_u8(0);
        body.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
        body.put_slice(message);
    }
    body.freeze()
}

/// The planted bug: a walk over the fields of a message that trusts their lengths.
fn walk(mut message: &[u8]) {
    const TEXT: u8 = 2;
    while let [tag, length, rest @ ..] = message {
        // Numbers, and lengths of more than one byte, are left to the real parser.
        if tag & 7 != TEXT || *length >= 0x80 {
            return;
        }
        message = &rest[usize::from(*length)..];
    }
}
