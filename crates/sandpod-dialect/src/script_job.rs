//! Script jobs: fixed scripts that run in a sandbox. Their words are sent in a file, because no path, content or pattern may
//! be part of a command, and their answers are text that any runtime can return.
//!
//! All files of a job are in [`FOLDER`], and their names begin with the name of the job and a dot: stock runtimes create no
//! directories for uploads.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use data_encoding::BASE64;
use sandpod_protocol::Failure;
use sandpod_protocol::v1::ErrorCode;
use tokio::time::{Instant, sleep};

use crate::RuntimeKind;
use crate::error::RuntimeError;
use crate::runtime::Runtime;

/// Directory of the files of jobs, relative to the working directory of the runtime's commands.
pub(crate) const FOLDER: &str = ".sandpod";
/// Maximum size of an answer in the output of a script; a larger answer is downloaded.
const INLINE_BYTES: usize = 256 << 10;
/// How long requests without an answer are retried, and at which interval.
const RETRY_LIMIT: Duration = Duration::from_secs(30);
const RETRY_PAUSE: Duration = Duration::from_millis(200);
/// Size of the parts of a large content.
pub(crate) const PART_BYTES: usize = 4 << 20;
/// Deletes the files of a job.
const DELETE: &str = "rm -rf \"$1\".*";

/// Joins scripts after the common beginning.
macro_rules! script {
    ($($name:literal),+) => {
        concat!(include_str!("scripts/common.sh"), $(include_str!(concat!("scripts/", $name, ".sh"))),+)
    };
}
pub(crate) use script;

/// The jobs in one sandbox.
pub(crate) struct ScriptJobs {
    kind: RuntimeKind,
    runtime: Box<dyn Runtime>,
    /// Prefix of the names of this process's jobs.
    prefix: String,
    count: AtomicU64,
    /// The jobs for whose outcome a call waits.
    awaited: Mutex<HashMap<String, Awaited>>,
}

#[derive(Default)]
struct Awaited {
    calls: usize,
    cancelled: bool,
}

/// A call that waits for the outcome of a job. When it ends after a cancel, the files of the job are deleted.
pub(crate) struct Waiter {
    jobs: Arc<ScriptJobs>,
    name: String,
}

/// One job. Its files are deleted when it is dropped.
pub(crate) struct ScriptJob {
    jobs: Arc<ScriptJobs>,
    /// Prefix of the paths of its files, relative to the working directory of the runtime's commands.
    prefix: String,
    kept: bool,
}

impl ScriptJobs {
    pub(crate) fn new(kind: RuntimeKind, runtime: impl Runtime) -> Self {
        let prefix = uuid::Uuid::new_v4().simple().to_string();
        Self { kind, runtime: Box::new(runtime), prefix, count: AtomicU64::new(0), awaited: Mutex::default() }
    }

    pub(crate) fn kind(&self) -> RuntimeKind {
        self.kind
    }

    /// Returns a name that no other process has in this sandbox.
    pub(crate) fn name(&self) -> &str {
        &self.prefix
    }

    /// Returns a name that no other job has.
    pub(crate) fn unique(&self) -> String {
        format!("{}-{}", self.prefix, self.count.fetch_add(1, Ordering::Relaxed))
    }

    /// Creates a job.
    pub(crate) fn job(self: &Arc<Self>) -> ScriptJob {
        self.named(&self.unique())
    }

    /// Returns the job with this name, whichever process created it.
    pub(crate) fn named(self: &Arc<Self>, name: &str) -> ScriptJob {
        ScriptJob { jobs: self.clone(), prefix: format!("{FOLDER}/{name}"), kept: false }
    }

    /// Notes that a call waits for the job with this name.
    pub(crate) fn wait(self: &Arc<Self>, name: &str) -> Waiter {
        self.awaited().entry(name.to_owned()).or_default().calls += 1;
        Waiter { jobs: self.clone(), name: name.to_owned() }
    }

    /// Leaves the files of a cancelled job to the call that waits for its outcome. Returns whether there is one.
    pub(crate) fn leave_to_waiter(&self, name: &str) -> bool {
        self.awaited().get_mut(name).map(|awaited| awaited.cancelled = true).is_some()
    }

    fn awaited(&self) -> MutexGuard<'_, HashMap<String, Awaited>> {
        self.awaited.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the content of a file relative to the working directory of the runtime's commands; `None` if it does not exist.
    pub(crate) async fn file(&self, path: &str) -> Result<Option<Bytes>, Failure> {
        match retried(|| self.runtime.get(path.to_owned())).await {
            Err(RuntimeError::NotFound) => Ok(None),
            content => Ok(Some(content.map_err(Failure::from)?)),
        }
    }
}

/// Retries a request until it is answered, or until retrying cannot help.
async fn retried<T, F: Future<Output = Result<T, RuntimeError>>>(
    request: impl Fn() -> F,
) -> Result<T, RuntimeError> {
    let deadline = Instant::now() + RETRY_LIMIT;
    loop {
        match request().await {
            Err(RuntimeError::NotSent(_) | RuntimeError::NoAnswer(_)) if Instant::now() < deadline => {}
            // All streams end now, and their calls with them: the next dial returns the reason.
            Err(RuntimeError::Gone(_)) => std::future::pending().await,
            answer => return answer,
        }
        sleep(RETRY_PAUSE).await;
    }
}

impl ScriptJob {
    /// Keeps the files when the job is dropped.
    pub(crate) fn keep(mut self) -> Self {
        self.kept = true;
        self
    }

    /// Deletes the files now.
    pub(crate) fn delete(mut self) {
        self.kept = false;
    }

    /// Uploads a file for the script.
    pub(crate) async fn put_file(&self, name: &str, content: Bytes) -> Result<(), Failure> {
        let path = format!("{}.{name}", self.prefix);
        let runtime = &self.jobs.runtime;
        let given = retried(|| runtime.put(path.clone(), content.clone())).await;
        given.map_err(Failure::from)
    }

    /// Uploads the words of the script.
    pub(crate) async fn put_words(&self, words: &[&[u8]]) -> Result<(), Failure> {
        self.put_file("in", encode_words(words)).await
    }

    /// Uploads the words of the script, runs it and returns its answer.
    pub(crate) async fn run_with_words(&self, script: &str, words: &[&[u8]]) -> Result<Bytes, Failure> {
        self.put_words(words).await?;
        self.run(script, &[]).await
    }

    /// Runs an idempotent script and returns its answer. No argument may be user data.
    pub(crate) async fn run(&self, script: &str, arguments: &[&str]) -> Result<Bytes, Failure> {
        let said = self.start(script, arguments).await?;
        self.whole(&said).await
    }

    /// Runs a script once. If an answer is lost, the next request gets the same one.
    pub(crate) async fn once(&self, name: &str, script: &str, arguments: &[&str]) -> Result<Bytes, Failure> {
        let all: Vec<_> = [name, script].into_iter().chain(arguments.iter().copied()).collect();
        let said = self.start(script!("once"), &all).await.map_err(|error| match error {
            RuntimeError::NoAnswer(why) => Failure::new(ErrorCode::OutcomeUnknown, why),
            error => error.into(),
        })?;
        self.whole(&said).await
    }

    async fn start(&self, script: &str, arguments: &[&str]) -> Result<Vec<u8>, RuntimeError> {
        let words =
            ["sh", "-c", script, "sandpod", &self.prefix].into_iter().chain(arguments.iter().copied());
        let words: Vec<_> = words.map(str::to_owned).collect();
        retried(|| self.jobs.runtime.run(words.clone())).await
    }

    /// Returns the complete answer; a large one is in a file.
    async fn whole(&self, said: &[u8]) -> Result<Bytes, Failure> {
        match answer(said)? {
            (whole, content) if content.len() == whole => Ok(content.into()),
            (whole, _) => {
                let content = self.jobs.file(&format!("{}.out", self.prefix)).await?.unwrap_or_default();
                if content.len() == whole {
                    Ok(content)
                } else {
                    Err(nonsense("the script's answer is incomplete"))
                }
            }
        }
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let mut awaited = self.jobs.awaited();
        let Some(job) = awaited.get_mut(&self.name) else { return };
        job.calls -= 1;
        if job.calls == 0 && awaited.remove(&self.name).is_some_and(|job| job.cancelled) {
            drop(awaited);
            drop(self.jobs.named(&self.name));
        }
    }
}

impl Drop for ScriptJob {
    fn drop(&mut self) {
        let Ok(tokio) = tokio::runtime::Handle::try_current() else { return };
        if self.kept {
            return;
        }
        let (jobs, prefix) = (self.jobs.clone(), self.prefix.clone());
        tokio.spawn(async move {
            let words = ["sh", "-c", DELETE, "sandpod", &prefix].map(str::to_owned).to_vec();
            // If this fails, the files remain until the sandbox is deleted.
            let _ = jobs.runtime.run(words).await;
        });
    }
}

/// Encodes words for a script.
pub(crate) fn encode_words(words: &[&[u8]]) -> Bytes {
    words.iter().map(|word| BASE64.encode(word) + "\n").collect::<String>().into()
}

/// Parses the output of a script: the size of its answer, and the part of the answer that it contains.
fn answer(said: &[u8]) -> Result<(usize, Vec<u8>), Failure> {
    let (head, rest) = match said.iter().position(|byte| *byte == b'\n') {
        Some(end) => (&said[..end], &said[end + 1..]),
        None => (said, &[][..]),
    };
    let rest: Vec<u8> = rest.iter().copied().filter(|byte| !byte.is_ascii_whitespace()).collect();
    let rest = BASE64.decode(&rest).map_err(|_| nonsense("the answer of a script is invalid"))?;
    let head = String::from_utf8_lossy(head);
    match head.split_once(' ').unwrap_or((&head, "")) {
        ("ok", size) => {
            let size: usize = size.parse().map_err(|_| nonsense("the answer of a script has no size"))?;
            if rest.len() == size.min(INLINE_BYTES) {
                Ok((size, rest))
            } else {
                Err(nonsense("the answer of a script is incomplete"))
            }
        }
        ("no", "") => Err(from_words(&String::from_utf8_lossy(&rest))),
        ("no", why) => Err(from_name(why)),
        _ => Err(nonsense(
            "the answer of a script is invalid: are sh, sed, base64, head and stat in the image?",
        )),
    }
}

fn nonsense(why: &str) -> Failure {
    Failure::new(ErrorCode::Internal, why)
}

/// Converts an error name of a script.
fn from_name(name: &str) -> Failure {
    let (code, said) = match name {
        "not-found" => (ErrorCode::NotFound, "the file does not exist"),
        "not-a-directory" => (ErrorCode::NotADirectory, "the path is not a directory"),
        "is-directory" => (ErrorCode::IsDirectory, "the path is a directory"),
        "not-a-file" => (ErrorCode::NotAFile, "the path is neither a file nor a directory"),
        "too-large" => (ErrorCode::TooLarge, "the content does not fit into one answer: use a command"),
        "exists" => (ErrorCode::Exists, "the target exists already"),
        "changed" => (ErrorCode::Changed, "another process changed the file meanwhile: read it again"),
        "corrupt" => (ErrorCode::Corrupt, "a part of the content is missing: send it again"),
        "outcome-unknown" => (ErrorCode::OutcomeUnknown, "the sandbox has no record of the call"),
        _ => (ErrorCode::Internal, "a script failed for an unknown reason"),
    };
    Failure::new(code, said)
}

/// Converts the error message of a tool, which ends in the kernel's text.
fn from_words(said: &str) -> Failure {
    let said = said.trim();
    let code = [
        ("No such file", ErrorCode::NotFound),
        ("Permission denied", ErrorCode::PermissionDenied),
        ("Operation not permitted", ErrorCode::PermissionDenied),
        ("Read-only file system", ErrorCode::PermissionDenied),
        ("Is a directory", ErrorCode::IsDirectory),
        ("Not a directory", ErrorCode::NotADirectory),
        ("No space left", ErrorCode::NoSpace),
        ("quota exceeded", ErrorCode::NoSpace),
        ("not empty", ErrorCode::Exists),
        ("File exists", ErrorCode::Exists),
        ("name too long", ErrorCode::InvalidArgument),
    ];
    let code = code.into_iter().find(|(words, _)| said.contains(words)).map(|(_, code)| code);
    Failure::new(code.unwrap_or(ErrorCode::Internal), if said.is_empty() { "it failed" } else { said })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_request_for_a_command_gets_its_whole_output() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join(FOLDER);
        std::fs::create_dir_all(&folder).unwrap();
        let line = "sleep 0.5; seq 20000";
        let words = [".", "0", "1000000", "", "", "", "0", "0", "/bin/sh", "-c", line].map(str::as_bytes);
        let (start, run) = (script!("start", "poll"), script!("kill", "run"));
        let ask = |number: u32| {
            std::fs::write(folder.join(format!("job.{number}-in")), encode_words(&words)).unwrap();
            let mut ask = std::process::Command::new("sh");
            ask.args(["-c", start, "sandpod", &format!("{FOLDER}/job"), "15", run, &number.to_string()]);
            ask.current_dir(&dir).stdout(std::process::Stdio::piped()).spawn().unwrap()
        };
        let asking: Vec<_> = (0..8).map(ask).collect();
        let written = (1..=20000).map(|number: u32| number.to_string()).collect::<Vec<_>>().join("\n") + "\n";
        for asked in asking {
            let said = asked.wait_with_output().unwrap().stdout;
            let (size, content) = answer(&said).unwrap();
            assert_eq!(String::from_utf8(content).unwrap(), format!("0 {} - -\n{written}", written.len()));
            assert!(size < INLINE_BYTES);
        }
    }

    #[test]
    fn answer_has_its_size_and_is_complete_or_an_error() {
        assert_eq!(answer(b"ok 5\naGVs\nbG8=\n").unwrap(), (5, b"hello".to_vec()));
        assert_eq!(answer(b"ok 0\n").unwrap(), (0, Vec::new()));
        for cut in [&b"ok 5\naGVs\n"[..], b"ok\n", b"", b"sh: base64: not found\n", b"ok 5\n!\n"] {
            assert_eq!(answer(cut).unwrap_err().code(), ErrorCode::Internal, "{cut:?}");
        }
    }

    #[test]
    fn error_messages_of_tools_become_codes() {
        let said = BASE64.encode(b"stat: can't stat '/x': No such file or directory\n");
        assert_eq!(answer(format!("no\n{said}\n").as_bytes()).unwrap_err().code(), ErrorCode::NotFound);
        assert_eq!(answer(b"no is-directory\n").unwrap_err().code(), ErrorCode::IsDirectory);
    }
}
