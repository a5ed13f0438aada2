//! Connection modes: each alone, and the choice of the first that works.

use std::time::Duration;

use sandpod::{AgentSandboxConfig, ErrorKind, ExecuteOptions, GuestDelivery, Provider, install_guest};
use sandpod_kube::gateway::Gateway;
use sandpod_kube::k8s_openapi::api::core::v1::{Pod, Secret};
use sandpod_kube::k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use sandpod_kube::kube::Api;
use sandpod_kube::kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use sandpod_testbed::agent_sandbox::clear;
use sandpod_testbed::calls::Calls;
use sandpod_testbed::{Namespace, from_json};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::setup::{
    SECRET, TEMPLATE, config, finish, make_template, named, namespace, pod_spec, provider, secret_file,
};
use crate::setup::{execute, soon};

const ROUTER_ROLE: &str = include_str!("../../../../../deploy/rbac/agent-sandbox-router.yaml");
const ROUTER_NAMESPACE: &str = "agent-sandbox-system";

/// A configuration with only this connection mode and the secret of the template's guests.
pub(super) fn only(namespace: &Namespace, mode: &str, dir: &TempDir) -> AgentSandboxConfig {
    AgentSandboxConfig {
        connection_mode: Some(mode.to_owned()),
        guest_token_file: Some(secret_file(dir)),
        ..config(namespace)
    }
}

/// The address of the router's Pod.
pub(super) async fn router(namespace: &Namespace) -> String {
    let pods: Api<Pod> = Api::namespaced(namespace.admin.clone(), ROUTER_NAMESPACE);
    let found =
        pods.list(&ListParams::default().labels("app=sandbox-router")).await.expect("Pods are listed");
    let ip = found.iter().find_map(|pod| pod.status.as_ref()?.pod_ip.clone());
    ip.expect("the router has an address")
}

/// Uses all that a stream carries, from the creation to a second process that attaches.
pub(super) async fn use_fully(namespace: &Namespace, config: AgentSandboxConfig) -> Provider {
    let mode = config.connection_mode.clone().expect("a way is named");
    let one = provider(namespace, config.clone()).await;
    let handle =
        soon("claiming", one.get_or_create(named(&mode))).await.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(execute(&handle, "echo hello").await, "hello\n");
    let large = vec![b'x'; 3 << 20];
    handle.sandbox.write("/workspace/large", large.clone()).await.expect("a file is written");
    assert_eq!(execute(&handle, "wc -c < large").await, format!("{}\n", large.len()));
    let info = one.info(&mode).await.expect("it is known");
    assert_eq!(info.connection.as_deref(), Some(mode.as_str()));
    assert_eq!((info.guest_delivery, info.guest_delivery_reason), (Some(GuestDelivery::Template), None));

    let other = provider(namespace, config).await;
    let again = soon("finding", other.reconnect(&mode)).await.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(execute(&again, "wc -c < large").await, format!("{}\n", large.len()));
    soon("deleting", one.delete(&mode, true)).await.expect("it is deleted");
    one
}

/// A configuration with only this connection mode and without a token.
fn without_token(namespace: &Namespace, mode: &str) -> AgentSandboxConfig {
    AgentSandboxConfig { connection_mode: Some(mode.to_owned()), ..config(namespace) }
}

/// Revokes the right to exec.
async fn forbid_exec(namespace: &Namespace) {
    let roles = namespace.api::<Role>();
    let mut role = roles.get("sandpod-agent-sandbox").await.expect("the role is there");
    let no_exec = |rule: &sandpod_kube::k8s_openapi::api::rbac::v1::PolicyRule| {
        rule.resources.iter().flatten().all(|resource| resource != "pods/exec")
    };
    role.rules.as_mut().expect("it grants something").retain(no_exec);
    roles
        .replace("sandpod-agent-sandbox", &PostParams::default(), &role)
        .await
        .expect("the admin changes it");
}

/// The Secret with the token for clients.
async fn make_secret(namespace: &Namespace, labels: Value) {
    let secret: Secret = from_json(json!({
        "metadata": { "name": "sandpod-guest-token", "labels": labels },
        "stringData": { "token": format!("{SECRET}\n") },
    }));
    namespace.api().create(&PostParams::default(), &secret).await.expect("the admin makes a Secret");
}

#[tokio::test(flavor = "multi_thread")]
async fn tunnel_needs_no_token_file_where_exec_is_allowed() {
    let namespace = namespace().await;
    grant_router(&namespace).await;
    let provider = use_fully(&namespace, without_token(&namespace, "tunnel")).await;
    revoke_router(&namespace).await;
    finish(namespace, &provider).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn exec_transfers_only_the_token_and_calls_use_the_configured_connection_mode() {
    const EXEC: &str = "GET pods/exec";
    let namespace = namespace().await;
    let mut config = without_token(&namespace, "direct");
    config.api_url = Some(format!("http://{}:8080", router(&namespace).await));
    let (client, calls) = Calls::of(namespace.agent_sandbox().await);
    let provider = Provider::agent_sandbox_with_client(client, config).unwrap();
    let handle =
        soon("claiming", provider.get_or_create(named("a"))).await.unwrap_or_else(|error| panic!("{error}"));
    forbid_exec(&namespace).await;

    // Two streams: transfers have one of their own.
    let executed = handle.sandbox.execute("echo hello", ExecuteOptions::default()).await.unwrap();
    assert_eq!((&executed.output[..], executed.notices.len()), (&b"hello\n"[..], 0), "{executed:?}");
    let large = vec![b'x'; 3 << 20];
    handle.sandbox.write("/workspace/large", large.clone()).await.expect("a file is written");
    assert!(handle.sandbox.download("/workspace/large", 4 << 20).await.unwrap()[..] == large[..]);
    assert_eq!(calls.count(EXEC), 1);
    assert_eq!(provider.info("a").await.unwrap().connection.as_deref(), Some("direct"));

    provider.delete("a", true).await.unwrap();
    finish(namespace, &provider).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn guest_bound_through_exec_accepts_another_process_through_the_router() {
    let namespace = namespace().await;
    let one = provider(&namespace, config(&namespace)).await;
    let handle =
        soon("claiming", one.get_or_create(named("a"))).await.unwrap_or_else(|error| panic!("{error}"));
    execute(&handle, "echo hello > file").await;
    assert_eq!(one.info("a").await.unwrap().connection.as_deref(), Some("exec"));

    let mut config = without_token(&namespace, "direct");
    config.api_url = Some(format!("http://{}:8080", router(&namespace).await));
    let other = provider(&namespace, config).await;
    let again = soon("finding", other.reconnect("a")).await.unwrap_or_else(|error| panic!("{error}"));

    assert_eq!(execute(&again, "cat file").await, "hello\n");
    assert_eq!(other.info("a").await.unwrap().connection.as_deref(), Some("direct"));
    assert_eq!(execute(&handle, "cat file").await, "hello\n");
    other.delete("a", true).await.unwrap();
    finish(namespace, &other).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn secret_of_the_namespace_authenticates_clients_without_exec() {
    let namespace = namespace().await;
    forbid_exec(&namespace).await;
    make_secret(&namespace, json!({ "sandpod.dev/guest-token": "true" })).await;
    let provider = use_fully(&namespace, without_token(&namespace, "in-cluster")).await;
    finish(namespace, &provider).await;
}

/// Runs this test again in a new process, which has the variable.
#[tokio::test(flavor = "multi_thread")]
async fn token_file_is_read_from_the_environment_variable() {
    const VARIABLE: &str = "SANDPOD_GUEST_TOKEN_FILE";
    if std::env::var_os(VARIABLE).is_none() {
        let dir = TempDir::new().unwrap();
        let this = "agent_sandbox::ways::token_file_is_read_from_the_environment_variable";
        let mut again = tokio::process::Command::new(std::env::current_exe().unwrap());
        again.args(["--exact", this]).env(VARIABLE, secret_file(&dir));
        let output = again.output().await.unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("1 passed"), "{output:?}");
        return;
    }
    let namespace = namespace().await;
    forbid_exec(&namespace).await;
    let provider = use_fully(&namespace, without_token(&namespace, "in-cluster")).await;
    finish(namespace, &provider).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_about_a_missing_token_names_each_source_and_the_fix() {
    let namespace = namespace().await;
    forbid_exec(&namespace).await;
    let mut config = without_token(&namespace, "direct");
    config.api_url = Some(format!("http://{}:8080", router(&namespace).await));
    let provider = provider(&namespace, config).await;
    let fail = async || soon("failing", provider.get_or_create(named("a"))).await.unwrap_err();

    let error = fail().await;
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    let said = error.to_string();
    for expected in [
        "direct: no token opens the guest: guest_token_file and SANDPOD_GUEST_TOKEN_FILE are not set",
        "Secret 'sandpod-guest-token' not found in namespace",
        "pods/exec",
        "Set guest_token_file, ",
    ] {
        assert!(said.contains(expected), "{said}");
    }
    assert!(!said.contains("sandbox-router"), "the router was reached: {said}");

    make_secret(&namespace, json!({})).await;
    let said = fail().await.to_string();
    assert!(said.contains("lacks the label sandpod.dev/guest-token=true"), "{said}");
    finish(namespace, &provider).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn error_names_a_guest_that_does_not_listen_and_not_the_router() {
    let namespace = Namespace::create().await;
    let guest = install_guest(namespace.admin.clone(), &namespace.name, "amd64", None).await;
    let mut spec = pod_spec(&guest.expect("the guest is installed"));
    spec["containers"][0]["command"] = json!(["/sandpod/boot", "serve"]);
    make_template(&namespace, TEMPLATE, spec).await;
    let mut config = without_token(&namespace, "direct");
    config.api_url = Some(format!("http://{}:8080", router(&namespace).await));
    let provider = provider(&namespace, config).await;

    let error = soon("failing", provider.get_or_create(named("a"))).await.unwrap_err();

    assert_eq!(error.kind(), ErrorKind::Unavailable);
    let said = error.to_string();
    assert!(
        said.starts_with("Sandbox 'a' runs in Pod 'a', but its guest can't be reached. direct: "),
        "{said}"
    );
    assert!(said.contains("serve --websocket") && !said.contains("sandbox-router"), "{said}");
    finish(namespace, &provider).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn client_connects_to_a_guest_with_exec_alone() {
    let (namespace, dir) = (namespace().await, TempDir::new().unwrap());
    let provider = use_fully(&namespace, only(&namespace, "exec", &dir)).await;
    finish(namespace, &provider).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn client_connects_to_a_guest_by_the_routers_url() {
    let (namespace, dir) = (namespace().await, TempDir::new().unwrap());
    let mut config = only(&namespace, "direct", &dir);
    config.api_url = Some(format!("http://{}:8080", router(&namespace).await));
    config.extra_headers = [("X-Team".to_owned(), "search".to_owned())].into();
    let provider = use_fully(&namespace, config).await;
    finish(namespace, &provider).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn client_connects_to_a_guest_at_the_address_of_its_pod() {
    let (namespace, dir) = (namespace().await, TempDir::new().unwrap());
    let provider = use_fully(&namespace, only(&namespace, "in-cluster", &dir)).await;
    finish(namespace, &provider).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn client_connects_to_a_guest_through_the_api_server_and_the_router() {
    let (namespace, dir) = (namespace().await, TempDir::new().unwrap());
    grant_router(&namespace).await;
    let provider = use_fully(&namespace, only(&namespace, "tunnel", &dir)).await;
    revoke_router(&namespace).await;
    finish(namespace, &provider).await;
}

/// The role that we ship for the router's namespace, under a name for this test.
pub(super) async fn grant_router(namespace: &Namespace) {
    let manifest = ROUTER_ROLE.replace("NAMESPACE", &namespace.name);
    let manifest =
        manifest.replace("name: sandpod-agent-sandbox-router", &format!("name: {}", namespace.name));
    for object in serde_saphyr::from_multiple::<Value>(&manifest).expect("it is YAML") {
        let (client, how) = (namespace.admin.clone(), PostParams::default());
        let granted = if object["kind"] == "Role" {
            let roles: Api<Role> = Api::namespaced(client, ROUTER_NAMESPACE);
            roles.create(&how, &from_json(object)).await.map(drop)
        } else {
            let bindings: Api<RoleBinding> = Api::namespaced(client, ROUTER_NAMESPACE);
            bindings.create(&how, &from_json(object)).await.map(drop)
        };
        granted.expect("the admin grants the role");
    }
}

pub(super) async fn revoke_router(namespace: &Namespace) {
    let (client, how) = (namespace.admin.clone(), DeleteParams::default());
    let bindings: Api<RoleBinding> = Api::namespaced(client.clone(), ROUTER_NAMESPACE);
    bindings.delete(&format!("{0}-{0}", namespace.name), &how).await.expect("the admin takes the role back");
    let roles: Api<Role> = Api::namespaced(client, ROUTER_NAMESPACE);
    roles.delete(&namespace.name, &how).await.expect("the admin deletes the role");
}

#[tokio::test(flavor = "multi_thread")]
async fn client_connects_through_a_gateway_that_gets_its_address_late() {
    let (namespace, dir) = (namespace().await, TempDir::new().unwrap());
    let gateways = namespace.api::<Gateway>();
    let gateway: Gateway = from_json(json!({
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "Gateway",
        "metadata": { "name": "gateway" },
        "spec": {
            "gatewayClassName": "none",
            "listeners": [{ "name": "web", "protocol": "HTTP", "port": 8080 }],
        },
    }));
    gateways.create(&PostParams::default(), &gateway).await.expect("the admin makes a Gateway");
    let mut config = only(&namespace, "gateway", &dir);
    (config.gateway_name, config.gateway_namespace) = (Some("gateway".to_owned()), namespace.name.clone());
    let first = provider(&namespace, config.clone()).await;
    let waiting = first.clone();
    let waiting =
        tokio::spawn(async move { waiting.get_or_create(named("late")).await.map(|handle| handle.id) });
    sandpod_testbed::wait_for(
        &namespace.api::<sandpod_kube::agent_sandbox::SandboxClaim>(),
        "late",
        "be ready",
        |claim| {
            let conditions = claim.and_then(|claim| claim.status.as_ref()).map(|status| &status.conditions);
            conditions.into_iter().flatten().any(|one| one.type_ == "Ready" && one.status == "True")
        },
    )
    .await;
    assert!(!waiting.is_finished(), "the Gateway has no address yet");

    let status =
        json!({ "status": { "addresses": [{ "type": "IPAddress", "value": router(&namespace).await }] } });
    gateways
        .patch_status("gateway", &PatchParams::default(), &Patch::Merge(&status))
        .await
        .expect("it has a status");

    soon("reaching", waiting).await.unwrap().unwrap_or_else(|error| panic!("{error}"));
    first.delete("late", true).await.unwrap();
    let provider = use_fully(&namespace, config.clone()).await;
    config.gateway_name = Some("missing".to_owned());
    let missing = super::setup::provider(&namespace, config).await;
    let error = soon("failing", missing.get_or_create(named("a"))).await.unwrap_err();
    assert!(error.to_string().contains("Gateway 'missing' not found"), "{error}");
    gateways.delete("gateway", &DeleteParams::default()).await.unwrap();
    finish(namespace, &provider).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn certificate_of_a_router_is_verified_with_the_configured_authority() {
    let (namespace, dir) = (namespace().await, TempDir::new().unwrap());
    let mut config = only(&namespace, "direct", &dir);
    // Not a router, but a server whose certificate the system does not trust.
    config.api_url = Some(format!("https://{}", namespace.api_address()));
    let unknown = provider(&namespace, config.clone()).await;
    let error = soon("failing", unknown.get_or_create(named("a"))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(
        error.to_string().starts_with("Cannot reach the sandbox-router (connection_mode='direct')."),
        "{error}"
    );
    assert!(error.to_string().contains("certificate"), "{error}");

    config.ca_cert = Some(dir.path().join("ca.pem"));
    std::fs::write(dir.path().join("ca.pem"), namespace.ca_pem().await).unwrap();
    let known = provider(&namespace, config).await;
    let error = soon("failing", known.get_or_create(named("a"))).await.unwrap_err();
    assert!(error.to_string().contains("refused the WebSocket"), "it has TLS, and is not a router: {error}");
    finish(namespace, &known).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_exec_the_next_connection_mode_is_used_and_info_gives_the_reason() {
    let (namespace, dir) = (namespace().await, TempDir::new().unwrap());
    forbid_exec(&namespace).await;
    let mut config = only(&namespace, "direct", &dir);
    config.connection_mode = None;
    config.api_url = Some(format!("http://{}:8080", router(&namespace).await));
    let provider = provider(&namespace, config).await;

    let handle =
        soon("claiming", provider.get_or_create(named("a"))).await.unwrap_or_else(|error| panic!("{error}"));

    assert_eq!(execute(&handle, "echo hello").await, "hello\n");
    let info = provider.info("a").await.unwrap();
    assert_eq!(info.connection.as_deref(), Some("direct"));
    let why = info.connection_reason.unwrap();
    for expected in ["exec: ", "pods/exec", "tunnel: ", "gateway: gateway_name is not set."] {
        assert!(why.contains(expected), "{why}");
    }
    provider.delete("a", true).await.unwrap();
    finish(namespace, &provider).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_about_a_missing_right_names_the_manifest_that_grants_it() {
    let (namespace, dir) = (namespace().await, TempDir::new().unwrap());
    for (mode, granted) in [
        ("tunnel", "Apply deploy/rbac/agent-sandbox-router.yaml for namespace 'agent-sandbox-system'"),
        ("gateway", "Allow get, list and watch of Gateways in namespace 'default'"),
    ] {
        let config = AgentSandboxConfig {
            gateway_name: Some("gateway".to_owned()),
            gateway_namespace: "default".to_owned(),
            ..only(&namespace, mode, &dir)
        };
        let provider = provider(&namespace, config).await;
        let said = soon("failing", provider.get_or_create(named("a"))).await.unwrap_err().to_string();
        assert!(said.contains("is forbidden") && said.contains(granted), "{said}");
        assert!(!said.contains("deploy/rbac/raw.yaml") && !said.contains("Ensure the"), "{said}");
    }
    clear(&namespace).await;
    namespace.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn error_about_a_missing_router_names_both_searched_namespaces() {
    let (namespace, dir) = (namespace().await, TempDir::new().unwrap());
    let mut config = only(&namespace, "tunnel", &dir);
    config.router_service = "no-such-router".to_owned();
    let provider = Provider::agent_sandbox_with_client(namespace.admin.clone(), config)
        .expect("the configuration is usable");
    let error = soon("failing", provider.get_or_create(named("a"))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    let said = error.to_string();
    assert!(said.starts_with("Cannot reach the sandbox-router (connection_mode='tunnel')."), "{said}");
    assert!(
        said.contains("'no-such-router' not found in namespace 'agent-sandbox-system', nor in 'default'"),
        "{said}"
    );
    finish(namespace, &provider).await;
}

/// The router limits a response head to 30 s and a request to 180 s; a WebSocket has neither limit.
#[tokio::test(flavor = "multi_thread")]
async fn command_through_the_router_runs_longer_than_the_routers_limits() {
    let (namespace, dir) = (namespace().await, TempDir::new().unwrap());
    let mut config = only(&namespace, "direct", &dir);
    config.api_url = Some(format!("http://{}:8080", router(&namespace).await));
    let provider = provider(&namespace, config).await;
    let handle = soon("claiming", provider.get_or_create(named("a"))).await.unwrap();
    let options = ExecuteOptions { timeout: Some(Duration::from_secs(240)), ..ExecuteOptions::default() };
    let executed = handle.sandbox.execute("echo $$; sleep 190; echo alive", options).await.unwrap();
    let output = String::from_utf8_lossy(&executed.output).into_owned();
    assert!(output.ends_with("\nalive\n") && executed.notices.is_empty(), "{executed:?}");
    provider.delete("a", true).await.unwrap();
    finish(namespace, &provider).await;
}
