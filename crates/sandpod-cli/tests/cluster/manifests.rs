//! Printed manifests, applied to a cluster and used.

use sandpod_kube::k8s_openapi::api::core::v1::Pod;
use sandpod_testbed::agent_sandbox::clear;
use sandpod_testbed::kubeconfig::Kubeconfig;
use sandpod_testbed::wait_until_none;
use serde_json::{Value, json};

use crate::Cluster;
use crate::transcript::Stage;

/// A namespace created from a manifest; dropping this deletes it.
pub(crate) struct Made<'a> {
    pub(crate) stage: &'a Stage,
    pub(crate) name: String,
}

impl Drop for Made<'_> {
    fn drop(&mut self) {
        self.stage.run(&format!("kubectl delete namespace {} --wait=false", self.name));
    }
}

/// Applies the output of a command.
fn apply(stage: &Stage, manifests: &str) -> String {
    let printed = stage
        .run(&format!("sandpod manifests {manifests} > manifest && kubectl apply --server-side -f manifest"));
    assert!(!printed.contains("rror") && !printed.contains("[exit"), "{printed}");
    printed
}

/// A stage with the token of a service account, once RBAC lets that create the first object of a sandbox.
pub(crate) fn as_account(stage: &Stage, namespace: &str, account: &str, makes: &str) -> (Stage, Kubeconfig) {
    stage.run(&format!(
        "until kubectl auth can-i create {makes} -n {namespace} --as system:serviceaccount:{namespace}:{account}; do sleep 0.1; done"
    ));
    let token = stage.run(&format!("kubectl create token {account} -n {namespace}"));
    let kubeconfig = Kubeconfig::of(json!({ "token": token.trim() }));
    (crate::stage(namespace, &kubeconfig), kubeconfig)
}

/// As [`as_account`], in agent-sandbox mode.
fn as_claimer(stage: &Stage, namespace: &str, account: &str) -> (Stage, Kubeconfig) {
    let claims = "sandboxclaims.extensions.agents.x-k8s.io";
    let (stage, kubeconfig) = as_account(stage, namespace, account, claims);
    (stage.with("SANDPOD_MODE", "agent-sandbox"), kubeconfig)
}

#[tokio::test(flavor = "multi_thread")]
async fn manifests_all_in_raw_mode_give_a_namespace_where_sandboxes_run() {
    let cluster = Cluster::new().await;
    let made = Made { stage: &cluster.stage, name: format!("{}-m", cluster.namespace.name) };
    let ns = &made.name;
    let printed = apply(&cluster.stage, &format!("all --namespace {ns} --image sandpod.test/cli:1"));
    // The stage replaces the test's namespace by "agents".
    for object in [
        "namespace/agents-m",
        "role.rbac.authorization.k8s.io/sandpod-raw",
        "cronjob.batch/sandpod-reaper",
        "networkpolicy.networking.k8s.io/sandpod-deny-all",
    ] {
        assert!(printed.contains(object), "{object}: {printed}");
    }
    let (stage, _kubeconfig) = as_account(&cluster.stage, ns, "sandpod-raw", "pods");
    assert_eq!(stage.run("sandpod run 'echo $((6 * 7))'"), "42\n");
    let enforced = stage.run("kubectl run weak --image sandpod.test/busybox:1 -n $NS 2>&1");
    assert!(enforced.contains("violates PodSecurity"), "{enforced}");
    drop(made);
    cluster.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_example_agent_creates_sandboxes_with_its_token() {
    const AGENT: &str = include_str!("../../../../deploy/agent.yaml");
    let cluster = Cluster::new().await;
    let made = Made { stage: &cluster.stage, name: format!("{}-m", cluster.namespace.name) };
    let (stage, ns) = (&cluster.stage, &made.name);
    apply(stage, &format!("all --namespace {ns}"));
    // An agent that uses one sandbox and then sleeps.
    let agent = "image: sandpod.test/cli:1\n          command: [sandpod, run, --image, 'sandpod.test/busybox:1', \
                 'echo of an agent; sleep 1000']\n";
    let with_token =
        AGENT.replace("image: IMAGE\n", agent).replace("namespace: agents\n", &format!("namespace: {ns}\n"));
    let without =
        with_token.replace("automountServiceAccountToken: true", "automountServiceAccountToken: false");
    let dir = tempfile::tempdir().unwrap();
    let start = |name: &str, text: &str, until: &str| {
        let file = dir.path().join(name);
        std::fs::write(&file, text).unwrap();
        let logs = format!("kubectl -n {ns} logs --selector app=agent --tail=-1 2>&1");
        stage.run(&format!(
            "kubectl apply -f {}; until {logs} | grep '{until}'; do sleep 0.2; done; {logs}",
            file.display()
        ))
    };

    let printed = start("without.yaml", &without, "error:");
    assert!(printed.contains("automountServiceAccountToken: true"), "{printed}");
    start("with.yaml", &with_token, "^of an agent$");
    drop(made);
    cluster.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn printed_rbac_of_raw_mode_has_the_given_name_and_suffices() {
    let cluster = Cluster::new().await;
    let ns = cluster.namespace.name.clone();
    apply(&cluster.stage, &format!("rbac --namespace {ns} --name agents"));
    let (stage, _kubeconfig) = as_account(&cluster.stage, &ns, "agents", "pods");
    assert_eq!(
        stage.run("sandpod create --id x --quiet && sandpod list --quiet && sandpod delete x"),
        "x\nx\n"
    );
    cluster.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn printed_rbac_suffices_for_a_namespace_per_sandbox() {
    let cluster = Cluster::new().await;
    let ns = cluster.namespace.name.clone();
    let per_sandbox = "SANDPOD_NAMESPACE_PER_SANDBOX=true";
    let name = format!("sandpod-each-{ns}");
    let manifest = format!("{per_sandbox} sandpod manifests rbac --namespace {ns} --name {name}");
    let printed = cluster.stage.run(&format!("{manifest} | kubectl apply --server-side -f -"));
    assert!(printed.contains("clusterrole.rbac.authorization.k8s.io/sandpod-each-agents"), "{printed}");
    let (stage, _kubeconfig) = as_account(&cluster.stage, &ns, &name, "pods");
    let printed = stage.run(&format!("{per_sandbox} sandpod run 'echo own namespace'"));
    cluster.stage.run(&format!("{manifest} | kubectl delete -f -"));
    assert_eq!(printed, "own namespace\n");
    cluster.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn manifests_all_in_agent_sandbox_mode_give_a_namespace_with_warm_sandboxes() {
    let cluster = Cluster::agent_sandbox().await;
    let made = Made { stage: &cluster.stage, name: format!("{}-m", cluster.namespace.name) };
    let ns = &made.name;
    let printed = apply(
        &cluster.stage,
        &format!("all --mode agent-sandbox --namespace {ns} --template python --image sandpod.test/python:1"),
    );
    for object in [
        "namespace/agents-m",
        "role.rbac.authorization.k8s.io/sandpod-agent-sandbox",
        "networkpolicy.networking.k8s.io/sandpod-deny-all",
        "sandboxtemplate.extensions.agents.x-k8s.io/python",
        "sandboxwarmpool.extensions.agents.x-k8s.io/python",
    ] {
        assert!(printed.contains(object), "{object}: {printed}");
    }
    let (stage, _kubeconfig) = as_claimer(&cluster.stage, ns, "sandpod-agent-sandbox");
    let filled = stage.run(
        "kubectl -n $NS wait sandboxwarmpool/python --for=jsonpath='{.status.readyReplicas}'=1 --timeout=60s",
    );
    assert!(filled.contains("condition met"), "{filled}");
    let warm = stage.run("kubectl -n $NS get pods -o jsonpath='{.items[*].metadata.name}'");

    assert_eq!(stage.run("sandpod create --id work --quiet --template python"), "work\n");
    let taken = stage.run("kubectl -n $NS get sandboxclaim work -o jsonpath='{.status.sandbox.name}'");
    assert_eq!(taken, warm, "it is the one that was ready");
    assert_eq!(stage.run("sandpod exec work -- python3 -c 'print(6 * 7)'"), "42\n");
    assert_eq!(stage.run("sandpod delete work && sandpod list --quiet"), "");
    assert_eq!(stage.run("sandpod run --warm-pool python 'echo of the pool'"), "of the pool\n");
    drop(made);
    cluster.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn printed_rbac_of_agent_sandbox_mode_has_the_given_name_and_suffices() {
    let cluster = Cluster::agent_sandbox().await;
    let ns = cluster.namespace.name.clone();
    apply(&cluster.stage, &format!("rbac --mode agent-sandbox --namespace {ns} --name claimer"));
    apply(&cluster.stage, &format!("template --namespace {ns} --name python --image sandpod.test/python:1"));
    let (stage, _kubeconfig) = as_claimer(&cluster.stage, &ns, "claimer");
    // The template has no pool: sandpod creates an empty one, and `gc` deletes it.
    let printed = stage.run(
        "sandpod create --id x --quiet --template python && sandpod list --quiet && \
         sandpod exec x -- echo inside && sandpod delete x && sandpod gc",
    );
    assert_eq!(printed, "x\nx\ninside\n0 deleted, 0 kept\n");
    clear(&cluster.namespace).await;
    cluster.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn manifests_as_json_are_one_list_that_kubectl_accepts() {
    let cluster = Cluster::new().await;
    let ns = &cluster.namespace.name;
    let printed =
        cluster.stage.run(&format!("sandpod manifests networkpolicy --namespace {ns} --output json"));
    let list: Value = serde_json::from_str(&printed).unwrap();
    assert_eq!((&list["kind"], list["items"].as_array().unwrap().len()), (&json!("List"), 1));
    apply(&cluster.stage, &format!("networkpolicy --namespace {ns} --output json"));
    assert_eq!(cluster.stage.run("sandpod run 'echo under the policy'"), "under the policy\n");
    cluster.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_printed_router_is_ready_and_its_rbac_permits_access() {
    let cluster = Cluster::new().await;
    let (stage, ns) = (&cluster.stage, &cluster.namespace.name);
    let printed = format!(
        "SANDPOD_ROUTER_NAMESPACE={ns} sandpod manifests router --image sandpod.test/sandbox-router:1 --name door-{ns}"
    );
    let applied = stage.run(&format!("{printed} --namespace {ns} | kubectl apply --server-side -f -"));
    // The RBAC objects of a second namespace do not replace those of the first.
    stage.run(&format!("{printed} --namespace other | kubectl apply --server-side -f -"));
    // The router is ready once it has listed all Pods, which requires its RBAC objects.
    let started = stage.run(&format!("kubectl -n {ns} rollout status deployment/door-{ns} --timeout=180s"));
    let may = stage.run(&format!(
        "for account in {ns}:sandpod-agent-sandbox other:sandpod-agent-sandbox default:default; do \
           kubectl -n {ns} auth can-i create pods --subresource=portforward --as system:serviceaccount:$account; \
         done 2> /dev/null | grep -v exit"
    ));
    let found = stage.run(&format!(
        "SANDPOD_ROUTER_NAMESPACE={ns} SANDPOD_KUBECONFIG=$KUBECONFIG sandpod doctor --mode agent-sandbox --no-probe \
           --connection-mode tunnel | grep '^connection mode: tunnel'"
    ));
    stage.run(&format!(
        "{printed} --namespace other | kubectl delete -f -; {printed} --namespace {ns} | kubectl delete -f -"
    ));
    assert!(applied.contains("clusterrole.rbac.authorization.k8s.io/door-agents"), "{applied}");
    assert!(started.contains("successfully rolled out"), "{started}");
    assert_eq!(may, "yes\nyes\nno\n");
    assert!(found.contains("good") && found.contains("the router's Pod agents/door-agents-"), "{found}");
    wait_until_none::<Pod>(&cluster.namespace.api()).await;
    cluster.finish().await;
}
