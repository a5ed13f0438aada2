//! Where local sandboxes keep their state, and what is left of one whose creator was killed.

use std::fs;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use super::user::User;
use super::{stderr, stdout};

#[test]
fn gc_deletes_the_sandbox_of_a_killed_run() {
    let state_home = tempfile::tempdir().unwrap();
    let sandpod = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sandpod"));
        command.args(words).env("XDG_STATE_HOME", state_home.path());
        command
    };
    let mut killed = sandpod(&["run", "echo begun; sleep 1000"]).stdout(Stdio::piped()).spawn().unwrap();
    killed.stdout.as_mut().unwrap().read_exact(&mut [0; 6]).unwrap();
    killed.kill().unwrap();
    killed.wait().unwrap();
    // A sandbox is deleted only after its guest has noticed the end of its creator.
    let is_deleted = (0..400).any(|_| {
        std::thread::sleep(Duration::from_millis(50));
        let gc = stdout(&sandpod(&["gc", "--output", "json"]).output().unwrap());
        gc.contains("\"kept\": 0") && !gc.contains("\"deleted\": []")
    });
    assert!(is_deleted, "the sandbox is still there");
}

#[test]
fn run_works_without_a_writable_home() {
    for user in User::all() {
        let tmp = user.home.path().join("tmp");
        fs::create_dir(&tmp).unwrap();
        fs::set_permissions(&tmp, fs::Permissions::from_mode(0o1777)).unwrap();
        for home in [None, Some("/proc/no-such-home")] {
            let mut sandpod = user.command(user.home.path().join("sandpod"));
            sandpod
                .args(["run", "echo $HOME"])
                .env("TMPDIR", &tmp)
                .env_remove("HOME")
                .env_remove("XDG_RUNTIME_DIR");
            sandpod.envs(home.map(|home| ("HOME", home)));
            let output = sandpod.output().unwrap();
            assert_eq!(stdout(&output), "/home/sandbox\n", "{}", stderr(&output));
        }
        let made = fs::read_dir(&tmp).unwrap().flatten();
        for dir in made {
            assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        }
    }
}

#[test]
fn the_first_two_sandboxes_of_a_user_can_start_at_once() {
    for user in User::all() {
        let sandpod = user.home.path().join("sandpod");
        let running = [1, 2].map(|number| {
            let mut command = user.command(&sandpod);
            command.args(["run", &format!("echo {number}")]).stdout(Stdio::piped()).spawn().unwrap()
        });
        let printed = running.map(|child| stdout(&child.wait_with_output().unwrap()));
        assert_eq!(printed, ["1\n", "2\n"]);
    }
}
