//! Sandboxes of agent-sandbox behind the router.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::time::Duration;

use futures::future::join_all;
use http::StatusCode;
use sandpod::{AgentSandboxConfig, ExecuteOptions, Provider, SandboxHandle, SandboxRequest, install_guest};
use sandpod_client::{Page, ReadOptions};
use sandpod_kube::agent_sandbox::Sandbox;
use sandpod_kube::k8s_openapi::api::rbac::v1::{PolicyRule, Role};
use sandpod_kube::kube::api::{Patch, PatchParams, PostParams};
use sandpod_testbed::agent_sandbox::{SECRET, TEMPLATE, clear, fill_pool, make_template, pod_spec};
use sandpod_testbed::stock_runtime::StockRuntime;
use sandpod_testbed::{Namespace, PATIENCE, wait_for};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::timeout;

use crate::process::{RouterProcess, get};

const ACCOUNT: &str = "sandpod-agent-sandbox";

/// A namespace with a template and a router, and what a client needs to use both.
struct Stage {
    namespace: Namespace,
    router: RouterProcess,
    token: String,
    provider: Provider,
    dir: TempDir,
}

impl Stage {
    async fn open(spec: impl AsyncFnOnce(&Namespace) -> Value, arguments: &[&str]) -> Self {
        let (namespace, dir) = (Namespace::create().await, TempDir::new().unwrap());
        let spec = spec(&namespace).await;
        make_template(&namespace, TEMPLATE, spec).await;
        let client = namespace.agent_sandbox().await;
        let router = RouterProcess::start(&namespace, arguments).await;
        let token = namespace.token(ACCOUNT, None).await;
        let (secret_file, token_file) = (dir.path().join("secret"), dir.path().join("token"));
        std::fs::write(&secret_file, SECRET).unwrap();
        std::fs::write(&token_file, &token).unwrap();
        let config = AgentSandboxConfig {
            namespace: namespace.name.clone(),
            startup_timeout_seconds: PATIENCE.as_secs(),
            connection_mode: Some("direct".to_owned()),
            api_url: Some(format!("http://{}", router.address)),
            router_token_file: Some(token_file),
            guest_token_file: Some(secret_file),
            ..AgentSandboxConfig::of_template(TEMPLATE)
        };
        let provider = Provider::agent_sandbox_with_client(client, config).unwrap();
        Self { namespace, router, token, provider, dir }
    }

    async fn claim(&self, id: &str) -> SandboxHandle {
        let claiming = self.provider.get_or_create(SandboxRequest::named(id));
        let claiming = timeout(2 * PATIENCE, claiming).await;
        claiming.expect("claiming hangs").unwrap_or_else(|error| panic!("{error}"))
    }

    /// Sends a request for a sandbox, with the token of an account.
    async fn get(&self, sandbox: &str, token: &str) -> (StatusCode, String) {
        let authorization = format!("Bearer {token}");
        let headers = [
            ("authorization", authorization.as_str()),
            ("x-sandbox-id", sandbox),
            ("x-sandbox-namespace", &self.namespace.name),
        ];
        get(self.router.address, "/", &headers).await.expect("an answer")
    }

    async fn finish(self) {
        clear(&self.namespace).await;
        drop((self.router, self.dir));
        self.namespace.finish().await;
    }
}

/// The name of the `Sandbox`, which is that of its Pod.
fn sandbox_name(handle: &SandboxHandle) -> &str {
    handle.pod.split_once('/').unwrap().1
}

async fn execute(handle: &SandboxHandle, line: &str, seconds: u64) -> String {
    let options = ExecuteOptions { timeout: Some(Duration::from_secs(seconds)), ..ExecuteOptions::default() };
    let executed = handle.sandbox.execute(line, options).await.unwrap_or_else(|error| panic!("{error}"));
    String::from_utf8_lossy(&executed.output).into_owned()
}

/// Commands and files; one command takes longer than the original router waits for the head of an answer.
async fn use_fully(handle: &SandboxHandle, dir: &str) {
    let long = execute(handle, "sleep 40; echo late", 120);
    let files = async {
        assert_eq!(execute(handle, "echo hello", 60).await, "hello\n");
        let file = format!("{dir}/files/a file.txt");
        handle.sandbox.write(&file, "one\ntwo\n").await.unwrap();
        let read = handle.sandbox.read(&file, ReadOptions::default()).await.unwrap();
        assert!(matches!(&read, Page::Text(page) if page.content == "one\ntwo"), "{read:?}");
        assert_eq!(handle.sandbox.list(&format!("{dir}/files")).await.unwrap().len(), 1);
        handle.sandbox.delete(&file).await.unwrap();
        assert!(handle.sandbox.stat(&file, false).await.is_err());

        let large: Vec<u8> = (0..16 << 20).map(|byte: u32| (byte % 251) as u8).collect();
        let path = format!("{dir}/large");
        handle.sandbox.write(&path, large.clone()).await.unwrap();
        assert!(handle.sandbox.download(&path, 32 << 20).await.unwrap()[..] == large[..]);

        let lines: Vec<_> = (0..20).map(|number| format!("echo {number}")).collect();
        let outputs = join_all(lines.iter().map(|line| execute(handle, line, 100))).await;
        for (number, output) in outputs.iter().enumerate() {
            assert_eq!(*output, format!("{number}\n"));
        }
    };
    let (late, ()) = tokio::join!(long, files);
    assert_eq!(late, "late\n");
}

async fn guest(namespace: &Namespace) -> Value {
    let guest = install_guest(namespace.admin.clone(), &namespace.name, "amd64", None).await;
    pod_spec(&guest.expect("the guest is installed"))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_library_uses_a_guest_through_the_router() {
    let stage = Stage::open(guest, &[]).await;
    let handle = stage.claim("a").await;
    use_fully(&handle, "/workspace").await;
    assert_eq!(stage.provider.info("a").await.unwrap().connection.as_deref(), Some("direct"));
    stage.provider.delete("a", true).await.unwrap();
    stage.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_library_uses_a_stock_runtime_through_the_router() {
    let stage = Stage::open(async |_: &Namespace| StockRuntime::Legacy.pod_spec(), &[]).await;
    forbid_exec(&stage.namespace).await;
    let handle = stage.claim("a").await;
    use_fully(&handle, StockRuntime::Legacy.dir()).await;
    stage.provider.delete("a", true).await.unwrap();
    stage.finish().await;
}

/// Revokes the right to exec, so that the guest is not placed.
async fn forbid_exec(namespace: &Namespace) {
    let roles = namespace.api::<Role>();
    let mut role = roles.get(ACCOUNT).await.unwrap();
    let is_other =
        |rule: &PolicyRule| rule.resources.iter().flatten().all(|resource| resource != "pods/exec");
    role.rules.as_mut().unwrap().retain(is_other);
    roles.replace(ACCOUNT, &PostParams::default(), &role).await.unwrap();
}

/// Runs agent-sandbox's own client on a sandbox of a pool with this template.
async fn run_stock_client(spec: impl AsyncFnOnce(&Namespace) -> Value) {
    let python = std::env::var_os("SANDPOD_TEST_PYTHON");
    let python =
        python.expect("SANDPOD_TEST_PYTHON is a Python with k8s-agent-sandbox: run `cargo xtask test`");
    let stage = Stage::open(spec, &[]).await;
    fill_pool(&stage.namespace, "pool", 1).await;
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cluster/stock_client.py");
    let client = tokio::process::Command::new(python)
        .arg(program)
        .args([&format!("http://{}", stage.router.address), &stage.namespace.name, "pool"])
        .env("ROUTER_TOKEN", &stage.token)
        .env("KUBECONFIG", std::env::var_os("SANDPOD_TEST_KUBECONFIG").unwrap())
        .kill_on_drop(true)
        .output();
    let output = timeout(5 * PATIENCE, client).await.expect("the client hangs").unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    stage.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_stock_client_uses_a_guest_through_the_router() {
    // The guest has the API of the stock runtime, too.
    run_stock_client(async |namespace: &Namespace| {
        let mut spec = guest(namespace).await;
        let container = &mut spec["containers"][0];
        container["command"] = json!(["/sandpod/boot", "serve", "--stock-apis"]);
        let dir = json!({ "name": "SANDBOX_BASE_DIR", "value": "/workspace" });
        container["env"].as_array_mut().unwrap().push(dir);
        container["readinessProbe"] = json!({ "httpGet": { "path": "/", "port": 8888 }, "periodSeconds": 1 });
        spec
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_stock_client_uses_the_stock_runtime_through_the_router() {
    run_stock_client(async |_: &Namespace| StockRuntime::Legacy.pod_spec()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_api_server_decides_which_account_uses_a_sandbox() {
    let stage = Stage::open(async |_: &Namespace| StockRuntime::Legacy.pod_spec(), &[]).await;
    let handle = stage.claim("a").await;
    let name = sandbox_name(&handle);
    assert_eq!(stage.get(name, &stage.token).await.0, StatusCode::OK);
    let stranger = stage.namespace.token("default", None).await;
    let (status, body) = stage.get(name, &stranger).await;
    assert_eq!(status, StatusCode::FORBIDDEN, "{body}");
    assert_eq!(stage.get(name, "nonsense").await.0, StatusCode::UNAUTHORIZED);
    assert_eq!(stage.get("no-such-sandbox", &stage.token).await.0, StatusCode::BAD_GATEWAY);
    stage.provider.delete("a", true).await.unwrap();
    stage.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_wakes_a_suspended_sandbox() {
    let stage = Stage::open(
        async |_: &Namespace| StockRuntime::Legacy.pod_spec(),
        &["--wake", "--wake-seconds", "100"],
    )
    .await;
    let handle = stage.claim("a").await;
    let name = sandbox_name(&handle).to_owned();
    let sandboxes = stage.namespace.api::<Sandbox>();
    let suspended = Patch::Merge(json!({ "spec": { "operatingMode": "Suspended" } }));
    sandboxes.patch(&name, &PatchParams::default(), &suspended).await.unwrap();
    let pods = stage.namespace.api::<sandpod_kube::k8s_openapi::api::core::v1::Pod>();
    wait_for(&pods, &name, "end", |pod| pod.is_none()).await;

    let requests = join_all((0..5).map(|_| stage.get(&name, &stage.token)));
    let answers = timeout(2 * PATIENCE, requests).await.expect("the requests hang");
    assert!(answers.iter().all(|(status, _)| *status == StatusCode::OK), "{answers:?}");
    stage.provider.delete("a", true).await.unwrap();
    stage.finish().await;
}
