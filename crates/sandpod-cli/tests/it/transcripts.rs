//! The transcripts of every command, with sandboxes on this machine.

use crate::transcript::{Stage, transcript};

#[test]
fn sandboxes_are_created_listed_extended_and_deleted() {
    Stage::new().play(&transcript("sandboxes.md"));
}

#[test]
fn files_are_written_read_searched_moved_removed_and_copied() {
    Stage::new().play(&transcript("files.md"));
}

#[test]
fn commands_run_in_the_foreground_and_in_the_background() {
    Stage::new().play(&transcript("commands.md"));
}

#[test]
fn config_show_prints_the_source_of_every_value() {
    Stage::new().play(&transcript("configuration.md"));
}

#[test]
fn manifests_have_each_value_in_its_field() {
    Stage::new().play(&transcript("manifests.md"));
}

#[test]
fn help_of_every_command_is_as_recorded() {
    Stage::new().play(&transcript("help.md"));
}

#[test]
fn every_help_has_examples_and_every_command_has_a_help() {
    let help = std::fs::read_to_string(transcript("help.md")).unwrap();
    let stage = Stage::new();
    let groups = "sed -n '/^Run commands:/,/^Configuration:/p' | awk '/^  [a-z]/ { print $1 }'";
    let commands = stage.run(&format!("sandpod --help | {groups}"));
    assert!(commands.lines().count() > 25, "{commands}");
    // The command `help` prints the same pages.
    for command in commands.split_whitespace().filter(|command| *command != "help") {
        assert!(help.contains(&format!("$ sandpod {command} --help")), "{command} is not in help.md");
    }
    for page in help.split("$ sandpod").skip(1) {
        assert!(page.contains("\nExamples:\n"), "there is no example in: sandpod{page}");
    }
}
