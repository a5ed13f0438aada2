//! `sandpod doctor` in agent-sandbox mode: each test breaks a part of the cluster and expects its fix.

use sandpod_kube::agent_sandbox::SandboxWarmPool;
use sandpod_kube::k8s_openapi::api::core::v1::Pod;
use sandpod_testbed::kubeconfig::Kubeconfig;
use sandpod_testbed::{Namespace, wait_for, wait_until_none};
use serde_json::json;

use crate::transcript::Stage;

/// A namespace with the template `python`; its stages use agent-sandbox mode there.
struct TemplateNamespace {
    namespace: Namespace,
    admin: Kubeconfig,
}

impl TemplateNamespace {
    async fn new() -> Self {
        let templates = Self { namespace: Namespace::create().await, admin: Kubeconfig::admin() };
        let applied = templates.as_admin().run(
            "sandpod manifests template --name python --image sandpod.test/python:1 | kubectl apply --server-side -f -",
        );
        assert!(applied.contains("sandboxtemplate.extensions.agents.x-k8s.io/python"), "{applied}");
        templates
    }

    fn stage(&self, kubeconfig: &Kubeconfig) -> Stage {
        crate::stage(&self.namespace.name, kubeconfig).with("SANDPOD_MODE", "agent-sandbox")
    }

    fn as_admin(&self) -> Stage {
        self.stage(&self.admin)
    }

    /// A kubeconfig of a service account.
    async fn account(&self, name: &str) -> Kubeconfig {
        Kubeconfig::of(json!({ "token": self.namespace.token(name, None).await }))
    }

    async fn finish(self) {
        self.as_admin().run("kubectl -n $NS delete sandboxclaims,sandboxwarmpools,sandboxtemplates --all");
        wait_until_none::<Pod>(&self.namespace.api()).await;
        self.namespace.finish().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn doctor_probes_a_sandbox_with_the_permissions_of_the_role() {
    let templates = TemplateNamespace::new().await;
    templates.namespace.agent_sandbox().await; // creates its RBAC objects
    let account = templates.account("sandpod-agent-sandbox").await;
    let printed = templates.stage(&account).run("sandpod doctor --template python");
    for found in [
        "as system:serviceaccount:",
        "rights: sandboxclaims",
        "extensions.agents.x-k8s.io/v1beta1",
        "python brings sandpod's guest, in the container sandbox",
        "every sandbox starts cold",
        "created and used within",
        "version ",
    ] {
        assert!(printed.contains(found), "{found}: {printed}");
    }
    assert!(!printed.contains("missing: ") && !printed.contains("user namespaces"), "{printed}");
    let shown = "admission (unsure): Creating a sandbox shows it. See the checks of the probe sandbox.\n";
    assert!(printed.contains(shown), "{printed}");
    // The testbed does not enforce network policies.
    assert!(printed.contains("no network policy is enforced: a sandbox reached the API server"), "{printed}");
    assert!(printed.contains("isolation (bad): Install a network plugin that enforces"), "{printed}");
    assert!(printed.ends_with("[exit 1]\n"), "{printed}");
    templates.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn doctor_reports_missing_permissions_but_not_optional_ones_as_bad() {
    let templates = TemplateNamespace::new().await;
    let no_permissions = templates.account("default").await;
    let printed = templates.stage(&no_permissions).run("sandpod doctor --template python");
    assert!(printed.contains("missing: get, list, watch, create, patch, delete\n"), "{printed}");
    // The option was not given, so no message mentions it.
    assert!(!printed.contains("--no-probe"), "{printed}");
    let rbac = "sandpod manifests rbac --mode agent-sandbox --namespace agents";
    assert!(printed.contains(&format!("rights: sandboxclaims (bad): {rbac}")), "{printed}");
    assert!(
        printed.contains(&format!("rights: gateways (unsure): Only some setups need it: {rbac}")),
        "{printed}"
    );
    assert!(printed.ends_with("[exit 1]\n"), "{printed}");
    templates.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn doctor_reports_each_missing_object_with_a_fix() {
    let templates = TemplateNamespace::new().await;
    let stage = templates.as_admin();
    let healthy = stage.run("sandpod doctor --no-probe --template python");
    for found in [
        "Pod Security is restricted",
        "there are some of ",
        "within 30 s",
        "/workspace and the directories of Deep Agents",
        "the same as installed here",
        "sandpod-deny-all selects the template's Pods",
    ] {
        assert!(healthy.contains(found), "{found}: {healthy}");
    }
    assert!(!healthy.contains(" bad "), "{healthy}");
    for (broken, fix) in [
        ("", "template (bad): Name it with --template"),
        ("--template none", "template (bad): sandpod manifests template --name none --namespace agents"),
        (
            "--template python --warm-pool none",
            "warm pool (bad): sandpod manifests warm-pool --name none --template python --namespace agents",
        ),
        (
            "--template python --connection-mode gateway --gateway-name none",
            "connection mode: gateway (bad): Check --gateway-name",
        ),
        (
            "--template python --connection-mode direct --api-url http://127.0.0.1:1",
            "connection mode: direct (bad): Check --api-url",
        ),
        ("--template python --connection-mode gateway", "configuration (bad): Set gateway_name"),
        ("--template python --context nothing", "API server (bad): Check it with kubectl"),
    ] {
        let printed = stage.run(&format!("sandpod doctor --no-probe {broken}"));
        assert!(printed.contains(fix) && printed.ends_with("[exit 1]\n"), "{broken}: {printed}");
    }
    let without_guest = stage.run("SANDPOD_GUEST_DIR=/nothing sandpod doctor --no-probe --template python");
    assert!(
        without_guest.contains("guest program (unsure): Build it with `cargo xtask guest`"),
        "{without_guest}"
    );
    let tunnel =
        "SANDPOD_ROUTER_NAMESPACE=$NS sandpod doctor --no-probe --template python --connection-mode tunnel";
    let printed = stage.run(tunnel);
    assert!(
        printed.contains(
            "connection mode: tunnel (bad): sandpod manifests router --image IMAGE --namespace agents"
        ) && printed.contains("guest token (unsure): Where exec is forbidden, create the Secret"),
        "{printed}"
    );
    templates.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn doctor_reports_a_template_whose_pods_cannot_start() {
    let templates = TemplateNamespace::new().await;
    let stage = templates.as_admin();
    let broken_by = |patch: &str| {
        let patched = stage.run(&format!(
            "kubectl -n $NS get sandboxtemplate python -o json > whole && \
             kubectl -n $NS patch sandboxtemplate python --type json -p '{patch}'"
        ));
        assert!(patched.contains("patched"), "{patched}");
        let printed = stage.run("sandpod doctor --no-probe --template python");
        stage.run("kubectl -n $NS replace --force -f whole");
        printed
    };
    let spec = "/spec/podTemplate/spec";
    let weak = broken_by(&format!(r#"[{{"op": "add", "path": "{spec}/hostNetwork", "value": true}}]"#));
    assert!(weak.contains("admission (bad): Change the field of the template that it names"), "{weak}");
    let arch = broken_by(&format!(
        r#"[{{"op": "add", "path": "{spec}/nodeSelector", "value": {{"kubernetes.io/arch": "s390x"}}}}]"#
    ));
    assert!(arch.contains("nodes (bad): Change the template's nodeSelector"), "{arch}");
    let bare = broken_by(&format!(r#"[{{"op": "remove", "path": "{spec}/containers/0/volumeMounts"}}]"#));
    assert!(bare.contains("template (unsure): ") && bare.contains("writable places (unsure): "), "{bare}");

    stage.run("kubectl -n $NS create quota full --hard=pods=0");
    stage.run(
        "until kubectl -n $NS get quota full -o jsonpath='{.status.used.pods}' | grep 0; do sleep 0.1; done",
    );
    let full = stage.run("sandpod doctor --no-probe --template python");
    assert!(full.contains("quota (bad): Delete sandboxes") && full.contains("exceeded quota"), "{full}");

    stage.run("kubectl -n $NS delete configmaps --selector app.kubernetes.io/managed-by=sandpod");
    let gone = stage.run("sandpod doctor --no-probe --template python");
    assert!(gone.contains("template's guest (bad): Print the template again, with its ConfigMaps"), "{gone}");
    templates.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn doctor_checks_the_pool_and_existing_sandboxes_need_no_template() {
    let templates = TemplateNamespace::new().await;
    let stage = templates.as_admin();
    stage
        .run("sandpod manifests warm-pool --name ready --template python | kubectl apply --server-side -f -");
    wait_for::<SandboxWarmPool>(&templates.namespace.api(), "ready", "be filled", |pool| {
        pool.and_then(|pool| pool.status.as_ref()).is_some_and(|status| status.ready_replicas == 1)
    })
    .await;
    let printed = stage.run("sandpod doctor --no-probe --warm-pool ready");
    assert!(printed.contains("ready: 1 of 1 ready") && printed.contains("python brings"), "{printed}");

    let printed = stage.run(
        "sandpod create --id x --quiet --warm-pool ready && sandpod list --quiet && sandpod exec x -- echo inside && \
         sandpod info x --output json | grep -c '\"id\": \"x\"' && sandpod gc && sandpod delete x && sandpod list --quiet",
    );
    assert_eq!(printed, "x\nx\ninside\n1\n0 deleted, 1 kept\n");
    templates.finish().await;
}
