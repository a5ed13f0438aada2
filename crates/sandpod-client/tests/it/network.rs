//! Guests that listen on the network.

use std::net::SocketAddr;
use std::time::Duration;

use futures::future::BoxFuture;
use sandpod_client::{
    ByteStream, Bytes, Connection, DialError, Dialer, Error, ErrorCode, ExecuteOptions, NetworkDialer,
    Options, Sandbox, Token,
};
use sandpod_guest::{Guest, ListenOptions, StockApis};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

/// Starts a guest that listens for streams, plain and in a WebSocket.
async fn guest(token: &Token) -> (SocketAddr, SocketAddr, TempDir) {
    let dir = tempfile::tempdir().expect("there is room for temporary files");
    let token_sha256 = Some(token.sha256());
    let state = dir.path().join("state");
    let guest = Guest::new(sandpod_guest::Options { token_sha256, ..sandpod_guest::Options::new(state) });
    let stock = StockApis {
        addresses: "127.0.0.1:0,127.0.0.1:0,127.0.0.1:0".parse().expect("three addresses"),
        base_dir: dir.path().to_owned(),
        root_dir: dir.path().to_owned(),
        command_timeout: Duration::from_secs(60),
    };
    let doors =
        ListenOptions { stream: "127.0.0.1:0".parse().ok(), stock: Some(stock), ..ListenOptions::default() };
    let opened = doors.open(&guest.expect("a guest starts")).await.expect("there are free ports");
    let websocket = opened.stock.expect("it was asked for").legacy;
    (opened.stream.expect("it was asked for"), websocket, dir)
}

fn token() -> Token {
    Token::new("a long and random secret")
}

/// Returns a sandbox over each transport.
async fn sandboxes(token: &Token) -> ([Sandbox; 2], TempDir) {
    let (tcp, websocket, dir) = guest(&self::token()).await;
    let sandbox = |dialer| Sandbox::new(Connection::new(dialer, Options::default()));
    let tcp = sandbox(NetworkDialer::tcp(tcp.to_string(), token.clone()));
    let websocket = sandbox(NetworkDialer::websocket(websocket.to_string(), token.clone()));
    ([tcp, websocket], dir)
}

#[tokio::test]
async fn commands_and_transfers_work_over_tcp_and_websocket() {
    let (sandboxes, dir) = sandboxes(&token()).await;
    let content: Bytes = (0..2_000_000_u32).map(|index| u8::try_from(index % 251).unwrap()).collect();
    for sandbox in sandboxes {
        let executed = sandbox.execute("echo hello", ExecuteOptions::default()).await.unwrap();
        assert_eq!(executed.output, "hello\n");
        let path = format!("{}/large", dir.path().display());
        sandbox.write(&path, content.clone()).await.unwrap();
        assert!(sandbox.download(&path, u64::MAX).await.unwrap() == content);
        sandbox.delete(&path).await.unwrap();
    }
}

#[tokio::test]
async fn many_callers_share_a_websocket() {
    let (sandboxes, _dir) = sandboxes(&token()).await;
    let calls = (0..50).map(|number| {
        let sandbox = sandboxes[1].clone();
        async move {
            let line = format!("head -c 100000 /dev/zero | tr '\\0' x; echo {number}");
            let executed = sandbox.execute(line.as_str(), ExecuteOptions::default()).await.unwrap();
            assert!(
                executed.output.len() > 100_000
                    && executed.output.ends_with(format!("x{number}\n").as_bytes())
            );
        }
    });
    futures::future::join_all(calls).await;
}

#[tokio::test]
async fn a_wrong_token_is_refused_at_once_and_for_good() {
    let (sandboxes, _dir) = sandboxes(&Token::new("wrong")).await;
    for sandbox in sandboxes {
        let error = sandbox.execute("true", ExecuteOptions::default()).await.unwrap_err();
        let Error::Failure(failure) = error else { panic!("{error}") };
        assert_eq!(failure.code(), ErrorCode::Unauthenticated);
    }
}

/// A dialer with two tokens.
struct TwoTokens(NetworkDialer, [Token; 2]);

impl Dialer for TwoTokens {
    fn dial(&self) -> BoxFuture<'_, Result<Box<dyn ByteStream>, DialError>> {
        self.0.dial()
    }

    fn tokens(&self) -> Vec<Token> {
        self.1.to_vec()
    }
}

#[tokio::test]
async fn second_token_is_tried_if_the_first_is_wrong() {
    let (tcp, _, _dir) = guest(&token()).await;
    let (wrong, other) = (Token::new("wrong"), Token::new("wrong too"));
    let greet = |tokens| async move {
        let dialer = TwoTokens(NetworkDialer::tcp(tcp.to_string(), token()), tokens);
        Connection::new(dialer, Options::default()).greeting().await
    };
    greet([token(), wrong.clone()]).await.unwrap();
    greet([wrong.clone(), token()]).await.unwrap();
    let error = greet([wrong, other]).await.unwrap_err();
    let Error::Failure(failure) = error else { panic!("{error}") };
    assert_eq!(failure.code(), ErrorCode::Unauthenticated);
}

#[tokio::test]
async fn address_without_a_listener_is_named_in_the_error() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    drop(listener);
    let options = Options { reconnect_timeout: Duration::from_millis(100), ..Options::default() };
    let dialer = NetworkDialer::tcp(&address, token());
    let error = Connection::new(dialer, options).greeting().await.unwrap_err();
    assert!(matches!(&error, Error::Unreachable { reason, .. } if reason.contains(&address)), "{error}");
}

#[tokio::test]
async fn server_without_the_websocket_is_a_refusal() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let _ = stream.read(&mut [0; 4096]).await;
        stream.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n").await.unwrap();
        let _ = stream.read(&mut [0; 1]).await;
    });
    let dialer = NetworkDialer::websocket(&address, token());
    let error = Connection::new(dialer, Options::default()).greeting().await.unwrap_err();
    assert!(matches!(&error, Error::Denied(reason) if reason.contains("404")), "{error}");
}
