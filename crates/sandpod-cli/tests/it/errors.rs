//! Messages and exit codes of failures.

use super::user::{ORDINARY, User, is_root};
use super::{stderr, stdout};
use crate::transcript::Stage;

/// A policy file with a rule for commands and one for texts.
const POLICY: &str =
    "printf '[policy]\\ndeny_commands = [\"curl\"]\\ndeny_texts = [\"shadow\"]\\n' > policy.toml; ";

#[test]
fn denied_command_names_the_rule_and_is_not_started() {
    let stage = Stage::new();
    let denied = |rule: &str| {
        format!(
            "error: Policy denied: command blocked by policy (rule '{rule}').\n  next: Use a path or command that the \
             policy allows, or change the policy: it is `policy` in the configuration.\n[exit 125]\n"
        )
    };
    let run = |line: &str| stage.run(&format!("{POLICY}sandpod --config policy.toml run '{line}'"));
    assert_eq!(run("true; curl x"), denied("curl"));
    assert_eq!(run("cat /etc/shadow"), denied("shadow"));
}

#[test]
fn rules_on_commands_are_bound_with_the_sandbox_for_later_clients() {
    let stage = Stage::new();
    stage.run(&format!("{POLICY}sandpod --config policy.toml create --id bound --quiet"));
    let denied = stage.run("sandpod exec bound -- curl x");
    assert!(denied.contains("(rule 'curl')") && denied.ends_with("[exit 125]\n"), "{denied}");
    let other = "SANDPOD_POLICY='{\"deny_commands\": [\"wget\"]}' sandpod exec bound -c";
    assert!(stage.run(&format!("{other} 'wget x'")).contains("(rule 'wget')"));
    assert!(stage.run(&format!("{other} 'cat /etc/shadow'")).contains("(rule 'shadow')"));
    assert_eq!(stage.run("sandpod exec bound -- echo fine"), "fine\n");
    stage.run("sandpod delete bound");
}

#[test]
fn denied_path_is_explained_without_a_python_tuple() {
    let stage = Stage::new();
    stage.run("sandpod create --id path --quiet");
    let write = "echo x | SANDPOD_POLICY='{\"allow_prefixes\": [\"/workspace\"]}' sandpod write path /tmp/x";
    let denied = stage.run(write);
    assert!(
        denied.starts_with("error: Path '/tmp/x' is not under an allowed prefix: '/workspace/'.\n"),
        "{denied}"
    );
    assert!(denied.ends_with("[exit 5]\n") && denied.contains("change the policy"), "{denied}");
    stage.run("sandpod delete path");
}

#[test]
fn unreadable_file_in_a_copied_directory_is_a_permission_error() {
    let user = User::new(is_root().then_some(ORDINARY));
    let copied = user.outside(
        "cd && mkdir dir && echo x > dir/closed && chmod 0 dir/closed && ~/sandpod create --id copy --quiet && \
         ~/sandpod cp dir copy:; code=$?; ~/sandpod delete copy --quiet; exit $code",
    );
    assert_eq!(copied.status.code(), Some(5));
    let message = stderr(&copied);
    assert!(message.contains("dir/closed for the upload: Permission denied"), "{message}");
    assert!(message.contains("next: Check the permissions of the file."), "{message}");
}

#[test]
fn missing_program_in_the_background_is_not_started() {
    let stage = Stage::new();
    stage.run("sandpod create --id back --quiet");
    let missing = stage.run("sandpod exec --detach back -- no-such-program");
    assert!(
        missing.starts_with("error: The command was not started: there is no program no-such-program.\n")
            && missing.ends_with("[exit 125]\n"),
        "{missing}"
    );
    let name = stage.run("sandpod exec --detach back -- sleep 100");
    assert!(name.starts_with('p') && !name.contains("exit"), "{name}");
    stage.run("sandpod delete back");
}

#[test]
fn pattern_with_an_open_bracket_gets_a_note() {
    let stage = Stage::new();
    stage.run("sandpod create --id glob --quiet; sandpod exec glob -c 'touch [ a'");
    assert_eq!(stage.run("sandpod glob glob '['"), "/workspace/[\n");
    let unmatched = stage.run("sandpod glob glob '[a'");
    assert!(
        unmatched.starts_with("the pattern has a '[' without a ']'") && unmatched.ends_with("[exit 1]\n"),
        "{unmatched}"
    );
    assert_eq!(stage.run("sandpod glob glob '[b]'"), "[exit 1]\n");
    stage.run("sandpod delete glob");
}

#[test]
fn full_disk_at_create_is_an_exceeded_quota() {
    if !is_root() {
        return; // Only root may mount the small file system.
    }
    let stage = Stage::new();
    let full = stage.run(
        "mkdir .local; unshare -m sh -c 'mount -t tmpfs -o size=64k none .local && \
         cat /dev/zero > .local/big 2> /dev/null; sandpod create'",
    );
    assert!(
        full.contains("No space left on device") && full.contains("next: Free space on that disk"),
        "{full}"
    );
    assert!(full.ends_with("[exit 6]\n"), "{full}");
}

#[test]
fn invalid_configuration_of_a_run_is_a_usage_error() {
    let stage = Stage::new();
    let invalid = stage.run("SANDPOD_MEMORY_LIMIT=64MB sandpod run true");
    assert!(invalid.ends_with("[exit 2]\n"), "{invalid}");
    let invalid = stage.run("SANDPOD_MEMORY_LIMIT=64MB sandpod exec work -- true");
    assert!(invalid.ends_with("[exit 2]\n"), "{invalid}");
}

#[test]
fn lost_sandbox_differs_from_one_whose_time_is_up() {
    let stage = Stage::new();
    stage.run("sandpod create --id killed --quiet; sandpod exec killed -c 'echo kept > file'");
    stage.run("sandpod create --id short --ttl 1s --quiet");
    stage.run("kill -KILL $(cat .local/state/sandpod/local/killed/lock)");
    stage.run("until sandpod info short | grep -q terminated; do sleep 0.1; done");
    stage.run("until sandpod info killed | grep -q lost; do sleep 0.1; done");
    let listed = stage.run("sandpod list");
    let row = |id: &str| listed.lines().find(|line| line.starts_with(id)).unwrap_or_default();
    assert!(row("killed").contains(" lost ") && row("killed").contains(" never "), "{listed}");
    assert!(row("short").contains(" terminated ") && row("short").contains(" ago "), "{listed}");
    assert_eq!(stage.run("sandpod exec killed -- cat file"), "kept\n");
    stage.run("sandpod delete killed short");
}

#[test]
fn truncated_json_output_is_flagged_and_noted() {
    let stage = Stage::new();
    let line = "sandpod run --output json 'head -c 2000000 /dev/zero | tr \"\\0\" x' > json 2> notes; \
                grep -c '\"truncated\": true' json; cat notes";
    assert_eq!(
        stage.run(line),
        "1\nthe output is truncated: JSON has the first 1 MiB of stdout and of stderr\n"
    );
}

#[test]
fn missing_program_of_a_run_is_an_error_with_a_next_step() {
    let output = super::sandpod(&["run", "--", "no-such-program"]).output().unwrap();
    let message = stderr(&output);
    assert!(
        message.starts_with(
            "error: The command was not started: there is no program no-such-program.\n  next: "
        ),
        "{message}"
    );
    assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(125), ""));
}

#[test]
fn command_without_network_gets_a_note() {
    let stage = Stage::new();
    let failed = stage.run("sandpod run 'echo \"curl: (6) Could not resolve host: x\" >&2; exit 6'");
    assert!(
        failed.contains("Could not resolve host: x\nthis sandbox has no network; see --network\n"),
        "{failed}"
    );
    assert!(failed.ends_with("[exit 6]\n"), "{failed}");
    assert_eq!(stage.run("sandpod run 'echo Could not resolve host'"), "Could not resolve host\n");
    assert_eq!(stage.run("sandpod run 'echo other; exit 6'"), "other\n[exit 6]\n");
}
