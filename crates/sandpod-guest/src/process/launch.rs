//! What is run: a checked command, made ready for the kernel.

use std::collections::{BTreeMap, HashMap};
use std::ffi::CString;
use std::fs::File;
use std::io::{self, ErrorKind, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::MemfdFlags;
use sandpod_protocol::v1::{self, ErrorCode, command::What};
use sandpod_protocol::{Failure, limits};

use super::running::{Children, Running};
use super::shell::{Shells, Visit};
use super::streams::Streams;
use super::terminal;
use super::warden::{NotStarted, Program, Step};
use crate::policy::Restriction;

/// The shell that runs lines.
const SHELL: &str = "/bin/sh";
/// The kernel takes no string of 128 KiB as an argument; a longer line goes through a file.
const LONGEST_ARGUMENT: usize = 100 << 10;
/// What is shown of a command in a list.
const SUMMARY_CHARACTERS: usize = 200;

/// A command that may be run.
pub(crate) struct Launch {
    what: What,
    env: BTreeMap<String, String>,
    working_dir: PathBuf,
    /// None: as long as it takes.
    pub(crate) timeout: Option<Duration>,
    pub(crate) max_output: usize,
    /// The shell session that a line is part of.
    shell: Option<Visit>,
    restriction: Result<Arc<Restriction>, String>,
}

impl Launch {
    /// Checks a command; `env` and `working_dir` are the sandbox's own. `restriction` is what will hold it, or
    /// why it must not run.
    pub(crate) fn new(
        mut command: v1::Command,
        mut env: BTreeMap<String, String>,
        working_dir: &Path,
        restriction: Result<Restriction, String>,
        shells: &Arc<Shells>,
    ) -> Result<Self, Failure> {
        let what =
            command.what.take().ok_or_else(|| invalid("the command has neither a line nor an argv"))?;
        check_what(&what)?;
        check_env(&command.env)?;
        if command.working_dir.contains('\0') {
            return Err(invalid("the working directory has a NUL in it"));
        }
        let shell = shells.enter(&command, &what, &mut env, working_dir)?;
        let working_dir = shell.as_ref().map_or(working_dir, Visit::working_dir).join(command.working_dir);
        env.extend(command.env);
        let wanted = match command.max_output_bytes {
            0 => limits::DEFAULT_OUTPUT_BYTES,
            bytes => bytes.min(limits::MAX_OUTPUT_BYTES),
        };
        Ok(Self {
            what,
            env,
            working_dir,
            timeout: (command.timeout_ms > 0).then(|| Duration::from_millis(command.timeout_ms)),
            max_output: usize::try_from(wanted).unwrap_or(usize::MAX),
            shell,
            restriction: restriction.map(Arc::new),
        })
    }

    /// Starts the command below a warden; says why if it can't.
    pub(crate) fn start(&self, streams: Streams, children: &Arc<Children>) -> Result<Running, String> {
        let restriction =
            self.restriction.clone().map_err(|why| format!("the command was not started: {why}"))?;
        let program = self.program(streams.terminal, restriction).map_err(|error| no_streams(&error))?;
        children.start(program, streams).map_err(|why| self.explain(&why))
    }

    /// The command for the kernel.
    fn program(&self, terminal: bool, restriction: Arc<Restriction>) -> io::Result<Program> {
        let in_shell = |line: &str| [SHELL, "-c", line].map(string).into();
        let (paths, arguments, inherited): (_, Vec<_>, _) = match (&self.what, &self.shell) {
            (What::Line(line), Some(shell)) => {
                let (driver, inherited) = shell.driver(line)?;
                (vec![string(SHELL)], in_shell(&driver), inherited)
            }
            (What::Line(line), None) if line.len() > LONGEST_ARGUMENT => {
                let (line, script) = script(line)?;
                (vec![string(SHELL)], in_shell(&line), vec![script])
            }
            (What::Line(line), None) => (vec![string(SHELL)], in_shell(line), Vec::new()),
            (What::Argv(argv), _) => {
                (self.places(&argv.words[0]), argv.words.iter().map(string).collect(), Vec::new())
            }
        };
        let kind =
            (terminal && !self.env.contains_key("TERM")).then(|| string(format!("TERM={}", terminal::KIND)));
        let env =
            self.env.iter().map(|(name, value)| string(format!("{name}={value}"))).chain(kind).collect();
        let working_dir = string(self.working_dir.as_os_str().as_encoded_bytes());
        Ok(Program { paths, arguments, env, working_dir, inherited, restriction })
    }

    /// Where a program may be: under its name if that is a path, else in the command's own `PATH`.
    fn places(&self, name: &str) -> Vec<CString> {
        if name.contains('/') {
            return vec![string(name)];
        }
        let path = self.env.get("PATH").map_or("/usr/local/bin:/usr/bin:/bin", String::as_str);
        path.split(':').map(|dir| string(Path::new(dir).join(name).as_os_str().as_encoded_bytes())).collect()
    }

    /// Keeps what the command, which has ended by itself, left behind in its shell session; says what it can't keep.
    pub(crate) fn leave_shell(&self) -> Option<String> {
        self.shell.as_ref().and_then(Visit::leave)
    }

    /// What is run, for people.
    pub(crate) fn summary(&self) -> String {
        let text = match &self.what {
            What::Line(line) => line.clone(),
            What::Argv(argv) => argv.words.join(" "),
        };
        match text.char_indices().nth(SUMMARY_CHARACTERS) {
            Some((end, _)) => format!("{}…", &text[..end]),
            None => text,
        }
    }

    /// Why a command was not started, as a sentence.
    pub(crate) fn explain(&self, NotStarted { step, error }: &NotStarted) -> String {
        let dir = self.working_dir.display();
        let why = match (step, error.kind()) {
            (Step::Program, _) => self.no_program(error),
            (Step::WorkingDir, ErrorKind::NotFound) => format!("the working directory {dir} does not exist"),
            (Step::WorkingDir, ErrorKind::NotADirectory) => {
                format!("the working directory {dir} is no directory")
            }
            (Step::WorkingDir, _) => format!("the working directory {dir} cannot be used: {error}"),
            (Step::Fork, _) => format!("the sandbox takes no more processes: {error}"),
            (Step::Files, _) => return no_streams(error),
            (Step::Terminal, _) => format!("it could not get its terminal: {error}"),
            (Step::Restrict, _) => format!("its policy could not be put in force: {error}"),
        };
        format!("the command was not started: {why}")
    }

    fn no_program(&self, error: &io::Error) -> String {
        let name = match &self.what {
            What::Line(_) => SHELL,
            What::Argv(argv) => argv.words.first().map_or("", String::as_str),
        };
        match (error.kind(), &self.what) {
            (ErrorKind::NotFound, What::Line(_)) => {
                format!("the image has no {SHELL}; give a program and its arguments instead of a line")
            }
            (ErrorKind::NotFound, What::Argv(_)) => format!("there is no program {name}"),
            (ErrorKind::PermissionDenied, _)
                if self.restriction.as_ref().is_ok_and(|restriction| restriction.is_any()) =>
            {
                format!(
                    "{name} may not be executed; a policy's readable roots must hold it and the libraries that it needs"
                )
            }
            (ErrorKind::PermissionDenied, _) => format!("{name} may not be executed"),
            (ErrorKind::ArgumentListTooLong, _) => {
                "its arguments and environment are longer than the kernel takes; put them into a file"
                    .to_owned()
            }
            _ => format!("{name}: {error}"),
        }
    }
}

/// Why a command was not started that has nothing to read from or write to.
pub(crate) fn no_streams(error: &io::Error) -> String {
    format!("the command was not started: its input and output could not be made: {error}")
}

/// For a line that is too long to be an argument: one by which the shell reads it from a file in memory.
/// Read by `.`, not as a script, the line finds the same `$0` and an untouched standard input.
fn script(line: &str) -> io::Result<(String, OwnedFd)> {
    let mut file = File::from(rustix::fs::memfd_create("command", MemfdFlags::CLOEXEC)?);
    file.write_all(line.as_bytes())?;
    Ok((format!(". /proc/self/fd/{}", file.as_raw_fd()), file.into()))
}

/// A string for the kernel; what has a NUL in it was refused before.
fn string(text: impl AsRef<[u8]>) -> CString {
    CString::new(text.as_ref()).unwrap_or_default()
}

fn check_what(what: &What) -> Result<(), Failure> {
    let (bytes, has_nul) = match what {
        What::Line(line) => (line.len(), line.contains('\0')),
        What::Argv(argv) => {
            if argv.words.first().is_none_or(String::is_empty) {
                return Err(invalid("the argv names no program"));
            }
            (
                argv.words.iter().map(|word| word.len() + 1).sum(),
                argv.words.iter().any(|word| word.contains('\0')),
            )
        }
    };
    if has_nul {
        return Err(invalid("the command has a NUL in it, which no program can be given"));
    }
    if bytes > limits::MAX_COMMAND_BYTES {
        let most = limits::MAX_COMMAND_BYTES;
        let message =
            format!("the command has {bytes} bytes and {most} are the most: put it into a file and run that");
        return Err(Failure::new(ErrorCode::TooLarge, message));
    }
    Ok(())
}

/// Checks variables for commands.
pub(crate) fn check_env(env: &HashMap<String, String>) -> Result<(), Failure> {
    for (name, value) in env {
        if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
            let message =
                format!("the environment variable {name:?} has an empty name, a = in its name or a NUL");
            return Err(invalid(&message));
        }
    }
    Ok(())
}

fn invalid(message: &str) -> Failure {
    Failure::new(ErrorCode::InvalidArgument, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn explain(what: What, kind: ErrorKind) -> String {
        let command = v1::Command { what: Some(what), ..v1::Command::default() };
        Launch::new(command, BTreeMap::new(), Path::new("/"), Ok(Restriction::default()), &Arc::default())
            .unwrap()
            .explain(&NotStarted::new(Step::Program, kind))
    }

    #[test]
    fn an_image_without_a_shell_is_named_as_the_reason() {
        let why = explain(What::Line("true".to_owned()), ErrorKind::NotFound);
        assert!(why.contains("the image has no /bin/sh; give a program and its arguments"), "{why}");
    }

    #[test]
    fn arguments_beyond_what_the_kernel_takes_are_named_as_the_reason() {
        let words = vec!["program".to_owned()];
        let why = explain(What::Argv(v1::Argv { words }), ErrorKind::ArgumentListTooLong);
        assert!(why.contains("longer than the kernel takes"), "{why}");
    }

    #[test]
    fn the_output_that_is_kept_has_a_default_and_a_most() {
        let kept = |max_output_bytes| {
            let what = Some(What::Line("true".to_owned()));
            let command = v1::Command { what, max_output_bytes, ..v1::Command::default() };
            Launch::new(command, BTreeMap::new(), Path::new("/"), Ok(Restriction::default()), &Arc::default())
                .unwrap()
                .max_output as u64
        };
        assert_eq!(kept(0), limits::DEFAULT_OUTPUT_BYTES);
        assert_eq!(kept(5), 5);
        assert_eq!(kept(u64::MAX), limits::MAX_OUTPUT_BYTES);
    }
}
