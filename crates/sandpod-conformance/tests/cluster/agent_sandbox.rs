//! Targets in agent-sandbox mode: our guest or one of agent-sandbox's own runtimes, over each connection mode.

use std::net::SocketAddr;
use std::sync::Arc;

use futures::FutureExt as _;
use sandpod::{AgentSandboxConfig, Provider, SandboxRequest, install_guest};
use sandpod_conformance::{Capability, Kernel, MissingCapability, OpenedSandbox, Target};
use sandpod_kube::gateway::Gateway;
use sandpod_kube::k8s_openapi::api::core::v1::Pod;
use sandpod_kube::kube::Api;
use sandpod_kube::kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use sandpod_testbed::agent_sandbox::{SECRET, TEMPLATE, clear, make_template, pod_spec};
use sandpod_testbed::proxy::FaultProxy;
use sandpod_testbed::stock_runtime::StockRuntime;
use sandpod_testbed::{Namespace, PATIENCE, from_json};
use serde_json::json;
use tempfile::TempDir;

/// A connection mode, its name in the table, and the runtime in the Pod.
#[derive(Clone, Copy)]
pub(crate) struct Route {
    mode: &'static str,
    transport: &'static str,
    inside: Inside,
}

/// The runtime in the Pod.
#[derive(Clone, Copy)]
enum Inside {
    Guest,
    Stock(StockRuntime),
}

pub(crate) const ROUTES: [Route; 8] = [
    guest("exec", "agent-sandbox exec"),
    guest("tunnel", "agent-sandbox tunnel"),
    guest("gateway", "agent-sandbox gateway"),
    guest("direct", "agent-sandbox direct"),
    guest("in-cluster", "agent-sandbox in-cluster"),
    stock("direct", "agent-sandbox direct", StockRuntime::Legacy),
    stock("in-cluster", "agent-sandbox in-cluster", StockRuntime::Legacy),
    stock("tunnel", "agent-sandbox tunnel", StockRuntime::Sandboxd),
];

const fn guest(mode: &'static str, transport: &'static str) -> Route {
    Route { mode, transport, inside: Inside::Guest }
}

const fn stock(mode: &'static str, transport: &'static str, runtime: StockRuntime) -> Route {
    Route { mode, transport, inside: Inside::Stock(runtime) }
}

/// Capabilities that stock runtimes lack: they only run commands to their end, and store and return files.
const DIALECT: &[MissingCapability] = &[
    MissingCapability {
        capability: Capability::Spawn,
        reason: "nothing of ours stays in the sandbox that could hold a command's output for who follows it",
        behaviours: &[
            "a_follower_gets_both_outputs_separately_and_then_the_exit",
            "late_and_concurrent_followers_get_the_same_output",
            "a_signal_reaches_all_that_was_started",
            "a_started_command_has_a_timeout",
            "paced_output_waits_for_a_follower",
            "dropped_output_is_reported_and_offsets_stay_correct",
            "a_started_command_survives_its_follower",
            "both_outputs_can_be_combined",
            "a_started_command_reads_all_its_input",
            "a_started_command_runs_in_a_resizable_terminal",
            "started_commands_are_listed_and_found_again",
            "input_is_written_once_despite_lost_streams",
            "output_continues_where_a_lost_stream_ended",
        ],
    },
    MissingCapability {
        capability: Capability::ApplyEdits,
        reason: "many files change as one only where a journal is rolled forward after a crash",
        behaviours: &[
            "a_set_of_changes_is_made_completely",
            "a_set_with_an_impossible_change_changes_nothing",
            "a_file_in_an_unexpected_state_is_not_changed",
        ],
    },
    MissingCapability {
        capability: Capability::UploadTree,
        reason: "a runtime takes one file at a time, without modes and links",
        behaviours: &["directories_are_uploaded_and_downloaded_unchanged"],
    },
    MissingCapability {
        capability: Capability::Stats,
        reason: "what a sandbox uses is counted by the guest",
        behaviours: &["the_guest_reports_what_its_kernel_enforces", "stats_report_the_resource_usage"],
    },
];

pub(crate) fn target(route: Route) -> Target {
    let (place, missing) = match route.inside {
        Inside::Guest => ("busybox", &[][..]),
        Inside::Stock(StockRuntime::Legacy) => ("legacy runtime", DIALECT),
        Inside::Stock(StockRuntime::Sandboxd) => ("sandboxd", DIALECT),
    };
    Target {
        transport: route.transport,
        place,
        user: "1000",
        kernel: Kernel::Full,
        has_shell: true,
        // A direct connection to a Pod cannot be broken by the test.
        loses_streams: route.mode != "in-cluster",
        missing,
        open: Box::new(move || open(route).boxed()),
    }
}

/// Opens a sandbox of a template through a proxy that can break its connections.
async fn open(Route { mode, inside, .. }: Route) -> OpenedSandbox {
    let namespace = Namespace::create().await;
    let (spec, home, work) = match inside {
        Inside::Guest => {
            let guest = install_guest(namespace.admin.clone(), &namespace.name, "amd64", None).await.unwrap();
            (pod_spec(&guest), "/home/sandbox", "/workspace")
        }
        Inside::Stock(runtime) => (runtime.pod_spec(), runtime.dir(), runtime.dir()),
    };
    make_template(&namespace, TEMPLATE, spec).await;
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
    OpenedSandbox {
        sandbox,
        home: home.to_owned(),
        dir: work.to_owned(),
        lose_streams: Box::new(move || breaking.reset_all()),
        end: Box::new(end),
    }
}

/// Returns the address of the router.
async fn router(namespace: &Namespace) -> SocketAddr {
    let pods: Api<Pod> = Api::namespaced(namespace.admin.clone(), "agent-sandbox-system");
    let found = pods.list(&ListParams::default().labels("app=sandbox-router")).await.unwrap();
    let ip = found.iter().find_map(|pod| pod.status.as_ref()?.pod_ip.clone()).unwrap();
    format!("{ip}:8080").parse().unwrap()
}

/// Creates a Gateway with this address.
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
