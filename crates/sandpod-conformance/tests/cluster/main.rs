//! The suite in Pods, in namespaces that enforce Pod Security `restricted`: in raw mode, and over every connection mode of
//! agent-sandbox.

#![expect(clippy::unwrap_used, reason = "a suite that can't begin fails")]

mod agent_sandbox;

use std::process::ExitCode;
use std::sync::Arc;

use futures::FutureExt as _;
use sandpod::{Provider, RawConfig, SandboxRequest};
use sandpod_conformance::{Kernel, OpenedSandbox, Target};
use sandpod_testbed::proxy::FaultProxy;
use sandpod_testbed::{Namespace, PATIENCE};
use serde_json::json;

/// Images, by their short names.
const IMAGES: [&str; 3] = ["scratch", "busybox", "python"];
/// A user as in most charts, and one as OpenShift assigns them.
const USERS: [User; 2] = [
    User { name: "1000, read-only root", uid: 1000, gid: 1000, read_only_root: true },
    User { name: "1000690000, group 0", uid: 1_000_690_000, gid: 0, read_only_root: false },
];

#[derive(Clone, Copy)]
struct User {
    name: &'static str,
    uid: i64,
    gid: i64,
    read_only_root: bool,
}

fn main() -> ExitCode {
    let pods = Kernel::ALL
        .iter()
        .flat_map(|kernel| IMAGES.iter().flat_map(|image| USERS.map(|user| pod(image, user, *kernel))));
    sandpod_conformance::run(pods.chain(agent_sandbox::ROUTES.map(agent_sandbox::target)).collect())
}

fn pod(image: &'static str, user: User, kernel: Kernel) -> Target {
    Target {
        transport: "exec",
        place: image,
        user: user.name,
        kernel,
        has_shell: image != "scratch",
        loses_streams: true,
        missing: &[],
        open: Box::new(move || open(image, user, kernel).boxed()),
    }
}

/// Opens a Pod in a namespace of its own through a proxy that can break its connections.
async fn open(image: &str, user: User, kernel: Kernel) -> OpenedSandbox {
    let namespace = Namespace::create().await;
    let proxy = Arc::new(FaultProxy::start(namespace.api_address()).await.unwrap());
    let disabled =
        kernel.without().map(|names| json!({ "name": "SANDPOD_DISABLED_KERNEL_FEATURES", "value": names }));
    let container = json!({ "name": "sandbox", "env": Vec::from_iter(disabled) });
    let config = RawConfig {
        pod_template_overrides: Some(json!({ "containers": [container] })),
        // Without these features the guest cannot enforce policies.
        allow_insecure_overrides: kernel == Kernel::Old,
        namespace: namespace.name.clone(),
        image: format!("sandpod.test/{image}:1"),
        cpu_request: "1m".to_owned(),
        memory_request: "16Mi".to_owned(),
        memory_limit: "256Mi".to_owned(),
        run_as_user: Some(user.uid),
        run_as_group: Some(user.gid),
        read_only_root: user.read_only_root,
        startup_timeout_seconds: PATIENCE.as_secs(),
        ..RawConfig::default()
    };
    // Waits until the role is in effect.
    drop(namespace.raw().await);
    let client = namespace.raw_through(proxy.address()).await;
    let provider = Provider::with_client(client, config).unwrap();
    let handle = provider.get_or_create(SandboxRequest::default()).await.unwrap();
    let sandbox = handle.sandbox.unguarded().clone();
    let breaking = proxy.clone();
    let end = || {
        async move {
            provider.delete(handle.id.as_str(), true).await.unwrap();
            namespace.finish().await;
            drop(proxy);
        }
        .boxed()
    };
    OpenedSandbox {
        sandbox,
        home: "/home/sandbox".to_owned(),
        dir: "/workspace".to_owned(),
        lose_streams: Box::new(move || breaking.reset_all()),
        end: Box::new(end),
    }
}
