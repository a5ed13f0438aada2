//! The command on a terminal: shell, attach, progress.

use std::process::Command;

use crate::pty::Terminal;
use crate::transcript::Stage;

/// A shell in a new sandbox, at its prompt.
fn shell(stage: &Stage) -> Terminal {
    Terminal::shell(stage, "sandpod shell")
}

/// Starts a program that reads lines, and waits until it controls the terminal.
fn start_cat(terminal: &mut Terminal) {
    terminal.types("echo beg''un; cat -E\r");
    terminal.shows("begun\r\n");
}

#[test]
fn a_shell_has_our_terminals_size_and_follows_resizes() {
    let stage = Stage::new();
    let mut terminal = shell(&stage);
    assert!(!terminal.is_as_before(), "the terminal is in raw mode");
    terminal.types("stty size\r");
    terminal.shows("24 80");
    terminal.resize(40, 120);
    terminal.types("until [ \"$(stty size)\" = '40 120' ]; do :; done; echo follo''wed\r");
    terminal.shows("followed");
    terminal.types("exit 7\r");
    terminal.ends_with(7);
}

#[test]
fn ctrl_c_ends_the_program_and_not_the_shell() {
    let stage = Stage::new();
    let mut terminal = shell(&stage);
    start_cat(&mut terminal);
    terminal.types("line\n");
    terminal.shows("line$");
    terminal.types("\x03");
    terminal.shows("ready> ");
    terminal.types("echo still $((1 + 1))\r");
    terminal.shows("still 2");
    terminal.types("\x04");
    terminal.ends_with(0);
}

#[test]
fn ctrl_z_stops_a_job_that_goes_on_later() {
    let stage = Stage::new();
    let mut terminal = shell(&stage);
    start_cat(&mut terminal);
    terminal.types("line\n");
    terminal.shows("line$");
    terminal.types("\x1a");
    terminal.shows("Stopped");
    terminal.types("jobs\r");
    terminal.shows("[1]+");
    terminal.types("fg\r");
    terminal.shows("cat");
    terminal.types("again\n");
    terminal.shows("again$");
    terminal.types("\x04");
    terminal.shows("ready> ");
    terminal.types("exit\r");
    terminal.ends_with(0);
}

#[test]
fn a_full_screen_program_redraws_after_a_resize() {
    // Like an editor: it draws on the alternate screen, and again after each resize.
    let draw = r#"
        printf '\033[?1049h\033[2J'
        until [ "$key" = q ]; do
            size=$(stty size)
            [ "$size" = "$drawn" ] || printf '\033[H\033[7m%s\033[0m' "$size"
            drawn=$size
            read -rsn1 -t 0.1 key
        done
        printf '\033[?1049l'
    "#;
    let stage = Stage::new().with("DRAW", draw);
    stage.run("sandpod create --id screen --quiet; printf %s \"$DRAW\" | sandpod write screen draw");
    let mut terminal = Terminal::open(&stage, "sandpod shell screen -- bash draw");
    terminal.shows("\u{1b}[?1049h\u{1b}[2J");
    terminal.shows("\u{1b}[H\u{1b}[7m24 80\u{1b}[0m");
    terminal.resize(50, 132);
    terminal.shows("\u{1b}[H\u{1b}[7m50 132\u{1b}[0m");
    terminal.types("q");
    terminal.shows("\u{1b}[?1049l");
    terminal.ends_with(0);
    stage.run("sandpod delete screen");
}

#[test]
fn the_terminal_is_restored_however_the_shell_ends() {
    let stage = Stage::new();
    stage.run("sandpod create --id gone --quiet");
    let mut terminal = Terminal::shell(&stage, "sandpod shell gone");
    stage.run("sandpod delete gone");
    terminal.program.wait().unwrap();
    assert!(terminal.is_as_before());

    let mut terminal = shell(&stage);
    let pid = terminal.program.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    terminal.ends_with(143);
}

#[test]
fn attach_detaches_with_ctrl_c_and_the_command_continues() {
    let stage = Stage::new();
    stage.run("sandpod create --id bg --quiet; sandpod exec bg --detach -c 'echo begun; sleep 1000'");
    let mut terminal = Terminal::open(&stage, "sandpod attach bg --from-start");
    terminal.shows("begun");
    terminal.types("\x03");
    terminal.shows("continues");
    terminal.ends_with(0);
    assert!(stage.run("sandpod ps bg").contains("running"));
    stage.run("sandpod delete bg");
}

#[test]
fn a_background_job_of_the_terminal_is_not_stopped_for_reading_stdin() {
    let stage = Stage::new();
    stage.run("sandpod create --id back --quiet");
    let mut terminal = Terminal::open(&stage, "bash --norc -i");
    terminal.types("sandpod exec back -c 'echo r\"\"an' & wait; exit 5\r");
    terminal.shows("ran");
    terminal.ends_with(5);
    stage.run("sandpod delete back");
}

#[test]
fn progress_is_drawn_on_a_terminal_and_cleared() {
    let stage = Stage::new();
    stage.run("head -c 32M /dev/zero > large; sandpod create --id copy --quiet");
    let mut terminal = Terminal::open(&stage, "sandpod cp large copy:");
    terminal.shows("%");
    terminal.shows("\r\u{1b}[Kcopied 1 file, 32.0 MiB");
    terminal.ends_with(0);
    assert_eq!(stage.run("sandpod cp large copy:again"), "copied 1 file, 32.0 MiB\n", "no bar in a pipe");
    stage.run("sandpod delete copy");
}
