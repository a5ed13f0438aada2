//! The targets to a Pod of agent-sandbox, with our guest in it or with one of agent-sandbox's own runtimes.

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

/// A target: what `connection_mode` calls it, how it is shown, and what is in the Pod.
#[derive(Clone, Copy)]
pub(crate) struct Route {
    mode: &'static str,
    transport: &'static str,
    inside: Inside,
}

/// What answers in the Pod.
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

/// What a stock runtime can't do: it runs a command to its end, takes a file and gives one, and no more.
const DIALECT: &[MissingCapability] = &[
    MissingCapability {
        capability: Capability::Spawn,
        reason: "nothing of ours stays in the sandbox that could hold a command's output for who follows it",
        behaviours: &[
            "a_follower_gets_both_outputs_apart_and_then_the_end",
            "late_followers_and_many_at_once_get_the_same",
            "a_signal_reaches_all_that_was_started",
            "a_started_command_has_its_time_too",
            "paced_output_waits_for_its_follower",
            "what_was_dropped_is_reported_and_offsets_stay_true",
            "a_started_command_outlives_its_follower",
            "both_outputs_can_come_as_one",
            "a_started_command_reads_its_input_to_the_end",
            "a_started_command_runs_in_a_terminal_that_changes_its_size",
            "started_commands_are_listed_and_found_again",
            "input_is_written_once_whatever_becomes_of_the_stream",
            "output_goes_on_where_a_lost_stream_ended",
        ],
    },
    MissingCapability {
        capability: Capability::ApplyEdits,
        reason: "many files change as one only where a journal is rolled forward after a crash",
        behaviours: &[
            "a_set_of_changes_is_made_as_a_whole",
            "a_set_with_one_change_that_can_not_be_made_changes_nothing",
            "a_file_that_is_not_as_expected_is_not_changed",
        ],
    },
    MissingCapability {
        capability: Capability::UploadTree,
        reason: "a runtime takes one file at a time, without modes and links",
        behaviours: &["whole_directories_go_up_and_come_down_as_they_are"],
    },
    MissingCapability {
        capability: Capability::Stats,
        reason: "what a sandbox uses is counted by the guest",
        behaviours: &["the_guest_says_what_holds_on_its_kernel", "stats_say_what_the_sandbox_uses"],
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
        // Nothing of ours is between us and a Pod.
        loses_streams: route.mode != "in-cluster",
        missing,
        open: Box::new(move || open(route).boxed()),
    }
}

/// A Pod of a template, reached through a proxy that can break what it carries.
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
