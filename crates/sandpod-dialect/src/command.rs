//! Commands: a script starts one in the background, and requests poll for its end, because a router's time limit is shorter
//! than that of a command.
//!
//! A line of a shell session starts in the state that a file in the sandbox contains, and replaces that file when it ends:
//! the working directory, exported variables, the umask, options of `set -o`, and functions where the shell can print them.
//! A line that times out or changes nothing leaves the file as it was. If lines run at the same time, the last one to end
//! wins, as with a guest. `scripts/run.sh` and `scripts/shell.sh` implement this, so a session needs no request of its own.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use data_encoding::HEXLOWER;
use sandpod_protocol::v1::command::What;
use sandpod_protocol::v1::{Command, ErrorCode, ExecuteResponse};
use sandpod_protocol::{Failure, limits};
use sandpod_text::output::{add_line, timed_out as last_line, whole_characters};
use sha2::{Digest as _, Sha256};
use tokio::time::{Instant, sleep};

use crate::policy::required;
use crate::script_job::{ScriptJobs, encode_words, script};
use crate::session::Bound;

/// Seconds that one request waits in the sandbox for the end of a command. Most runtimes handle no other request meanwhile, and
/// the probe of a Pod fails after one second.
const WAIT: &str = "1";
/// Maximum pause between two polls. The pause grows with the running time of the command.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
const PAUSE_PART: u32 = 16;
/// Maximum length of a line that is passed as an argument of the shell; half of the kernel's limit.
const MAX_ARGUMENT: usize = 64 << 10;
/// Maximum length of the name of a shell session.
const MAX_SESSION_BYTES: usize = 256;
/// Exit code of a command that was not started.
const NOT_STARTED: i32 = 125;
/// Note on a shell session whose state is too large.
const TOO_LARGE: &str = "The shell session keeps its state from before this line: its variables and functions together exceed \
                         100 KiB. Store large data in files.";

/// A valid command.
pub(crate) struct Job {
    /// Working directory, also of a new shell session.
    working_dir: String,
    /// Working directory of a line of a shell session, if it has one of its own.
    line_dir: String,
    timeout_ms: u64,
    max_output: u64,
    /// Variables of the sandbox.
    bound_env: BTreeMap<String, String>,
    env: BTreeMap<String, String>,
    words: Vec<String>,
    /// A line that the shell reads from a file.
    line: Option<String>,
    /// Name of the shell session's file.
    shell_session: String,
    /// Why the command must not run.
    refused: Option<String>,
}

impl Job {
    /// Checks a command.
    pub(crate) fn new(jobs: &ScriptJobs, command: Command, bound: Bound) -> Result<Self, Failure> {
        let (session, is_line) = (&command.shell_session, matches!(command.what, Some(What::Line(_))));
        if session.len() > MAX_SESSION_BYTES {
            let message = format!(
                "the name of a shell session has at most {MAX_SESSION_BYTES} bytes, not {}",
                session.len()
            );
            return Err(invalid(&message));
        }
        if !session.is_empty() && !is_line {
            return Err(invalid("only a line can use a shell session: an argv has no shell"));
        }
        let (words, line) = match command.what {
            Some(What::Line(line)) if line.len() > MAX_ARGUMENT || !session.is_empty() => {
                (Vec::new(), Some(line))
            }
            Some(What::Line(line)) => (vec!["/bin/sh".to_owned(), "-c".to_owned(), line], None),
            Some(What::Argv(argv)) if !argv.words.is_empty() => (argv.words, None),
            _ => return Err(invalid("the command is missing")),
        };
        let size = words.iter().map(String::len).sum::<usize>() + line.as_ref().map_or(0, String::len);
        if size > limits::MAX_COMMAND_BYTES {
            return Err(Failure::new(ErrorCode::TooLarge, "the command is too long: put it into a file"));
        }
        let (bound_env, env) = (bound.env, BTreeMap::from_iter(command.env));
        let has_nul = words.iter().chain(&line).any(|word| word.contains('\0'));
        if has_nul || !bound_env.iter().chain(&env).all(usable) {
            return Err(invalid("a word has a NUL byte, or a variable has an invalid name"));
        }
        let dir = if bound.working_dir.is_empty() { ".".to_owned() } else { bound.working_dir };
        let (working_dir, line_dir) = match command.working_dir {
            own if own.is_empty() || !session.is_empty() => (dir, own),
            own => (own, String::new()),
        };
        let max_output = match command.max_output_bytes {
            0 => limits::DEFAULT_OUTPUT_BYTES,
            most => most.min(limits::MAX_OUTPUT_BYTES),
        };
        let shell_session = match session.as_str() {
            "" => String::new(),
            name => HEXLOWER.encode(&Sha256::digest(name)),
        };
        let refused = command.policy.filter(|policy| policy.required).map(|_| required(jobs.kind()));
        let timeout_ms = command.timeout_ms;
        Ok(Self {
            working_dir,
            line_dir,
            timeout_ms,
            max_output,
            bound_env,
            env,
            words,
            line,
            shell_session,
            refused,
        })
    }

    /// Runs the command to its end, once: every request for the job of this name gets the same outcome.
    pub(crate) async fn run(self, jobs: &Arc<ScriptJobs>, name: &str) -> Result<ExecuteResponse, Failure> {
        if let Some(why) = self.refused {
            let output = format!("the command was not started: {why}").into();
            return Ok(ExecuteResponse { output, exit_code: NOT_STARTED, ..ExecuteResponse::default() });
        }
        // If this future is dropped, another request may poll or cancel the job.
        let job = jobs.named(name).keep();
        let _waiter = jobs.wait(name);
        let own = jobs.unique();
        job.put_file(&format!("{own}-in"), self.said()).await?;
        let begin = Instant::now();
        let (start, run) = (script!("start", "poll"), script!("kill", "run"));
        let mut answer = job.run(start, &[WAIT, run, &own, include_str!("scripts/shell.sh")]).await?;
        while answer.is_empty() {
            sleep((begin.elapsed() / PAUSE_PART).min(LONGEST_PAUSE)).await;
            answer = job.run(script!("poll"), &[WAIT]).await?;
        }
        job.delete();
        self.outcome(answer)
    }

    /// Encodes the words of `scripts/run.sh`.
    fn said(&self) -> Bytes {
        let variables = |env: &BTreeMap<String, String>| -> Vec<String> {
            env.iter().map(|(name, value)| format!("{name}={value}")).collect()
        };
        let (sandbox, own) = (variables(&self.bound_env), variables(&self.env));
        let seconds = self.timeout_ms.div_ceil(1000).to_string();
        let (max, in_sandbox, of_own) =
            (self.max_output.to_string(), sandbox.len().to_string(), own.len().to_string());
        let line = if self.line.is_some() { "line" } else { "" };
        let head = [
            &self.working_dir,
            &seconds,
            &max,
            &self.shell_session,
            &self.line_dir,
            line,
            &in_sandbox,
            &of_own,
        ];
        let rest = sandbox.iter().chain(&own).chain(&self.words).chain(&self.line).map(String::as_str);
        encode_words(&head.into_iter().chain(rest).map(str::as_bytes).collect::<Vec<_>>())
    }

    /// Parses the outcome. Its first line has the exit code, the size of the output, `timeout`, and a note on the shell session.
    fn outcome(&self, mut answer: Bytes) -> Result<ExecuteResponse, Failure> {
        let nonsense =
            || Failure::new(ErrorCode::Internal, "the script's report on the end of a command is invalid");
        let end = answer.iter().position(|byte| *byte == b'\n').ok_or_else(nonsense)?;
        let head = String::from_utf8_lossy(&answer[..end]).into_owned();
        answer.advance(end + 1);
        let mut head = head.split(' ');
        let mut number = || head.next().and_then(|text| text.parse::<u64>().ok()).ok_or_else(nonsense);
        let (code, size) = (number()?, number()?);
        let (timed_out, truncated) = (head.next() == Some("timeout"), size > self.max_output);
        let note = if head.next() == Some("large") { TOO_LARGE.to_owned() } else { String::new() };
        let mut output = Vec::from(answer);
        if truncated {
            output.truncate(whole_characters(&output));
        }
        if timed_out {
            add_line(&mut output, &last_line(Duration::from_millis(self.timeout_ms).as_secs_f64()));
        }
        let exit_code = i32::try_from(code).map_err(|_| nonsense())?;
        Ok(ExecuteResponse { output: output.into(), exit_code, truncated, timed_out, note })
    }
}

/// Kills the command that runs as the job of this name, with all that it started.
pub(crate) async fn cancel(jobs: &Arc<ScriptJobs>, name: &str) -> Result<(), Failure> {
    let job = jobs.named(name);
    let killed = job.run(script!("kill", "cancel"), &[]).await;
    // A call that waits reads the outcome before the files are deleted.
    if jobs.leave_to_waiter(name) {
        drop(job.keep());
    }
    killed.map(drop)
}

/// Returns whether `export` accepts the variable.
fn usable((name, value): (&String, &String)) -> bool {
    let begins = name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_');
    begins && name.chars().all(|one| one.is_ascii_alphanumeric() || one == '_') && !value.contains('\0')
}

fn invalid(message: &str) -> Failure {
    Failure::new(ErrorCode::InvalidArgument, message)
}
