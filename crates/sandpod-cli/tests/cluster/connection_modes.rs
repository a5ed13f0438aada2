//! The connection modes gateway and direct.

use sandpod_testbed::Namespace;
use sandpod_testbed::agent_sandbox::{SECRET, TEMPLATE, clear, make_template, pod_spec};
use sandpod_testbed::front_door::FrontDoor;

use crate::Cluster;
use crate::transcript::Stage;

/// Creates a template whose guests the router can reach, and writes their token to the file `secret`.
async fn make_reachable_template(namespace: &Namespace, stage: &Stage) {
    let guest =
        sandpod::install_guest(namespace.admin.clone(), &namespace.name, "amd64", None).await.unwrap();
    make_template(namespace, TEMPLATE, pod_spec(&guest)).await;
    stage.run(&format!("printf %s \"{SECRET}\" > secret"));
}

/// Starts a proxy in front of the cluster's router.
async fn open_door(stage: &Stage) -> FrontDoor {
    let router = stage.run(
        "kubectl -n agent-sandbox-system get pods -l app=sandbox-router -o jsonpath='{.items[0].status.podIP}:8080'",
    );
    FrontDoor::start(router.trim().parse().unwrap(), None).await.unwrap()
}

/// Creates a Gateway with the address of the proxy; the testbed has no Gateway controller to set it.
fn make_gateway(stage: &Stage, door: &FrontDoor) {
    let gateway = format!(
        r#"{{"apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway", "metadata": {{"name": "front"}}, "spec": {{"gatewayClassName": "none", "listeners": [{{"name": "web", "protocol": "HTTP", "port": {}}}]}}}}"#,
        door.address().port()
    );
    let status = r#"{"status": {"addresses": [{"type": "IPAddress", "value": "127.0.0.1"}]}}"#;
    let made = stage.run(&format!(
        "echo '{gateway}' | kubectl -n $NS apply -f - && \
         kubectl -n $NS patch gateway front --subresource status --type merge -p '{status}'"
    ));
    assert!(made.contains("gateway.gateway.networking.k8s.io/front patched"), "{made}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_connects_through_a_gateway_and_the_routers_url() {
    let cluster = Cluster::agent_sandbox().await;
    let stage = &cluster.stage;
    make_reachable_template(&cluster.namespace, stage).await;
    let door = open_door(stage).await;
    make_gateway(stage, &door);
    let url = format!("http://{}", door.address());
    let mut passed = 0;
    for mode in
        ["gateway --gateway-name front --gateway-namespace $NS".to_owned(), format!("direct --api-url {url}")]
    {
        let options = format!("--connection-mode {mode}");
        let printed = stage.run(&format!(
            "export SANDPOD_GUEST_TOKEN_FILE=$PWD/secret; \
             sandpod create --id way --quiet --template {TEMPLATE} {options} && \
             echo through | sandpod write way file {options} && \
             sandpod exec way {options} -- cat file && \
             sandpod delete way {options}"
        ));
        assert_eq!(printed, "way\nthrough\n", "{options}");
        let heads = door.heads();
        assert!(heads.len() >= passed + 3, "each command uses this connection: {options}: {heads:?}");
        passed = heads.len();
    }
    let printed = stage.run("sandpod gc && kubectl -n $NS delete gateway front");
    assert!(printed.contains("0 deleted, 0 kept"), "{printed}");
    clear(&cluster.namespace).await;
    cluster.finish().await;
}
