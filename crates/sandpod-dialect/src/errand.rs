//! What is done in a sandbox by a fixed script: its words go there as a file, for no path, content or pattern may be in a
//! command, and its answer comes back in text that any runtime can carry.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use data_encoding::BASE64;
use sandpod_protocol::Failure;
use sandpod_protocol::v1::ErrorCode;
use tokio::time::{Instant, sleep};

use crate::Kind;
use crate::runtime::Runtime;
use crate::trouble::Trouble;

/// Where errands have their folders, below where the runtime starts commands.
pub(crate) const FOLDER: &str = ".sandpod";
/// What comes with an answer itself; more is fetched.
const INLINE_BYTES: usize = 256 << 10;
/// How long a runtime that does not answer is asked again, and how often.
const PATIENCE: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(200);
/// The part of a large content that travels at once.
pub(crate) const PART_BYTES: usize = 4 << 20;

/// A script with what all begin with.
macro_rules! script {
    ($($name:literal),+) => {
        concat!(include_str!("scripts/common.sh"), $(include_str!(concat!("scripts/", $name, ".sh"))),+)
    };
}
pub(crate) use script;

/// The errands in one sandbox.
pub(crate) struct Errands {
    kind: Kind,
    runtime: Box<dyn Runtime>,
    /// Names the folders of this process.
    prefix: String,
    count: AtomicU64,
}

/// One errand: it has a folder of its own until it is dropped.
pub(crate) struct Errand {
    errands: Arc<Errands>,
    /// Its folder, below where the runtime starts commands.
    folder: String,
    kept: bool,
}

impl Errands {
    pub(crate) fn new(kind: Kind, runtime: impl Runtime) -> Self {
        let prefix = uuid::Uuid::new_v4().simple().to_string();
        Self { kind, runtime: Box::new(runtime), prefix, count: AtomicU64::new(0) }
    }

    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    /// Changes with every process that speaks to the sandbox.
    pub(crate) fn name(&self) -> &str {
        &self.prefix
    }

    /// A name that nobody else has.
    pub(crate) fn unique(&self) -> String {
        format!("{}-{}", self.prefix, self.count.fetch_add(1, Ordering::Relaxed))
    }

    /// A new errand.
    pub(crate) fn errand(self: &Arc<Self>) -> Errand {
        self.named(&self.unique())
    }

    /// The errand of this name, whoever began it.
    pub(crate) fn named(self: &Arc<Self>, name: &str) -> Errand {
        Errand { errands: self.clone(), folder: format!("{FOLDER}/{name}"), kept: false }
    }

    /// A file below where the runtime starts commands; none if there is none.
    pub(crate) async fn file(&self, path: &str) -> Result<Option<Bytes>, Failure> {
        match patiently(|| self.runtime.get(path.to_owned())).await {
            Err(Trouble::Missing) => Ok(None),
            content => Ok(Some(content.map_err(Failure::from)?)),
        }
    }
}

/// Asks until there is an answer or no use in asking.
async fn patiently<T, F: Future<Output = Result<T, Trouble>>>(ask: impl Fn() -> F) -> Result<T, Trouble> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match ask().await {
            Err(Trouble::Unasked(_) | Trouble::Unanswered(_)) if Instant::now() < deadline => {}
            // All streams end now, and so do their calls: the next dial says it in its own words.
            Err(Trouble::Gone(_)) => std::future::pending().await,
            answer => return answer,
        }
        sleep(PAUSE).await;
    }
}

impl Errand {
    /// Its folder stays when it is dropped.
    pub(crate) fn keep(mut self) -> Self {
        self.kept = true;
        self
    }

    /// Its folder goes when it is dropped.
    pub(crate) fn forget(mut self) {
        self.kept = false;
    }

    /// Gives a file to the script.
    pub(crate) async fn give(&self, name: &str, content: Bytes) -> Result<(), Failure> {
        let path = format!("{}/{name}", self.folder);
        let runtime = &self.errands.runtime;
        let given = patiently(|| runtime.put(path.clone(), content.clone())).await;
        given.map_err(Failure::from)
    }

    /// Gives the script its words.
    pub(crate) async fn say(&self, words: &[&[u8]]) -> Result<(), Failure> {
        self.give("in", lines(words)).await
    }

    /// Says the words and runs the script: what it answers.
    pub(crate) async fn ask(&self, script: &str, words: &[&[u8]]) -> Result<Bytes, Failure> {
        self.say(words).await?;
        self.run(script, &[]).await
    }

    /// Runs a script that can be run any number of times, with further arguments, of which none is a user's: what it
    /// answers.
    pub(crate) async fn run(&self, script: &str, arguments: &[&str]) -> Result<Bytes, Failure> {
        let said = self.tell(script, arguments).await?;
        self.whole(&said).await
    }

    /// Runs a script that must be run once: who asks again because an answer was lost hears the first one.
    pub(crate) async fn once(&self, name: &str, script: &str) -> Result<Bytes, Failure> {
        let said = self.tell(script!("once"), &[name, script]).await.map_err(|trouble| match trouble {
            Trouble::Unanswered(why) => Failure::new(ErrorCode::OutcomeUnknown, why),
            trouble => trouble.into(),
        })?;
        self.whole(&said).await
    }

    async fn tell(&self, script: &str, arguments: &[&str]) -> Result<Vec<u8>, Trouble> {
        let words =
            ["sh", "-c", script, "sandpod", &self.folder].into_iter().chain(arguments.iter().copied());
        let words: Vec<_> = words.map(str::to_owned).collect();
        patiently(|| self.errands.runtime.run(words.clone())).await
    }

    /// The whole answer, of which a large one comes by its file.
    async fn whole(&self, said: &[u8]) -> Result<Bytes, Failure> {
        match answer(said)? {
            (whole, content) if content.len() == whole => Ok(content.into()),
            (whole, _) => {
                let content = self.errands.file(&format!("{}/out", self.folder)).await?.unwrap_or_default();
                if content.len() == whole { Ok(content) } else { Err(nonsense("its answer is cut")) }
            }
        }
    }
}

impl Drop for Errand {
    fn drop(&mut self) {
        let Ok(tokio) = tokio::runtime::Handle::try_current() else { return };
        if self.kept {
            return;
        }
        let (errands, folder) = (self.errands.clone(), self.folder.clone());
        tokio.spawn(async move {
            let words = ["rm", "-rf", &folder].map(str::to_owned).to_vec();
            // What is left of it goes with the sandbox.
            let _ = errands.runtime.run(words).await;
        });
    }
}

/// Words as a script reads them.
pub(crate) fn lines(words: &[&[u8]]) -> Bytes {
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
    fn all_who_ask_for_a_command_hear_the_whole_of_what_it_wrote() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join(FOLDER).join("job");
        std::fs::create_dir_all(&folder).unwrap();
        let words = [".", "0", "1000000", "0", "/bin/sh", "-c", "sleep 0.5; seq 20000"].map(str::as_bytes);
        let (start, run) = (script!("start", "poll"), script!("kill", "run"));
        let ask = |number: u32| {
            std::fs::write(folder.join(format!("{number}-in")), lines(&words)).unwrap();
            let mut ask = std::process::Command::new("sh");
            ask.args(["-c", start, "sandpod", &format!("{FOLDER}/job"), "15", run, &number.to_string()]);
            ask.current_dir(&dir).stdout(std::process::Stdio::piped()).spawn().unwrap()
        };
        let asking: Vec<_> = (0..8).map(ask).collect();
        let written = (1..=20000).map(|number: u32| number.to_string()).collect::<Vec<_>>().join("\n") + "\n";
        for asked in asking {
            let said = asked.wait_with_output().unwrap().stdout;
            let (size, content) = answer(&said).unwrap();
            assert_eq!(String::from_utf8(content).unwrap(), format!("0 {} \n{written}", written.len()));
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
