//! Requests as servers on a loopback port receive them.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;

async fn listen() -> (TcpListener, Uri) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let uri = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
    (listener, uri)
}

/// Returns the head of the first request, which gets `answer`.
async fn first_request(listener: &TcpListener, answer: &str) -> String {
    let (mut connection, _) = listener.accept().await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(connection.read_u8().await.unwrap());
    }
    connection.write_all(answer.as_bytes()).await.unwrap();
    String::from_utf8(head).unwrap().to_ascii_lowercase()
}

fn version_request() -> http::Request<Vec<u8>> {
    http::Request::get("/version").body(Vec::new()).unwrap()
}

#[tokio::test]
async fn connections_are_opened_without_nagles_algorithm() {
    let (_listener, uri) = listen().await;
    let connection = tcp().call(uri).await.unwrap();
    assert!(connection.inner().nodelay().unwrap());
}

#[tokio::test]
async fn token_and_impersonation_reach_the_api_server() {
    let (listener, uri) = listen().await;
    let mut config = Config::new(uri);
    config.auth_info = serde_json::from_value(serde_json::json!({
        "token": "s3cret", "as": "jane", "as-groups": ["crew"],
    }))
    .unwrap();
    let client = client(&config).unwrap();

    let answer = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}";
    let (head, body) = tokio::join!(
        first_request(&listener, answer),
        client.request::<serde_json::Value>(version_request())
    );

    assert_eq!(body.unwrap(), serde_json::json!({}));
    for header in ["authorization: bearer s3cret", "impersonate-user: jane", "impersonate-group: crew"] {
        assert!(head.contains(header), "{header} is missing in {head}");
    }
}

#[tokio::test]
async fn a_token_file_is_read_for_each_request_and_its_newline_is_removed() {
    let (listener, uri) = listen().await;
    let path = std::env::temp_dir().join(format!("sandpod-token-{}", std::process::id()));
    std::fs::write(&path, "first\n").unwrap();
    let mut config = Config::new(uri);
    config.auth_info =
        serde_json::from_value(serde_json::json!({ "tokenFile": path, "token": "other" })).unwrap();
    let client = client(&config).unwrap();

    let mut heads = Vec::new();
    for token in [Some("first\n"), Some("second\n"), None] {
        match token {
            Some(token) => std::fs::write(&path, token).unwrap(),
            None => std::fs::remove_file(&path).unwrap(),
        }
        let answer = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}";
        let call = client.request::<serde_json::Value>(version_request());
        let (head, body) = tokio::join!(first_request(&listener, answer), call);
        body.unwrap();
        heads.push(head);
    }

    for (head, token) in heads.iter().zip(["first", "second", "second"]) {
        assert!(head.contains(&format!("authorization: bearer {token}\r\n")), "{token} is missing in {head}");
    }
}

#[tokio::test]
async fn a_token_file_that_is_not_there_is_named() {
    let mut config = Config::new(Uri::from_static("https://kube.example.com"));
    config.auth_info = serde_json::from_value(serde_json::json!({ "tokenFile": "/no/such/token" })).unwrap();
    let error = client(&config).err().unwrap().to_string();
    assert!(error.contains("/no/such/token"), "{error}");
}

#[tokio::test]
async fn a_proxy_is_asked_for_a_tunnel_with_its_credentials() {
    let (listener, uri) = listen().await;
    let mut config = Config::new(Uri::from_static("https://kube.example.com:6443"));
    config.proxy_url = Some(format!("http://me:pass@{}", uri.authority().unwrap()).parse().unwrap());
    let client = client(&config).unwrap();

    let answer = "HTTP/1.1 407 Proxy Authentication Required\r\n\r\n";
    let (head, refused) =
        tokio::join!(first_request(&listener, answer), client.request_text(version_request()));

    refused.unwrap_err();
    assert!(head.starts_with("connect kube.example.com:6443 "), "{head}");
    assert!(head.contains("proxy-authorization: basic bwu6cgfzcw=="), "{head}");
}

#[tokio::test]
async fn a_kubeconfig_that_is_not_there_is_named_in_the_error() {
    let error = config(Some("/no/such/kubeconfig".as_ref()), None).await.unwrap_err().to_string();
    assert!(
        error.starts_with(
            "cannot load the configuration of a cluster from /no/such/kubeconfig: cannot read /no/such/kubeconfig: No such"
        ),
        "{error}"
    );
}

#[tokio::test]
async fn a_busy_api_server_gets_the_request_again_after_its_retry_after() {
    let (listener, uri) = listen().await;
    let client = client(&Config::new(uri)).unwrap();
    let busy =
        "HTTP/1.1 429 Too Many Requests\r\nretry-after: 2\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
    let fine = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}";

    let answering = async {
        first_request(&listener, busy).await;
        let turned_away = tokio::time::Instant::now();
        first_request(&listener, fine).await;
        turned_away.elapsed()
    };
    let (waited, answer) = tokio::join!(answering, client.request::<serde_json::Value>(version_request()));

    assert_eq!(answer.unwrap(), serde_json::json!({}));
    assert!(waited >= Duration::from_secs(2), "it was asked again after {waited:?}");
}
