//! `sandpod doctor` without a cluster. The library's tests cover the judgement of each part of a machine.

use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::process::Stdio;

use crate::transcript::Stage;

#[test]
fn doctor_reports_no_bad_check_where_sandboxes_run() {
    let printed = Stage::new().run("sandpod doctor");
    let line = |check: &str| printed.lines().find(|line| line.starts_with(check)).unwrap_or_default();
    for check in ["user namespaces", "AppArmor", "cgroups", "Landlock", "seccomp", "sandbox", "guest"] {
        assert!(!line(check).is_empty(), "{check}: {printed}");
    }
    assert!(line("sandbox").contains("good"), "{printed}");
    assert!(!printed.contains(" bad ") && !printed.contains("[exit"), "{printed}");
}

#[test]
fn doctor_prints_findings_with_verdicts_as_json() {
    let printed = Stage::new().run("sandpod doctor --no-probe --output json");
    let findings: Vec<serde_json::Value> = serde_json::from_str(&printed).unwrap();
    assert_eq!(findings[0]["check"], "user namespaces");
    assert_eq!(findings[0]["verdict"], "good");
}

#[test]
fn doctor_reports_an_unwritable_state_directory_with_a_fix() {
    let printed = Stage::new().run("XDG_STATE_HOME=/proc/x sandpod doctor");
    assert!(printed.contains("sandbox (bad): "), "{printed}");
    assert!(printed.contains("XDG_STATE_HOME") && printed.ends_with("[exit 1]\n"), "{printed}");
}

#[test]
fn doctor_checks_the_cluster_and_template_in_agent_sandbox_mode() {
    let stage = Stage::new();
    let printed = stage.run("sandpod doctor --mode agent-sandbox --kubeconfig nothing");
    assert!(printed.contains("API server (bad): Check it with kubectl"), "{printed}");
    assert!(printed.contains("template (bad): Name it with --template"), "{printed}");
    assert!(!printed.contains("user namespaces") && printed.ends_with("[exit 1]\n"), "{printed}");

    let with_template = "SANDPOD_CONNECTION_MODE=pigeon sandpod doctor --mode agent-sandbox --kubeconfig nothing --template t";
    let printed = stage.run(with_template);
    assert!(printed.contains("configuration (bad): Use 'exec', 'tunnel'"), "{printed}");
    assert!(!printed.contains("template (bad)"), "{printed}");
}

#[test]
fn doctor_prints_each_finding_before_the_next_check() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap(); // an API server that never answers
    let kubeconfig = serde_json::json!({
        "current-context": "here",
        "contexts": [{ "name": "here", "context": { "cluster": "here", "user": "me" } }],
        "clusters": [{ "name": "here", "cluster": { "server": format!("http://{}", silent.local_addr().unwrap()) } }],
        "users": [{ "name": "me", "user": {} }],
    });
    let stage = Stage::new();
    let examine = format!(
        "echo '{kubeconfig}' > kubeconfig && SANDPOD_CONNECTION_MODE=pigeon \
         exec sandpod doctor --mode agent-sandbox --kubeconfig kubeconfig"
    );
    let mut doctor = stage.command(&examine).stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(doctor.stdout.take().unwrap()).lines().map(Result::unwrap);
    let printed: Vec<_> = lines.take(2).collect();
    let is_over = doctor.try_wait().unwrap().is_some();
    doctor.kill().unwrap();
    doctor.wait().unwrap();
    assert_eq!(printed[0], "CHECK                     VERDICT  FOUND");
    assert!(printed[1].starts_with("configuration             bad      ") && !is_over, "{printed:?}");
}
