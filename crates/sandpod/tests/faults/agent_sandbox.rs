//! Sandboxes of agent-sandbox while its controller is away.

use std::time::Duration;

use sandpod::{AgentSandboxConfig, ExecuteOptions, Provider, SandboxRequest, install_guest};
use sandpod_testbed::agent_sandbox::{TEMPLATE, clear, make_template, pod_spec};
use sandpod_testbed::{Namespace, PATIENCE};

use crate::CLUSTER;
use crate::driver::restart;
use crate::setup::{execute, soon};

/// Calls do not need the controller; a new claim waits for it.
#[tokio::test(flavor = "multi_thread")]
async fn calls_continue_while_the_controller_restarts_and_a_claim_is_served_after_it() {
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
        // The test lets it end after the restart.
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
