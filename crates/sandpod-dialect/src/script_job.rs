//! Jobs: what a fixed script does in a sandbox. Its words travel in a file, because no path, content or pattern may be part
//! of a command, and its answer comes back in text that any runtime can carry.
//!
//! All files of a job are in [`FOLDER`] and have the job's name and a dot before their own: stock runtimes make no
//! directories for what is uploaded.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use data_encoding::BASE64;
use sandpod_protocol::Failure;
use sandpod_protocol::v1::ErrorCode;
use tokio::time::{Instant, sleep};

use crate::RuntimeKind;
use crate::error::RuntimeError;
use crate::runtime::Runtime;

/// Where the files of jobs are, below the directory in which the runtime starts commands.
pub(crate) const FOLDER: &str = ".sandpod";
/// What comes with an answer itself; more is fetched.
const INLINE_BYTES: usize = 256 << 10;
/// How long requests that got no answer are repeated, and how often.
const RETRY_LIMIT: Duration = Duration::from_secs(30);
const RETRY_PAUSE: Duration = Duration::from_millis(200);
/// The part of a large content that travels at once.
pub(crate) const PART_BYTES: usize = 4 << 20;
/// Deletes the files of a job.
const DELETE: &str = "rm -rf \"$1\".*";

/// A script with the beginning that all have.
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
    /// Begins the names of this process's jobs.
    prefix: String,
    count: AtomicU64,
}

/// One job: its files are deleted when it is dropped.
pub(crate) struct ScriptJob {
    jobs: Arc<ScriptJobs>,
    /// What the paths of its files begin with, below the directory in which the runtime starts commands.
    prefix: String,
    kept: bool,
}

impl ScriptJobs {
    pub(crate) fn new(kind: RuntimeKind, runtime: impl Runtime) -> Self {
        let prefix = uuid::Uuid::new_v4().simple().to_string();
        Self { kind, runtime: Box::new(runtime), prefix, count: AtomicU64::new(0) }
    }

    pub(crate) fn kind(&self) -> RuntimeKind {
        self.kind
    }

    /// A name that differs for every process that speaks to the sandbox.
    pub(crate) fn name(&self) -> &str {
        &self.prefix
    }

    /// A name that no other job has.
    pub(crate) fn unique(&self) -> String {
        format!("{}-{}", self.prefix, self.count.fetch_add(1, Ordering::Relaxed))
    }

    /// A new job.
    pub(crate) fn job(self: &Arc<Self>) -> ScriptJob {
        self.named(&self.unique())
    }

    /// The job of this name, whichever process began it.
    pub(crate) fn named(self: &Arc<Self>, name: &str) -> ScriptJob {
        ScriptJob { jobs: self.clone(), prefix: format!("{FOLDER}/{name}"), kept: false }
    }

    /// The content of a file below the directory in which the runtime starts commands; `None` if it does not exist.
    pub(crate) async fn file(&self, path: &str) -> Result<Option<Bytes>, Failure> {
        match retried(|| self.runtime.get(path.to_owned())).await {
            Err(RuntimeError::NotFound) => Ok(None),
            content => Ok(Some(content.map_err(Failure::from)?)),
        }
    }
}

/// Repeats a request until it is answered or repeating can't help.
async fn retried<T, F: Future<Output = Result<T, RuntimeError>>>(
    request: impl Fn() -> F,
) -> Result<T, RuntimeError> {
    let deadline = Instant::now() + RETRY_LIMIT;
    loop {
        match request().await {
            Err(RuntimeError::NotSent(_) | RuntimeError::NoAnswer(_)) if Instant::now() < deadline => {}
            // All streams end now, and their calls with them: the next dial reports why.
            Err(RuntimeError::Gone(_)) => std::future::pending().await,
            answer => return answer,
        }
        sleep(RETRY_PAUSE).await;
    }
}

impl ScriptJob {
    /// Keeps its files when it is dropped.
    pub(crate) fn keep(mut self) -> Self {
        self.kept = true;
        self
    }

    /// Deletes its files now.
    pub(crate) fn delete(mut self) {
        self.kept = false;
    }

    /// Gives a file to the script.
    pub(crate) async fn put_file(&self, name: &str, content: Bytes) -> Result<(), Failure> {
        let path = format!("{}.{name}", self.prefix);
        let runtime = &self.jobs.runtime;
        let given = retried(|| runtime.put(path.clone(), content.clone())).await;
        given.map_err(Failure::from)
    }

    /// Gives the script its words.
    pub(crate) async fn put_words(&self, words: &[&[u8]]) -> Result<(), Failure> {
        self.put_file("in", encode_words(words)).await
    }

    /// Gives the script its words and runs it; returns its answer.
    pub(crate) async fn run_with_words(&self, script: &str, words: &[&[u8]]) -> Result<Bytes, Failure> {
        self.put_words(words).await?;
        self.run(script, &[]).await
    }

    /// Runs a script that can be run any number of times; returns its answer. No argument may be a user's.
    pub(crate) async fn run(&self, script: &str, arguments: &[&str]) -> Result<Bytes, Failure> {
        let said = self.start(script, arguments).await?;
        self.whole(&said).await
    }

    /// Runs a script that must run once: if an answer is lost, the next request gets the same one.
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

    /// The whole answer; a large one is in a file.
    async fn whole(&self, said: &[u8]) -> Result<Bytes, Failure> {
        match answer(said)? {
            (whole, content) if content.len() == whole => Ok(content.into()),
            (whole, _) => {
                let content = self.jobs.file(&format!("{}.out", self.prefix)).await?.unwrap_or_default();
                if content.len() == whole { Ok(content) } else { Err(nonsense("its answer is cut")) }
            }
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
            // Files that stay because this failed go with the sandbox.
            let _ = jobs.runtime.run(words).await;
        });
    }
}

/// Words as a script reads them.
pub(crate) fn encode_words(words: &[&[u8]]) -> Bytes {
    words.iter().map(|word| BASE64.encode(word) + "\n").collect::<String>().into()
}

/// What a script said: how long its answer is, and as much of it as came along.
fn answer(said: &[u8]) -> Result<(usize, Vec<u8>), Failure> {
    let (head, rest) = match said.iter().position(|byte| *byte == b'\n') {
        Some(end) => (&said[..end], &said[end + 1..]),
        None => (said, &[][..]),
    };
    let rest: Vec<u8> = rest.iter().copied().filter(|byte| !byte.is_ascii_whitespace()).collect();
    let rest = BASE64.decode(&rest).map_err(|_| nonsense("a script's answer is none"))?;
    let head = String::from_utf8_lossy(head);
    match head.split_once(' ').unwrap_or((&head, "")) {
        ("ok", size) => {
            let size: usize = size.parse().map_err(|_| nonsense("a script's answer has no size"))?;
            if rest.len() == size.min(INLINE_BYTES) {
                Ok((size, rest))
            } else {
                Err(nonsense("a script's answer is cut"))
            }
        }
        ("no", "") => Err(from_words(&String::from_utf8_lossy(&rest))),
        ("no", why) => Err(from_name(why)),
        _ => Err(nonsense("a script said something else: are sh, sed, base64, head and stat in the image?")),
    }
}

fn nonsense(why: &str) -> Failure {
    Failure::new(ErrorCode::Internal, why)
}

/// What a script found out itself.
fn from_name(name: &str) -> Failure {
    let (code, said) = match name {
        "not-found" => (ErrorCode::NotFound, "there is no such file"),
        "not-a-directory" => (ErrorCode::NotADirectory, "it is not a directory"),
        "is-directory" => (ErrorCode::IsDirectory, "it is a directory"),
        "not-a-file" => (ErrorCode::NotAFile, "it is neither a file nor a directory"),
        "too-large" => (ErrorCode::TooLarge, "there is more than one answer takes: use a command"),
        "exists" => (ErrorCode::Exists, "something is there already"),
        "changed" => (ErrorCode::Changed, "it was changed by somebody else meanwhile: read it again"),
        "corrupt" => (ErrorCode::Corrupt, "a part of it is missing: send it again"),
        "outcome-unknown" => (ErrorCode::OutcomeUnknown, "there is no record of it"),
        _ => (ErrorCode::Internal, "a script failed for a reason that it has no word for"),
    };
    Failure::new(code, said)
}

/// What a tool said in its own words, which end in those of the kernel.
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
    fn an_answer_comes_with_its_size_and_is_whole_or_none() {
        assert_eq!(answer(b"ok 5\naGVs\nbG8=\n").unwrap(), (5, b"hello".to_vec()));
        assert_eq!(answer(b"ok 0\n").unwrap(), (0, Vec::new()));
        for cut in [&b"ok 5\naGVs\n"[..], b"ok\n", b"", b"sh: base64: not found\n", b"ok 5\n!\n"] {
            assert_eq!(answer(cut).unwrap_err().code(), ErrorCode::Internal, "{cut:?}");
        }
    }

    #[test]
    fn what_tools_say_becomes_our_codes() {
        let said = BASE64.encode(b"stat: can't stat '/x': No such file or directory\n");
        assert_eq!(answer(format!("no\n{said}\n").as_bytes()).unwrap_err().code(), ErrorCode::NotFound);
        assert_eq!(answer(b"no is-directory\n").unwrap_err().code(), ErrorCode::IsDirectory);
    }
}
