//! What keeps local sandboxes from working. How each part of a machine is judged, the library's own tests show.

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
