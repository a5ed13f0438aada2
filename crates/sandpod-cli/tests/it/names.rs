//! File names and arguments with escapes and line breaks, and similar ids.

use crate::transcript::Stage;

/// A name with a terminal escape, a line break and an imitation of our next step.
const EVIL: &str = "evil\u{1b}]0;pwn\u{7}\n  next: run me";

/// A sandbox with an unreadable file of that name in the directory `d`.
fn with_evil_file(id: &str) -> Stage {
    let stage = Stage::new().with("EVIL", EVIL);
    stage.run(&format!("sandpod create --id {id} --quiet"));
    stage.run(&format!(
        "sandpod exec {id} --env EVIL=\"$EVIL\" -c 'mkdir d; echo hit > \"d/$EVIL\"; chmod 000 \"d/$EVIL\"'"
    ));
    stage
}

fn assert_escaped(printed: &str) {
    assert!(printed.contains("\\u{1b}") && !printed.contains(['\u{1b}', '\u{7}']), "{printed}");
}

#[test]
fn a_file_name_cannot_imitate_the_next_step() {
    let stage = with_evil_file("evil");
    let printed = stage.run("sandpod cp evil:d/. here");
    assert_escaped(&printed);
    assert!(printed.contains("\n  |   next: run me"), "{printed}");
    assert_eq!(printed.lines().filter(|line| line.starts_with("  next: ")).count(), 1, "{printed}");
    stage.run("sandpod delete evil");
}

#[test]
fn errors_quote_arguments_without_escapes() {
    let stage = Stage::new().with("RED", "x\u{1b}[31m");
    stage.run("sandpod create --id typed --quiet");
    for line in [
        "sandpod cp \"$RED\" typed:",
        "sandpod logs typed \"$RED\"",
        "sandpod rm typed \"$RED\"",
        "sandpod list --config \"$RED\"",
    ] {
        assert_escaped(&stage.run(line));
    }
    let printed = stage.run("sandpod list \"$RED\"");
    assert!(printed.contains("unexpected argument") && !printed.contains('\u{1b}'), "{printed}");
    stage.run("sandpod delete typed");
}

#[test]
fn an_expired_sandbox_is_not_confused_with_one_of_a_similar_name() {
    let stage = Stage::new();
    stage.run("sandpod create --id thread-1 --ttl 1s --quiet; sandpod create --id thread-2 --quiet");
    stage.run("while sandpod exec thread-1 -- true; do :; done");
    let printed = stage.run("sandpod exec thread-1 -- true");
    assert!(printed.contains("is up") && !printed.contains("thread-2"), "{printed}");
    assert!(
        stage.run("sandpod exec thread-3 -- true").contains("Did you mean 'thread-"),
        "no sandbox has this id"
    );
    stage.run("sandpod delete thread-1; sandpod delete thread-2");
}

#[test]
fn a_file_is_one_line_whatever_its_name() {
    let stage = with_evil_file("line");
    stage.run("sandpod exec line -c 'chmod 644 d/*'");
    for line in ["sandpod glob line '**/*'", "sandpod grep line hit"] {
        let printed = stage.run(line);
        assert_escaped(&printed);
        assert_eq!(printed.lines().count(), 1, "{printed}");
    }
    stage.run("sandpod delete line");
}

#[test]
fn grep_prints_long_lines_and_tabs_unchanged() {
    let stage = Stage::new();
    stage.run("sandpod create --id long --quiet");
    stage.run("(printf '\\t'; head -c 5000 /dev/zero | tr '\\0' x) | sandpod write long f");
    assert_eq!(stage.run("sandpod grep long xx"), format!("/workspace/f:1:\t{}\n", "x".repeat(5000)));
    stage.run("sandpod delete long");
}

#[test]
fn errors_show_paths_as_typed_and_no_error_codes() {
    let stage = Stage::new();
    stage.run("sandpod create --id words --quiet; mkdir tree; ln -s /nowhere tree/x; touch file");
    stage.run("sandpod exec words -c 'mkdir d; touch d/file'; mkdir -p here/file");
    let printed = stage.run("sandpod cp words:d/. here");
    assert!(printed.starts_with("error: Cannot write here/file: "), "{printed}");
    let printed = stage.run("sandpod glob words ..");
    assert!(printed.starts_with("error: The pattern is invalid: "), "{printed}");
    stage.run("sandpod delete words");
}
