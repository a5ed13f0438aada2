//! Habits from docker and kubectl: what hands type, and what it does here.

use crate::pty::Terminal;
use crate::transcript::{Stage, transcript};

#[test]
fn ten_habits_from_docker_and_kubectl_work() {
    Stage::new().play(&transcript("habits.md"));
}

#[test]
fn run_it_sh_opens_a_shell_in_a_new_sandbox() {
    let stage = Stage::new();
    for line in ["sandpod run -it sh", "sandpod run sh", "sandpod run --rm -ti -- sh"] {
        let mut terminal = Terminal::open(&stage, line);
        terminal.types("stty size; exit 3\r");
        terminal.shows("24 80");
        terminal.ends_with(3);
    }
    assert_eq!(stage.run("sandpod list --quiet"), "");
}

#[test]
fn exec_it_opens_a_shell_and_ctrl_bracket_detaches_from_it() {
    let stage = Stage::new();
    stage.run("sandpod create --name web --quiet");
    let mut terminal = Terminal::open(&stage, "sandpod exec -it web sh");
    terminal.types("echo be''gun\r");
    terminal.shows("begun");
    terminal.types("\x1d");
    terminal.shows("detached; p1 continues: return with `sandpod attach web p1`");
    terminal.ends_with(0);
    assert_eq!(stage.run("sandpod ps -q web"), "p1\n");
    let mut terminal = Terminal::open(&stage, "sandpod attach web p1");
    terminal.types("exit 4\r");
    terminal.ends_with(4);
    stage.run("sandpod delete web");
}

#[test]
fn a_shell_shows_the_id_and_the_directory_and_detaches() {
    let stage = Stage::new();
    stage.run("sandpod create --name web --quiet");
    let mut terminal = Terminal::open(&stage, "sandpod shell web");
    terminal.shows("web:/workspace$ ");
    terminal.types("cd /tmp\r");
    terminal.shows("web:/tmp$ ");
    terminal.types("\x1d");
    terminal.shows("continues");
    terminal.ends_with(0);
    let mut terminal = Terminal::open(&stage, "sandpod shell");
    terminal.shows(":/workspace$ ");
    terminal.types("\x1d");
    terminal.shows("the temporary sandbox is deleted");
    terminal.ends_with(129);
    stage.run("sandpod delete web");
}

#[test]
fn a_command_gets_no_terminal_without_ours_or_with_no_tty() {
    let stage = Stage::new();
    let printed = stage.run("sandpod run -it 'test -t 1 || echo none' < /dev/null");
    assert_eq!(printed, "the command gets no terminal: stdin or stdout is not one\nnone\n");
    let mut terminal = Terminal::open(&stage, "sandpod run -T 'test -t 1 || echo no''ne'");
    terminal.shows("none");
    terminal.ends_with(0);
}
