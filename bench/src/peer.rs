//! A peer that runs beside us: a program that executes one step for each line of stdin and prints its duration.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result};
use serde::Deserialize;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

/// The duration of a step in milliseconds, or the reason of its failure.
pub type Took = Result<f64, String>;

/// The running program; dropping it ends the program.
pub struct Peer {
    input: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
    _child: Child,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Answer {
    Ms(f64),
    Failure(String),
}

/// Returns the Python with the packages of the peers.
#[must_use]
pub fn python() -> Command {
    let mut python =
        Command::new(std::env::var_os("SANDPOD_BENCH_PYTHON").unwrap_or_else(|| "python3".into()));
    python.env("KUBECONFIG", std::env::var_os("SANDPOD_TEST_KUBECONFIG").unwrap_or_default());
    python
}

/// Returns the path of a file in `bench/peers`.
#[must_use]
pub fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("peers").join(name)
}

impl Peer {
    /// Starts a Python program of `bench/peers`.
    pub fn start(script_name: &str, arguments: &[&str]) -> Result<Self> {
        Self::of(python().arg(script(script_name)).args(arguments))
    }

    /// Starts a program.
    pub fn of(program: &mut Command) -> Result<Self> {
        let mut child = program
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("the peer does not start")?;
        let input = child.stdin.take().context("it is piped")?;
        let output = child.stdout.take().context("it is piped")?;
        Ok(Self { input, answers: BufReader::new(output).lines(), _child: child })
    }

    /// Executes one step.
    pub async fn ask(&mut self, what: &str) -> Result<Took> {
        self.input.write_all(format!("{what}\n").as_bytes()).await?;
        let line = self.answers.next_line().await?.context("the peer has ended")?;
        Ok(match serde_json::from_str(&line).with_context(|| format!("the peer printed {line}"))? {
            Answer::Ms(took) => Ok(took),
            Answer::Failure(why) => Err(why),
        })
    }
}
