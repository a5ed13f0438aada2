//! `cargo xtask fuzz`: runs libFuzzer on the targets in `fuzz/`, built with this toolchain and a C++ compiler.
//!
//! Each target has a directory of kept inputs ([`corpus`]). New inputs of a run go to the build output; `--keep` packs the
//! smallest set of them that reaches as much code.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::corpus;
use crate::guest::Arch;
use crate::packages;
use crate::progress::step;
use crate::shell::{command, last_lines, run};
use crate::workspace::{root, target};

/// The flags by which libFuzzer learns which code an input reaches, as cargo-fuzz sets them.
const FLAGS: &str = "--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
                     -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
                     -Cllvm-args=-sanitizer-coverage-pc-table \
                     -Cllvm-args=-sanitizer-coverage-trace-compares";
/// The seconds after which an input counts as a hang.
const INPUT_SECONDS: u32 = 20;
/// The limit of memory: an input that exceeds it evades the bounds of the code.
const MEBIBYTES: u32 = 1024;

/// The program that contains all targets.
pub(crate) struct Fuzzer(PathBuf);

/// Whether a run looks for real bugs, or for a bug that is planted as a test of the target.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Subject {
    Real,
    Planted,
}

/// The outcome of a run.
pub(crate) struct Outcome {
    /// The input that failed, if one did.
    pub(crate) input: Option<PathBuf>,
    pub(crate) log: PathBuf,
}

/// How to run the targets.
pub(crate) struct Options<'a> {
    pub(crate) seconds: u32,
    /// Only this input.
    pub(crate) input: Option<&'a Path>,
    /// Instead of a run, add new inputs of earlier runs to the kept ones.
    pub(crate) keep: bool,
}

/// Runs one target or all of them; returns whether no bug was found.
pub(crate) fn run_targets(only: Option<&str>, options: &Options<'_>) -> Result<bool> {
    let fuzzer = Fuzzer::build()?;
    let targets: Vec<_> =
        corpus::targets()?.into_iter().filter(|name| only.is_none_or(|only| only == name)).collect();
    if targets.is_empty() {
        bail!("there is no such target: fuzz/corpus has a directory for each");
    }
    let mut found_nothing = true;
    for name in targets {
        if options.keep {
            fuzzer.keep(&name)?;
        } else if let Some(input) = options.input {
            found_nothing &= fuzzer.attempt(&name, input)?;
        } else {
            let outcome = fuzzer.run(&name, Subject::Real, options.seconds)?;
            step(summary(&name, &outcome)?);
            found_nothing &= outcome.input.is_none();
        }
    }
    Ok(found_nothing)
}

/// The outcome of a run as text.
pub(crate) fn summary(name: &str, outcome: &Outcome) -> Result<String> {
    let log = String::from_utf8_lossy(&fs::read(&outcome.log)?).into_owned();
    let Some(input) = &outcome.input else {
        let inputs = log.lines().find_map(|line| line.strip_prefix("stat::number_of_executed_units:"));
        return Ok(format!("{name}: nothing was found with {} inputs", inputs.unwrap_or("?").trim()));
    };
    Ok(format!(
        "{}\n{name} found something; try it again with `cargo xtask fuzz {name} --input {}`",
        last_lines(&log, 40),
        input.display()
    ))
}

impl Fuzzer {
    /// Builds the program in a target directory of its own, because of its flags.
    pub(crate) fn build() -> Result<Self> {
        packages::install(packages::FUZZ)?;
        step("building the fuzz targets");
        let directory = target().join("fuzz");
        // A target triple keeps the flags from build scripts and macros.
        let triple = format!("{}-unknown-linux-gnu", Arch::own().rust());
        let mut cargo =
            command("cargo", ["build", "--release", "--quiet", "--manifest-path=fuzz/Cargo.toml"]);
        cargo.args(["--target", &triple, "--target-dir"]).arg(&directory);
        run(cargo.env("RUSTFLAGS", FLAGS).current_dir(root())).context("cannot build the fuzz targets")?;
        Ok(Self(directory.join(triple).join("release/sandpod-fuzz")))
    }

    /// Runs a target until it finds a bug or the time is up.
    pub(crate) fn run(&self, name: &str, subject: Subject, seconds: u32) -> Result<Outcome> {
        let planted = subject == Subject::Planted;
        let home = home(name, planted)?;
        let log = home.join("log");
        let mut fuzzer = self.command(name, &home);
        fuzzer.arg(format!("-max_total_time={seconds}")).arg("-print_final_stats=1").arg(home.join("corpus"));
        if planted {
            // From the named inputs only: a packed one may hold the bug already.
            fuzzer.env("SANDPOD_FUZZ_PLANTED", "1");
        } else {
            corpus::unpack(name, &home.join("packed"))?;
            fuzzer.arg(home.join("packed"));
        }
        fuzzer.arg(corpus::named(name));
        let output = fs::File::create(&log)?;
        let status = fuzzer.stdout(Stdio::null()).stderr(output).status();
        let status = status.context("cannot start the fuzz targets")?;
        let input = fs::read_dir(home.join("found"))?.flatten().map(|entry| entry.path()).next();
        if input.is_none() && !status.success() {
            bail!("{name} did not run: {}", last_lines(&String::from_utf8_lossy(&fs::read(&log)?), 15));
        }
        Ok(Outcome { input, log })
    }

    /// Runs one input; returns whether it passes.
    fn attempt(&self, name: &str, input: &Path) -> Result<bool> {
        let home = home(name, false)?;
        let copy = home.join("input");
        fs::copy(input, &copy).with_context(|| format!("cannot read {}", input.display()))?;
        Ok(self.command(name, &home).arg(copy).status()?.success())
    }

    /// Packs the smallest set of inputs that, with the named ones, reaches the same code as all packed and new inputs.
    fn keep(&self, name: &str) -> Result<()> {
        let home = home(name, false)?;
        let [packed, merged] = ["packed", "merged"].map(|directory| home.join(directory));
        corpus::unpack(name, &packed)?;
        copy_files(&corpus::named(name), &merged)?;
        let control = home.join("control");
        let _ = fs::remove_file(&control);
        let mut merge = self.command(name, &home);
        // By the code that they reach, not by the number of times: that would keep ten times as many.
        merge.args(["-merge=1", "-set_cover_merge=1", "-use_counters=0"]);
        merge.arg(format!("-merge_control_file={}", control.display()));
        merge.args([&merged, &packed, &home.join("corpus")]).stderr(fs::File::create(home.join("log"))?);
        run(&mut merge)?;
        corpus::pack(name, &merged)?;
        step(format!("{name}: {} inputs are kept", fs::read_dir(&merged)?.count()));
        Ok(())
    }

    fn command(&self, name: &str, home: &Path) -> Command {
        // At a low priority: other tests run beside it.
        let mut fuzzer = command("nice", ["-n", "10"]);
        fuzzer.arg(&self.0);
        fuzzer.args([format!("-timeout={INPUT_SECONDS}"), format!("-rss_limit_mb={MEBIBYTES}")]);
        fuzzer.arg(format!("-artifact_prefix={}/", home.join("found").display()));
        fuzzer.env("SANDPOD_FUZZ_TARGET", name);
        fuzzer.env("SANDPOD_FUZZ_READS", corpus::named(name)).env("SANDPOD_FUZZ_WRITES", home);
        fuzzer
    }
}

/// Copies the files of one directory into another.
fn copy_files(from: &Path, to: &Path) -> Result<()> {
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        fs::copy(entry.path(), to.join(entry.file_name()))?;
    }
    Ok(())
}

/// The directory for the findings of a target. That of a planted bug is cleared first.
fn home(name: &str, planted: bool) -> Result<PathBuf> {
    let home =
        target().join("fuzz/targets").join(if planted { format!("{name}-planted") } else { name.to_owned() });
    if planted {
        let _ = fs::remove_dir_all(&home);
    }
    for directory in ["found", "packed", "merged"] {
        let _ = fs::remove_dir_all(home.join(directory));
    }
    for directory in ["corpus", "found", "packed", "merged"] {
        let directory = home.join(directory);
        fs::create_dir_all(&directory).with_context(|| format!("cannot create {}", directory.display()))?;
    }
    Ok(home)
}
