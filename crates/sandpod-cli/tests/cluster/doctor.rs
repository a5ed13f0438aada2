//! `sandpod doctor` in raw mode: each test breaks a part of the cluster and expects its fix.

use sandpod_testbed::kubeconfig::Kubeconfig;
use serde_json::json;

use crate::Cluster;

#[tokio::test(flavor = "multi_thread")]
async fn doctor_detects_by_probing_that_network_policies_are_not_enforced() {
    let cluster = Cluster::new().await;
    let printed = cluster.stage.run("sandpod doctor");
    for found in [
        "rights: pods/exec",
        "a sandbox's Pod is admitted",
        "created and used within",
        "as system:serviceaccount:",
    ] {
        assert!(printed.contains(found), "{found}: {printed}");
    }
    for (check, how) in [
        ("quota", "kubectl get resourcequota"),
        ("nodes", "kubectl get nodes"),
        ("router", "kubectl get service"),
    ] {
        let fix =
            format!("{check} (unsure): Optional. To see it, ask the administrator of the cluster for {how}");
        assert!(printed.contains(&fix), "{fix}: {printed}");
    }
    // The testbed does not enforce network policies.
    assert!(printed.contains("not enforced: a sandbox without network reached the API server"), "{printed}");
    assert!(printed.contains("network policy (bad): Install a network plugin that enforces"), "{printed}");
    assert!(printed.ends_with("[exit 1]\n"), "{printed}");
    cluster.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn doctor_reports_missing_permissions_by_verb() {
    let cluster = Cluster::new().await;
    let token = cluster.namespace.token("default", None).await;
    let no_permissions = Kubeconfig::of(json!({ "token": token }));
    let printed = crate::stage(&cluster.namespace.name, &no_permissions).run("sandpod doctor");
    assert!(printed.contains("missing: get, create\n"), "{printed}");
    assert!(
        printed.contains("rights: pods/exec (bad): sandpod manifests rbac --mode raw --namespace agents"),
        "{printed}"
    );
    cluster.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn doctor_reports_each_broken_part_of_raw_mode_with_a_fix() {
    let cluster = Cluster::new().await;
    let admin = Kubeconfig::admin();
    let stage = crate::stage(&cluster.namespace.name, &admin);
    let healthy = stage.run("sandpod doctor --no-probe");
    for found in ["Pod Security is restricted", "serves ", "there are some of ", "within 30 s"] {
        assert!(healthy.contains(found), "{found}: {healthy}");
    }
    assert!(!healthy.contains(" bad "), "{healthy}");
    for (broken, fix) in [
        (
            "--namespace no-such-namespace",
            "admission (bad): sandpod manifests namespace --namespace no-such-namespace",
        ),
        ("--kubeconfig nothing", "API server (bad): Check it with kubectl"),
        ("--context nothing", "API server (bad): Check it with kubectl"),
    ] {
        let printed = stage.run(&format!("sandpod doctor --no-probe {broken}"));
        assert!(printed.contains(fix) && printed.ends_with("[exit 1]\n"), "{broken}: {printed}");
    }
    for (variables, fix) in [
        (
            "SANDPOD_RUN_AS_USER=0 SANDPOD_ALLOW_INSECURE_OVERRIDES=true",
            "admission (bad): Change the option that it names",
        ),
        ("SANDPOD_ARCH=arm64", "nodes (bad): Set the option arch"),
        ("SANDPOD_GUEST_DIR=/nothing", "guest program (bad): Build it with `cargo xtask guest`"),
    ] {
        let printed = stage.run(&format!("{variables} sandpod doctor --no-probe"));
        assert!(printed.contains(fix) && printed.ends_with("[exit 1]\n"), "{variables}: {printed}");
    }
    stage.run("kubectl -n $NS create quota full --hard=pods=0");
    stage.run(
        "until kubectl -n $NS get quota full -o jsonpath='{.status.used.pods}' | grep 0; do sleep 0.1; done",
    );
    let printed = stage.run("sandpod doctor --no-probe");
    assert!(
        printed.contains("quota (bad): Delete sandboxes") && printed.contains("exceeded quota"),
        "{printed}"
    );
    cluster.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn doctor_reports_a_broken_probe_sandbox_and_an_unknown_network() {
    let cluster = Cluster::new().await;
    let without_shell = cluster.stage.run("sandpod doctor --image sandpod.test/scratch:1");
    assert!(without_shell.contains("the command true ended with code 125: "), "{without_shell}");
    assert!(
        without_shell
            .contains("sandbox (bad): See the output of the image's /bin/sh: sandpod run -- /bin/sh -c true")
            && without_shell.ends_with("[exit 1]\n"),
        "{without_shell}"
    );

    let open = cluster.stage.run("SANDPOD_BLOCK_NETWORK=false sandpod doctor");
    assert!(open.contains("network policy (unsure): Set block_network to true to cut them off."), "{open}");

    let bare = cluster.stage.run("SANDPOD_ENV='{\"PATH\": \"/nowhere\"}' sandpod doctor");
    assert!(bare.contains("the image has neither python3 nor nc nor bash"), "{bare}");
    assert!(bare.contains("network policy (unsure): Try again, or with an image that has python3"), "{bare}");
    assert!(!open.contains("[exit") && !bare.contains("[exit"), "{open}{bare}");
    cluster.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn doctor_reports_broken_connections_to_the_cluster_with_fixes() {
    let cluster = Cluster::new().await;
    let examine = |kubeconfig: &Kubeconfig| {
        crate::stage(&cluster.namespace.name, kubeconfig).run("sandpod doctor --no-probe")
    };
    let with = |change: &dyn Fn(&mut Kubeconfig)| {
        let mut kubeconfig = Kubeconfig::admin();
        change(&mut kubeconfig);
        examine(&kubeconfig)
    };

    let gone = with(&|config| config.cluster()["server"] = json!("https://127.0.0.1:1"));
    assert!(
        gone.contains("API server (bad): Check that the cluster of your kubeconfig can be reached"),
        "{gone}"
    );
    let proxy = with(&|config| config.cluster()["proxy-url"] = json!("http://127.0.0.1:1"));
    assert!(proxy.contains("API server (bad): Check the proxy"), "{proxy}");
    let other_ca = concat!(env!("CARGO_MANIFEST_DIR"), "/../sandpod/tests/cluster/other_ca.pem");
    let ca = with(&|config| {
        config.cluster()["certificate-authority-data"] = json!(null);
        config.cluster()["certificate-authority"] = json!(other_ca);
    });
    assert!(
        ca.contains("API server (bad): The server has no certificate that the kubeconfig trusts"),
        "{ca}"
    );
    let login = examine(&Kubeconfig::of(json!({ "token": "none" })));
    assert!(login.contains("API server (bad): Log in again"), "{login}");
    cluster.finish().await;
}
