//! `cargo xtask bench guest`: the guest as a separate process, over a Unix socket, beside the kernel, a plain copy and
//! ripgrep for the same work.
#![expect(clippy::print_stdout, reason = "a benchmark prints its results")]

use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::FutureExt as _;
use futures::future::{BoxFuture, join_all};
use sandpod_bench::measure::{BULK, BULK_MIB, median, noise, timed};
use sandpod_bench::report::Report;
use sandpod_client::{
    ByteStream, Connection, DialError, Dialer, ExecuteOptions, GrepOptions, Options, ReadOptions, Sandbox,
};
use tokio::net::UnixStream;
use tokio::process::{Child, Command};

/// The limits of the guest's memory without work, and with the most concurrent work.
const IDLE_MIB: f64 = 8.0;
const BUSY_MIB: f64 = 64.0;
/// A text that occurs a few times in the tree.
const NEEDLE: &str = "a needle in the hay";

// One worker thread: the benchmark must not measure threads of the client that wake each other.
#[tokio::main(worker_threads = 1)]
async fn main() -> Result<()> {
    // On a worker thread, as in a program, and not on the thread that only waits.
    tokio::spawn(measure()).await?
}

async fn measure() -> Result<()> {
    let guest =
        PathBuf::from(std::env::var_os("SANDPOD_BENCH_GUEST").context("SANDPOD_BENCH_GUEST is not set")?);
    let dir = tempfile::tempdir()?;
    let container = Container::start(&guest, dir.path()).await?;
    let sandbox = Sandbox::new(Connection::new(container.dialer(), Options::default()));
    sandbox.connection().greeting().await?;
    let mut report = Report::default();
    report.within("resident without work", container.resident("VmRSS")?, IDLE_MIB, "MiB");
    Box::pin(calls(&sandbox, dir.path(), &mut report)).await?;
    transfers(&sandbox, dir.path(), &mut report).await?;
    searches(&sandbox, dir.path(), &mut report).await?;
    many(&sandbox, &container, &mut report).await?;
    println!("{}", report.table());
    report.show_in("crates/sandpod-guest/README.md")?;
    report.keep("guest")
}

/// The guest as the first process of its own namespaces.
struct Container {
    _unshare: Child,
    program: PathBuf,
    guest: u32,
}

impl Container {
    async fn start(program: &Path, state: &Path) -> Result<Self> {
        let unshare = Command::new("unshare")
            .args(["--pid", "--net", "--fork", "--mount-proc", "--kill-child"])
            .arg(program)
            .args(["serve", "--unbound"])
            .env("SANDPOD_STATE_DIR", state.join("state"))
            .kill_on_drop(true)
            .spawn()
            .context("cannot start unshare")?;
        let parent = unshare.id().context("unshare has ended")?;
        let guest = tokio::time::timeout(Duration::from_secs(5), async {
            loop {
                if let Some(guest) = listening_child(parent) {
                    break guest;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        });
        let guest = guest.await.context("the guest does not listen: namespaces need root")?;
        Ok(Self { _unshare: unshare, program: program.to_owned(), guest })
    }

    fn dialer(&self) -> Exec {
        Exec { program: self.program.clone(), guest: self.guest }
    }

    /// Reads a figure of the guest's memory, in MiB.
    fn resident(&self, name: &str) -> Result<f64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.guest))?;
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        let kib: f64 =
            line.and_then(|line| line.split_whitespace().next()).context("no such figure")?.parse()?;
        Ok(kib / 1024.0)
    }
}

fn listening_child(parent: u32) -> Option<u32> {
    let child = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).ok()?;
    let child = child.trim().parse().ok()?;
    let sockets = fs::read_to_string(format!("/proc/{child}/net/unix")).ok()?;
    sockets.contains("@sandpod-guest").then_some(child)
}

/// Starts a process beside the guest, as a container runtime does, with one socket as its stdin and stdout.
struct Exec {
    program: PathBuf,
    guest: u32,
}

impl Dialer for Exec {
    fn dial(&self) -> BoxFuture<'_, Result<Box<dyn ByteStream>, DialError>> {
        async { self.open().map_err(|error| DialError::Unreachable(error.to_string())) }.boxed()
    }
}

impl Exec {
    fn open(&self) -> Result<Box<dyn ByteStream>> {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
        let both = [theirs.try_clone()?, theirs].map(|end| Stdio::from(OwnedFd::from(end)));
        let [stdin, stdout] = both;
        let mut pipe = std::process::Command::new("nsenter")
            .args(["--target", &self.guest.to_string(), "--pid", "--net", "--mount"])
            .arg(&self.program)
            .arg("pipe")
            .stdin(stdin)
            .stdout(stdout)
            .spawn()?;
        std::thread::spawn(move || pipe.wait());
        ours.set_nonblocking(true)?;
        Ok(Box::new(UnixStream::from_std(ours)?))
    }
}

/// Measures one call at a time, and commands beside the start of a shell by the kernel.
async fn calls(sandbox: &Sandbox, dir: &Path, report: &mut Report) -> Result<()> {
    let file = dir.join("1k");
    fs::write(&file, "x".repeat(1023) + "\n")?;
    let file = file.to_str().context("the path is no text")?;
    let (mut stats, mut reads, mut spawns, mut trues) = (vec![], vec![], vec![], vec![]);
    // Alternate, so that noise of the machine affects both sides equally.
    for _ in 0..500 {
        stats.push(timed(async { Ok(sandbox.stat(file, true).await.map(drop)?) }).await?);
        reads.push(timed(async { Ok(sandbox.read(file, ReadOptions::default()).await.map(drop)?) }).await?);
        spawns.push(timed(async { spawn_true() }).await?);
        trues.push(
            timed(Box::pin(async {
                Ok(sandbox.execute("true", ExecuteOptions::default()).await.map(drop)?)
            }))
            .await?,
        );
    }
    report.within("stat", median(stats), 0.15, "ms");
    report.within("read of 1 KiB", median(reads), 0.15, "ms");
    report.near("execute true, to a spawn of sh -c true", median(trues), median(spawns), 1.5);
    Ok(())
}

fn spawn_true() -> Result<()> {
    ensure!(std::process::Command::new("/bin/sh").args(["-c", "true"]).status()?.success());
    Ok(())
}

/// Measures 64 MiB up and down, beside a plain copy on the same file system.
async fn transfers(sandbox: &Sandbox, dir: &Path, report: &mut Report) -> Result<()> {
    let content = bytes::Bytes::from(noise(BULK));
    let (ours, from, to) = (dir.join("ours"), dir.join("from"), dir.join("to"));
    fs::write(&from, &content)?;
    let path = ours.to_str().context("the path is no text")?;
    let (mut up, mut down, mut copies) = (vec![], vec![], vec![]);
    for _ in 0..5 {
        copies.push(timed(async { Ok(fs::copy(&from, &to).map(drop)?) }).await?);
        up.push(timed(async { Ok(sandbox.write(path, content.clone()).await.map(drop)?) }).await?);
        down.push(timed(async { Ok(sandbox.download(path, BULK as u64).await.map(drop)?) }).await?);
    }
    let rate = |milliseconds: Vec<f64>| f64::from(BULK_MIB) / median(milliseconds) * 1000.0;
    let copy = rate(copies);
    report.rate("64 MiB up, to a plain copy", rate(up), copy, "MiB/s", 0.5);
    report.rate("64 MiB down, to a plain copy", rate(down), copy, "MiB/s", 0.5);
    Ok(())
}

/// Searches for text in 100 MB and for names among 100,000, beside ripgrep.
async fn searches(sandbox: &Sandbox, dir: &Path, report: &mut Report) -> Result<()> {
    let (texts, names) = (dir.join("texts"), dir.join("names"));
    make_texts(&texts)?;
    make_names(&names)?;
    let (texts, names) = (texts.to_string_lossy(), names.to_string_lossy());
    let options = GrepOptions { root: Some(texts.to_string()), ..GrepOptions::default() };
    let (mut greps, mut rg_greps, mut globs, mut rg_globs) = (vec![], vec![], vec![], vec![]);
    for _ in 0..5 {
        let all = ["--no-ignore", "--hidden"];
        rg_greps.push(
            timed(ripgrep(&[&all[..], &["--fixed-strings", "--line-number", NEEDLE, &texts]].concat(), 100))
                .await?,
        );
        greps.push(
            timed(async {
                let found = sandbox.grep(NEEDLE, options.clone()).await?.matches.len();
                ensure!(found == 100, "{found} lines found");
                Ok(())
            })
            .await?,
        );
        rg_globs
            .push(timed(ripgrep(&[&all[..], &["--files", "--glob=*.needle", &names]].concat(), 100)).await?);
        globs.push(
            timed(async {
                let found = sandbox.glob("**/*.needle", &names).await?.matches.len();
                ensure!(found == 100, "{found} files found");
                Ok(())
            })
            .await?,
        );
    }
    report.near("grep of 100 MB, to ripgrep", median(greps), median(rg_greps), 1.3);
    report.near("glob of 100,000 files, to ripgrep --files", median(globs), median(rg_globs), 1.3);
    Ok(())
}

async fn ripgrep(arguments: &[&str], lines: usize) -> Result<()> {
    let output = Command::new("rg")
        .args(arguments)
        .output()
        .await
        .context("cannot start rg (Debian package ripgrep)")?;
    let found = output.stdout.split(|byte| *byte == b'\n').count() - 1;
    ensure!(found == lines, "ripgrep found {found}");
    Ok(())
}

/// Creates 2,000 files of 50 KB; every twentieth contains the needle.
fn make_texts(dir: &Path) -> Result<()> {
    let line = "Lorem ipsum dolor sit amet, consectetur adipiscing elit, sed do eiusmod tempor.\n";
    let hay = line.repeat(50_000 / line.len());
    for number in 0..2000 {
        let dir = dir.join(format!("{}", number % 40));
        fs::create_dir_all(&dir)?;
        let needle = if number % 20 == 0 { format!("{NEEDLE}\n") } else { String::new() };
        fs::write(dir.join(format!("{number}.txt")), format!("{hay}{needle}"))?;
    }
    Ok(())
}

/// Creates 100,000 empty files; every thousandth name matches.
fn make_names(dir: &Path) -> Result<()> {
    for number in 0..100_000 {
        let dir = dir.join(format!("{}/{}", number % 10, number / 10 % 100));
        if number < 1000 {
            fs::create_dir_all(&dir)?;
        }
        let ending = if number % 1000 == 0 { "needle" } else { "hay" };
        fs::File::create(dir.join(format!("{number}.{ending}")))?;
    }
    Ok(())
}

/// Sends 1,000 commands at once. Each one runs or fails with a reason, and the guest's memory stays within its limit.
async fn many(sandbox: &Sandbox, container: &Container, report: &mut Report) -> Result<()> {
    let before = container.resident("VmRSS")?;
    let run = || sandbox.execute("sleep 0.5; head -c 10000 /dev/zero", ExecuteOptions::default());
    let outcomes = join_all((0..1000).map(|_| run())).await;
    let done = outcomes
        .iter()
        .filter(|outcome| outcome.as_ref().is_ok_and(|done| done.exit_code == Some(0)))
        .count();
    let refused = outcomes
        .iter()
        .filter_map(|outcome| outcome.as_ref().err())
        .map(ToString::to_string)
        .collect::<Vec<_>>();
    let after = container.resident("VmRSS")?;
    println!(
        "1,000 commands at once: {done} ran, {} were refused ({})",
        refused.len(),
        refused.first().map_or("", |why| why)
    );
    println!("the guest's memory: {before:.1} MiB before, {after:.1} MiB after");
    ensure!(done >= 500, "only {done} of 1,000 commands ran");
    report.within("resident at most, 1,000 commands at once", container.resident("VmHWM")?, BUSY_MIB, "MiB");
    Ok(())
}
