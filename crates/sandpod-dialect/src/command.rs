//! A command as an errand: started once in the background, and asked about until it has ended, because a router's patience
//! is shorter than a command's.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use sandpod_protocol::v1::command::What;
use sandpod_protocol::v1::{Command, ErrorCode, ExecuteResponse};
use sandpod_protocol::{Failure, limits};
use sandpod_text::output::{add_line, timed_out as last_line, whole_characters};

use crate::errand::{Errands, lines, script};
use crate::session::{Bound, lacks, refuse_policy};

/// How long one question about a command waits for its end, in seconds: half of what the router gives an answer.
const WAIT: &str = "15";
/// A line up to this length is an argument of the shell; the kernel takes twice as much.
const MAX_ARGUMENT: usize = 64 << 10;
/// Runs a longer one, which comes as a file of its errand.
const RUN_FILE: &str = ". \"$SANDPOD_LINE\"";

/// A command that a runtime can run.
pub(crate) struct Job {
    working_dir: String,
    timeout_ms: u64,
    max_output: u64,
    env: Vec<String>,
    words: Vec<String>,
    /// A line that is too long for an argument.
    line: Option<String>,
}

impl Job {
    /// Checks a command.
    pub(crate) fn new(errands: &Errands, command: Command, bound: Bound) -> Result<Self, Failure> {
        refuse_policy(errands, command.policy.as_ref())?;
        if !command.shell_session.is_empty() {
            return Err(lacks(errands, "shell_session"));
        }
        let invalid = |message: &str| Failure::new(ErrorCode::InvalidArgument, message);
        let (words, line) = match command.what {
            Some(What::Line(line)) if line.len() > MAX_ARGUMENT => (Vec::new(), Some(line)),
            Some(What::Line(line)) => (vec!["/bin/sh".to_owned(), "-c".to_owned(), line], None),
            Some(What::Argv(argv)) if !argv.words.is_empty() => (argv.words, None),
            _ => return Err(invalid("there is no command")),
        };
        let size = words.iter().map(String::len).sum::<usize>() + line.as_ref().map_or(0, String::len);
        if size > limits::MAX_COMMAND_BYTES {
            return Err(Failure::new(ErrorCode::TooLarge, "the command is too long: put it into a file"));
        }
        let mut env = bound.env;
        env.extend(command.env);
        if words.iter().chain(&line).any(|word| word.contains('\0')) || !env.iter().all(usable) {
            return Err(invalid("a word has a NUL byte, or a variable a name that no shell takes"));
        }
        let dir = if command.working_dir.is_empty() { bound.working_dir } else { command.working_dir };
        let max_output = match command.max_output_bytes {
            0 => limits::DEFAULT_OUTPUT_BYTES,
            most => most.min(limits::MAX_OUTPUT_BYTES),
        };
        Ok(Self {
            working_dir: if dir.is_empty() { ".".to_owned() } else { dir },
            timeout_ms: command.timeout_ms,
            max_output,
            env: env.into_iter().map(|(name, value)| format!("{name}={value}")).collect(),
            words,
            line,
        })
    }

    /// Runs it to its end, once, whoever asks for the errand of this name.
    pub(crate) async fn run(self, errands: &Arc<Errands>, name: &str) -> Result<ExecuteResponse, Failure> {
        // Should this be dropped, somebody may ask again, or cancel it.
        let errand = errands.named(name).keep();
        let (own, mut words) = (errands.unique(), self.words.clone());
        if let Some(line) = &self.line {
            errand.give(&format!("{own}-line"), line.clone().into()).await?;
            words = ["/bin/sh", "-c", RUN_FILE].map(str::to_owned).to_vec();
        }
        let seconds = self.timeout_ms.div_ceil(1000).to_string();
        let (max, count) = (self.max_output.to_string(), self.env.len().to_string());
        let numbers = [&self.working_dir, &seconds, &max, &count];
        let said = numbers.into_iter().chain(&self.env).chain(&words).map(String::as_bytes);
        errand.give(&format!("{own}-in"), lines(&said.collect::<Vec<_>>())).await?;
        let (start, run) = (script!("start", "poll"), script!("kill", "run"));
        let mut answer = errand.run(start, &[WAIT, run, &own]).await?;
        while answer.is_empty() {
            answer = errand.run(script!("poll"), &[WAIT]).await?;
        }
        errand.forget();
        self.outcome(answer)
    }

    /// The first line is the exit code, how much output there was, and whether its time was up.
    fn outcome(&self, mut answer: Bytes) -> Result<ExecuteResponse, Failure> {
        let nonsense =
            || Failure::new(ErrorCode::Internal, "the runtime's word on how a command ended is none");
        let end = answer.iter().position(|byte| *byte == b'\n').ok_or_else(nonsense)?;
        let head = String::from_utf8_lossy(&answer[..end]).into_owned();
        answer.advance(end + 1);
        let mut head = head.split(' ');
        let mut number = || head.next().and_then(|text| text.parse::<u64>().ok()).ok_or_else(nonsense);
        let (code, size) = (number()?, number()?);
        let (timed_out, truncated) = (head.next() == Some("timeout"), size > self.max_output);
        let mut output = Vec::from(answer);
        if truncated {
            output.truncate(whole_characters(&output));
        }
        if timed_out {
            add_line(&mut output, &last_line(Duration::from_millis(self.timeout_ms).as_secs_f64()));
        }
        let exit_code = i32::try_from(code).map_err(|_| nonsense())?;
        Ok(ExecuteResponse { output: output.into(), exit_code, truncated, timed_out, note: String::new() })
    }
}

/// Ends the command that runs as the errand of this name, with all that it started.
pub(crate) async fn cancel(errands: &Arc<Errands>, name: &str) -> Result<(), Failure> {
    let errand = errands.named(name);
    errand.run(script!("kill", "cancel"), &[]).await.map(drop)
}

/// What `export` takes.
fn usable((name, value): (&String, &String)) -> bool {
    let begins = name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_');
    begins && name.chars().all(|one| one.is_ascii_alphanumeric() || one == '_') && !value.contains('\0')
}
