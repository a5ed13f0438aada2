//! The options of new sandboxes: network, limits, mounts, copies, variables and policies.

use crate::transcript::Stage;
use crate::user::is_root;

#[test]
fn a_mount_is_read_only_unless_rw_is_given() {
    let stage = Stage::new();
    stage.run("mkdir data out; echo hello > data/f; chmod 777 out");
    let line = "'cat data/f; echo x 2>&1 > data/g; ls /o; echo y > /o/made'";
    let printed = stage.run(&format!("sandpod run --mount data --mount out:/o:rw {line}"));
    assert!(printed.starts_with("hello\n") && printed.contains("Read-only file system"), "{printed}");
    assert_eq!(stage.run("cat out/made; ls data"), "y\nf\n");
}

#[test]
fn a_single_file_is_mounted_and_stays_after_a_restart_of_the_guest() {
    let stage = Stage::new();
    stage.run("echo one > f; chmod 644 f; sandpod create --id kept --quiet --mount f:/data/f");
    assert_eq!(stage.run("sandpod exec kept cat /data/f"), "one\n");
    stage.run("kill -KILL $(cat .local/state/sandpod/local/kept/lock)");
    stage.run("until sandpod exec kept true; do sleep 0.1; done");
    assert_eq!(stage.run("echo two > f; sandpod exec kept cat /data/f"), "two\n");
    stage.run("sandpod delete kept");
}

#[test]
fn a_mounted_path_that_becomes_a_link_stops_the_restart() {
    let stage = Stage::new();
    stage.run("mkdir data secret; sandpod create --id swapped --quiet --mount data:/data");
    stage.run("kill -KILL $(cat .local/state/sandpod/local/swapped/lock); mv data moved; ln -s secret data");
    // The first calls may still reach the guest that is being killed.
    let printed = stage.run(
        "for i in $(seq 100); do printed=$(sandpod exec swapped true 2>&1); \
         case $printed in *link*) break;; esac; sleep 0.1; done; echo \"$printed\"",
    );
    assert!(
        printed.contains("data can't be mounted (a part of this path is a symbolic link now)"),
        "{printed}"
    );
    stage.run("sandpod delete swapped");
}

#[test]
fn a_link_at_a_mount_point_leads_to_nothing_on_the_machine() {
    let stage = Stage::new();
    stage.run("echo machine > victim; chmod 666 victim; mkdir data; sandpod create --id trap --quiet --mount data:/workspace/d");
    stage.run("sandpod exec trap 'true'; kill -KILL $(cat .local/state/sandpod/local/trap/lock)");
    let places = ".local/state/sandpod/local/trap/places/workspace";
    stage.run(&format!("rmdir {places}/d; ln -s $PWD/victim {places}/d"));
    stage.run("sandpod exec trap true");
    assert_eq!(stage.run("cat victim"), "machine\n");
    stage.run("sandpod delete trap");
}

#[test]
fn a_file_system_mounted_later_on_the_machine_does_not_appear() {
    if !is_root() {
        return; // Only root may mount file systems on the machine.
    }
    let stage = Stage::new();
    let printed = stage.run(
        "mkdir shared; unshare -m sh -c 'mount -t tmpfs -o mode=755 none shared && mount --make-shared shared && \
         mkdir shared/later && sandpod create --id fixed --quiet --mount shared:/data && \
         mount -t tmpfs none shared/later && touch shared/later/file && ls shared/later && \
         sandpod exec fixed -- ls -A /data /data/later'",
    );
    stage.run("sandpod delete fixed");
    assert!(printed.ends_with("file\n/data:\nlater\n\n/data/later:\n"), "{printed}");
}

#[test]
fn a_mount_below_another_one_does_not_change_the_machine() {
    if !is_root() {
        return; // Only root may make a mount point shared.
    }
    let stage = Stage::new();
    let printed = stage.run(
        "mkdir shared other; touch other/b; \
         unshare -m sh -c 'mount -t tmpfs -o mode=755 none shared && mount --make-shared shared && \
         mkdir shared/sub && touch shared/sub/a && \
         sandpod create --id nested --quiet --mount shared:/data --mount other:/data/sub && \
         sandpod exec nested -- ls /data/sub && ls shared/sub'",
    );
    stage.run("sandpod delete nested");
    assert!(printed.ends_with("b\na\n"), "{printed}");
}

#[test]
fn a_mount_that_is_impossible_is_refused_with_its_reason() {
    let stage = Stage::new();
    let printed = stage.run("sandpod run --mount nothing true");
    assert!(printed.contains("'nothing' cannot be mounted: No such file"), "{printed}");
    let printed = stage.run("sandpod run --mount /usr:/proc/x true");
    assert!(printed.contains("nothing can be mounted at /proc/x"), "{printed}");
    let printed = stage.run("sandpod run --mode raw --mount /usr true");
    assert!(printed.contains("--mount does not apply to raw mode"), "{printed}");
}

#[test]
fn the_network_is_none_by_default_and_open_on_request() {
    let stage = Stage::new();
    let machine = stage.run("readlink /proc/self/ns/net");
    assert_ne!(stage.run("sandpod run readlink /proc/self/ns/net"), machine);
    assert_eq!(stage.run("sandpod run --network readlink /proc/self/ns/net"), machine);
    let printed = stage.run("sandpod run --network none true");
    assert!(printed.contains("Write --network=none."), "{printed}");
    let printed = stage.run("sandpod run --network=445x true");
    assert!(printed.contains("not none, open or a list of ports"), "{printed}");
}

#[test]
fn info_shows_network_policy_limits_and_the_place_of_the_state() {
    let stage = Stage::new();
    stage.run("printf 'network = \"none\"\\n' > policy.toml");
    stage.run("sandpod create --id facts --quiet --network=open --memory 512m --cpu 1.5 --policy policy.toml 2> /dev/null");
    let printed = stage.run("sandpod info facts");
    for part in [
        "mode:         local",
        "network:      open",
        "policy:       sha256:",
        "memory:",
        "536870912 bytes",
        "cpu:",
        "1500m",
        "state:        ~/.local/state/sandpod/local/facts",
    ] {
        assert!(printed.contains(part), "{part} is not in: {printed}");
    }
    let wide = stage.run("sandpod list -o wide");
    assert!(wide.starts_with("ID ") && wide.contains("NETWORK") && wide.contains(" host "), "{wide}");
    assert!(stage.run("sandpod list --json").contains("\"network\": \"host\""));
    stage.run("sandpod delete facts");
}

#[test]
fn a_policy_file_binds_commands_and_its_mistakes_are_named() {
    let stage = Stage::new();
    stage.run("printf '[policy]\\ndeny_commands = [\"curl\"]\\n' > policy.toml; echo 'nonsense' > bad.toml");
    let printed = stage.run("sandpod run --policy policy.toml curl example.org");
    assert!(printed.contains("olicy"), "{printed}");
    let printed = stage.run("sandpod run --policy bad.toml true");
    assert!(printed.contains("The policy bad.toml cannot be read"), "{printed}");
}

#[test]
fn variables_come_from_values_this_shell_and_files() {
    let stage = Stage::new();
    stage.run("printf '# note\\nCOLOR=blue\\nLEVEL=0\\n' > vars");
    let printed =
        stage.run("TOKEN=t sandpod run --env-file vars -e TOKEN -e LEVEL=3 'echo $COLOR $LEVEL $TOKEN'");
    assert_eq!(printed, "blue 3 t\n");
    let printed = stage.run("sandpod run -e NO_SUCH true");
    assert!(printed.contains("NO_SUCH is not set here"), "{printed}");
    stage.run("sandpod create --id vars --quiet -e KIND=kept");
    assert_eq!(stage.run("sandpod exec vars 'echo $KIND'"), "kept\n");
    stage.run("sandpod delete vars");
}

#[test]
fn run_copies_a_directory_into_the_working_directory() {
    let stage = Stage::new();
    stage.run("mkdir -p project/src; echo code > project/src/main; echo more > extra");
    let printed = stage.run("sandpod run --copy project --copy extra 'cat src/main extra'");
    assert_eq!(printed, "code\nmore\n");
}

#[test]
fn of_two_runs_with_one_id_at_once_only_one_uses_the_sandbox() {
    let stage = Stage::new();
    // The command continues until the other run has ended.
    let line = "for i in $(seq 600); do [ -e /o/ended ] && break; sleep 0.1; done";
    let run = |name: &str| {
        format!(
            "(sandpod run --id web --mount o:/o '{line}'; echo $? > {name}; touch o/ended) > out-{name} 2>&1"
        )
    };
    stage.run(&format!("mkdir o; {} & {}; wait", run("a"), run("b")));
    let codes = stage.run("cat a b | sort -n");
    assert_eq!(codes, "0\n125\n", "{}", stage.run("cat out-a out-b"));
    assert!(stage.run("cat out-a out-b").contains("Sandbox web exists already"));
    assert_eq!(stage.run("sandpod list --quiet"), "");
}

#[test]
fn options_of_a_new_sandbox_are_refused_for_one_that_exists() {
    let stage = Stage::new();
    stage.run("sandpod create --id web --quiet");
    for options in ["--network=open", "--memory 64Mi", "--mount /usr", "-e A=1"] {
        let printed = stage.run(&format!("sandpod create --id web {options}"));
        assert!(printed.contains("Sandbox web exists already, and options"), "{options}: {printed}");
        assert!(printed.contains("`sandpod delete web`") && printed.ends_with("[exit 4]\n"), "{printed}");
    }
    stage.run("kill -KILL $(cat .local/state/sandpod/local/web/lock)");
    stage.run("until sandpod info web | grep -q lost; do sleep 0.1; done");
    let printed = stage.run("sandpod create --id web -e A=1");
    assert!(printed.contains("exists already, and options"), "{printed}");
    let printed = stage.run("sandpod create --id web --quiet; sandpod create --id web | head -1");
    assert!(printed.contains("sandbox web exists already and is unchanged"), "{printed}");
    stage.run("sandpod delete web; sandpod create --id short --ttl 1s --quiet");
    stage.run("until sandpod info short | grep -q terminated; do sleep 0.1; done");
    assert_eq!(stage.run("sandpod create --id short -e A=1 --quiet"), "short\n");
    stage.run("sandpod delete short");
}

#[test]
fn run_does_not_use_or_delete_a_sandbox_that_exists() {
    let stage = Stage::new();
    stage.run("sandpod create --name mine --quiet");
    let printed = stage.run("sandpod run --name mine true");
    assert!(
        printed.contains("Sandbox mine exists already") && printed.ends_with("[exit 125]\n"),
        "{printed}"
    );
    assert_eq!(stage.run("sandpod list --quiet"), "mine\n");
    stage.run("sandpod delete mine");
}
