//! The API of agent-sandbox's first runtime.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::stock_server::{Reply, Server, raw, reply, send, until};

impl Server {
    async fn get(&self, path: &str) -> Reply {
        send(self.addresses.legacy, &format!("GET {path}"), "", b"").await
    }

    async fn post(&self, content: &str) -> Reply {
        let kind = "Content-Type: application/json\r\n";
        send(self.addresses.legacy, "POST /execute", kind, content.as_bytes()).await
    }

    async fn execute(&self, command: &str) -> Value {
        self.post(&json!({ "command": command }).to_string()).await.json()
    }

    async fn upload(&self, name: &str, content: &[u8]) -> Reply {
        let (kind, form) = form(name, content);
        send(self.addresses.legacy, "POST /upload", &kind, &form).await
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.root).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    /// Returns whether the guest, which is in this process, has a file open here, including unnamed ones.
    fn holds_a_file(&self) -> bool {
        let opened = fs::read_dir("/proc/self/fd").unwrap().flatten();
        opened
            .filter_map(|opened| fs::read_link(opened.path()).ok())
            .any(|path| path.parent() == Some(&self.root))
    }
}

fn form(name: &str, content: &[u8]) -> (String, Vec<u8>) {
    let head = format!("--B\r\nContent-Disposition: form-data; name=\"file\"; filename=\"{name}\"\r\n\r\n");
    let form = [head.as_bytes(), content, b"\r\n--B--\r\n"].concat();
    ("Content-Type: multipart/form-data; boundary=B\r\n".to_owned(), form)
}

fn is_alive(pid: &str) -> bool {
    let status = fs::read_to_string(format!("/proc/{}/status", pid.trim())).unwrap_or_default();
    !status.is_empty() && !status.contains("State:\tZ")
}

#[tokio::test]
async fn the_runtime_answers_its_health_check() {
    let server = Server::start().await;
    assert_eq!(server.get("/").await.json()["status"], "ok");
    assert_eq!(server.get("/nonsense").await.status, 404);
    assert_eq!(send(server.addresses.legacy, "DELETE /execute", "", b"").await.status, 404);
}

#[tokio::test]
async fn a_command_runs_in_the_base_directory_without_a_shell() {
    let server = Server::start().await;
    let executed = server.execute("echo $HOME 'a  b' | cat").await;
    let expected =
        json!({ "stdout": "$HOME a  b | cat\n", "stderr": "", "exit_code": 0, "timed_out": false });
    assert_eq!(executed, expected);
    let executed = server.execute("sh -c 'pwd; echo no >&2; exit 3'").await;
    let root = server.root.canonicalize().unwrap();
    assert_eq!(executed["stdout"], format!("{}\n", root.display()));
    assert_eq!((&executed["stderr"], &executed["exit_code"]), (&json!("no\n"), &json!(3)));
}

#[tokio::test]
async fn a_command_that_cannot_run_is_a_result() {
    let server = Server::start().await;
    for (command, why) in [("echo 'open", "No closing quotation"), ("", "names no program")] {
        let executed = server.execute(command).await;
        assert_eq!(executed["exit_code"], 1, "{executed}");
        let stderr = executed["stderr"].as_str().unwrap();
        assert!(stderr.starts_with("Failed to execute command: ") && stderr.contains(why), "{stderr}");
    }
    let executed = server.execute("/no/such/program").await;
    assert_eq!(executed["exit_code"], 125);
    assert!(executed["stderr"].as_str().unwrap().contains("there is no program"), "{executed}");
}

#[tokio::test]
async fn a_command_that_takes_too_long_ends_with_all_that_it_started() {
    let server = Server::start().await;
    let command = "sh -c 'sleep 60 & echo $! > pid; echo some; wait'";
    let content = json!({ "command": command, "timeout_seconds": 2.5 }).to_string();
    let executed = server.post(&content).await.json();
    assert_eq!((&executed["timed_out"], &executed["exit_code"]), (&json!(true), &json!(124)));
    assert_eq!(executed["stdout"], "some\n");
    assert_eq!(executed["stderr"], "Command timed out after 2.5s");
    let pid = fs::read_to_string(server.root.join("pid")).unwrap();
    until("the command's child has ended", || !is_alive(&pid)).await;
}

#[tokio::test]
async fn a_command_is_killed_when_its_caller_disconnects() {
    let server = Server::start().await;
    let mut stream = TcpStream::connect(server.addresses.legacy).await.unwrap();
    let content = json!({ "command": "sh -c 'echo $$ > new; mv new pid; sleep 60'" }).to_string();
    let head = format!("POST /execute HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n", content.len());
    stream.write_all((head + &content).as_bytes()).await.unwrap();
    let file = server.root.join("pid");
    until("the command runs", || file.exists()).await;
    let pid = fs::read_to_string(file).unwrap();
    assert!(is_alive(&pid));
    drop(stream);
    until("the command has ended", || !is_alive(&pid)).await;
}

#[tokio::test]
async fn too_long_output_is_cut_between_characters_and_reported() {
    let server = Server::start().await;
    fs::write(server.root.join("euros"), "€".repeat(3 << 20)).unwrap();
    let executed = server.execute("cat euros").await;
    let stdout = executed["stdout"].as_str().unwrap();
    assert!(stdout.len() > 7_000_000 && stdout.chars().all(|char| char == '€'), "{}", stdout.len());
    assert!(executed["stderr"].as_str().unwrap().contains("more output than fits"));
    assert_eq!(executed["exit_code"], 0);
}

#[tokio::test]
async fn files_are_uploaded_listed_found_and_downloaded() {
    let server = Server::start().await;
    let content: Vec<u8> = (0..=255).cycle().take(600_000).collect();
    for name in ["plain", "deep/er/file", "/absolute", "with space & é %41"] {
        let reply = server.upload(name, &content).await;
        assert_eq!(reply.status, 200, "{reply:?}");
        let encoded = percent_encoding::utf8_percent_encode(name, percent_encoding::NON_ALPHANUMERIC);
        assert_eq!(server.get(&format!("/exists/{encoded}")).await.json()["exists"], true, "{name}");
        let reply = server.get(&format!("/download/{encoded}")).await;
        assert!(reply.status == 200 && reply.body == content, "{name}: {}", reply.head);
    }
    let listed = server.get("/list/.").await.json();
    let found = |entry: &Value| (entry["name"].clone(), entry["type"].clone(), entry["size"].clone());
    let listed: Vec<_> = listed.as_array().unwrap().iter().map(found).collect();
    assert_eq!(listed.len(), 4);
    assert_eq!(listed[0], (json!("absolute"), json!("file"), json!(600_000)));
    assert_eq!((&listed[1].0, &listed[1].1), (&json!("deep"), &json!("directory")));
    assert!(server.get("/list/deep").await.json()[0]["mod_time"].as_f64().unwrap() > 1e9);
}

#[tokio::test]
async fn missing_paths_and_wrong_kinds_are_not_found() {
    let server = Server::start().await;
    fs::write(server.root.join("file"), "").unwrap();
    symlink("nowhere", server.root.join("link")).unwrap();
    assert_eq!(server.get("/download/no").await.error_message(), (404, "File not found".to_owned()));
    assert_eq!(server.get("/download/.").await.error_message(), (404, "File not found".to_owned()));
    assert_eq!(server.get("/list/file").await.error_message(), (404, "Path is not a directory".to_owned()));
    for path in ["no", "file/below", "link"] {
        assert_eq!(server.get(&format!("/exists/{path}")).await.json()["exists"], false, "{path}");
    }
    assert_eq!(server.get("/exists/%ff").await.status, 400);
    assert_eq!(server.upload("", b"x").await.status, 400);
}

#[tokio::test]
async fn paths_do_not_lead_out_of_the_base_directory() {
    let server = Server::start().await;
    let secret = server.outside("secret");
    fs::write(&secret, "secret").unwrap();
    symlink(&secret, server.root.join("link")).unwrap();
    symlink("..", server.root.join("up")).unwrap();
    for path in ["../secret", "..%2Fsecret", "%2e%2e/secret", "a/../../secret", "link", "up/secret"] {
        for call in ["download", "list", "exists"] {
            assert_eq!(server.get(&format!("/{call}/{path}")).await.status, 403, "{call} {path}");
        }
    }
    for name in ["../secret", "a/../../secret", "link", "up/new"] {
        assert_eq!(server.upload(name, b"mine").await.status, 403, "{name}");
    }
    assert_eq!(fs::read_to_string(secret).unwrap(), "secret");
    assert!(!server.outside("new").exists());
    assert_eq!(server.get("/download/%2Fetc%2Fpasswd").await.status, 404);
}

#[tokio::test]
async fn invalid_content_is_refused_with_a_message() {
    let server = Server::start().await;
    for content in ["", "{", "[]", "{\"command\": 7}", "{\"command\": \"a\", \"timeout_seconds\": \"x\"}"] {
        let (status, message) = server.post(content).await.error_message();
        assert!(status == 422 && message.contains("in JSON"), "{content}: {message}");
    }
    let (kind, form) = form("file", b"content");
    let address = server.addresses.legacy;
    let reply = send(address, "POST /upload", "Content-Type: text/plain\r\n", &form).await;
    assert_eq!(reply.status, 400);
    for broken in [&b""[..], b"--B", b"--B\r\n\r\nno name\r\n--B--", b"garbage", &form[..form.len() - 9]] {
        assert_eq!(send(address, "POST /upload", &kind, broken).await.status, 400, "{broken:?}");
    }
    until("nothing is left", || server.names().is_empty()).await;
}

#[tokio::test]
async fn too_large_content_is_refused_by_its_header_or_while_reading() {
    let server = Server::start().await;
    let (kind, _) = form("file", b"");
    for path in ["/execute", "/upload"] {
        let head = format!("POST {path} HTTP/1.1\r\nContent-Length: 999999999999\r\n{kind}");
        assert_eq!(raw(server.addresses.legacy, &head, b"").await.status, 413);
    }
    let head = "POST /execute HTTP/1.1\r\nTransfer-Encoding: chunked\r\n";
    let chunk = [b"100000\r\n", &vec![b' '; 1 << 20][..], b"\r\n"].concat();
    let (status, message) = raw(server.addresses.legacy, head, &chunk.repeat(9)).await.error_message();
    assert!(status == 413 && message.contains("is the maximum"), "{message}");
}

#[tokio::test]
async fn chunked_content_is_accepted_and_broken_chunks_are_refused() {
    let server = Server::start().await;
    let head = "POST /execute HTTP/1.1\r\nTransfer-Encoding: chunked\r\n";
    let chunks = b"5\r\n{\"com\r\n10\r\nmand\":\"echo hi\"}\r\n0\r\n\r\n";
    assert_eq!(raw(server.addresses.legacy, head, chunks).await.json()["stdout"], "hi\n");
    for chunks in [&b"zz\r\n"[..], b"fffffffffffffffff\r\n", b"5\r\n{\"comXX"] {
        assert_eq!(raw(server.addresses.legacy, head, chunks).await.status, 400);
    }
}

#[tokio::test]
async fn a_sender_that_is_too_slow_gets_a_timeout() {
    let server = Server::start().await;
    let mut stream = TcpStream::connect(server.addresses.legacy).await.unwrap();
    stream.write_all(b"POST /execute HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{").await.unwrap();
    tokio::time::pause();
    let mut head = [0; 12];
    stream.read_exact(&mut head).await.unwrap();
    assert_eq!(&head, b"HTTP/1.1 408");
}

#[tokio::test]
async fn a_head_that_never_ends_closes_its_connection() {
    let server = Server::start().await;
    let mut slow = TcpStream::connect(server.addresses.legacy).await.unwrap();
    slow.write_all(b"GET / HTTP/1.1\r\nX: ").await.unwrap();
    let mut long = TcpStream::connect(server.addresses.legacy).await.unwrap();
    // The guest stops reading, so not all can be sent.
    let _ = long.write_all(&[&b"GET / HTTP/1.1\r\nX: "[..], &vec![b'x'; 1 << 20]].concat()).await;
    assert_eq!(reply(&mut long).await.status, 431);
    tokio::time::pause();
    let mut answer = Vec::new();
    slow.read_to_end(&mut answer).await.unwrap();
    assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 408"), "{answer:?}");
}

#[tokio::test]
async fn a_client_that_leaves_in_the_middle_of_an_upload_leaves_nothing() {
    let server = Server::start().await;
    let (kind, form) = form("file", &vec![7; 100_000]);
    let head = format!("POST /upload HTTP/1.1\r\nHost: x\r\n{kind}Content-Length: {}\r\n\r\n", form.len());
    let mut stream = TcpStream::connect(server.addresses.legacy).await.unwrap();
    stream.write_all(&[head.as_bytes(), &form[..90_000]].concat()).await.unwrap();
    until("the content is on its way", || server.holds_a_file()).await;
    drop(stream);
    until("nothing is left", || server.names().is_empty() && !server.holds_a_file()).await;
}

#[tokio::test]
async fn connections_beyond_the_maximum_are_closed() {
    let server = Server::start().await;
    let mut held = Vec::new();
    for _ in 0..64 {
        held.push(TcpStream::connect(server.addresses.legacy).await.unwrap());
    }
    let mut refused = TcpStream::connect(server.addresses.legacy).await.unwrap();
    assert_eq!(refused.read(&mut [0; 1]).await.unwrap_or(0), 0);
    drop(held);
    for _ in 0..500 {
        let mut stream = TcpStream::connect(server.addresses.legacy).await.unwrap();
        let request = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
        let mut answer = Vec::new();
        if stream.write_all(request).await.is_ok()
            && stream.read_to_end(&mut answer).await.is_ok_and(|read| read > 0)
        {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("there is no place although all have left");
}

#[test]
fn the_runtimes_have_their_own_ports_and_directories_by_default() {
    let addresses = sandpod_guest::StockAddresses::default();
    let ports = (addresses.legacy.port(), addresses.grpc.port(), addresses.rest.port());
    assert_eq!(ports, (8888, 9090, 8080));
    let stock = sandpod_guest::StockApis::from_env();
    assert_eq!((&*stock.base_dir, &*stock.root_dir), (Path::new("/app"), Path::new("/workspace")));
}
