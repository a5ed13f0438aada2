//! The Helm chart: compared with the printed manifests, checked by an API server, installed and used.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Stdio;

use sandpod_testbed::Namespace;
use sandpod_testbed::kubeconfig::Kubeconfig;
use serde_json::{Value, json};

use crate::manifests::{Made, as_account};
use crate::transcript::Stage;

/// The labels of the chart that printed manifests do not have.
const LABELS: [&str; 4] =
    ["app.kubernetes.io/instance", "app.kubernetes.io/name", "app.kubernetes.io/version", "helm.sh/chart"];

/// A stage of an administrator with the chart: its folder is `$CHART`, and `chart.tgz` its package.
fn admin_stage(namespace: &str) -> (Stage, Kubeconfig) {
    let chart = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/chart");
    let kubeconfig = Kubeconfig::of(json!({}));
    let stage = crate::stage(namespace, &kubeconfig).with("CHART", chart.display().to_string());
    // Of a folder with symbolic links `helm` reports each; a package has copies.
    let packaged = stage.run("helm package $CHART --destination . && mv sandpod-*.tgz chart.tgz");
    assert!(!packaged.contains("[exit"), "{packaged}");
    (stage, kubeconfig)
}

/// The objects in YAML documents, by kind and name, without the labels of the chart.
fn objects(documents: &str) -> BTreeMap<String, Value> {
    let objects: Vec<Value> =
        serde_saphyr::from_multiple(documents).unwrap_or_else(|error| panic!("{error}: {documents}"));
    let named = |mut object: Value| {
        let metadata = object["metadata"].as_object_mut().unwrap();
        if let Some(labels) = metadata.get_mut("labels").and_then(Value::as_object_mut) {
            labels.retain(|label, _| !LABELS.contains(&label.as_str()));
            if labels.is_empty() {
                metadata.remove("labels");
            }
        }
        (format!("{} {}", object["kind"], object["metadata"]["name"]), object)
    };
    objects.into_iter().map(named).collect()
}

#[tokio::test]
async fn the_chart_has_the_objects_that_the_command_prints() {
    let (stage, _kubeconfig) = admin_stage("agents");
    let image = "r.example/sandpod:1";
    for (values, manifests) in [
        ("", "sandpod manifests rbac --mode raw"),
        ("", "sandpod manifests networkpolicy"),
        (
            "raw.namespacePerSandbox=true",
            "SANDPOD_NAMESPACE_PER_SANDBOX=true sandpod manifests rbac --mode raw",
        ),
        ("agentSandbox.enabled=true", "sandpod manifests rbac --mode agent-sandbox"),
        ("reaper.enabled=true", "sandpod manifests reaper --mode raw --image r.example/sandpod:1"),
        (
            "reaper.enabled=true,agentSandbox.enabled=true",
            "sandpod manifests reaper --mode agent-sandbox --name sandpod-claim-reaper --image r.example/sandpod:1",
        ),
        (
            "router.enabled=true,agentSandbox.enabled=true",
            "SANDPOD_ROUTER_NAMESPACE=agents sandpod manifests sandpod-router --image r.example/sandpod:1",
        ),
    ] {
        let set = format!("reaper.image={image},router.image={image},{values}");
        let chart = stage.run(&format!("helm template x chart.tgz -n agents --set {set}"));
        let printed = stage.run(&format!("{manifests} --namespace agents"));
        let (chart, printed) = (objects(&chart), objects(&printed));
        assert!(!printed.is_empty());
        for (name, object) in printed {
            assert_eq!(chart.get(&name), Some(&object), "{manifests}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_api_server_accepts_the_chart_with_every_set_of_values() {
    let namespace = Namespace::create().await;
    let (stage, _kubeconfig) = admin_stage(&namespace.name);
    let sets = stage.run("cd $CHART/ci && ls");
    assert_eq!(sets.lines().count(), 5, "{sets}");
    for set in sets.lines() {
        // The namespace that a set creates does not exist during a dry run.
        let applied = stage.run(&format!(
            "helm lint --strict --quiet chart.tgz --values $CHART/ci/{set} && \
             helm template x chart.tgz -n $NS --values $CHART/ci/{set} --set namespace.name= \
             | kubectl apply --server-side --force-conflicts --dry-run=server -f -"
        ));
        let objects = applied.lines().filter(|line| line.ends_with("serverside-applied (server dry run)"));
        assert!(objects.count() >= 4 && !applied.contains("rror"), "{set}: {applied}");
    }
    namespace.finish().await;
}

#[tokio::test]
async fn a_mistake_in_the_values_is_refused_with_the_reason() {
    let (stage, _kubeconfig) = admin_stage("agents");
    for (values, reason) in [
        ("raw.enabld=true", "'enabld' not allowed"),
        ("router.enabled=true,router.image=x,router.auth=scoped-token", "needs router.tokenSecretName"),
        ("reaper.enabled=true", "Set images.registry to the registry that has sandpod's images"),
        (
            "reaper.enabled=true,reaper.image=x,raw.namespacePerSandbox=true",
            "run `sandpod gc` with the account sandpod-raw-namespaces",
        ),
    ] {
        let refused = stage.run(&format!("helm template x chart.tgz --set {values}"));
        assert!(refused.contains(reason) && refused.ends_with("[exit 1]\n"), "{refused}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_installed_chart_runs_and_reaps_sandboxes_and_is_removed_completely() {
    let namespace = Namespace::create().await;
    let (stage, _kubeconfig) = admin_stage(&namespace.name);
    let made = Made { stage: &stage, name: format!("{}-m", namespace.name) };
    let ns = &made.name;
    let values = "--set reaper.enabled=true,reaper.image=sandpod.test/cli:1";
    let installed = stage.run(&format!("helm install sandpod chart.tgz -n {ns} --create-namespace {values}"));
    assert!(installed.contains("--mode raw --namespace agents-m run"), "{installed}");

    let (user, _token) = as_account(&stage, ns, "sandpod-raw", "pods");
    assert_eq!(user.run("sandpod run 'echo $((6 * 7))'"), "42\n");
    user.run("sandpod create --id short --ttl 1s --quiet; sandpod create --id long --quiet");
    user.run("until sandpod list --quiet --status terminated | grep short; do sleep 0.1; done");

    let upgraded = stage
        .run(&format!("helm upgrade sandpod chart.tgz -n {ns} {values} --set reaper.schedule='0 * * * *'"));
    assert!(upgraded.contains("REVISION: 2"), "{upgraded}");
    assert_eq!(user.run("sandpod exec long -- echo still here"), "still here\n");
    let reaped = stage.run(&format!(
        "kubectl -n {ns} create job --from=cronjob/sandpod-reaper once && \
         kubectl -n {ns} wait job/once --for=condition=complete --timeout=60s && kubectl -n {ns} logs job/once"
    ));
    assert!(reaped.ends_with("deleted short\n1 deleted, 1 kept\n"), "{reaped}");
    user.run("sandpod delete long");

    stage.run(&format!("kubectl -n {ns} delete job once; helm uninstall sandpod -n {ns} --wait"));
    let kinds = "serviceaccounts,roles,rolebindings,networkpolicies,cronjobs,secrets";
    assert_eq!(stage.run(&format!("kubectl -n {ns} get {kinds} -o name")), "serviceaccount/default\n");
    drop(made);
    namespace.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_template_of_the_chart_runs_sandboxes_from_its_warm_pool() {
    let namespace = Namespace::create().await;
    let (stage, _kubeconfig) = admin_stage(&namespace.name);
    let made = Made { stage: &stage, name: format!("{}-m", namespace.name) };
    let ns = &made.name;
    let installed = stage.run(&format!(
        "helm install sandpod chart.tgz -n {ns} --create-namespace \
         --set raw.enabled=false,agentSandbox.enabled=true,images.guest=sandpod.test/guest:1 \
         --set 'agentSandbox.templates[0].name=py,agentSandbox.templates[0].image=sandpod.test/python:1' \
         --set 'agentSandbox.templates[0].warmPoolSize=1'"
    ));
    assert!(installed.contains("--mode agent-sandbox --namespace agents-m --template py run"), "{installed}");
    let claims = "sandboxclaims.extensions.agents.x-k8s.io";
    let (user, _token) = as_account(&stage, ns, "sandpod-agent-sandbox", claims);
    let user = user.with("SANDPOD_MODE", "agent-sandbox").with("SANDPOD_TEMPLATE_NAME", "py");
    assert_eq!(user.run("sandpod run 'echo $((6 * 7)) > a; cat a'"), "42\n");
    stage.run(&format!("helm uninstall sandpod -n {ns} --wait"));
    drop(made);
    namespace.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_router_of_the_chart_admits_clients_and_loses_no_command_at_an_upgrade() {
    let namespace = Namespace::create().await;
    let (stage, _kubeconfig) = admin_stage(&namespace.name);
    let made = Made { stage: &stage, name: format!("{}-m", namespace.name) };
    let ns = &made.name;
    let values = "--set raw.enabled=false,agentSandbox.enabled=true,images.guest=sandpod.test/guest:1 \
                  --set router.enabled=true,router.image=sandpod.test/router:1,router.replicas=1 \
                  --set 'agentSandbox.templates[0].name=py,agentSandbox.templates[0].image=sandpod.test/python:1' \
                  --set 'agentSandbox.templates[0].routerAccess=true'";
    // The names of its cluster-wide objects are those of an installation, which an interrupted run leaves behind.
    stage.run("kubectl delete clusterrole,clusterrolebinding sandpod-router --ignore-not-found");
    let installed = stage.run(&format!(
        "helm install sandpod chart.tgz -n {ns} --create-namespace --wait --timeout 2m {values}"
    ));
    assert!(installed.contains("STATUS: deployed"), "{installed}");

    let claims = "sandboxclaims.extensions.agents.x-k8s.io";
    let (user, _token) = as_account(&stage, ns, "sandpod-agent-sandbox", claims);
    let user = user
        .with("SANDPOD_MODE", "agent-sandbox")
        .with("SANDPOD_TEMPLATE_NAME", "py")
        .with("SANDPOD_CONNECTION_MODE", "tunnel")
        .with("SANDPOD_ROUTER_NAMESPACE", ns.as_str());
    let refused = user.run("sandpod run 'echo hello'");
    assert!(refused.contains("router_token"), "{refused}");

    let token = stage.run(&format!("kubectl create token sandpod-agent-sandbox -n {ns}"));
    let user = user.with("SANDPOD_ROUTER_TOKEN", token.trim());
    assert_eq!(user.run("sandpod create --id box --quiet && sandpod exec box -- echo hello"), "box\nhello\n");
    let mut command =
        user.command("sandpod exec box -- sh -c 'echo begun > begun; sleep 8; echo ended' 2>&1");
    let running = command.stdout(Stdio::piped()).spawn().unwrap();
    user.run("until sandpod exec box -- test -e begun; do sleep 0.2; done");
    let upgraded = stage.run(&format!(
        "helm upgrade sandpod chart.tgz -n {ns} --wait --timeout 2m {values} --set router.resources.requests.cpu=11m"
    ));
    assert!(upgraded.contains("REVISION: 2"), "{upgraded}");
    assert_eq!(user.run("sandpod exec box -- echo hello"), "hello\n");
    let ended = running.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&ended.stdout), "ended\n");

    user.run("sandpod delete box");
    stage.run(&format!("helm uninstall sandpod -n {ns} --wait"));
    assert_eq!(
        stage.run("kubectl get clusterrole,clusterrolebinding -o name | grep sandpod-router$"),
        "[exit 1]\n"
    );
    drop(made);
    namespace.finish().await;
}
