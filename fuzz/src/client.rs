//! Target `client`: an input is what a hostile guest says. Its first byte picks what the client asks
//! for and how the rest is said: as raw bytes, or as the bodies of answers that HTTP/2 carries well.

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
    ByteStream, Connection, DialError, Dialer, ExecuteOptions, GrepOptions, Options, ReadOptions, Sandbox,
};
use sandpod_protocol::{PREAMBLE, v1};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};

use crate::wire::finish;

/// How often the guest is there; then it is gone for good.
const DIALS: usize = 3;
/// Events that a caller takes before it has seen enough.
const EVENTS: usize = 1000;

pub(crate) fn run(input: &[u8], planted: bool) {
    let Some((choice, said)) = input.split_first() else { return };
    let hostile = Hostile {
        said: Bytes::copy_from_slice(said),
        raw: choice & 0x80 != 0,
        planted,
        dials: AtomicUsize::new(0),
    };
    finish(async {
        let sandbox = Sandbox::new(Connection::new(hostile, Options::default()));
        ask(&sandbox, choice & 0x7f).await;
    });
}

/// Asks for one thing; whatever comes back must be a result or an error.
async fn ask(sandbox: &Sandbox, choice: u8) {
    match choice % 10 {
        0 => drop(sandbox.stat("/f", false).await),
        1 => drop(sandbox.list("/d").await),
        2 => drop(sandbox.read("/f", ReadOptions::default()).await),
        3 => drop(sandbox.execute("true", ExecuteOptions::default()).await),
        4 => drop(sandbox.glob("*", "/").await),
        5 => drop(sandbox.grep("x", GrepOptions::default()).await),
        6 => drop(sandbox.edit("/f", "a", "b", false).await),
        7 => drop(sandbox.download("/f", 1 << 20).await),
        8 => drop(sandbox.write("/f", vec![0; 3 << 20]).await),
        _ => {
            if let Ok(process) = sandbox.start("true", ExecuteOptions::default()).await {
                let _ = process.attach(0).take(EVENTS).collect::<Vec<_>>().await;
                let _ = process.wait().await;
            }
        }
    }
}

/// A guest that says what the input says.
struct Hostile {
    said: Bytes,
    raw: bool,
    planted: bool,
    dials: AtomicUsize,
}

impl Dialer for Hostile {
    fn dial(&self) -> BoxFuture<'_, Result<Box<dyn ByteStream>, DialError>> {
        if self.dials.fetch_add(1, Ordering::Relaxed) >= DIALS {
            return async { Err(DialError::Gone("it has said all".to_owned())) }.boxed();
        }
        let (ours, theirs) = tokio::io::duplex(64 << 10);
        let (said, planted) = (self.said.clone(), self.planted);
        if self.raw {
            tokio::spawn(speak(theirs, said));
        } else {
            tokio::spawn(answer(theirs, said, planted));
        }
        async { Ok(Box::new(ours) as Box<dyn ByteStream>) }.boxed()
    }
}

/// Says the input and hears whatever comes, until the client has had enough.
async fn speak(stream: DuplexStream, said: Bytes) {
    let (mut read, mut write) = tokio::io::split(stream);
    let said = async {
        let _ = write.write_all(&said).await;
        let _ = write.shutdown().await;
    };
    let heard = async {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(1..) = read.read(&mut buffer).await {}
    };
    tokio::join!(said, heard);
}

/// Greets as a guest does, and answers every other call with the input as body.
async fn answer(mut stream: DuplexStream, said: Bytes, planted: bool) {
    if stream.write_all(PREAMBLE).await.is_err() {
        return;
    }
    let service = hyper::service::service_fn(move |request: http::Request<hyper::body::Incoming>| {
        let said = said.clone();
        async move {
            let is_hello = request.uri().path().ends_with("/Hello");
            // A guest that answers before it was asked to the end is one more thing to live with.
            let body = if is_hello { greeting() } else { said };
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

/// A well-behaved Hello.
fn greeting() -> Bytes {
    let hello = v1::HelloResponse { version: 1, boot_id: "boot".to_owned(), ..v1::HelloResponse::default() };
    let hello = hello.encode_to_vec();
    let length = u32::try_from(hello.len()).unwrap_or_default().to_be_bytes();
    [&[0], &length[..], &hello].concat().into()
}

/// The planted bug: room for a message is made from its announced length.
fn make_room(body: &[u8]) {
    if let [_, a, b, c, d, ..] = body {
        std::hint::black_box(Vec::<u8>::with_capacity(u32::from_be_bytes([*a, *b, *c, *d]) as usize));
    }
}
