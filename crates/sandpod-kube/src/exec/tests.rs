//! Exec streams against a WebSocket server in this process, which stands in for the API server.

use std::time::Duration;

use futures::stream::{SplitSink, SplitStream};
use http::HeaderValue;
use http::header::SEC_WEBSOCKET_PROTOCOL;
use kube::Config;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_tungstenite::accept_hdr_async;
use tokio_tungstenite::tungstenite::handshake::server::{ErrorResponse, Request as Handshake, Response};

use super::*;

const V4: &str = "v4.channel.k8s.io";
const V5: &str = "v5.channel.k8s.io";
const SUCCESS: &[u8] = br#"{"metadata":{},"status":"Success"}"#;
const EXIT_7: &[u8] =
    br#"{"metadata":{},"status":"Failure","details":{"causes":[{"reason":"ExitCode","message":"7"}]}}"#;

struct Server {
    sink: SplitSink<WebSocketStream<TcpStream>, Message>,
    stream: SplitStream<WebSocketStream<TcpStream>>,
}

impl Server {
    async fn send(&mut self, channel: u8, data: &[u8]) {
        let message = [&[channel], data].concat();
        self.sink.send(Message::Binary(message.into())).await.unwrap();
    }

    /// Returns the client's next message, or `None` when the client is gone.
    async fn receive(&mut self) -> Option<Bytes> {
        match self.stream.next().await {
            Some(Ok(Message::Binary(message))) => Some(message),
            _ => None,
        }
    }
}

/// Opens a command whose server runs `play`, and returns it with the server's task.
async fn command<P, F>(protocol: &'static str, stdin: Stdin, play: P) -> (Exec, JoinHandle<()>)
where
    P: FnOnce(Server) -> F + Send + 'static,
    F: Future<Output = ()> + Send,
{
    let (client, server) = serve(protocol, play).await;
    (open(&client, &pod(), ["command"], stdin).await.unwrap(), server)
}

async fn serve<P, F>(protocol: &'static str, play: P) -> (Client, JoinHandle<()>)
where
    P: FnOnce(Server) -> F + Send + 'static,
    F: Future<Output = ()> + Send,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(async move {
        let (connection, _) = listener.accept().await.unwrap();
        #[expect(clippy::result_large_err, reason = "tungstenite wants it so")]
        let choose = |_: &Handshake, mut response: Response| -> Result<Response, ErrorResponse> {
            response.headers_mut().insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(protocol));
            Ok(response)
        };
        let (sink, stream) = accept_hdr_async(connection, choose).await.unwrap().split();
        play(Server { sink, stream }).await;
    });
    let config = Config::new(format!("http://{address}").parse().unwrap());
    (crate::client::client(&config).unwrap(), server)
}

fn pod() -> PodRef {
    PodRef::new("agents", "box")
}

/// Fails instead of hanging.
async fn soon<T>(future: impl Future<Output = T>) -> T {
    timeout(Duration::from_secs(20), future).await.expect("it hangs")
}

#[tokio::test]
async fn output_errors_and_exit_code_come_back() {
    let (client, _server) = serve(V5, async |mut server: Server| {
        for (channel, data) in
            [(1, &b""[..]), (2, b""), (3, b""), (1, b"out"), (2, b"err"), (1, b"put"), (3, EXIT_7)]
        {
            server.send(channel, data).await;
        }
    })
    .await;

    let finished = soon(run(&client, &pod(), ["command"], None, 1024)).await.unwrap();

    let expected = Finished { stdout: "output".into(), stderr: "err".into(), exit_code: 7, truncated: false };
    assert_eq!(finished, expected);
}

#[tokio::test]
async fn output_past_the_limit_is_dropped_and_the_command_still_ends() {
    let (client, _server) = serve(V5, async |mut server: Server| {
        for _ in 0..1000 {
            server.send(1, &[b'x'; 4096]).await;
        }
        server.send(3, SUCCESS).await;
    })
    .await;

    let finished = soon(run(&client, &pod(), ["command"], None, 5000)).await.unwrap();

    assert_eq!((finished.stdout.len(), finished.exit_code, finished.truncated), (5000, 0, true));
}

#[tokio::test]
async fn closing_the_input_reaches_the_command_on_v5() {
    let (exec, server) = command(V5, Stdin::Piped, async |mut server: Server| {
        assert_eq!(server.receive().await.unwrap(), b"\x00hello"[..]);
        assert_eq!(server.receive().await.unwrap(), [255, 0][..]);
        server.send(3, SUCCESS).await;
    })
    .await;

    let mut stdin = exec.stdin.unwrap();
    stdin.send("hello".into()).await.unwrap();
    stdin.close().unwrap();

    assert_eq!(soon(exec.exit.code()).await.unwrap(), 0);
    server.await.unwrap();
}

#[tokio::test]
async fn closing_input_is_refused_on_v4() {
    let (client, _server) =
        serve(V4, async |mut server: Server| while server.receive().await.is_some() {}).await;

    let error = soon(run(&client, &pod(), ["cat"], Some("hello".into()), 1024)).await.unwrap_err();

    assert!(matches!(error, Error::CloseUnsupported { .. }), "{error}");
}

#[tokio::test]
async fn a_command_without_input_works_on_v4() {
    let (client, _server) = serve(V4, async |mut server: Server| {
        server.send(1, b"hello").await;
        server.send(3, SUCCESS).await;
    })
    .await;

    let finished = soon(run(&client, &pod(), ["echo", "hello"], None, 1024)).await.unwrap();

    assert_eq!((&finished.stdout[..], finished.exit_code), (&b"hello"[..], 0));
}

#[tokio::test]
async fn a_lost_connection_is_an_error_for_every_part() {
    let (exec, _server) = command(V5, Stdin::Piped, async |mut server: Server| {
        server.send(1, b"half").await;
    })
    .await;
    let Exec { stdin, mut stdout, mut stderr, exit } = exec;

    assert_eq!(soon(stdout.next()).await.unwrap().unwrap(), "half");
    for error in [soon(stdout.next()).await.unwrap_err(), soon(stderr.next()).await.unwrap_err()] {
        assert!(matches!(error, Error::Lost { .. }), "{error}");
    }
    let error = soon(exit.code()).await.unwrap_err().to_string();
    assert!(error.starts_with("lost the exec stream to pod agents/box: "), "{error}");
    let error = soon(stdin.unwrap().send("late".into())).await.unwrap_err();
    assert!(matches!(error, Error::Lost { .. }), "{error}");
}

#[tokio::test]
async fn a_close_without_an_exit_code_is_a_loss_with_the_servers_reason() {
    use tokio_tungstenite::tungstenite::protocol::{CloseFrame, frame::coding::CloseCode};

    let (exec, _server) = command(V5, Stdin::None, async |mut server: Server| {
        let close = CloseFrame { code: CloseCode::Away, reason: "going down".into() };
        server.sink.send(Message::Close(Some(close))).await.unwrap();
        server.receive().await;
    })
    .await;

    let error = soon(exec.exit.code()).await.unwrap_err().to_string();

    assert!(error.contains("going down"), "{error}");
}

#[tokio::test]
async fn a_command_that_was_not_run_has_a_reason() {
    let (exec, _server) = command(V5, Stdin::None, async |mut server: Server| {
        server.send(3, br#"{"status":"Failure","message":"no such file"}"#).await;
    })
    .await;

    let error = soon(exec.exit.code()).await.unwrap_err();

    assert!(matches!(&error, Error::NotRun { message, .. } if message == "no such file"), "{error}");
}

#[tokio::test]
async fn the_exit_code_comes_although_output_lies_unread() {
    let (exec, _server) = command(V5, Stdin::None, async |mut server: Server| {
        server.send(1, &vec![b'x'; 32 * 1024]).await;
        server.send(3, SUCCESS).await;
    })
    .await;
    let Exec { mut stdout, exit, .. } = exec;

    assert_eq!(soon(exit.code()).await.unwrap(), 0);
    assert_eq!(soon(stdout.next()).await.unwrap().unwrap().len(), 32 * 1024);
    assert_eq!(soon(stdout.next()).await.unwrap(), None);
}

#[tokio::test]
async fn the_exit_code_comes_when_much_output_was_never_wanted() {
    let (exec, _server) = command(V5, Stdin::None, async |mut server: Server| {
        for _ in 0..1000 {
            server.send(1, &vec![b'x'; 32 * 1024]).await;
        }
        server.send(3, EXIT_7).await;
    })
    .await;
    let Exec { stdout, exit, .. } = exec;
    drop(stdout);

    assert_eq!(soon(exit.code()).await.unwrap(), 7);
}

#[tokio::test]
async fn output_that_comes_after_the_exit_code_is_not_lost() {
    let (client, _server) = serve(V5, async |mut server: Server| {
        server.send(3, SUCCESS).await;
        server.send(1, b"late").await;
    })
    .await;

    let finished = soon(run(&client, &pod(), ["command"], None, 1024)).await.unwrap();

    assert_eq!(finished.stdout, "late");
}

#[tokio::test]
async fn a_server_that_never_closes_does_not_hold_the_exit_code_back() {
    let (exec, _server) = command(V5, Stdin::None, async |mut server: Server| {
        server.send(3, SUCCESS).await;
        std::future::pending::<()>().await;
    })
    .await;

    assert_eq!(soon(exec.exit.code()).await.unwrap(), 0);
}

/// kube's own exec hangs here: its one loop for both directions stops reading while a write is blocked.
#[tokio::test(flavor = "multi_thread")]
async fn a_filter_that_writes_more_than_it_reads_does_not_block_its_own_input() {
    const INPUT: usize = 16 * 1024 * 1024;
    let (client, server) = serve(V5, async |mut server: Server| {
        while let Some(message) = server.receive().await
            && message[0] == 0
        {
            for _ in 0..4 {
                server.send(1, &message[1..]).await;
            }
        }
        server.send(3, SUCCESS).await;
    })
    .await;

    let finished =
        soon(run(&client, &pod(), ["filter"], Some(vec![b'x'; INPUT].into()), 4 * INPUT)).await.unwrap();

    assert_eq!((finished.stdout.len(), finished.exit_code, finished.truncated), (4 * INPUT, 0, false));
    server.await.unwrap();
}

#[tokio::test]
async fn a_command_need_not_read_all_its_input() {
    let (client, _server) = serve(V5, async |mut server: Server| server.send(3, EXIT_7).await).await;

    let input = vec![b'x'; 64 * 1024 * 1024];
    let finished = soon(run(&client, &pod(), ["false"], Some(input.into()), 1024)).await.unwrap();

    assert_eq!(finished.exit_code, 7);
}

#[tokio::test]
async fn dropping_every_part_closes_the_connection() {
    let (exec, server) =
        command(V5, Stdin::Piped, async |mut server: Server| while server.receive().await.is_some() {}).await;

    drop(exec);

    soon(server).await.unwrap();
}

#[tokio::test]
async fn a_status_in_two_messages_is_one_status() {
    let (exec, _server) = command(V5, Stdin::None, async |mut server: Server| {
        let (first, second) = EXIT_7.split_at(20);
        server.send(3, first).await;
        server.send(3, second).await;
    })
    .await;

    assert_eq!(soon(exec.exit.code()).await.unwrap(), 7);
}

#[tokio::test]
async fn a_slow_reader_gets_all_output_of_a_command_that_ended_without_reading_its_input() {
    const CHUNKS: usize = 40;
    let (exec, _server) = command(V5, Stdin::Piped, async |mut server: Server| {
        for _ in 0..CHUNKS {
            server.send(1, b"x").await;
        }
        server.send(3, SUCCESS).await;
    })
    .await;
    let Exec { stdin, mut stdout, exit, .. } = exec;
    // The server is gone, so a write fails eventually.
    let mut stdin = stdin.unwrap();
    sleep(Duration::from_millis(100)).await;
    for _ in 0..QUEUE {
        stdin.send(vec![b'x'; 1024 * 1024].into()).await.unwrap();
    }
    sleep(2 * LAST_WORD).await;

    let mut chunks = 0;
    while soon(stdout.next()).await.unwrap().is_some() {
        chunks += 1;
    }
    assert_eq!(chunks, CHUNKS);
    assert_eq!(soon(exit.code()).await.unwrap(), 0);
}

#[tokio::test]
async fn a_stream_carries_bytes_both_ways_and_its_shutdown_ends_the_input() {
    let (client, server) = serve(V5, async |mut server: Server| {
        assert_eq!(server.receive().await.unwrap(), b"\x00hello"[..]);
        server.send(2, b"noise").await;
        server.send(1, b"wor").await;
        server.send(1, b"ld").await;
        assert_eq!(server.receive().await.unwrap(), [255, 0][..]);
        server.send(3, SUCCESS).await;
    })
    .await;

    let mut stream = stream(&client, &pod(), "sandbox", ["cat"]).await.unwrap();
    stream.write_all(b"hello").await.unwrap();
    let mut answer = [0; 5];
    soon(stream.read_exact(&mut answer)).await.unwrap();
    assert_eq!(&answer, b"world");
    stream.shutdown().await.unwrap();
    assert_eq!(soon(stream.read(&mut answer)).await.unwrap(), 0);
    assert_eq!(stream.write(b"x").await.unwrap_err().kind(), std::io::ErrorKind::BrokenPipe);
    server.await.unwrap();
}

#[tokio::test]
async fn small_writes_that_are_ready_together_leave_as_one_message() {
    let (client, server) = serve(V5, async |mut server: Server| {
        assert_eq!(server.receive().await.unwrap(), b"\x00abc"[..]);
    })
    .await;

    let mut stream = stream(&client, &pod(), "sandbox", ["cat"]).await.unwrap();
    for piece in [b"a", b"b", b"c"] {
        stream.write_all(piece).await.unwrap();
    }
    soon(server).await.unwrap();
}

#[tokio::test]
async fn a_large_write_leaves_in_bounded_messages_and_arrives_whole() {
    const LENGTH: usize = 1024 * 1024 + 1;
    let (client, server) = serve(V5, async |mut server: Server| {
        let mut received = 0;
        while received < LENGTH {
            let message = server.receive().await.unwrap();
            assert!(message.len() <= MAX_INPUT_FRAME + 1);
            received += message.len() - 1;
        }
    })
    .await;

    let mut stream = stream(&client, &pod(), "sandbox", ["cat"]).await.unwrap();
    soon(stream.write_all(&vec![b'x'; LENGTH])).await.unwrap();
    soon(server).await.unwrap();
}

#[tokio::test]
async fn a_lost_stream_is_an_error_and_not_the_end_of_the_output() {
    let (client, _server) = serve(V5, async |mut server: Server| server.send(1, b"half").await).await;

    let mut stream = stream(&client, &pod(), "sandbox", ["cat"]).await.unwrap();
    let mut read = Vec::new();
    let error = soon(stream.read_to_end(&mut read)).await.unwrap_err();

    assert_eq!(read, b"half");
    assert!(error.to_string().starts_with("lost the exec stream to pod agents/box: "), "{error}");
    let again = soon(stream.read_to_end(&mut read)).await.unwrap_err();
    assert_eq!(again.to_string(), error.to_string());
}

#[tokio::test]
async fn a_stream_of_a_failed_command_reports_its_error_output() {
    let (client, _server) = serve(V5, async |mut server: Server| {
        for _ in 0..100 {
            server.send(2, &[b'e'; 1024]).await;
        }
        server.send(3, EXIT_7).await;
    })
    .await;

    let mut stream = stream(&client, &pod(), "sandbox", ["cat"]).await.unwrap();
    let error = soon(stream.read_u8()).await.unwrap_err().to_string();

    assert!(error.starts_with("the command in pod agents/box ended with exit code 7: eee"), "{error}");
    assert!(error.len() < 5000, "{}", error.len());
}
