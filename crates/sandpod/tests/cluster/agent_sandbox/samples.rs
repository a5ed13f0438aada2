//! The samples of deploy/agent-sandbox, each used unchanged except for the names that its header says to fill in.

use std::process::Stdio;

use sandpod::{AgentSandboxConfig, RawConfig, RouterDoor, install_guest};
use sandpod_kube::k8s_openapi::api::core::v1::{Pod, Secret};
use sandpod_kube::k8s_openapi::api::networking::v1::NetworkPolicy;
use sandpod_kube::kube::api::{DeleteParams, PostParams};
use sandpod_testbed::agent_sandbox::{SECRET_SHA256, clear};
use sandpod_testbed::{Namespace, PATIENCE, from_json, wait_until_none};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

use super::setup::{named, provider, secret_file};
use super::ways::router;
use crate::setup::{execute, soon};

const IMAGE: &str = "sandpod.test/python:1";
const CONFIG_MAP: &str = include_str!("../../../../../deploy/agent-sandbox/template-config-map.yaml");
const INIT_CONTAINER: &str = include_str!("../../../../../deploy/agent-sandbox/template-init-container.yaml");
const GVISOR: &str = include_str!("../../../../../deploy/agent-sandbox/template-gvisor.yaml");

/// Fills in the names of the guest's `ConfigMaps`.
async fn with_guest(namespace: &Namespace, sample: &str) -> String {
    let guest = install_guest(namespace.admin.clone(), &namespace.name, "amd64", None).await;
    let guest = guest.expect("the guest is installed").into_iter();
    let maps: Vec<_> = guest.map(|name| format!("              - configMap: {{ name: {name} }}\n")).collect();
    let maps = maps.concat();
    let (before, _) =
        sample.split_once("              - configMap:").expect("the sample has the guest in it");
    let (_, after) = sample.rsplit_once("amd64-1 }\n").expect("the sample has it in two parts");
    format!("{before}{maps}{after}")
}

/// Applies a sample as its header says, and returns the stored object.
async fn apply(namespace: &Namespace, sample: &str, more: &[&str]) -> Value {
    let mut kubectl = Command::new("kubectl");
    kubectl
        .env("KUBECONFIG", std::env::var_os("SANDPOD_TEST_KUBECONFIG").unwrap_or_default())
        .args(["--namespace", &namespace.name, "apply", "--filename=-", "--output=json"])
        .args(more)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = kubectl.spawn().expect("kubectl is on PATH");
    let mut stdin = child.stdin.take().expect("it is piped");
    stdin.write_all(sample.as_bytes()).await.expect("kubectl reads");
    drop(stdin);
    let output = child.wait_with_output().await.expect("kubectl ends");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("kubectl prints JSON")
}

/// Uses a sandbox of the sample for commands and files.
async fn use_sample(namespace: &Namespace, config: AgentSandboxConfig) {
    let config = AgentSandboxConfig {
        namespace: namespace.name.clone(),
        startup_timeout_seconds: PATIENCE.as_secs(),
        template_name: Some("python".to_owned()),
        ..config
    };
    let provider = provider(namespace, config).await;
    let handle =
        soon("claiming", provider.get_or_create(named("a"))).await.unwrap_or_else(|error| panic!("{error}"));
    handle.sandbox.write("/workspace/main.py", "print(6 * 7)\n").await.expect("a file is written");
    let line = "id -u; pwd; python3 main.py; touch ~/here && ls ~";
    assert_eq!(execute(&handle, line).await, "1000\n/workspace\n42\nhere\n");
    provider.delete("a", true).await.expect("it is deleted");
    provider.cleanup(None).await.expect("a cleanup removes the unused pool");
    clear(namespace).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sample_with_the_guest_from_config_maps_creates_sandboxes() {
    let namespace = Namespace::create().await;
    apply(&namespace, &with_guest(&namespace, CONFIG_MAP).await, &[]).await;
    use_sample(&namespace, AgentSandboxConfig::default()).await;
    namespace.finish().await;
}

/// The Secret of the guests that a router reaches.
async fn create_guest_token(namespace: &Namespace) {
    let secret: Secret = from_json(json!({
        "metadata": { "name": "sandpod-guest-token" },
        "stringData": { "sha256": SECRET_SHA256 },
    }));
    namespace.api().create(&PostParams::default(), &secret).await.expect("the admin makes a Secret");
}

/// A configuration that reaches the guests through the router.
async fn by_the_router(namespace: &Namespace, dir: &TempDir) -> AgentSandboxConfig {
    AgentSandboxConfig {
        connection_mode: Some("direct".to_owned()),
        api_url: Some(format!("http://{}:8080", router(namespace).await)),
        guest_token_file: Some(secret_file(dir)),
        ..AgentSandboxConfig::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sample_with_the_guest_from_an_image_creates_sandboxes_behind_a_router() {
    let (namespace, dir) = (Namespace::create().await, TempDir::new().unwrap());
    create_guest_token(&namespace).await;
    let sample = INIT_CONTAINER.replace("REGISTRY/sandpod-guest:VERSION", "sandpod.test/guest:1");
    apply(&namespace, &sample, &[]).await;
    use_sample(&namespace, by_the_router(&namespace, &dir).await).await;
    // The controller creates one of this template and deletes it with the template.
    wait_until_none(&namespace.api::<NetworkPolicy>()).await;
    namespace.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn printed_template_with_a_port_creates_sandboxes_behind_a_router() {
    let (namespace, dir) = (Namespace::create().await, TempDir::new().unwrap());
    create_guest_token(&namespace).await;
    let door = RouterDoor { namespace: "agent-sandbox-system".to_owned(), name: "sandbox-router".to_owned() };
    let config =
        RawConfig { namespace: namespace.name.clone(), image: IMAGE.to_owned(), ..RawConfig::default() };
    let objects = config.template("python", Some(&door)).expect("the guest is found");
    let objects = json!({ "apiVersion": "v1", "kind": "List", "items": objects }).to_string();
    // The guest's parts are too large for the annotation of a client-side apply.
    apply(&namespace, &objects, &["--server-side"]).await;
    use_sample(&namespace, by_the_router(&namespace, &dir).await).await;
    let policies = namespace.api::<NetworkPolicy>();
    policies.delete("sandpod-router-only", &DeleteParams::default()).await.expect("the template has one");
    namespace.finish().await;
}

/// The testbed has no gVisor: the API server accepts the sample with it, and the test uses the sample without it.
#[tokio::test(flavor = "multi_thread")]
async fn sample_for_gvisor_is_accepted_and_creates_sandboxes_without_its_runtime_class() {
    let namespace = Namespace::create().await;
    let sample = with_guest(&namespace, GVISOR).await;
    let taken = apply(&namespace, &sample, &["--dry-run=server"]).await;
    let template =
        taken["items"].as_array().and_then(|items| items.last()).expect("the template is the last");
    let pod = json!({ "metadata": { "name": "a" }, "spec": template["spec"]["podTemplate"]["spec"] });
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    let refused = namespace.api::<Pod>().create(&dry, &from_json(pod)).await;
    let error = refused.expect_err("there is no gVisor here").to_string();
    assert!(error.contains("RuntimeClass \"gvisor\" not found"), "{error}");

    apply(&namespace, &sample.replace("      runtimeClassName: gvisor\n", ""), &[]).await;
    use_sample(&namespace, AgentSandboxConfig::default()).await;
    namespace.finish().await;
}
