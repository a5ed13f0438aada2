//! The ways to a guest in a Pod of agent-sandbox.

use std::net::SocketAddr;
use std::sync::Arc;

use futures::FutureExt as _;
use sandpod::{AgentSandboxConfig, Provider, SandboxRequest, install_guest};
use sandpod_conformance::{Kernel, Place, Way};
use sandpod_kube::gateway::Gateway;
use sandpod_kube::k8s_openapi::api::core::v1::Pod;
use sandpod_kube::kube::Api;
use sandpod_kube::kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use sandpod_testbed::agent_sandbox::{SECRET, TEMPLATE, clear, make_template, pod_spec};
use sandpod_testbed::proxy::FaultProxy;
use sandpod_testbed::{Namespace, PATIENCE, from_json};
use serde_json::json;
use tempfile::TempDir;

/// What `connection_mode` calls them, and how they are shown.
pub(crate) const WAYS: [(&str, &str); 5] = [
    ("exec", "agent-sandbox exec"),
    ("tunnel", "agent-sandbox tunnel"),
    ("gateway", "agent-sandbox gateway"),
    ("direct", "agent-sandbox direct"),
    ("in-cluster", "agent-sandbox in-cluster"),
];

pub(crate) fn way((mode, transport): (&'static str, &'static str)) -> Way {
    Way {
        transport,
        place: "busybox",
        user: "1000",
        kernel: Kernel::Whole,
        has_shell: true,
        // Nothing of ours is between us and a Pod.
        loses_streams: mode != "in-cluster",
        open: Box::new(move || open(mode).boxed()),
    }
}

/// A Pod of a template with our guest, reached through a proxy that can break what it carries.
async fn open(mode: &'static str) -> Place {
    let namespace = Namespace::create().await;
    let guest = install_guest(namespace.admin.clone(), &namespace.name, "amd64", None).await.unwrap();
    make_template(&namespace, TEMPLATE, pod_spec(&guest)).await;
    let dir = TempDir::new().unwrap();
    let secret = dir.path().join("secret");
    std::fs::write(&secret, SECRET).unwrap();
    let by_api_server = ["exec", "tunnel"].contains(&mode);
    let target = if by_api_server { namespace.api_address() } else { router(&namespace).await };
    let proxy = Arc::new(FaultProxy::start(target).await.unwrap());
    let client =
        if by_api_server { namespace.admin_through(proxy.address()) } else { namespace.admin.clone() };
    if mode == "gateway" {
        make_gateway(&namespace, proxy.address()).await;
    }
    let config = AgentSandboxConfig {
        namespace: namespace.name.clone(),
        connection_mode: Some(mode.to_owned()),
        guest_token_file: Some(secret),
        api_url: Some(format!("http://{}", proxy.address())),
        gateway_name: Some("gateway".to_owned()),
        gateway_namespace: namespace.name.clone(),
        startup_timeout_seconds: PATIENCE.as_secs(),
        ..AgentSandboxConfig::of_template(TEMPLATE)
    };
    let provider = Provider::agent_sandbox_with_client(client, config).unwrap();
    let handle = provider.get_or_create(SandboxRequest::default()).await.unwrap();
    let sandbox = handle.sandbox.unguarded().clone();
    let breaking = proxy.clone();
    let end = move || {
        async move {
            provider.delete(handle.id.as_str(), true).await.unwrap();
            provider.cleanup(None).await.unwrap();
            if mode == "gateway" {
                let gateways = namespace.api::<Gateway>();
                gateways.delete("gateway", &DeleteParams::default()).await.unwrap();
            }
            clear(&namespace).await;
            namespace.finish().await;
            drop((proxy, dir));
        }
        .boxed()
    };
    Place {
        sandbox,
        home: "/home/sandbox".to_owned(),
        dir: "/workspace".to_owned(),
        lose_streams: Box::new(move || breaking.reset_all()),
        end: Box::new(end),
    }
}

/// Where the router listens.
async fn router(namespace: &Namespace) -> SocketAddr {
    let pods: Api<Pod> = Api::namespaced(namespace.admin.clone(), "agent-sandbox-system");
    let found = pods.list(&ListParams::default().labels("app=sandbox-router")).await.unwrap();
    let ip = found.iter().find_map(|pod| pod.status.as_ref()?.pod_ip.clone()).unwrap();
    format!("{ip}:8080").parse().unwrap()
}

/// A Gateway that is at this address.
async fn make_gateway(namespace: &Namespace, address: SocketAddr) {
    let gateway: Gateway = from_json(json!({
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "Gateway",
        "metadata": { "name": "gateway" },
        "spec": {
            "gatewayClassName": "none",
            "listeners": [{ "name": "web", "protocol": "HTTP", "port": address.port() }],
        },
    }));
    let gateways = namespace.api::<Gateway>();
    gateways.create(&PostParams::default(), &gateway).await.unwrap();
    let ip = address.ip().to_string();
    let status = json!({ "status": { "addresses": [{ "type": "IPAddress", "value": ip }] } });
    gateways.patch_status("gateway", &PatchParams::default(), &Patch::Merge(&status)).await.unwrap();
}
