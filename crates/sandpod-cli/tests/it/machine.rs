//! The command with closed pipes, odd inputs, read-only directories, signals and concurrent calls.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::Stdio;

use crate::transcript::Stage;

/// The remaining sandboxes in the home of the stage.
fn left(stage: &Stage) -> String {
    stage.run("ls -A .local/state/sandpod/local 2> /dev/null; true")
}

#[test]
fn a_closed_pipe_ends_run_and_deletes_the_sandbox() {
    let stage = Stage::new();
    let printed = stage.run("(sandpod run yes; echo \"[exit $?]\" >&2) | head -1");
    assert_eq!(printed, "y\n[exit 141]\n");
    assert_eq!(left(&stage), "");
}

#[test]
fn output_to_a_closed_pipe_is_silent() {
    let stage = Stage::new();
    let until_it_is_gone = "trap '' PIPE; while echo 2> /dev/null; do :; done";
    let printed = stage.run(&format!(
        "({until_it_is_gone}; sandpod --help; sandpod config show; echo \"[exit $?]\" >&2) | true; wait"
    ));
    assert_eq!(printed, "[exit 141]\n");
}

#[test]
fn stdin_may_be_a_file_empty_or_closed() {
    let stage = Stage::new();
    assert_eq!(stage.run("seq 100000 > numbers; sandpod run 'wc -l' < numbers").trim(), "100000");
    assert_eq!(stage.run("sandpod run 'wc -c' < /dev/null").trim(), "0");
    assert_eq!(stage.run("sandpod run 'echo no input needed' <&-"), "no input needed\n");
}

#[test]
fn a_command_that_does_not_read_stdin_is_not_blocked_by_it() {
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
fn run_works_without_home_if_xdg_state_home_is_set() {
    let stage = Stage::new();
    assert_eq!(
        stage.run("mkdir state; env -u HOME XDG_STATE_HOME=$PWD/state sandpod run 'echo fine'"),
        "fine\n"
    );
}

#[test]
fn an_unwritable_state_directory_is_named_with_the_next_step() {
    let stage = Stage::new();
    let printed = stage.run("XDG_STATE_HOME=/proc/x sandpod run 'echo fine'");
    assert!(printed.contains("/proc/x") && printed.contains("next: "), "{printed}");
    assert!(printed.ends_with("[exit 125]\n"), "{printed}");
    let printed = stage.run("XDG_STATE_HOME=/proc/x sandpod create");
    assert!(printed.contains("next: ") && !printed.contains("[exit 125]"), "{printed}");
}

#[test]
fn run_works_with_a_read_only_home() {
    assert_eq!(Stage::new().run("HOME=/proc sandpod run 'echo fine'"), "fine\n");
}

#[test]
fn an_installed_guest_is_preferred_to_the_command_itself() {
    let stage = Stage::new();
    stage.run("mkdir -p app/guest/amd64 app/guest/arm64; cp $(readlink -f $(command -v sandpod)) app");
    assert_eq!(stage.run("app/sandpod run 'echo its own'"), "its own\n");
    // A file that is no guest shows which one is started.
    stage.run("tee app/guest/amd64/sandpod-guest app/guest/arm64/sandpod-guest < /bin/false > none; chmod -R +x app");
    let printed = stage.run("app/sandpod run 'echo fine'");
    assert!(printed.contains("Can't make a sandbox on this machine"), "{printed}");
    let printed = stage.run("SANDPOD_GUEST_DIR=$PWD/nowhere sandpod run 'echo fine'");
    assert!(printed.contains("/nowhere") && printed.contains("SANDPOD_GUEST_DIR"), "{printed}");
}

#[test]
fn a_sandbox_of_root_runs_as_nobody_on_the_machine() {
    let stage = Stage::new();
    if stage.run("id -u") != "0\n" {
        return; // The sandboxes of other users run as these users.
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
fn the_guest_is_named_after_its_sandbox_on_the_machine() {
    let stage = Stage::new();
    stage.run("sandpod create --id named --quiet");
    let names = stage.run(
        "guest=$(cat .local/state/sandpod/local/named/lock); outside=$(ps -o ppid= -p $guest | tr -d ' '); \
         ps -o comm=,args= -p $guest,$outside",
    );
    stage.run("sandpod delete named");
    assert_eq!(names.lines().count(), 2, "{names}");
    assert!(names.lines().all(|line| line.starts_with("sandpod-guest ")), "{names}");
    assert!(names.lines().all(|line| line.contains(" sandpod-guest named ")), "{names}");
}

#[test]
fn a_sandbox_has_the_names_of_the_distribution() {
    let stage = Stage::new();
    if stage.run("test -e /etc/os-release; echo $?") == "0\n" {
        assert_eq!(stage.run("sandpod run 'cat /etc/os-release' | cmp - /etc/os-release"), "");
    }
    assert_eq!(stage.run("sandpod run 'echo x 2> /dev/null > /etc/os-release || echo denied'"), "denied\n");
}

#[test]
fn concurrent_sandboxes_are_isolated() {
    let stage = Stage::new();
    let line = "(sandpod run 'echo one > f; sleep 0.5; cat f') & (sandpod run 'echo two > f; sleep 0.5; cat f') & wait";
    let mut lines: Vec<_> = stage.run(line).lines().map(str::to_owned).collect();
    lines.sort();
    assert_eq!(lines, ["one", "two"]);
    assert_eq!(left(&stage), "");
}

#[test]
fn concurrent_creates_of_one_id_get_the_same_sandbox() {
    let stage = Stage::new();
    stage.run("sandpod create --id one --quiet & sandpod create --id one --quiet & wait");
    assert_eq!(stage.run("sandpod list --quiet"), "one\n");
    stage.run("sandpod delete one");
}

#[test]
fn output_has_no_colours_and_no_escapes_from_a_sandbox() {
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
fn verbose_describes_steps_in_words_on_stderr_only() {
    let stage = Stage::new();
    let steps = stage.run("sandpod -v run true");
    assert!(
        steps.contains("create in sp-") && steps.contains(": done in ") && !steps.contains("targets"),
        "{steps}"
    );
    assert_eq!(stage.run("sandpod --verbose run 'echo result' 2> log"), "result\n");
    assert_eq!(stage.run("sandpod run 'echo result' 2>&1"), "result\n");
}

#[test]
fn verbose_logs_only_our_own_crates() {
    let stage = Stage::new();
    let log = stage.run("sandpod -vv run true 2>&1 | sed 's/^[^ ]* *//'");
    assert!(log.contains("sandpod::"), "{log}");
    assert!(log.lines().all(|line| line.contains(" sandpod")), "{log}");
}

#[test]
fn an_error_on_a_full_stderr_keeps_its_exit_code() {
    for option in ["", "--verbose"] {
        assert_eq!(Stage::new().run(&format!("sandpod info nope {option} 2> /dev/full")), "[exit 3]\n");
    }
}

#[test]
fn a_non_blocking_stdout_gets_all_output() {
    let (mut reader, writer) = std::io::pipe().unwrap();
    rustix::io::ioctl_fionbio(&writer, true).unwrap();
    let stage = Stage::new();
    let mut child = stage.command("sandpod run 'seq 1 300000'").stdout(writer).spawn().unwrap();
    // As full as a pipe of 64 KiB may get by whole pages.
    while rustix::io::ioctl_fionread(&reader).unwrap() < 60 << 10 {
        assert!(child.try_wait().unwrap().is_none(), "the command has ended");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let mut printed = String::new();
    reader.read_to_string(&mut printed).unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(printed.lines().count(), 300_000);
}

#[test]
fn labels_before_and_after_the_command_are_merged() {
    let stage = Stage::new();
    let printed = stage.run("sandpod --label a=1 create --id labels --label b=2 | grep =");
    assert_eq!(printed, "label:        a=1\nlabel:        b=2\n");
    assert_eq!(stage.run("sandpod --label a=1 list --label b=3 --quiet"), "");
    stage.run("sandpod delete labels");
}

#[test]
fn no_stdin_leaves_the_input_of_a_shell_loop_alone() {
    let stage = Stage::new();
    stage.run("sandpod create --id loop --quiet");
    let line = "printf 'one\\ntwo\\n' | while read -r name; do sandpod exec loop --no-stdin -c \"cat; echo $name\"; done";
    assert_eq!(stage.run(line), "one\ntwo\n");
    stage.run("sandpod delete loop");
}

#[test]
fn attach_sends_input_only_to_commands_started_with_stdin() {
    let stage = Stage::new();
    stage.run("sandpod create --id input --quiet; sandpod exec input --detach --stdin -c 'cat; echo end'");
    assert_eq!(stage.run("echo hello | sandpod attach input --from-start"), "hello\nend\n");
    stage.run("sandpod exec input --detach -c 'until [ -e go ]; do sleep 0.05; done'");
    let line = "echo hello | sandpod attach input 2> note & until grep -s input note; do sleep 0.05; done; \
                sandpod exec input -- touch go; wait";
    assert_eq!(
        stage.run(line),
        "the command takes no input: start it with `sandpod exec --detach --stdin`\n"
    );
    stage.run("sandpod delete input");
}

#[test]
fn json_holds_the_output_of_an_interrupted_command() {
    let stage = Stage::new();
    stage.run("sandpod create --id json --quiet");
    // So much output fits in no buffer: `taken` exists only after its beginning was read.
    let line = "echo begun; head -c 8M /dev/zero | tr '\\0' x; touch taken; sleep 1000";
    let mut child = stage.command(&format!("exec sandpod exec json --output json -c \"{line}\""));
    let child = child.stdout(Stdio::piped()).spawn().unwrap();
    stage.run("until sandpod ls json taken 2> /dev/null; do sleep 0.05; done");
    stage.run(&format!("kill -TERM {}", child.id()));
    let output = child.wait_with_output().unwrap();
    let value: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(value["stdout"].as_str().unwrap().starts_with("begun\nxxx"), "{value}");
    assert_eq!((output.status.code(), &value["exit_code"]), (Some(143), &143.into()));
    stage.run("sandpod delete json");
}

#[test]
fn json_holds_the_output_of_a_command_killed_by_the_second_signal() {
    let stage = Stage::new();
    stage.run("sandpod create --id stubborn --quiet");
    let line = "trap '' INT TERM; echo begun; head -c 8M /dev/zero | tr '\\0' x; touch taken; sleep 1000";
    let mut child = stage.command(&format!("exec sandpod exec stubborn --output json -c \"{line}\""));
    let child = child.stdout(Stdio::piped()).spawn().unwrap();
    stage.run("until sandpod ls stubborn taken 2> /dev/null; do sleep 0.05; done");
    stage.run(&format!("kill -INT {0}; kill -TERM {0}", child.id()));
    let output = child.wait_with_output().unwrap();
    let value: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(value["stdout"].as_str().unwrap().starts_with("begun\n"), "{value}");
    assert!(value["exit_code"].is_null() && value["error"].is_null(), "{value}");
    assert!(matches!(output.status.code(), Some(130 | 143)), "{:?}", output.status);
    stage.run("sandpod delete stubborn");
}

#[test]
fn interrupted_logs_follow_prints_json_and_leaves_the_command_running() {
    let stage = Stage::new();
    stage.run("sandpod create --id follow --quiet; sandpod exec follow --detach -c 'echo begun; sleep 1000'");
    stage.run("until sandpod logs follow | grep -q begun; do sleep 0.05; done");
    let mut child = stage.command("exec sandpod logs follow --follow --output json -vv");
    let mut child = child.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // It handles signals once it has listed the processes.
    let mut log = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    assert!(log.any(|line| line.contains("\"processes\"") && line.contains("ended")));
    stage.run(&format!("kill -INT {}", child.id()));
    let output = child.wait_with_output().unwrap();
    let value: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(value["process"] == "p1" && value["exit_code"].is_null(), "{value}");
    assert_eq!(output.status.code(), Some(130));
    stage.run("sandpod delete follow");
}

#[test]
fn json_holds_the_output_and_the_error_when_the_sandbox_ends() {
    let stage = Stage::new();
    stage.run("sandpod create --id ends --quiet");
    let line = "echo begun; head -c 8M /dev/zero | tr '\\0' x; touch taken; sleep 1000";
    let mut child = stage.command(&format!("exec sandpod exec ends --output json -c \"{line}\""));
    let child = child.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    stage.run("until sandpod ls ends taken 2> /dev/null; do sleep 0.05; done; sandpod delete ends");
    let output = child.wait_with_output().unwrap();
    let value: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(value["stdout"].as_str().unwrap().starts_with("begun\n"), "{value}");
    assert!(value["error"]["message"].is_string() && value["exit_code"].is_null(), "{value}");
    assert_eq!(output.status.code(), Some(255));
}

#[test]
fn write_to_an_unknown_sandbox_fails_before_stdin_ends() {
    let stage = Stage::new();
    let mut child = stage.command("sandpod write nope f").stdin(Stdio::piped()).spawn().unwrap();
    let _open = child.stdin.take();
    assert_eq!(child.wait().unwrap().code(), Some(3));
}

#[test]
fn a_write_to_a_read_only_path_suggests_writable_ones() {
    let stage = Stage::new();
    stage.run("sandpod create --id places --quiet");
    let printed = stage.run("echo x | sandpod write places /etc/x");
    assert!(printed.contains("read-only") && printed.contains("/tmp"), "{printed}");
    stage.run("sandpod delete places");
}

#[test]
fn calling_the_guest_by_hand_explains_that_it_is_internal() {
    let printed = Stage::new().run("sandpod guest < /dev/null");
    assert!(printed.contains("`sandpod guest` is internal") && printed.ends_with("[exit 2]\n"), "{printed}");
}

#[test]
fn completions_have_the_values_of_modes() {
    let stage = Stage::new();
    let complete = |option: &str| {
        let words = format!("_CLAP_IFS=, _CLAP_COMPLETE_INDEX=2 sandpod -- sandpod {option} ''");
        stage.run(&format!("COMPLETE=bash {words}"))
    };
    assert!(complete("--mode").starts_with("agent-sandbox,raw,local"), "{}", complete("--mode"));
    let modes = "exec,tunnel,gateway,direct,in-cluster";
    assert!(complete("--connection-mode").starts_with(modes), "{}", complete("--connection-mode"));
    assert_eq!(stage.run("sandpod help exec"), stage.run("sandpod exec --help"));
}

#[test]
fn options_may_stand_before_or_after_the_command() {
    let stage = Stage::new();
    let before = stage.run("sandpod --output json --mode local stats");
    assert_eq!(before, stage.run("sandpod stats --output json --backend local"));
    assert!(before.contains("\"total\": 0"), "{before}");
}

#[test]
fn manifests_reject_options_that_do_not_apply() {
    let stage = Stage::new();
    for (arguments, message) in [
        ("namespace", "No namespace is named"),
        ("reaper --namespace x", "--image"),
        ("rbac --mode local", "Local mode has no manifests"),
        ("template --mode raw", "A SandboxTemplate does not apply to raw mode"),
        ("networkpolicy --namespace x --name y", "--name does not apply to these manifests"),
    ] {
        let printed = stage.run(&format!("sandpod manifests {arguments}"));
        assert!(
            printed.contains(message) && printed.contains("next: ") && printed.ends_with("[exit 2]\n"),
            "{printed}"
        );
    }
}
