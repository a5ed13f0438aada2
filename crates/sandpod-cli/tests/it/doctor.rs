//! What keeps local sandboxes from working. How each part of a machine is judged, the library's own tests show.

use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::process::Stdio;

use crate::transcript::Stage;

#[test]
fn a_machine_where_sandboxes_run_is_found_fit() {
    let printed = Stage::new().run("sandpod doctor");
    let line = |check: &str| printed.lines().find(|line| line.starts_with(check)).unwrap_or_default();
    for check in ["user namespaces", "AppArmor", "cgroups", "Landlock", "seccomp", "sandbox", "guest"] {
        assert!(!line(check).is_empty(), "{check}: {printed}");
    }
    assert!(line("sandbox").contains("good"), "{printed}");
    assert!(!printed.contains(" bad ") && !printed.contains("[exit"), "{printed}");
}

#[test]
fn as_json_each_finding_has_its_verdict() {
    let printed = Stage::new().run("sandpod doctor --no-probe --output json");
    let findings: Vec<serde_json::Value> = serde_json::from_str(&printed).unwrap();
    assert_eq!(findings[0]["check"], "user namespaces");
    assert_eq!(findings[0]["verdict"], "good");
}

#[test]
fn a_state_directory_that_can_not_be_written_is_found_with_its_fix() {
    let printed = Stage::new().run("XDG_STATE_HOME=/proc/x sandpod doctor");
    assert!(printed.contains("sandbox (bad): "), "{printed}");
    assert!(printed.contains("XDG_STATE_HOME") && printed.ends_with("[exit 1]\n"), "{printed}");
}

#[test]
fn in_agent_sandbox_mode_the_cluster_is_examined_and_what_is_missing_are_findings() {
    let stage = Stage::new();
    let printed = stage.run("sandpod doctor --mode agent-sandbox --kubeconfig nothing");
    assert!(printed.contains("API server (bad): Check it with kubectl"), "{printed}");
    assert!(printed.contains("template (bad): Name it with --template"), "{printed}");
    assert!(!printed.contains("user namespaces") && printed.ends_with("[exit 1]\n"), "{printed}");

    let named = "SANDPOD_CONNECTION_MODE=pigeon sandpod doctor --mode agent-sandbox --kubeconfig nothing --template t";
    let printed = stage.run(named);
    assert!(printed.contains("configuration (bad): Use 'exec', 'tunnel'"), "{printed}");
    assert!(!printed.contains("template (bad)"), "{printed}");
}

#[test]
fn what_is_found_is_printed_while_the_rest_is_looked_at() {
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
