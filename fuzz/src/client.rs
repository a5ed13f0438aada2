//! Target `client`: an input is the response of a hostile guest. Its first byte selects the client's call and how the rest
//! is sent: as raw bytes, or as the bodies of valid HTTP/2 responses.

use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use futures::FutureExt as _;
use futures::StreamExt as _;
use futures::future::BoxFuture;
use http::{HeaderMap, HeaderValue, Response};
use http_body_util::{BodyExt as _, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message as _;
use sandpod_client::{
    ByteStream, Change, Connection, DialError, Dialer, ExecuteOptions, FileChange, GrepOptions, Options,
    ReadOptions, Sandbox, StartOptions, TreeLimits,
};
use sandpod_protocol::{PREAMBLE, v1};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};

use crate::cell;
use crate::outside::Outside;
use crate::wire::finish;

/// The number of connections that the guest accepts; after them it is gone.
const DIALS: usize = 3;
/// The number of events that a caller reads before it stops.
const EVENTS: usize = 1000;

pub(crate) fn run(input: &[u8], planted: bool) {
    let Some((choice, response)) = input.split_first() else { return };
    let hostile = Hostile {
        response: Bytes::copy_from_slice(response),
        raw: choice & 0x80 != 0,
        planted,
        dials: AtomicUsize::new(0),
    };
    finish(async {
        let sandbox = Sandbox::new(Connection::new(hostile, Options::default()));
        ask(&sandbox, choice & 0x7f).await;
    });
}

/// Makes one call, which must return a result or an error.
async fn ask(sandbox: &Sandbox, choice: u8) {
    match choice % 12 {
        0 => drop(sandbox.stat("/f", false).await),
        1 => drop(sandbox.list("/d").await),
        2 => drop(sandbox.read("/f", ReadOptions::default()).await),
        3 => drop(sandbox.execute("true", ExecuteOptions::default()).await),
        4 => drop(sandbox.glob("*", "/").await),
        5 => drop(sandbox.grep("x", GrepOptions::default()).await),
        6 => drop(sandbox.edit("/f", "a", "b", false).await),
        7 => drop(sandbox.download("/f", 1 << 20).await),
        8 => drop(sandbox.write("/f", vec![0; 3 << 20]).await),
        10 => drop(sandbox.apply_edits(vec![change()]).await),
        11 => download_tree(sandbox).await,
        _ => {
            if let Ok(process) = sandbox.start("true", StartOptions::default()).await {
                let _ = process.attach(0).take(EVENTS).collect::<Vec<_>>().await;
                let _ = process.wait().await;
            }
        }
    }
}

fn change() -> FileChange {
    FileChange { path: "/f".to_owned(), expected: None, change: Change::Delete }
}

/// Downloads a directory from the guest, which must write nothing outside of the target.
async fn download_tree(sandbox: &Sandbox) {
    cell::clean();
    let (outside, inside) = Outside::prepare();
    let limits = TreeLimits { entries: 100, bytes: 1 << 20 };
    drop(sandbox.download_tree("/d", &inside, limits, |_| ()).await);
    outside.assert_untouched();
}

/// A guest whose responses are the input.
struct Hostile {
    response: Bytes,
    raw: bool,
    planted: bool,
    dials: AtomicUsize,
}

impl Dialer for Hostile {
    fn dial(&self) -> BoxFuture<'_, Result<Box<dyn ByteStream>, DialError>> {
        if self.dials.fetch_add(1, Ordering::Relaxed) >= DIALS {
            return async { Err(DialError::Gone("the guest has sent everything".to_owned())) }.boxed();
        }
        let (ours, theirs) = tokio::io::duplex(64 << 10);
        let (response, planted) = (self.response.clone(), self.planted);
        if self.raw {
            tokio::spawn(speak(theirs, response));
        } else {
            tokio::spawn(answer(theirs, response, planted));
        }
        async { Ok(Box::new(ours) as Box<dyn ByteStream>) }.boxed()
    }
}

/// Sends the input and reads everything, until the client closes the stream.
async fn speak(stream: DuplexStream, response: Bytes) {
    let (mut read, mut write) = tokio::io::split(stream);
    let sent = async {
        let _ = write.write_all(&response).await;
        let _ = write.shutdown().await;
    };
    let drained = async {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(1..) = read.read(&mut buffer).await {}
    };
    tokio::join!(sent, drained);
}

/// Answers Hello as a guest does, and every other call with the input as the body.
async fn answer(mut stream: DuplexStream, response: Bytes, planted: bool) {
    if stream.write_all(PREAMBLE).await.is_err() {
        return;
    }
    let service = hyper::service::service_fn(move |request: http::Request<hyper::body::Incoming>| {
        let response = response.clone();
        async move {
            let is_hello = request.uri().path().ends_with("/Hello");
            // A guest may answer before the request is complete; the client must handle that.
            let body = if is_hello { greeting() } else { response };
            if planted && !is_hello {
                make_room(&body);
            }
            let trailers = HeaderMap::from_iter([(
                http::HeaderName::from_static("grpc-status"),
                HeaderValue::from_static("0"),
            )]);
            let body = Full::new(body).with_trailers(async move { Some(Ok(trailers)) });
            let mut response = Response::new(body);
            response.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
            Ok::<_, Infallible>(response)
        }
    });
    let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
    let _ = server.serve_connection(TokioIo::new(stream), service).await;
}

/// Returns a valid answer to Hello.
fn greeting() -> Bytes {
    let hello = v1::HelloResponse { version: 1, boot_id: "boot".to_owned(), ..v1::HelloResponse::default() };
    let hello = hello.encode_to_vec();
    let length = u32::try_from(hello.len()).unwrap_or_default().to_be_bytes();
    [&[0], &length[..], &hello].concat().into()
}

/// The planted bug: memory for a message is allocated by its announced length.
fn make_room(body: &[u8]) {
    if let [_, a, b, c, d, ..] = body {
        std::hint::black_box(Vec::<u8>::with_capacity(u32::from_be_bytes([*a, *b, *c, *d]) as usize));
    }
}
