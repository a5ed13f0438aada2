//! What sandboxes of agent-sandbox do while its controller is gone.

use std::time::Duration;

use sandpod::{AgentSandboxConfig, ExecuteOptions, Provider, SandboxRequest, install_guest};
use sandpod_testbed::agent_sandbox::{TEMPLATE, clear, make_template, pod_spec};
use sandpod_testbed::{Namespace, PATIENCE};

use crate::CLUSTER;
use crate::driver::restart;
use crate::setup::{execute, soon};

/// The controller is on no call's way, and a claim waits for it.
#[tokio::test(flavor = "multi_thread")]
async fn calls_go_on_while_the_controller_is_restarted_and_who_claims_meanwhile_is_served() {
    let _alone = CLUSTER.write().await;
    let namespace = Namespace::create().await;
    let guest = install_guest(namespace.admin.clone(), &namespace.name, "amd64", None).await.unwrap();
    make_template(&namespace, TEMPLATE, pod_spec(&guest)).await;
    let config = AgentSandboxConfig {
        namespace: namespace.name.clone(),
        startup_timeout_seconds: 2 * PATIENCE.as_secs(),
        ..AgentSandboxConfig::of_template(TEMPLATE)
    };
    let provider = Provider::agent_sandbox_with_client(namespace.agent_sandbox().await, config).unwrap();
    let old = soon("claiming", provider.get_or_create(SandboxRequest::named("old"))).await.unwrap();
    let long = {
        let sandbox = old.sandbox.clone();
        // It is told when it may end: after the restart.
        let line = "echo begun >> begun; until test -e restarted; do sleep 0.1; done; wc -l < begun";
        let options = ExecuteOptions { timeout: Some(Duration::from_secs(100)), ..ExecuteOptions::default() };
        tokio::spawn(async move { sandbox.execute(line, options).await })
    };

    let (new, ()) = tokio::join!(
        soon("claiming", provider.get_or_create(SandboxRequest::named("new"))),
        restart("agent-sandbox-controller"),
    );

    let new = new.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(execute(&new, "echo new").await, "new\n");
    assert_eq!(execute(&old, "touch restarted; echo old").await, "old\n");
    let ended = soon("ending", long).await.unwrap().unwrap_or_else(|error| panic!("{error}"));
    assert_eq!((&ended.output[..], ended.exit_code), (&b"1\n"[..], Some(0)), "{ended:?}");
    for id in ["old", "new"] {
        provider.delete(id, true).await.unwrap();
    }
    provider.cleanup(None).await.unwrap();
    clear(&namespace).await;
    namespace.finish().await;
}
