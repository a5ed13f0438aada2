//! The command on machines and in pipes that are not as one would like them.

use std::process::Stdio;

use crate::transcript::Stage;

/// What is left of sandboxes in the stage's home.
fn left(stage: &Stage) -> String {
    stage.run("ls -A .local/state/sandpod/local 2> /dev/null; true")
}

#[test]
fn whoever_reads_the_output_may_go_and_nothing_is_left_of_the_sandbox() {
    let stage = Stage::new();
    let printed = stage.run("(sandpod run yes; echo \"[exit $?]\" >&2) | head -1");
    assert_eq!(printed, "y\n[exit 141]\n");
    assert_eq!(left(&stage), "");
}

#[test]
fn a_list_whose_reader_has_gone_says_nothing() {
    let stage = Stage::new();
    assert_eq!(
        stage.run("(sandpod --help; sandpod config show; echo \"[exit $?]\" >&2) | true; wait"),
        "[exit 141]\n"
    );
}

#[test]
fn input_comes_from_a_file_or_from_nowhere() {
    let stage = Stage::new();
    assert_eq!(stage.run("seq 100000 > numbers; sandpod run 'wc -l' < numbers").trim(), "100000");
    assert_eq!(stage.run("sandpod run 'wc -c' < /dev/null").trim(), "0");
    assert_eq!(stage.run("sandpod run 'echo no input needed' <&-"), "no input needed\n");
}

#[test]
fn a_command_that_does_not_read_its_input_is_not_held_up_by_it() {
    let stage = Stage::new();
    let mut child = stage
        .command("sandpod run 'echo done'")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let _open = child.stdin.take();
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "done\n");
}

#[test]
fn without_a_home_there_is_still_a_sandbox_where_the_state_may_be_kept() {
    let stage = Stage::new();
    assert_eq!(
        stage.run("mkdir state; env -u HOME XDG_STATE_HOME=$PWD/state sandpod run 'echo fine'"),
        "fine\n"
    );
}

#[test]
fn a_state_directory_that_can_not_be_written_is_named_with_what_to_do() {
    let stage = Stage::new();
    let printed = stage.run("XDG_STATE_HOME=/proc/x sandpod run 'echo fine'");
    assert!(printed.contains("/proc/x") && printed.contains("next: "), "{printed}");
    assert!(printed.ends_with("[exit 125]\n"), "{printed}");
    let printed = stage.run("XDG_STATE_HOME=/proc/x sandpod create");
    assert!(printed.contains("next: ") && !printed.contains("[exit 125]"), "{printed}");
}

#[test]
fn a_home_that_can_not_be_written_keeps_no_command_from_running() {
    assert_eq!(Stage::new().run("HOME=/proc sandpod run 'echo fine'"), "fine\n");
}

#[test]
fn a_sandbox_of_root_is_nobody_on_the_machine() {
    let stage = Stage::new();
    if stage.run("id -u") != "0\n" {
        return; // Sandboxes of others are theirs.
    }
    stage.run("sandpod create --id a --quiet");
    // The guest, and its process outside the namespaces.
    let who = stage.run(
        "guest=$(cat .local/state/sandpod/local/a/lock); outside=$(ps -o ppid= -p $guest | tr -d ' '); \
         grep -hE '^(Uid|Gid|Groups)' /proc/$guest/status /proc/$outside/status",
    );
    stage.run("sandpod delete a");
    let nobody = [65534; 4].map(|id| id.to_string()).join("\t");
    assert_eq!(who, format!("Uid:\t{nobody}\nGid:\t{nobody}\nGroups:\t \n").repeat(2));
}

#[test]
fn two_at_once_do_not_meet() {
    let stage = Stage::new();
    let line = "(sandpod run 'echo one > f; sleep 0.5; cat f') & (sandpod run 'echo two > f; sleep 0.5; cat f') & wait";
    let mut lines: Vec<_> = stage.run(line).lines().map(str::to_owned).collect();
    lines.sort();
    assert_eq!(lines, ["one", "two"]);
    assert_eq!(left(&stage), "");
}

#[test]
fn two_who_name_one_sandbox_get_the_same() {
    let stage = Stage::new();
    stage.run("sandpod create --id one --quiet & sandpod create --id one --quiet & wait");
    assert_eq!(stage.run("sandpod list --quiet"), "one\n");
    stage.run("sandpod delete one");
}

#[test]
fn nothing_is_coloured_and_a_sandbox_can_not_colour_it_either() {
    let stage = Stage::new().with("NO_COLOR", "1");
    stage.run("sandpod create --id c --quiet; sandpod exec c -c \"touch $(printf 'a\\033[31mb')\"");
    stage.run("sandpod exec c -c \"printf 'x\\033[2Jx' > f; : $(printf '\\033]0;title\\007')\"");
    for line in [
        "sandpod ls c",
        "sandpod ls c --output json",
        "sandpod grep c x",
        "sandpod glob c '*'",
        "sandpod ps c",
    ] {
        let printed = stage.run(line);
        assert!(
            printed.contains("\\u") && !printed.contains('\u{1b}') && !printed.contains('\u{7}'),
            "{line}: {printed}"
        );
    }
    stage.run("sandpod delete c");
}

#[test]
fn what_is_done_is_said_on_stderr_and_only_if_asked_for() {
    let stage = Stage::new();
    assert_eq!(stage.run("sandpod --verbose run 'echo result' 2> log"), "result\n");
    assert_eq!(stage.run("sandpod run 'echo result' 2>&1"), "result\n");
}

#[test]
fn options_stand_before_and_after_the_command() {
    let stage = Stage::new();
    let before = stage.run("sandpod --output json --mode local stats");
    assert_eq!(before, stage.run("sandpod stats --output json --backend local"));
    assert!(before.contains("\"total\": 0"), "{before}");
}

#[test]
fn manifests_that_make_no_sense_are_refused() {
    let stage = Stage::new();
    for (arguments, said) in [
        ("namespace", "A namespace needs a name"),
        ("reaper --namespace x", "--image"),
        ("rbac --mode local", "Local sandboxes need nothing"),
        ("template --mode raw", "A template has no meaning in raw mode"),
        ("networkpolicy --namespace x --name y", "--name has no meaning here"),
        ("reaper --mode agent-sandbox --image x", "time to live of its own"),
    ] {
        let printed = stage.run(&format!("sandpod manifests {arguments}"));
        assert!(
            printed.contains(said) && printed.contains("next: ") && printed.ends_with("[exit 2]\n"),
            "{printed}"
        );
    }
}
