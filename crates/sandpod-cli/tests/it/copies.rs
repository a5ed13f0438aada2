//! `sandpod cp` with links, odd names, modes, interrupts and closed pipes.

use crate::transcript::Stage;

/// Names, kinds, modes, sizes, link targets and contents of a tree.
const FINGERPRINT: &str =
    r"find . -printf '%P %y %m %l\n' | sort; find . -type f -print0 | sort -z | xargs -0 cat | sha256sum";

#[test]
fn a_copied_tree_keeps_links_modes_large_files_and_odd_names() {
    let stage = Stage::new();
    let size = if std::env::var_os("SANDPOD_TEST_LONG").is_some() { "1G" } else { "256M" };
    stage.run(&format!(
        "mkdir -p tree/empty tree/deep/er && cd tree && head -c {size} /dev/urandom > large && \
         echo x > 'a b' && echo y > '-n' && echo z > \"quote'\\\"\" && echo n > \"$(printf 'new\\nline')\" && \
         echo u > 'ünï·日本' && echo s > '*?[x]' && echo h > .hidden && ln -s deep/er link && ln -s nowhere dangling && \
         : > nothing && chmod 400 nothing && chmod 755 'a b' && chmod 700 deep",
    ));
    stage.run("sandpod create --id tree --quiet");
    assert_eq!(stage.run("sandpod cp tree tree: --quiet"), "");
    assert_eq!(stage.run("sandpod cp tree:tree back --quiet"), "");
    let (sent, back) =
        (stage.run(&format!("cd tree && {FINGERPRINT}")), stage.run(&format!("cd back && {FINGERPRINT}")));
    assert!(sent.contains("large f"), "{sent}");
    assert_eq!(sent, back);
    stage.run("sandpod delete tree");
}

#[test]
fn cp_skips_links_out_of_the_tree_with_a_note() {
    let stage = Stage::new();
    stage.run("sandpod create --id trap --quiet; sandpod exec trap -c 'mkdir d; ln -s /etc/passwd d/l; echo x > d/f'");
    let printed = stage.run("sandpod cp trap:d . && ls d");
    assert!(printed.contains("skipped: 1 link that points"), "{printed}");
    assert!(printed.ends_with("\nf\n"), "{printed}");
    stage.run("sandpod delete trap");
}

#[test]
fn cp_keeps_modes_and_replaces_the_target_of_a_link() {
    let stage = Stage::new();
    stage.run("sandpod create --id one --quiet; echo new > f; chmod 750 f; sandpod cp f one:g");
    assert_eq!(stage.run("sandpod exec one -c 'stat -c %a g'"), "750\n");
    stage.run("echo old > real; ln -s real link; sandpod cp one:g link");
    assert_eq!(stage.run("readlink link; cat real; stat -c %a real"), "real\nnew\n750\n");
    assert_eq!(stage.run("sandpod cp one:g /dev/stdout --quiet"), "new\n");
    stage.run("sandpod delete one");
}

#[test]
fn a_copy_to_a_dash_appends_to_the_file_that_stdout_is() {
    let stage = Stage::new();
    stage.run("sandpod create --id dash --quiet; sandpod exec dash -c 'mkdir d; echo new > d/f'");
    stage.run("echo earlier > log; sandpod cp dash:d/f - --quiet >> log");
    assert_eq!(stage.run("cat log; ls -A | grep -v '^.local$'"), "earlier\nnew\nlog\n");
    let directory = stage.run("sandpod cp dash:d - > out; cat out");
    assert!(directory.contains("d is a directory, which cannot be written to stdout."), "{directory}");
    let json = stage.run("sandpod cp dash:d/f - --output json");
    assert!(json.contains("This command has no JSON output: stdout has the content of the file."), "{json}");
    assert!(json.ends_with("[exit 2]\n"), "{json}");
    stage.run("sandpod delete dash");
}

#[test]
fn an_interrupted_copy_leaves_no_temporary_file() {
    let stage = Stage::new();
    stage.run("sandpod create --id stop --quiet; sandpod exec stop -c 'mkdir d; truncate -s 4G d/large'; mkdir here");
    for (from, to) in [("d/large", "file"), ("d", "tree")] {
        let mut child = stage.command(&format!("cd here; exec sandpod cp stop:{from} {to}")).spawn().unwrap();
        stage.run("until find here -name '.sandpod-*' | grep -q .; do sleep 0.01; done");
        stage.run(&format!("kill -INT {}", child.id()));
        assert_eq!(child.wait().unwrap().code(), Some(130));
        assert_eq!(stage.run("find here -type f"), "", "{from}");
    }
    stage.run("sandpod delete stop");
}

#[test]
fn a_copy_to_a_closed_pipe_is_silent() {
    let stage = Stage::new();
    stage.run("sandpod create --id pipe --quiet; sandpod exec pipe -c 'head -c 8M /dev/zero > large'");
    let printed =
        stage.run("(sandpod cp pipe:large /dev/stdout; echo \"[exit $?]\" >&2) | head -c 1 > first");
    assert_eq!(printed, "[exit 141]\n");
    stage.run("sandpod delete pipe");
}

#[test]
fn a_failed_download_leaves_no_incomplete_file() {
    let stage = Stage::new();
    stage.run("sandpod create --id half --quiet; sandpod exec half -c 'echo x > f; chmod 000 f'");
    let printed = stage.run("sandpod cp half:f here; ls -A | grep -v '^.local$'");
    assert!(
        printed.starts_with("error: ") && !printed.contains("here") && !printed.contains(".sandpod-"),
        "{printed}"
    );
    stage.run("sandpod delete half");
}
