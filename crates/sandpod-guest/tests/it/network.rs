//! Streams over the network: their authentication and their transports.

use std::net::SocketAddr;
use std::time::Duration;

use futures_util::{SinkExt as _, StreamExt as _};
use sandpod_guest::{Guest, ListenOptions, Options};
use sandpod_protocol::v1::{BindRequest, ErrorCode};
use sandpod_protocol::{Failure, PREAMBLE};
use sha2::{Digest as _, Sha256};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::frame::Frame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{Data, OpCode};
use tokio_tungstenite::tungstenite::{Error, Message};

use crate::harness::{Client, line};
use crate::stock_server::{Server, raw};

const TOKEN: &str = "a long and random secret";

fn options(dir: &TempDir) -> Options {
    Options { token_sha256: Some(Sha256::digest(TOKEN).into()), ..Options::new(dir.path().join("state")) }
}

/// A guest with the token, and the address that it listens on.
async fn listening() -> (Guest, SocketAddr, TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let guest = Guest::new(options(&dir)).unwrap();
    let address = listen(&guest).await;
    (guest, address, dir)
}

async fn listen(guest: &Guest) -> SocketAddr {
    let doors = ListenOptions { stream: Some("127.0.0.1:0".parse().unwrap()), ..ListenOptions::default() };
    doors.open(guest).await.unwrap().stream.unwrap()
}

async fn client(address: SocketAddr) -> Client {
    Client::on(TcpStream::connect(address).await.unwrap()).await
}

/// A client over an in-memory network, because paused time does not wait for sockets.
async fn in_memory(guest: &Guest) -> Client {
    let (ours, theirs) = tokio::io::duplex(64 << 10);
    let guest = guest.clone();
    tokio::spawn(async move { guest.serve_network_stream(theirs).await });
    Client::on(ours).await
}

fn unauthenticated<T: std::fmt::Debug>(answer: Result<T, Failure>) -> String {
    let failure = answer.unwrap_err();
    assert_eq!(failure.code(), ErrorCode::Unauthenticated);
    failure.message().to_owned()
}

fn claim(token_sha256: &[u8]) -> BindRequest {
    let token_sha256 = token_sha256.to_vec().into();
    BindRequest { claim: "a".to_owned(), token_sha256, ..BindRequest::default() }
}

#[tokio::test]
async fn a_stream_answers_only_hello_before_the_token() {
    let (_guest, address, _dir) = listening().await;
    let client = client(address).await;
    let message = unauthenticated(client.execute(line("true")).await);
    assert!(message.contains("say Hello with the token"), "{message}");
    unauthenticated(client.bind(claim(b"")).await);
    client.hello_with(TOKEN).await.unwrap();
    assert_eq!(client.run("echo hello").await, ("hello\n".to_owned(), 0));
}

#[tokio::test]
async fn a_token_authenticates_only_its_own_stream() {
    let (_guest, address, _dir) = listening().await;
    client(address).await.hello_with(TOKEN).await.unwrap();
    unauthenticated(client(address).await.execute(line("true")).await);
}

#[tokio::test(start_paused = true)]
async fn missing_and_wrong_tokens_are_refused_slowly_one_by_one() {
    let dir = tempfile::tempdir().unwrap();
    let guest = Guest::new(options(&dir)).unwrap();
    let clients = [in_memory(&guest).await, in_memory(&guest).await, in_memory(&guest).await];
    let began = Instant::now();
    let (one, other, none) =
        tokio::join!(clients[0].hello_with("wrong"), clients[1].hello_with("worse"), clients[2].hello(1, 1));
    assert_eq!(began.elapsed().as_secs(), 3);
    assert!(unauthenticated(one).contains("the token is wrong"));
    unauthenticated(other);
    assert!(unauthenticated(none).contains("this one had none"));
    unauthenticated(clients[0].execute(line("true")).await);
}

#[tokio::test(start_paused = true)]
async fn a_wrong_token_does_not_delay_a_right_one() {
    let dir = tempfile::tempdir().unwrap();
    let guest = Guest::new(options(&dir)).unwrap();
    let (wrong, right) = (in_memory(&guest).await, in_memory(&guest).await);
    let began = Instant::now();
    let answers = async {
        right.hello_with(TOKEN).await.unwrap();
        began.elapsed()
    };
    let (refused, took) = tokio::join!(wrong.hello_with("wrong"), answers);
    unauthenticated(refused);
    assert!(took < Duration::from_millis(900), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_stream_without_a_token_is_limited_to_two_hellos_and_16_calls() {
    let dir = tempfile::tempdir().unwrap();
    let guest = Guest::new(options(&dir)).unwrap();
    let client = in_memory(&guest).await;
    let (one, other, third) =
        tokio::join!(client.hello_with("wrong"), client.hello_with("worse"), client.hello_with(TOKEN));
    unauthenticated(one);
    unauthenticated(other);
    let third = third.unwrap_err();
    assert!(third.code() == ErrorCode::Limit && third.message().contains("at most 2 Hellos"), "{third}");
    for _ in 3..16 {
        unauthenticated(client.execute(line("true")).await);
    }
    let lost = client.execute(line("true")).await.unwrap_err();
    assert_ne!(lost.code(), ErrorCode::Unauthenticated, "{lost}");
    assert!(client.hello_with(TOKEN).await.is_err(), "the stream goes on");
    in_memory(&guest).await.hello_with(TOKEN).await.unwrap();
}

#[tokio::test]
async fn a_stream_may_send_64_kib_before_its_token() {
    let (_guest, address, _dir) = listening().await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
    // HTTP/2 ignores frames of unknown types.
    let frame = [&b"\0\x40\0\xff\0\0\0\0\0"[..], &[0; 16 << 10]].concat();
    for _ in 0..16 {
        // The connection may be closed meanwhile.
        let _ = stream.write_all(&frame).await;
    }
    let began = Instant::now();
    let _ = stream.read_to_end(&mut Vec::new()).await;
    assert!(began.elapsed() < Duration::from_secs(5), "it is closed only for the lack of a token");

    let known = client(address).await;
    known.hello_with(TOKEN).await.unwrap();
    for _ in 0..20 {
        assert_eq!(known.run(&format!("echo on # {}", "x".repeat(64 << 10))).await.0, "on\n");
    }
}

#[tokio::test]
async fn a_guest_without_a_token_reports_that() {
    let dir = tempfile::tempdir().unwrap();
    let guest = Guest::new(Options::new(dir.path())).unwrap();
    let client = client(listen(&guest).await).await;
    let message = unauthenticated(client.hello_with(TOKEN).await);
    assert!(message.contains("has no token") && message.contains("SANDPOD_TOKEN_SHA256"), "{message}");
}

#[tokio::test]
async fn bind_replaces_the_token_and_keeps_open_streams() {
    let (guest, address, dir) = listening().await;
    let first = client(address).await;
    first.hello_with(TOKEN).await.unwrap();
    let hash = Sha256::digest("another");
    first.bind(claim(&hash)).await.unwrap();
    assert_eq!(first.run("echo on").await.0, "on\n");
    first.hello(1, 1).await.unwrap();
    unauthenticated(client(address).await.hello_with(TOKEN).await);
    client(address).await.hello_with("another").await.unwrap();
    drop(guest);
    let restarted = Guest::new(options(&dir)).unwrap();
    client(listen(&restarted).await).await.hello_with("another").await.unwrap();
}

/// A client on a stream that needs no token.
async fn admitted(guest: &Guest) -> Client {
    let (ours, theirs) = tokio::io::duplex(64 << 10);
    let guest = guest.clone();
    tokio::spawn(async move { guest.serve_stream(theirs).await });
    Client::on(ours).await
}

#[tokio::test]
async fn an_admitted_process_adds_a_token_by_a_repeated_bind() {
    let (guest, address, dir) = listening().await;
    let by_exec = admitted(&guest).await;
    by_exec.bind(claim(b"")).await.unwrap();
    for token in ["first", "second", "second"] {
        by_exec.bind(claim(&Sha256::digest(token))).await.unwrap();
    }
    let over_network = client(address).await;
    over_network.hello_with("first").await.unwrap();
    over_network.bind(claim(&Sha256::digest("third"))).await.unwrap();
    client(address).await.hello_with("second").await.unwrap();
    client(address).await.hello_with(TOKEN).await.unwrap();
    unauthenticated(client(address).await.hello_with("third").await);
    let failure =
        by_exec.bind(BindRequest { claim: "b".to_owned(), ..claim(&Sha256::digest("third")) }).await;
    assert_eq!(failure.unwrap_err().code(), ErrorCode::NotYours);
    unauthenticated(client(address).await.hello_with("third").await);
    drop(guest);
    let restarted = Guest::new(options(&dir)).unwrap();
    client(listen(&restarted).await).await.hello_with("second").await.unwrap();
}

#[tokio::test]
async fn the_oldest_added_token_is_dropped_when_there_are_too_many() {
    let (guest, address, _dir) = listening().await;
    let by_exec = admitted(&guest).await;
    by_exec.bind(claim(b"")).await.unwrap();
    for number in 0..=64 {
        by_exec.bind(claim(&Sha256::digest(format!("token {number}")))).await.unwrap();
    }
    unauthenticated(client(address).await.hello_with("token 0").await);
    for token in [TOKEN, "token 1", "token 64"] {
        client(address).await.hello_with(token).await.unwrap();
    }
}

#[tokio::test]
async fn bind_refuses_a_token_hash_of_the_wrong_length() {
    let (_guest, address, _dir) = listening().await;
    let client = client(address).await;
    client.hello_with(TOKEN).await.unwrap();
    let failure = client.bind(claim(b"short")).await.unwrap_err();
    assert_eq!(failure.code(), ErrorCode::InvalidArgument);
}

#[tokio::test]
async fn a_silent_stream_is_closed() {
    let (_guest, address, _dir) = listening().await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.read_exact(&mut vec![0; PREAMBLE.len()]).await.unwrap();
    tokio::time::pause();
    let began = Instant::now();
    // The server's HTTP/2 preface may still arrive.
    let _ = stream.read_to_end(&mut Vec::new()).await;
    assert!((8..20).contains(&began.elapsed().as_secs()), "{:?}", began.elapsed());
}

#[tokio::test]
async fn unauthenticated_streams_are_limited_and_count_as_no_activity() {
    let (guest, address, _dir) = listening().await;
    let known = client(address).await;
    known.hello_with(TOKEN).await.unwrap();
    known.bind(BindRequest { idle_ttl_seconds: 5, ..claim(b"") }).await.unwrap();
    let mut strangers = Vec::new();
    for _ in 0..16 {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.read_exact(&mut vec![0; PREAMBLE.len()]).await.unwrap();
        strangers.push(stream);
    }
    let mut refused = TcpStream::connect(address).await.unwrap();
    assert_eq!(refused.read(&mut [0; 1]).await.unwrap_or(0), 0);
    assert_eq!(known.run("echo on").await.0, "on\n");
    let began = Instant::now();
    tokio::time::pause();
    guest.expired().await;
    assert!((4..7).contains(&began.elapsed().as_secs()), "{:?}", began.elapsed());
}

#[tokio::test]
async fn a_port_in_use_is_named() {
    let (guest, address, _dir) = listening().await;
    let again = ListenOptions { stream: Some(address), ..ListenOptions::default() };
    let error = again.open(&guest).await.unwrap_err().to_string();
    assert!(error.contains(&address.to_string()) && error.contains("name another one"), "{error}");
}

#[tokio::test]
async fn invalid_options_and_hashes_are_refused_at_start() {
    let serve = async |arguments: &[&str], hash: &str| {
        let mut guest = tokio::process::Command::new(env!("CARGO_BIN_EXE_sandpod-guest"));
        guest.arg("serve").args(arguments).env("SANDPOD_TOKEN_SHA256", hash);
        let output = guest.output().await.unwrap();
        assert_eq!(output.status.code(), Some(125));
        String::from_utf8(output.stderr).unwrap()
    };
    let cases: [&[&str]; 6] = [
        &["--listen"],
        &["--listen", "here"],
        &["--stock-apis=x"],
        &["--websocket=x"],
        &["--nonsense"],
        &["true"],
    ];
    for arguments in cases {
        assert!(serve(arguments, "").await.contains("usage:"), "{arguments:?}");
    }
    assert!(serve(&["--listen", "127.0.0.1:0"], "1234").await.contains("64 hexadecimal digits"));
}

type Socket = WebSocketStream<TcpStream>;

async fn open_websocket(address: SocketAddr) -> Socket {
    let stream = TcpStream::connect(address).await.unwrap();
    let url = format!("ws://{address}/sandpod/v1/stream");
    let (mut socket, _) = tokio_tungstenite::client_async(url, stream).await.unwrap();
    assert_eq!(socket.next().await.unwrap().unwrap(), Message::binary(PREAMBLE));
    socket
}

async fn websocket() -> (Server, Socket) {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::of(Guest::new(options(&dir)).unwrap(), dir).await;
    let socket = open_websocket(server.addresses.legacy).await;
    (server, socket)
}

/// Returns the next message that is not part of the stream's content.
async fn control(socket: &mut Socket) -> Option<Result<Message, Error>> {
    loop {
        match socket.next().await {
            Some(Ok(Message::Binary(_))) => {}
            message => return message,
        }
    }
}

/// Sends bytes as one message, in fragments of a given size with a ping between them.
async fn send_in_fragments(socket: &mut Socket, bytes: &[u8], size: usize) {
    let count = bytes.len().div_ceil(size);
    for (index, piece) in bytes.chunks(size).enumerate() {
        let kind = if index == 0 { Data::Binary } else { Data::Continue };
        let frame = Frame::message(piece.to_vec(), OpCode::Data(kind), index + 1 == count);
        socket.send(Message::Frame(frame)).await.unwrap();
        socket.send(Message::Ping("between".into())).await.unwrap();
    }
}

#[tokio::test]
async fn a_websocket_port_serves_only_sandpods_stream() {
    let dir = tempfile::tempdir().unwrap();
    let guest = Guest::new(options(&dir)).unwrap();
    let doors = ListenOptions { websocket: Some("127.0.0.1:0".parse().unwrap()), ..ListenOptions::default() };
    let opened = doors.open(&guest).await.unwrap();
    assert!(opened.stock.is_none() && opened.stream.is_none());
    let address = opened.websocket.unwrap();

    let _socket = open_websocket(address).await;
    for request in ["POST /execute", "GET /list/", "GET /download/etc/passwd", "GET /"] {
        let (status, message) = raw(address, &format!("{request} HTTP/1.1\r\n"), b"").await.error_message();
        assert_eq!(
            (status, message.as_str()),
            (404, "only /sandpod/v1/stream is answered here"),
            "{request}"
        );
    }
    let (status, why) = raw(address, "GET /sandpod/v1/stream HTTP/1.1\r\n", b"").await.error_message();
    assert!(status == 400 && why.contains("ask for an upgrade"), "{why}");
}

#[tokio::test]
async fn a_websocket_carries_a_stream_in_any_fragments() {
    let (_server, mut socket) = websocket().await;
    // The client's preface and settings in HTTP/2; the answer is the server's settings.
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    send_in_fragments(&mut socket, preface, 5).await;
    let pong = control(&mut socket).await.unwrap().unwrap();
    assert_eq!(pong, Message::Pong("between".into()));
    let mut heard = Vec::new();
    while !heard.windows(9).any(|frame| frame == b"\0\0\0\x04\x01\0\0\0\0") {
        if let Message::Binary(bytes) = socket.next().await.unwrap().unwrap() {
            heard.extend_from_slice(&bytes);
        }
    }
}

#[tokio::test]
async fn closing_a_websocket_closes_both_sides() {
    let (_server, mut socket) = websocket().await;
    socket.close(None).await.unwrap();
    assert!(matches!(control(&mut socket).await, Some(Ok(Message::Close(_)))));
    assert!(control(&mut socket).await.is_none());
}

#[tokio::test]
async fn a_websocket_with_text_or_too_large_a_message_is_closed() {
    for message in [Message::text("hello"), Message::binary(vec![0; (1 << 20) + 1])] {
        let (_server, mut socket) = websocket().await;
        // The connection may end while this is sent.
        let _ = socket.send(message).await;
        let end = control(&mut socket).await;
        assert!(!matches!(&end, Some(Ok(message)) if !message.is_close()), "{end:?}");
    }
}

#[tokio::test]
async fn a_silent_websocket_is_closed() {
    let (_server, mut socket) = websocket().await;
    tokio::time::pause();
    let end = control(&mut socket).await;
    assert!(!matches!(&end, Some(Ok(message)) if !message.is_close()), "{end:?}");
}

#[tokio::test]
async fn an_invalid_websocket_request_is_told_what_is_missing() {
    let server = Server::start().await;
    let upgrade = "Upgrade: websocket\r\nConnection: keep-alive, Upgrade\r\n";
    let cases = [
        (String::new(), "ask for an upgrade"),
        (format!("{upgrade}Sec-WebSocket-Version: 8\r\n"), "version is not 13"),
        (format!("{upgrade}Sec-WebSocket-Version: 13\r\n"), "key is missing"),
    ];
    for (headers, why) in cases {
        let head = format!("GET /sandpod/v1/stream HTTP/1.1\r\n{headers}");
        let (status, message) = raw(server.addresses.legacy, &head, b"").await.error_message();
        assert!(status == 400 && message.contains(why), "{message}");
    }
}
