//! Transcripts in Markdown: in a `console` block, a shell runs each line after `$ `. The lines below it are the expected
//! output, stdout and stderr together, and the exit code unless it is 0.
//!
//! Timestamps, durations, random names and column widths are not compared. `SANDPOD_UPDATE=1` records the actual output.
//! A comment such as `<!-- cluster -->` or `<!-- not run: REASON -->` above a block excludes it, unless it is [`Stage::played`].

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::document::note;

/// Beginnings of lines that only sandboxes of one mode have, or that differ there.
const OF_ONE_MODE: [&str; 9] = [
    "last used:",
    "network:",
    "cpu:",
    "memory:",
    "ephemeral-storage:",
    "tasks:",
    "disk:",
    "guest:",
    "state:",
];

/// The environment of a transcript: a home directory and variables.
pub(crate) struct Stage {
    dir: tempfile::TempDir,
    variables: Vec<(String, String)>,
    /// Texts of this run, and their replacements in transcripts.
    names: Vec<(String, String)>,
    /// The comment above the blocks that are played, such as `cluster`. Empty: the blocks without a comment.
    pub(crate) played: &'static str,
}

impl Stage {
    /// A stage with an empty home and the PATH of this process.
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let bin = Path::new(env!("CARGO_BIN_EXE_sandpod")).parent().unwrap();
        let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
        let variables =
            vec![("PATH".to_owned(), path), ("HOME".to_owned(), dir.path().display().to_string())];
        let home = dir.path().display().to_string();
        Self { dir, variables, names: Vec::new(), played: "" }.naming(&home, "~")
    }

    /// Adds a variable.
    pub(crate) fn with(mut self, name: &str, value: impl Into<String>) -> Self {
        self.variables.push((name.to_owned(), value.into()));
        self
    }

    /// Replaces a text of this run in transcripts.
    pub(crate) fn naming(mut self, text: &str, name: &str) -> Self {
        self.names.push((text.to_owned(), name.to_owned()));
        self
    }

    /// Returns the command that runs a shell line in the stage.
    pub(crate) fn command(&self, line: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", line])
            .current_dir(self.dir.path())
            .env_clear()
            .envs(self.variables.iter().cloned());
        command
    }

    /// Runs a shell line and returns its output and exit code.
    pub(crate) fn run(&self, line: &str) -> String {
        let output = self.command(&format!("exec 2>&1; {line}")).output().unwrap();
        let mut printed = String::from_utf8_lossy(&output.stdout).into_owned();
        for (text, name) in &self.names {
            printed = printed.replace(text, name);
        }
        if !printed.is_empty() && !printed.ends_with('\n') {
            printed.push('\n');
        }
        match output.status.code() {
            Some(0) => printed,
            code => format!("{printed}[exit {}]\n", code.unwrap_or(-1)),
        }
    }

    /// Runs every command of the transcript and compares the output.
    pub(crate) fn play(&self, transcript: &Path) {
        self.play_here(transcript, &[]);
    }

    /// Plays a transcript of another mode. Each pair is a text of the transcript and the text expected here.
    pub(crate) fn play_here(&self, transcript: &Path, otherwise: &[(&str, &str)]) {
        let written = fs::read_to_string(transcript).unwrap();
        let expected = otherwise.iter().fold(written, |text, (there, here)| text.replace(there, here));
        let actual = self.replay(&expected);
        if expected == actual {
            return;
        }
        assert!(
            std::env::var_os("SANDPOD_UPDATE").is_some(),
            "{} differs from the actual output; SANDPOD_UPDATE=1 records it:\n{}",
            transcript.display(),
            differences(&expected, &actual)
        );
        let written = otherwise.iter().fold(actual, |text, (there, here)| text.replace(here, there));
        fs::write(transcript, written).unwrap();
    }

    /// The transcript with the actual output. Output that differs only in variable parts is left as recorded.
    fn replay(&self, transcript: &str) -> String {
        let mut replayed = String::new();
        let mut lines = transcript.lines().peekable();
        let (mut console, mut above) = (false, "");
        while let Some(line) = lines.next() {
            console =
                if console { line != "```" } else { line == "```console" && note(above) == self.played };
            above = line;
            replayed.push_str(line);
            replayed.push('\n');
            let Some(typed) = line.strip_prefix("$ ").filter(|_| console) else { continue };
            let mut before = String::new();
            while let Some(line) = lines.next_if(|line| !line.starts_with("$ ") && *line != "```") {
                before.push_str(line);
                before.push('\n');
            }
            let printed = self.run(typed);
            replayed.push_str(if normalized(&printed) == normalized(&before) { &before } else { &printed });
        }
        replayed
    }
}

/// Lists the lines that differ.
fn differences(expected: &str, actual: &str) -> String {
    let missing = expected.lines().filter(|line| !actual.contains(line)).map(|line| format!("- {line}\n"));
    let new = actual.lines().filter(|line| !expected.contains(line)).map(|line| format!("+ {line}\n"));
    let all: String = missing.chain(new).collect();
    if all.is_empty() { format!("the lines are in another order:\n{actual}") } else { all }
}

/// Removes the parts that differ from run to run.
fn normalized(printed: &str) -> String {
    let lines = printed.lines().filter(|line| !OF_ONE_MODE.iter().any(|name| line.starts_with(name)));
    lines.map(|line| normalized_line(line) + "\n").collect()
}

fn normalized_line(line: &str) -> String {
    let mut words: Vec<String> = line.split_whitespace().map(normalized_word).collect();
    let process = words.first().is_some_and(|word| word.starts_with('p') && word[1..].parse::<u32>().is_ok());
    if let Some(pid) = words.get_mut(1).filter(|second| process && second.parse::<u32>().is_ok()) {
        "…".clone_into(pid);
    }
    words.join(" ")
}

fn normalized_word(word: &str) -> String {
    let bare = word.trim_matches(['"', ',', '\'', '.', ':', '(', ')']);
    let stamp = bare.len() == 20 && bare.ends_with('Z') && bare.as_bytes()[10] == b'T';
    let length = bare.ends_with(['d', 'h', 'm', 's'])
        && bare.starts_with(|first: char| first.is_ascii_digit())
        && bare.chars().all(|letter| letter.is_ascii_digit() || "dhms".contains(letter));
    let id = [11, 29].contains(&bare.len()) && bare.starts_with("sp-");
    let decimal = bare.contains('.') && bare.parse::<f64>().is_ok();
    let shared = bare.contains("/sandpod-guest-") || bare.contains("/sandpod-image-");
    if stamp || length || id || decimal || shared { word.replace(bare, "…") } else { word.to_owned() }
}

/// The path of a transcript.
pub(crate) fn transcript(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/transcripts").join(name)
}
