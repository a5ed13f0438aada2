//! `cargo xtask fuzz`: libFuzzer on the targets in `fuzz/`, built with this toolchain and a C++ compiler.
//!
//! A target is what has a directory of kept inputs ([`corpus`]). New inputs of a run go to the build output;
//! `--keep` packs the smallest set of them that reaches as much code.

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

/// What makes a build tell libFuzzer which code an input reaches; cargo-fuzz sets the same.
const FLAGS: &str = "--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
                     -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
                     -Cllvm-args=-sanitizer-coverage-pc-table \
                     -Cllvm-args=-sanitizer-coverage-trace-compares";
/// An input that takes longer than these seconds hangs.
const INPUT_SECONDS: u32 = 20;
/// A process that is larger has found a way around the bounds.
const MEBIBYTES: u32 = 1024;

/// The program with all targets.
pub(crate) struct Fuzzer(PathBuf);

/// Whether a run finds what is there, or a bug that is put there for it to find.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Subject {
    Real,
    Planted,
}

/// What came of a run.
pub(crate) struct Outcome {
    /// The input that broke something.
    pub(crate) input: Option<PathBuf>,
    pub(crate) log: PathBuf,
}

/// What to do besides looking for bugs.
pub(crate) struct Wishes<'a> {
    pub(crate) seconds: u32,
    /// Try only this input.
    pub(crate) input: Option<&'a Path>,
    /// Take what was found to be new into the kept inputs.
    pub(crate) keep: bool,
}

/// Runs one target or all of them; answers whether nothing was found.
pub(crate) fn run_targets(only: Option<&str>, wishes: &Wishes<'_>) -> Result<bool> {
    let fuzzer = Fuzzer::build()?;
    let targets: Vec<_> =
        corpus::targets()?.into_iter().filter(|name| only.is_none_or(|only| only == name)).collect();
    if targets.is_empty() {
        bail!("there is no such target: fuzz/corpus has a directory for each");
    }
    let mut found_nothing = true;
    for name in targets {
        if wishes.keep {
            fuzzer.keep(&name)?;
        } else if let Some(input) = wishes.input {
            found_nothing &= fuzzer.attempt(&name, input)?;
        } else {
            let outcome = fuzzer.run(&name, Subject::Real, wishes.seconds)?;
            step(summary(&name, &outcome)?);
            found_nothing &= outcome.input.is_none();
        }
    }
    Ok(found_nothing)
}

/// What a run came to, for people.
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
    /// Builds the program, in a directory of its own: its flags are for nothing else.
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

    /// Looks for bugs in a target until there is one or the time is up.
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

    /// Tries one input; answers whether it breaks nothing.
    fn attempt(&self, name: &str, input: &Path) -> Result<bool> {
        let home = home(name, false)?;
        let copy = home.join("input");
        fs::copy(input, &copy).with_context(|| format!("cannot read {}", input.display()))?;
        Ok(self.command(name, &home).arg(copy).status()?.success())
    }

    /// Packs the smallest set of inputs that reaches all code that the packed and the new ones reach, beside the named.
    fn keep(&self, name: &str) -> Result<()> {
        let home = home(name, false)?;
        let [packed, merged] = ["packed", "merged"].map(|directory| home.join(directory));
        corpus::unpack(name, &packed)?;
        copy_files(&corpus::named(name), &merged)?;
        let control = home.join("control");
        let _ = fs::remove_file(&control);
        let mut merge = self.command(name, &home);
        // By the code that they reach, not by how often: that would keep ten times as many.
        merge.args(["-merge=1", "-set_cover_merge=1", "-use_counters=0"]);
        merge.arg(format!("-merge_control_file={}", control.display()));
        merge.args([&merged, &packed, &home.join("corpus")]).stderr(fs::File::create(home.join("log"))?);
        run(&mut merge)?;
        corpus::pack(name, &merged)?;
        step(format!("{name}: {} inputs are kept", fs::read_dir(&merged)?.count()));
        Ok(())
    }

    fn command(&self, name: &str, home: &Path) -> Command {
        let mut fuzzer =
            command(&self.0, [format!("-timeout={INPUT_SECONDS}"), format!("-rss_limit_mb={MEBIBYTES}")]);
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

/// Where a target keeps what it finds. A planted bug is found anew each time.
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
        fs::create_dir_all(&directory).with_context(|| format!("cannot make {}", directory.display()))?;
    }
    Ok(home)
}
