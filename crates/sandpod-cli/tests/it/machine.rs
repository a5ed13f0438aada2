//! The command on machines and in pipes that are not as one would like them.

use std::io::{BufRead as _, BufReader, Read as _};
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
    let until_it_is_gone = "trap '' PIPE; while echo 2> /dev/null; do :; done";
    let printed = stage.run(&format!(
        "({until_it_is_gone}; sandpod --help; sandpod config show; echo \"[exit $?]\" >&2) | true; wait"
    ));
    assert_eq!(printed, "[exit 141]\n");
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
fn a_guest_that_was_installed_with_the_command_is_taken_before_its_own() {
    let stage = Stage::new();
    stage.run("mkdir -p app/guest/amd64 app/guest/arm64; cp $(readlink -f $(command -v sandpod)) app");
    assert_eq!(stage.run("app/sandpod run 'echo its own'"), "its own\n");
    // What is no guest at all shows which one was taken.
    stage.run("tee app/guest/amd64/sandpod-guest app/guest/arm64/sandpod-guest < /bin/false > none; chmod -R +x app");
    let printed = stage.run("app/sandpod run 'echo fine'");
    assert!(printed.contains("Can't make a sandbox on this machine"), "{printed}");
    let printed = stage.run("SANDPOD_GUEST_DIR=$PWD/nowhere sandpod run 'echo fine'");
    assert!(printed.contains("/nowhere") && printed.contains("SANDPOD_GUEST_DIR"), "{printed}");
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
fn of_what_is_done_only_our_own_is_said() {
    let stage = Stage::new();
    let said = stage.run("sandpod --verbose run true 2>&1 | sed 's/^[^ ]* *//'");
    assert!(said.contains("sandpod::"), "{said}");
    assert!(said.lines().all(|line| line.contains(" sandpod")), "{said}");
}

#[test]
fn an_error_that_nobody_can_read_has_its_exit_code_all_the_same() {
    for option in ["", "--verbose"] {
        assert_eq!(Stage::new().run(&format!("sandpod info nope {option} 2> /dev/full")), "[exit 3]\n");
    }
}

#[test]
fn an_output_that_does_not_wait_for_its_reader_gets_all_of_it() {
    let (mut reader, writer) = std::io::pipe().unwrap();
    rustix::io::ioctl_fionbio(&writer, true).unwrap();
    let stage = Stage::new();
    let mut child = stage.command("sandpod run 'seq 1 300000'").stdout(writer).spawn().unwrap();
    // As full as a pipe of 64 KiB may get by whole pages.
    while rustix::io::ioctl_fionread(&reader).unwrap() < 60 << 10 {
        assert!(child.try_wait().unwrap().is_none(), "it has given up");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let mut printed = String::new();
    reader.read_to_string(&mut printed).unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(printed.lines().count(), 300_000);
}

#[test]
fn labels_before_and_after_the_command_are_all_taken() {
    let stage = Stage::new();
    let printed = stage.run("sandpod --label a=1 create --id labels --label b=2 | grep =");
    assert_eq!(printed, "label:        a=1\nlabel:        b=2\n");
    assert_eq!(stage.run("sandpod --label a=1 list --label b=3 --quiet"), "");
    stage.run("sandpod delete labels");
}

#[test]
fn a_loop_over_lines_keeps_its_input_from_the_commands_in_it() {
    let stage = Stage::new();
    stage.run("sandpod create --id loop --quiet");
    let line = "printf 'one\\ntwo\\n' | while read -r name; do sandpod exec loop --no-stdin -c \"cat; echo $name\"; done";
    assert_eq!(stage.run(line), "one\ntwo\n");
    stage.run("sandpod delete loop");
}

#[test]
fn what_is_sent_to_a_command_in_the_background_arrives_if_it_was_started_for_it() {
    let stage = Stage::new();
    stage.run("sandpod create --id input --quiet; sandpod exec input --detach --stdin -c 'cat; echo end'");
    assert_eq!(stage.run("echo hello | sandpod attach input --from-start"), "hello\nend\n");
    stage.run("sandpod exec input --detach -c 'until [ -e go ]; do sleep 0.05; done'");
    let line = "echo hello | sandpod attach input 2> said & until grep -s input said; do sleep 0.05; done; \
                sandpod exec input -- touch go; wait";
    assert_eq!(stage.run(line), "it takes no input: `sandpod exec --detach --stdin` starts one that does\n");
    stage.run("sandpod delete input");
}

#[test]
fn an_interrupted_command_leaves_what_it_wrote_as_json() {
    let stage = Stage::new();
    stage.run("sandpod create --id json --quiet");
    // That much is not taken unless its beginning was.
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
fn a_command_that_ignores_signals_leaves_what_it_wrote_when_the_second_one_kills_it() {
    let stage = Stage::new();
    stage.run("sandpod create --id deaf --quiet");
    let line = "trap '' INT TERM; echo begun; head -c 8M /dev/zero | tr '\\0' x; touch taken; sleep 1000";
    let mut child = stage.command(&format!("exec sandpod exec deaf --output json -c \"{line}\""));
    let child = child.stdout(Stdio::piped()).spawn().unwrap();
    stage.run("until sandpod ls deaf taken 2> /dev/null; do sleep 0.05; done");
    stage.run(&format!("kill -INT {0}; kill -TERM {0}", child.id()));
    let output = child.wait_with_output().unwrap();
    let value: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(value["stdout"].as_str().unwrap().starts_with("begun\n"), "{value}");
    assert!(value["exit_code"].is_null() && value["error"].is_null(), "{value}");
    assert!(matches!(output.status.code(), Some(130 | 143)), "{:?}", output.status);
    stage.run("sandpod delete deaf");
}

#[test]
fn whoever_only_follows_a_command_may_be_interrupted_and_leaves_json_too() {
    let stage = Stage::new();
    stage.run("sandpod create --id follow --quiet; sandpod exec follow --detach -c 'echo begun; sleep 1000'");
    stage.run("until sandpod logs follow | grep -q begun; do sleep 0.05; done");
    let mut child = stage.command("exec sandpod logs follow --follow --output json -v");
    let mut child = child.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // When it has found the command, it listens for signals.
    let mut said = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    assert!(said.any(|line| line.contains("\"processes\"") && line.contains("ended")));
    stage.run(&format!("kill -INT {}", child.id()));
    let output = child.wait_with_output().unwrap();
    let value: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(value["process"] == "p1" && value["exit_code"].is_null(), "{value}");
    assert_eq!(output.status.code(), Some(130));
    stage.run("sandpod delete follow");
}

#[test]
fn what_a_command_wrote_until_its_sandbox_ended_is_in_one_json_value_with_the_error() {
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
fn a_file_for_no_sandbox_is_refused_before_all_of_it_was_read() {
    let stage = Stage::new();
    let mut child = stage.command("sandpod write nope f").stdin(Stdio::piped()).spawn().unwrap();
    let _open = child.stdin.take();
    assert_eq!(child.wait().unwrap().code(), Some(3));
}

#[test]
fn a_place_that_is_read_only_is_told_apart_from_those_that_are_not() {
    let stage = Stage::new();
    stage.run("sandpod create --id places --quiet");
    let printed = stage.run("echo x | sandpod write places /etc/x");
    assert!(printed.contains("Read-only") && printed.contains("/tmp"), "{printed}");
    stage.run("sandpod delete places");
}

#[test]
fn what_only_the_command_itself_calls_has_a_sentence_for_people() {
    let printed = Stage::new().run("sandpod guest < /dev/null");
    assert!(printed.contains("runs in a local sandbox") && printed.ends_with("[exit 2]\n"), "{printed}");
}

#[test]
fn the_values_of_modes_are_completed() {
    let stage = Stage::new();
    let script = stage.run("sandpod completions bash");
    assert!(script.contains("\"local raw agent-sandbox\""), "--mode");
    assert!(script.contains("\"exec tunnel gateway direct in-cluster\""), "--connection-mode");
    assert_eq!(stage.run("sandpod help exec"), stage.run("sandpod exec --help"));
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
    ] {
        let printed = stage.run(&format!("sandpod manifests {arguments}"));
        assert!(
            printed.contains(said) && printed.contains("next: ") && printed.ends_with("[exit 2]\n"),
            "{printed}"
        );
    }
}
