//! sandboxd's APIs: commands over gRPC, files over HTTP.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt as _, future, stream};
use http_body_util::StreamBody;
use hyper::body::Frame;
use sandpod_protocol::sandboxd::process_service_client::ProcessServiceClient;
use sandpod_protocol::sandboxd::start_response::Event;
use sandpod_protocol::sandboxd::write_stdin_request::Payload;
use sandpod_protocol::sandboxd::{
    ExecuteRequest, ExecuteResponse, ProcessConfig, Pty, ResizeTtyRequest, SendSignalRequest, Signal,
    StartRequest, StartResponse, WriteStdinRequest,
};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tonic::{Code, Status, Streaming};
use tower_service::Service as _;

use crate::harness::Wire;
use crate::stock_server::{Reply, Server, send, until};

type Client = ProcessServiceClient<Wire>;

impl Server {
    async fn commands(&self) -> Client {
        let stream = TcpStream::connect(self.addresses.grpc).await.unwrap();
        Client::with_origin(Wire::on(stream).await, http::Uri::from_static("http://sandboxd"))
    }

    async fn files(&self, line: &str) -> Reply {
        send(self.addresses.rest, line, "", b"").await
    }

    async fn put(&self, path: &str, content: &[u8]) -> Reply {
        send(self.addresses.rest, &format!("PUT /v1/files/{path}"), "", content).await
    }
}

fn shell(line: &str) -> ProcessConfig {
    let command = ["/bin/sh", "-c", line].map(str::to_owned).to_vec();
    ProcessConfig { command, ..ProcessConfig::default() }
}

async fn execute(client: &Client, config: ProcessConfig) -> Result<ExecuteResponse, Status> {
    let request = ExecuteRequest { config: Some(config) };
    client.clone().execute(request).await.map(tonic::Response::into_inner)
}

async fn start(client: &Client, line: &str) -> (i32, Streaming<StartResponse>) {
    start_in(client, line, None).await
}

async fn start_in(client: &Client, line: &str, pty: Option<Pty>) -> (i32, Streaming<StartResponse>) {
    let request = StartRequest { config: Some(shell(line)), pty };
    let mut events = client.clone().start(request).await.unwrap().into_inner();
    match events.message().await.unwrap().unwrap().event {
        Some(Event::Init(init)) => (init.process_id, events),
        event => panic!("{event:?} comes first"),
    }
}

fn is_alive(pid: &str) -> bool {
    let status = fs::read_to_string(format!("/proc/{}/status", pid.trim())).unwrap_or_default();
    !status.is_empty() && !status.contains("State:\tZ")
}

fn code(reply: &Reply) -> (u16, String) {
    (reply.status, reply.json()["code"].as_str().unwrap().to_owned())
}

#[tokio::test]
async fn a_command_runs_with_its_environment_in_its_directory() {
    let server = Server::start().await;
    let client = server.commands().await;
    fs::create_dir(server.root.join("sub")).unwrap();
    let env_vars = HashMap::from([("COLOUR".to_owned(), "blue".to_owned())]);
    let root = server.root.canonicalize().unwrap();
    for cwd in ["sub".to_owned(), "/sub".to_owned(), format!("{}/sub", root.display())] {
        let line = "echo $COLOUR; pwd; echo no >&2; exit 3";
        let config = ProcessConfig { env_vars: env_vars.clone(), cwd: Some(cwd), ..shell(line) };
        let executed = execute(&client, config).await.unwrap();
        assert_eq!(executed.stdout, format!("blue\n{}/sub\n", root.display()));
        assert_eq!((&*executed.stderr, executed.exit_code), (&b"no\n"[..], 3));
    }
    let executed = execute(&client, shell("pwd")).await.unwrap();
    assert_eq!(executed.stdout, format!("{}\n", root.display()));
}

#[tokio::test]
async fn a_command_without_words_or_outside_of_the_root_is_refused() {
    let server = Server::start().await;
    let client = server.commands().await;
    let status = execute(&client, ProcessConfig::default()).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    symlink("..", server.root.join("up")).unwrap();
    for cwd in ["..", "up", "a/../../b"] {
        let config = ProcessConfig { cwd: Some(cwd.to_owned()), ..shell("pwd") };
        assert_eq!(execute(&client, config).await.unwrap_err().code(), Code::PermissionDenied, "{cwd}");
    }
}

#[tokio::test]
async fn unfinished_requests_use_at_most_64_mib_in_total() {
    let server = Server::start().await;
    let begun = Bytes::from([&[0, 0, 0x40, 0, 0][..], &vec![0; (4 << 20) - 5]].concat());
    let mut connections = Vec::new();
    for _ in 0..17 {
        let stream = TcpStream::connect(server.addresses.grpc).await.unwrap();
        connections.push(Wire::on(stream).await);
    }
    let calls = connections.iter_mut().map(|wire| {
        let begun = stream::iter([Ok::<_, Status>(Frame::data(begun.clone()))]);
        let request = http::Request::post("http://sandboxd/process.v1.ProcessService/Execute")
            .header("content-type", "application/grpc")
            .body(tonic::body::Body::new(StreamBody::new(begun.chain(stream::pending()))))
            .unwrap();
        wire.call(request)
    });
    let (refused, _, waiting) = future::select_all(calls).await;
    let status = Status::from_header_map(refused.unwrap().headers()).unwrap();
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert!(status.message().contains("67108864 bytes"), "{status}");
    drop(waiting);
    drop(connections);
    for _ in 0..100 {
        if execute(&server.commands().await, shell("true")).await.is_ok() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("there is no room again");
}

#[tokio::test]
async fn output_fits_into_the_message_limit_of_clients() {
    let server = Server::start().await;
    let client = server.commands().await;
    let executed = execute(&client, shell("head -c 9000000 /dev/zero; exit 7")).await.unwrap();
    assert!(executed.stdout.len() > 4_000_000, "{}", executed.stdout.len());
    assert!(String::from_utf8_lossy(&executed.stderr).contains("more output than fits"));
    assert_eq!(executed.exit_code, 7);
}

#[tokio::test]
async fn a_command_is_killed_with_the_call_that_waits_for_it() {
    let server = Server::start().await;
    let client = server.commands().await;
    let config = shell("sleep 60 & echo $! > new; mv new pid; wait");
    let call = tokio::spawn(async move { execute(&client, config).await });
    let file = server.root.join("pid");
    until("the command runs", || file.exists()).await;
    let pid = fs::read_to_string(file).unwrap();
    assert!(is_alive(&pid));
    call.abort();
    until("what the command started has ended", || !is_alive(&pid)).await;
}

#[tokio::test]
async fn a_started_command_streams_its_number_output_and_exit() {
    let server = Server::start().await;
    let client = server.commands().await;
    let (first, mut events) = start(&client, "echo out; sleep 0.1; echo err >&2; exit 5").await;
    assert_eq!(first, 1);
    let mut received = Vec::new();
    while let Some(event) = events.message().await.unwrap() {
        received.push(event.event.unwrap());
    }
    let exit = sandpod_protocol::sandboxd::ExitEvent { exit_code: 5 };
    assert_eq!(received, [Event::Stdout("out\n".into()), Event::Stderr("err\n".into()), Event::Exit(exit)]);
    assert_eq!(start(&client, "true").await.0, 2);
}

#[tokio::test]
async fn a_started_command_receives_signals() {
    let server = Server::start().await;
    let client = server.commands().await;
    let (process_id, mut events) =
        start(&client, "trap 'echo heard; exit 4' TERM; echo ready; sleep 60 & wait").await;
    let ready = events.message().await.unwrap().unwrap().event;
    assert_eq!(ready, Some(Event::Stdout("ready\n".into())));
    let send = async |process_id, signal: Signal| {
        client.clone().send_signal(SendSignalRequest { process_id, signal: signal.into() }).await
    };
    assert_eq!(send(process_id, Signal::Unspecified).await.unwrap_err().code(), Code::InvalidArgument);
    send(process_id, Signal::Sigterm).await.unwrap();
    let mut last = None;
    while let Some(event) = events.message().await.unwrap() {
        last = event.event;
    }
    assert!(matches!(last, Some(Event::Exit(exit)) if exit.exit_code == 4));
    drop(events);
    assert_eq!(send(process_id, Signal::Sigkill).await.unwrap_err().code(), Code::NotFound);
}

#[tokio::test]
async fn a_started_command_reads_its_input_up_to_the_end() {
    let server = Server::start().await;
    let client = server.commands().await;
    let (process_id, mut events) = start(&client, "cat; echo end").await;
    let write = async |payload| {
        let request = WriteStdinRequest { process_id, payload };
        client.clone().write_stdin(request).await
    };
    write(Some(Payload::Input("hello\n".into()))).await.unwrap();
    let heard = events.message().await.unwrap().unwrap().event;
    assert_eq!(heard, Some(Event::Stdout("hello\n".into())));
    let resize = ResizeTtyRequest { process_id, cols: 90, rows: 30 };
    assert_eq!(client.clone().resize_tty(resize).await.unwrap_err().code(), Code::FailedPrecondition);
    assert_eq!(write(None).await.unwrap_err().code(), Code::InvalidArgument);
    write(Some(Payload::Eof(()))).await.unwrap();
    let heard = events.message().await.unwrap().unwrap().event;
    assert_eq!(heard, Some(Event::Stdout("end\n".into())));
}

#[tokio::test]
async fn a_started_command_can_have_a_resizable_terminal() {
    let server = Server::start().await;
    let client = server.commands().await;
    let line = "stty size; read line; stty size";
    let pty = Some(Pty { cols: 80, rows: 24 });
    let (process_id, mut events) = start_in(&client, line, pty).await;
    let mut shown = String::new();
    while !shown.contains("24 80") {
        let Some(Event::Stdout(bytes)) = events.message().await.unwrap().unwrap().event else { panic!() };
        shown += std::str::from_utf8(&bytes).unwrap();
    }
    let resize = ResizeTtyRequest { process_id, cols: 90, rows: 30 };
    client.clone().resize_tty(resize).await.unwrap();
    let payload = Some(Payload::Input("go on\n".into()));
    client.clone().write_stdin(WriteStdinRequest { process_id, payload }).await.unwrap();
    while let Some(event) = events.message().await.unwrap() {
        if let Some(Event::Stdout(bytes)) = event.event {
            shown += std::str::from_utf8(&bytes).unwrap();
        }
    }
    assert!(shown.contains("30 90"), "{shown}");
}

#[tokio::test]
async fn a_started_command_is_killed_with_its_stream() {
    let server = Server::start().await;
    let client = server.commands().await;
    let (_, mut events) = start(&client, "echo $$; exec sleep 60").await;
    let Some(Event::Stdout(pid)) = events.message().await.unwrap().unwrap().event else { panic!() };
    let pid = String::from_utf8(pid.to_vec()).unwrap();
    assert!(is_alive(&pid));
    drop(events);
    until("the command has ended", || !is_alive(&pid)).await;
}

#[tokio::test]
async fn files_work_with_the_path_forms_of_the_clients() {
    let server = Server::start().await;
    let content: Vec<u8> = (0..=255).cycle().take(600_000).collect();
    // SDK 1.0.8 writes `deep/./a b` and `/deep/file` in this form.
    for path in ["deep%2F%2E%2Fa%20b", "%2Fdeep%2Ffile", "plain", "deep/slash"] {
        assert_eq!(server.files(&format!("HEAD /v1/files/{path}")).await.status, 404, "{path}");
        assert_eq!(server.put(path, &content).await.status, 204, "{path}");
        assert_eq!(server.files(&format!("HEAD /v1/files/{path}")).await.status, 200, "{path}");
        let read = server.files(&format!("GET /v1/files/{path}")).await;
        assert!(read.status == 200 && read.body == content, "{path}: {}", read.head);
        assert!(read.head.contains("last-modified: "), "{}", read.head);
    }
    let listing = server.files("GET /v1/files/deep").await.json();
    let names: Vec<_> =
        listing["entries"].as_array().unwrap().iter().map(|entry| entry["name"].as_str().unwrap()).collect();
    assert_eq!((&listing["path"], names), (&json!("/deep"), vec!["a b", "file", "slash"]));
    assert_eq!(server.files("DELETE /v1/files/plain").await.status, 204);
    assert_eq!(code(&server.files("DELETE /v1/files/plain").await), (404, "NOT_FOUND".to_owned()));
}

#[tokio::test]
async fn a_listing_has_metadata_of_entries_and_link_targets() {
    let server = Server::start().await;
    fs::create_dir(server.root.join("dir")).unwrap();
    fs::write(server.root.join("file"), "12345").unwrap();
    fs::set_permissions(server.root.join("file"), fs::Permissions::from_mode(0o640)).unwrap();
    symlink("dir", server.root.join("link")).unwrap();
    symlink("nowhere", server.root.join("broken")).unwrap();
    let listing = server.files("GET /v1/files/").await.json();
    let entries = listing["entries"].as_array().unwrap();
    let listed = |entry: &Value| format!("{} {} {}", entry["name"], entry["type"], entry["size"]);
    let listed: Vec<_> = entries.iter().map(listed).collect();
    assert_eq!(listed.len(), 3, "{listed:?}");
    assert!(
        listed[0].starts_with(r#""dir" "directory""#) && listed[2].starts_with(r#""link" "directory""#),
        "{listed:?}"
    );
    assert_eq!((&*listed[1], &entries[1]["mode"]), (r#""file" "file" 5"#, &json!("0640")));
    let modified = entries[1]["modified_at"].as_str().unwrap();
    assert!(modified.starts_with("20") && modified.ends_with('Z') && modified.len() == 20, "{modified}");
}

#[tokio::test]
async fn a_non_empty_directory_is_deleted_only_recursively() {
    let server = Server::start().await;
    server.put("dir/inner/file", b"x").await;
    assert_eq!(code(&server.files("DELETE /v1/files/dir").await), (409, "CONFLICT".to_owned()));
    assert_eq!(
        code(&server.files("DELETE /v1/files/dir?recursive=x").await),
        (400, "INVALID_ARGUMENT".to_owned())
    );
    assert_eq!(server.files("DELETE /v1/files/dir?recursive=true").await.status, 204);
    assert!(!server.root.join("dir").exists());
    server.put("dir/file", b"x").await;
    assert_eq!(code(&server.files("DELETE /v1/files/").await), (409, "CONFLICT".to_owned()));
    assert_eq!(server.files("DELETE /v1/files/?recursive=true").await.status, 204);
    assert_eq!(fs::read_dir(&server.root).unwrap().count(), 0);
}

#[tokio::test]
async fn deleting_a_link_keeps_its_target() {
    let server = Server::start().await;
    fs::write(server.outside("kept"), "kept").unwrap();
    symlink(server.outside("kept"), server.root.join("link")).unwrap();
    assert_eq!(server.files("DELETE /v1/files/link").await.status, 204);
    assert!(fs::symlink_metadata(server.root.join("link")).is_err());
    assert_eq!(fs::read_to_string(server.outside("kept")).unwrap(), "kept");
}

#[tokio::test]
async fn a_file_may_come_in_a_form() {
    let server = Server::start().await;
    let form = b"--B\r\nContent-Disposition: form-data; name=other\r\n\r\nno\r\n--B\r\n\
                 Content-Disposition: form-data; name=file; filename=x\r\n\r\nyes\r\n--B--\r\n";
    let kind = "Content-Type: multipart/form-data; boundary=B\r\n";
    let reply = send(server.addresses.rest, "PUT /v1/files/file", kind, form).await;
    assert_eq!(reply.status, 204);
    assert_eq!(fs::read_to_string(server.root.join("file")).unwrap(), "yes");
    let reply = send(server.addresses.rest, "PUT /v1/files/file", kind, b"--B--").await;
    assert_eq!(code(&reply), (400, "INVALID_ARGUMENT".to_owned()));
}

#[tokio::test]
async fn escaping_and_invalid_requests_are_refused() {
    let server = Server::start().await;
    fs::write(server.outside("secret"), "secret").unwrap();
    symlink("../secret", server.root.join("link")).unwrap();
    for path in ["..%2Fsecret", "%2E%2E%2Fsecret", "../secret", "link"] {
        let forbidden = (403, "PERMISSION_DENIED".to_owned());
        assert_eq!(code(&server.files(&format!("GET /v1/files/{path}")).await), forbidden, "{path}");
        assert_eq!(code(&server.put(path, b"mine").await), forbidden, "{path}");
    }
    assert_eq!(code(&server.files("DELETE /v1/files/..%2Fsecret").await).0, 403);
    assert_eq!(fs::read_to_string(server.outside("secret")).unwrap(), "secret");
    let invalid = (400, "INVALID_ARGUMENT".to_owned());
    assert_eq!(code(&server.put("", b"x").await), invalid);
    assert_eq!(code(&server.put("file?mode=777", b"x").await), invalid);
    assert_eq!(code(&server.put("a%00b", b"x").await), invalid);
    assert_eq!(server.files("POST /v1/files/x").await.status, 405);
    assert_eq!(server.files("GET /v2").await.status, 404);
}

#[tokio::test]
async fn sandboxd_reports_health_and_only_public_variables() {
    let server = Server::start().await;
    let health = server.files("GET /v1/health").await.json();
    assert!(health["status"] == "ok" && health["uptime_seconds"].is_u64(), "{health}");
    let metadata = server.files("GET /v1/metadata").await.json();
    let shown = metadata["env"].as_object().unwrap();
    assert!(shown.keys().all(|name| name.starts_with("SANDBOX_")), "{shown:?}");
}
