//! The router as a process.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use sandpod_testbed::kubeconfig::Kubeconfig;
use sandpod_testbed::{Namespace, PATIENCE};
use tokio::time::{sleep, timeout};

/// A router that runs until it is dropped.
pub(crate) struct RouterProcess {
    child: Child,
    _kubeconfig: Kubeconfig,
    /// Its address for requests.
    pub(crate) address: SocketAddr,
}

impl RouterProcess {
    /// Starts the router of a namespace with further arguments, and waits until it is ready.
    pub(crate) async fn start(namespace: &Namespace, arguments: &[&str]) -> Self {
        let kubeconfig = namespace.router().await;
        let [requests, probes, metrics] = [free(), free(), free()];
        let mut command = Command::new(env!("CARGO_BIN_EXE_sandpod-router"));
        for (name, address) in [("--listen", requests), ("--probes", probes), ("--metrics", metrics)] {
            command.arg(name).arg(address.to_string());
        }
        command.args(["--namespace", &namespace.name]).args(arguments);
        let child = command.env("KUBECONFIG", kubeconfig.save()).stdout(Stdio::null()).spawn();
        let child = child.expect("the router starts");
        let router = Self { child, _kubeconfig: kubeconfig, address: requests };
        let ready = async {
            while get(probes, "/readyz", &[]).await.is_none_or(|(status, _)| status != StatusCode::OK) {
                sleep(Duration::from_millis(100)).await;
            }
        };
        timeout(PATIENCE, ready).await.expect("the router becomes ready");
        router
    }
}

impl Drop for RouterProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// An address that is free at the moment.
fn free() -> SocketAddr {
    let socket = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port is free");
    socket.local_addr().expect("a socket has an address")
}

/// Sends a GET. None: there was no answer.
pub(crate) async fn get(
    address: SocketAddr,
    path: &str,
    headers: &[(&str, &str)],
) -> Option<(StatusCode, String)> {
    let client = Client::builder(TokioExecutor::new()).build_http();
    let mut request = Request::builder().uri(format!("http://{address}{path}"));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(Full::<Bytes>::default()).expect("a request");
    let response = client.request(request).await.ok()?;
    let status = response.status();
    let body = response.into_body().collect().await.ok()?.to_bytes();
    Some((status, String::from_utf8_lossy(&body).into_owned()))
}
