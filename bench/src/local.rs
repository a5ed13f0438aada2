//! `cargo xtask bench local`: a local sandbox from its creation to its deletion, beside bubblewrap.
#![expect(clippy::print_stdout, reason = "a benchmark prints its results")]

use std::path::PathBuf;
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use sandpod_bench::measure::{median, timed};
use sandpod_bench::report::Report;
use tokio::process::Command;

const ROUNDS: usize = 100;
/// Arguments of bubblewrap for the equivalent of a local sandbox: namespaces, system directories and empty directories.
const BUBBLEWRAP: &str = "--unshare-all --die-with-parent --new-session --uid 1000 --gid 1000 --hostname sandbox \
    --ro-bind /usr /usr --ro-bind-try /opt /opt --symlink usr/bin /bin --symlink usr/sbin /sbin --symlink usr/lib /lib \
    --symlink usr/lib64 /lib64 --ro-bind-try /etc/alternatives /etc/alternatives --ro-bind /etc/ld.so.cache /etc/ld.so.cache \
    --ro-bind-try /etc/ssl/certs /etc/ssl/certs --proc /proc --dev /dev --tmpfs /tmp --tmpfs /workspace --tmpfs /app \
    --tmpfs /home/sandbox --tmpfs /large_tool_results --tmpfs /conversation_history --tmpfs /blobs --chdir /workspace \
    --clearenv --setenv PATH /usr/bin";

#[tokio::main]
async fn main() -> Result<()> {
    let command = std::env::var_os("SANDPOD_BENCH_COMMAND").context("SANDPOD_BENCH_COMMAND is not set")?;
    let command = PathBuf::from(command);
    let state = tempfile::tempdir()?;
    let sandpod = || {
        let mut sandpod = Command::new(&command);
        sandpod.args(["run", "true"]).env("XDG_STATE_HOME", state.path());
        run(sandpod)
    };
    let bubblewrap = || {
        let mut bubblewrap = Command::new("bwrap");
        bubblewrap.args(BUBBLEWRAP.split_whitespace()).args(["/bin/sh", "-c", "true"]);
        run(bubblewrap)
    };
    let (mut ours, mut theirs) = (vec![], vec![]);
    // Alternate, so that noise of the machine affects both sides equally.
    for _ in 0..ROUNDS {
        ours.push(timed(sandpod()).await?);
        theirs.push(timed(bubblewrap()).await?);
    }
    let mut report = Report::default();
    report.near("create, run true and delete, to bubblewrap", median(ours), median(theirs), 2.0);
    println!("{}", report.table());
    report.keep("local")
}

async fn run(mut command: Command) -> Result<()> {
    let status =
        command.stdin(Stdio::null()).status().await.with_context(|| format!("cannot start {command:?}"))?;
    ensure!(status.success(), "{command:?} failed");
    Ok(())
}
