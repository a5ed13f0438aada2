//! The configuration file and the variables.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use tokio::time::Instant;

use super::user::{ORDINARY, User, is_root};
use super::{sandpod, stderr, stdout};

/// The command in a home directory of its own.
struct Home(tempfile::TempDir);

impl Home {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = sandpod(arguments);
        command.env("HOME", self.0.path()).env_remove("XDG_STATE_HOME").env_remove("XDG_CONFIG_HOME");
        command
    }

    fn sandpod(&self, variables: &[(&str, &str)], arguments: &[&str]) -> Output {
        self.command(arguments).envs(variables.iter().copied()).output().unwrap()
    }
}

#[test]
fn only_our_own_variables_must_be_utf8() {
    let home = tempfile::tempdir().unwrap();
    let not_text = OsStr::from_bytes(b"\xff");
    let list = |variable: &str| {
        sandpod(&["list"]).env("XDG_STATE_HOME", home.path()).env(variable, not_text).output().unwrap()
    };
    assert!(list("FOO").status.success(), "{}", stderr(&list("FOO")));
    let ours = list("SANDPOD_IMAGE");
    assert_eq!(ours.status.code(), Some(2));
    assert!(stderr(&ours).contains("the variable SANDPOD_IMAGE is not UTF-8"), "{}", stderr(&ours));
}

#[test]
fn an_argument_that_is_not_utf8_is_a_usage_error() {
    for words in [&["rnu"][..], &["run", "--rm"], &["list"]] {
        let refused = sandpod(words).arg(OsStr::from_bytes(b"\xff")).output().unwrap();
        assert_eq!(refused.status.code(), Some(2), "{words:?}");
        assert!(stderr(&refused).starts_with("error: "), "{}", stderr(&refused));
    }
}

#[test]
fn a_ttl_of_zero_is_rejected_from_every_source() {
    let home = Home::new();
    for variable in ["SANDPOD_TTL_SECONDS", "SANDPOD_TTL_IDLE_SECONDS"] {
        let refused = home.sandpod(&[(variable, "0")], &["create"]);
        assert_eq!((refused.status.code(), stdout(&refused).as_str()), (Some(2), ""));
        assert!(stderr(&refused).contains("is 0"), "{}", stderr(&refused));
    }
    let file = home.0.path().join("config.toml");
    std::fs::write(&file, "ttl_seconds = 0").unwrap();
    let refused = home.sandpod(&[("SANDPOD_CONFIG", file.to_str().unwrap())], &["create"]);
    assert!(stderr(&refused).contains("ttl_seconds is 0"), "{}", stderr(&refused));
}

#[test]
fn a_command_without_a_timeout_option_has_the_configured_timeout() {
    let home = Home::new();
    let file = home.0.path().join("config.toml");
    std::fs::write(&file, "default_exec_timeout = 1").unwrap();
    let configured = [("SANDPOD_CONFIG", file.to_str().unwrap())];
    assert_eq!(stdout(&home.sandpod(&[], &["create", "--id", "work", "--quiet"])), "work\n");
    for arguments in [&["run", "sleep 60"][..], &["exec", "work", "--", "sleep", "60"]] {
        let ended = home.sandpod(&configured, arguments);
        assert_eq!(
            (ended.status.code(), stderr(&ended).as_str()),
            (Some(124), "Command timed out after 1s\n")
        );
    }

    let variable = [configured[0], ("SANDPOD_DEFAULT_EXEC_TIMEOUT", "0")];
    for (variables, arguments) in [
        (&configured[..], &["run", "--timeout", "0", "sleep 1.5; echo done"][..]),
        (&configured, &["exec", "work", "--timeout", "1m", "-c", "sleep 1.5; echo done"]),
        (&variable, &["run", "sleep 1.5; echo done"]),
    ] {
        assert_eq!(stdout(&home.sandpod(variables, arguments)), "done\n", "{arguments:?}");
    }
    home.sandpod(&[], &["delete", "work"]);
}

#[test]
fn a_run_without_a_ttl_option_has_the_configured_ttl_by_either_name() {
    let home = Home::new();
    for variable in ["SANDPOD_TTL_SECONDS", "SANDPOD_POD_TTL_SECONDS"] {
        let started = Instant::now();
        let ended = home.sandpod(&[(variable, "1")], &["run", "sleep 60"]);
        assert!(!ended.status.success() && started.elapsed() < Duration::from_secs(30), "{}", stderr(&ended));
    }
}

#[test]
fn a_running_command_counts_as_use_of_its_sandbox() {
    let long = Home::new().sandpod(&[("SANDPOD_TTL_IDLE_SECONDS", "5")], &["run", "sleep 12; echo done"]);
    assert_eq!(stdout(&long), "done\n", "{}", stderr(&long));
}

#[test]
fn the_sandbox_of_a_run_expires_an_hour_after_its_last_use() {
    let home = Home::new();
    let mut run = home.command(&["run", "cat"]).stdin(Stdio::piped()).spawn().unwrap();
    let listed = loop {
        let listed = stdout(&home.sandpod(&[], &["list"]));
        if listed.contains("running") {
            break listed;
        }
    };
    // An hour, plus the time until the last use is recorded.
    assert!(listed.contains(" in 1h"), "{listed}");
    drop(run.stdin.take());
    assert!(run.wait().unwrap().success());
}

#[test]
fn an_unreachable_default_configuration_is_skipped_and_an_unreadable_one_is_not() {
    let user = User::new(is_root().then_some(ORDINARY));
    let run = |closed: &str| {
        user.outside(&format!(
            "mkdir -p ~/c/sandpod && echo 'mode = \"raw\"' > ~/c/sandpod/config.toml && chmod 0 ~/c{closed} && \
             XDG_CONFIG_HOME=~/c ~/sandpod run 'echo fine'; code=$?; chmod -R u+rwX ~/c; exit $code"
        ))
    };
    let elsewhere = run("");
    assert_eq!(stdout(&elsewhere), "fine\n");
    let message = stderr(&elsewhere);
    assert!(
        message.starts_with("warning: The configuration in ") && message.contains("Permission denied"),
        "{message}"
    );
    let own = run("/sandpod/config.toml");
    assert_eq!(own.status.code(), Some(2));
    assert!(stderr(&own).starts_with("error: The configuration can't be read from "), "{}", stderr(&own));
}

#[test]
fn a_limit_that_cannot_be_enforced_is_warned_about_once() {
    let user = User::new(is_root().then_some(ORDINARY));
    let warnings = |limit: &str| {
        let printed = stderr(&user.outside(&format!("{limit} ~/sandpod run true")));
        printed.matches("not held to memory_limit: no cgroup can be made here").count()
    };
    let is_held = stdout(&user.outside(
        "SANDPOD_MEMORY_LIMIT=64Mi ~/sandpod create --id held > /dev/null && \
         ~/sandpod info held --output json; ~/sandpod delete held --quiet",
    ))
    .contains("(cgroup)");
    assert_eq!(warnings("SANDPOD_MEMORY_LIMIT=64Mi"), usize::from(!is_held));
    assert_eq!(warnings(""), 0, "no limit was configured");
}

#[test]
fn stats_count_usage_without_a_cgroup() {
    for user in User::all() {
        let printed = user.outside(
            "(~/sandpod create --id counted && ~/sandpod exec counted --detach -- sleep 100) > /dev/null && \
             ~/sandpod stats counted -o json; ~/sandpod delete counted",
        );
        let stats: serde_json::Value = serde_json::from_slice(&printed.stdout).unwrap();
        // The guest, the command's supervisor and the command.
        assert!(stats["tasks"].as_u64().unwrap() >= 3 && stats["task_limit"] == 4096, "{stats}");
        assert!(stats["memory_bytes"].as_u64().unwrap() > 100_000, "{stats}");
    }
}

#[test]
fn plain_http_to_the_api_server_needs_no_certificates() {
    let dir = tempfile::tempdir().unwrap();
    let kubeconfig = dir.path().join("kubeconfig");
    let text = r#"{
        "apiVersion": "v1", "kind": "Config", "current-context": "a",
        "contexts": [{ "name": "a", "context": { "cluster": "a", "user": "a" } }],
        "clusters": [{ "name": "a", "cluster": { "server": "http://127.0.0.1:1" } }],
        "users": [{ "name": "a", "user": {} }]
    }"#;
    std::fs::write(&kubeconfig, text).unwrap();
    let mut list = sandpod(&["list", "--mode", "raw"]);
    list.env("SANDPOD_KUBECONFIG", &kubeconfig);
    list.envs([("SSL_CERT_FILE", "/nowhere"), ("SSL_CERT_DIR", "/nowhere")]);
    let message = stderr(&list.output().unwrap());
    assert!(message.to_lowercase().contains("refused") && !message.contains("ertificate"), "{message}");
}

#[test]
fn in_a_pod_without_a_token_the_error_says_to_mount_one() {
    let home = Home::new();
    let mut list = home.command(&["list", "--mode", "raw"]);
    list.envs([("KUBERNETES_SERVICE_HOST", "127.0.0.1"), ("KUBERNETES_SERVICE_PORT", "1")]);
    let message = stderr(&list.env_remove("KUBECONFIG").output().unwrap());
    for part in
        ["no usable token of a ServiceAccount", "automountServiceAccountToken: true", "deploy/agent.yaml"]
    {
        assert!(message.contains(part), "{part}: {message}");
    }
    assert!(!message.contains("kubectl"), "{message}");
}
