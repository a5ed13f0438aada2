//! A validated command, prepared for the kernel.

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
use super::shell::{SessionLine, ShellSessions};
use super::streams::Streams;
use super::supervisor::{NotStarted, Program, Step};
use super::terminal;
use crate::policy::Restriction;

/// The shell that runs command lines.
const SHELL: &str = "/bin/sh";
/// The kernel's limit for an argument is 128 KiB; a longer line is passed in a file.
const LONGEST_ARGUMENT: usize = 100 << 10;
/// Maximum length of a command in a list.
const SUMMARY_CHARACTERS: usize = 200;

/// A command that may be started.
pub(crate) struct Launch {
    what: What,
    env: BTreeMap<String, String>,
    working_dir: PathBuf,
    /// `None`: unlimited.
    pub(crate) timeout: Option<Duration>,
    pub(crate) max_output: usize,
    /// The shell session of a line.
    shell: Option<SessionLine>,
    restriction: Result<Arc<Restriction>, String>,
}

impl Launch {
    /// Validates a command; `env` and `working_dir` are those of the sandbox. `restriction` will be applied to it, or
    /// is the reason why it must not run.
    pub(crate) fn new(
        mut command: v1::Command,
        mut env: BTreeMap<String, String>,
        working_dir: &Path,
        restriction: Result<Restriction, String>,
        shells: &Arc<ShellSessions>,
    ) -> Result<Self, Failure> {
        let what =
            command.what.take().ok_or_else(|| invalid("the command has neither a line nor an argv"))?;
        check_what(&what)?;
        check_env(&command.env)?;
        if command.working_dir.contains('\0') {
            return Err(invalid("the working directory has a NUL in it"));
        }
        let shell = shells.enter(&command, &what, &mut env, working_dir)?;
        let working_dir =
            shell.as_ref().map_or(working_dir, SessionLine::working_dir).join(command.working_dir);
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

    /// Starts the command below a supervisor. Returns an error message on failure.
    pub(crate) fn start(&self, streams: Streams, children: &Arc<Children>) -> Result<Running, String> {
        let restriction =
            self.restriction.clone().map_err(|why| format!("the command was not started: {why}"))?;
        let program = self.program(streams.terminal, restriction).map_err(|error| no_streams(&error))?;
        children.start(program, streams).map_err(|why| self.explain(&why))
    }

    /// Prepares the command for the kernel.
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
                (self.candidate_paths(&argv.words[0]), argv.words.iter().map(string).collect(), Vec::new())
            }
        };
        let kind =
            (terminal && !self.env.contains_key("TERM")).then(|| string(format!("TERM={}", terminal::KIND)));
        let env =
            self.env.iter().map(|(name, value)| string(format!("{name}={value}"))).chain(kind).collect();
        let working_dir = string(self.working_dir.as_os_str().as_encoded_bytes());
        Ok(Program { paths, arguments, env, working_dir, inherited, restriction })
    }

    /// Paths at which a program may be: its name if that has a slash, else each directory of the command's own `PATH`.
    fn candidate_paths(&self, name: &str) -> Vec<CString> {
        if name.contains('/') {
            return vec![string(name)];
        }
        let path = self.env.get("PATH").map_or("/usr/local/bin:/usr/bin:/bin", String::as_str);
        path.split(':').map(|dir| string(Path::new(dir).join(name).as_os_str().as_encoded_bytes())).collect()
    }

    /// Saves the state of the shell session after the command has ended. Returns a note about state that cannot be kept.
    pub(crate) fn save_shell_state(&self) -> Option<String> {
        self.shell.as_ref().and_then(SessionLine::save_final_state)
    }

    /// Returns the command as shown in a list.
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

    /// Returns the message for a command that could not be started.
    pub(crate) fn explain(&self, NotStarted { step, error }: &NotStarted) -> String {
        let dir = self.working_dir.display();
        let why = match (step, error.kind()) {
            (Step::Program, _) => self.no_program(error),
            (Step::WorkingDir, ErrorKind::NotFound) => format!("the working directory {dir} does not exist"),
            (Step::WorkingDir, ErrorKind::NotADirectory) => {
                format!("the working directory {dir} is not a directory")
            }
            (Step::WorkingDir, _) => format!("the working directory {dir} cannot be used: {error}"),
            (Step::Fork, _) => format!("the sandbox takes no more processes: {error}"),
            (Step::Files, _) => return no_streams(error),
            (Step::Terminal, _) => format!("its terminal could not be opened: {error}"),
            (Step::Restrict, _) => format!("its policy could not be applied: {error}"),
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
                if self.restriction.as_ref().is_ok_and(|restriction| restriction.has_ruleset()) =>
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

/// Returns the message for a command whose input and output could not be opened.
pub(crate) fn no_streams(error: &io::Error) -> String {
    format!("the command was not started: its input and output could not be made: {error}")
}

/// Puts a line that is too long for an argument into a file in memory, and returns the line that reads it.
/// `.` reads it instead of `sh FILE`, so that `$0` and the standard input are as usual.
fn script(line: &str) -> io::Result<(String, OwnedFd)> {
    let mut file = File::from(rustix::fs::memfd_create("command", MemfdFlags::CLOEXEC)?);
    file.write_all(line.as_bytes())?;
    Ok((format!(". /proc/self/fd/{}", file.as_raw_fd()), file.into()))
}

/// Converts a string for the kernel. Strings that contain NUL were rejected before.
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
        let message = format!(
            "the command has {bytes} bytes, but at most {most} are allowed: put it into a file and run that"
        );
        return Err(Failure::new(ErrorCode::TooLarge, message));
    }
    Ok(())
}

/// Validates environment variables.
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
    fn a_missing_shell_is_reported() {
        let why = explain(What::Line("true".to_owned()), ErrorKind::NotFound);
        assert!(why.contains("the image has no /bin/sh; give a program and its arguments"), "{why}");
    }

    #[test]
    fn too_long_arguments_are_reported() {
        let words = vec!["program".to_owned()];
        let why = explain(What::Argv(v1::Argv { words }), ErrorKind::ArgumentListTooLong);
        assert!(why.contains("longer than the kernel takes"), "{why}");
    }

    #[test]
    fn max_output_has_a_default_and_a_maximum() {
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
