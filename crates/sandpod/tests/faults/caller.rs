//! A caller that works in a directory of its own and records the result of each operation.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::io::Cursor;
use std::time::Duration;

use sandpod::{ExecuteOptions, Sandbox};
use sandpod_client::{Bytes, Error, ErrorCode, Failure};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use crate::say;

/// A call waits up to 60 s for a stream; it must return within this time.
const BOUND: Duration = Duration::from_secs(90);
/// A command's timeout, and the latest end of its call: with the grace period and a margin for a slow machine.
const TIMEOUT: Duration = Duration::from_secs(20);
const COMMAND_BOUND: Duration = Duration::from_secs(33);
const BIG: usize = 2 << 20;
/// More than the size of any file here.
const MAX_BYTES: u64 = 16 << 20;
const LOG: &str = "log";

/// The result of an operation.
enum Answer<T> {
    Done(T),
    Refused(Failure),
    /// Nothing was done.
    Undone,
    /// The outcome is unknown.
    Unknown,
}

/// The result of appending a token to the log.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Fate {
    Done,
    Undone,
    Unknown,
}

/// The content of a file, or none if the file does not exist.
type Content = Option<Bytes>;

/// The observations of one caller.
#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) unknown: u64,
    pub(crate) undone: u64,
    pub(crate) slowest: Duration,
    pub(crate) violations: Vec<String>,
}

pub(crate) struct Caller {
    dir: String,
    sandbox: Sandbox,
    random: fastrand::Rng,
    acknowledged: watch::Sender<u64>,
    count: u64,
    tokens: BTreeMap<String, Fate>,
    /// The possible contents of each file: a single one is certain.
    files: BTreeMap<String, Vec<Content>>,
    pub(crate) report: Report,
}

impl Caller {
    pub(crate) fn new(
        number: usize,
        sandbox: Sandbox,
        random: fastrand::Rng,
        acknowledged: watch::Sender<u64>,
    ) -> Self {
        let files = ["a", "b", "c", "big"].map(|name| (name.to_owned(), vec![None]));
        Self {
            dir: format!("/workspace/caller-{number}"),
            sandbox,
            random,
            acknowledged,
            count: 0,
            tokens: BTreeMap::new(),
            files: files.into(),
            report: Report::default(),
        }
    }

    /// Works until `stop` is set.
    pub(crate) async fn work(mut self, stop: watch::Receiver<bool>) -> Self {
        while !*stop.borrow() {
            self.step().await;
            let thinking = self.random.u64(0..60);
            sleep(Duration::from_millis(thinking)).await;
        }
        self
    }

    async fn step(&mut self) {
        let name = ["a", "b", "c"][self.random.usize(0..3)];
        match self.random.u32(0..100) {
            0..40 => self.append().await,
            40..42 => self.upload_big().await,
            42..44 => self.look("big").await,
            _ if self.files[name].len() > 1 => self.look(name).await,
            44..60 => self.write(name).await,
            60..75 => self.edit(name).await,
            75..80 => self.delete(name).await,
            80..90 => self.stat(name).await,
            _ => self.look(name).await,
        }
    }

    /// Runs a command that appends a token each time it runs.
    async fn append(&mut self) {
        self.count += 1;
        let token = format!("token-{}", self.count);
        let options = ExecuteOptions { timeout: Some(TIMEOUT), ..ExecuteOptions::default() };
        let line = format!("printf '{token}\\n' >> {}", self.path(LOG));
        let sandbox = self.sandbox.clone();
        let fate = match Box::pin(self.call_within(COMMAND_BOUND, sandbox.execute(line, options))).await {
            Answer::Done(executed) if executed.exit_code == Some(0) => Fate::Done,
            Answer::Done(executed) => {
                self.violated(format!("{token} ended as {executed:?}"));
                Fate::Unknown
            }
            Answer::Refused(failure) => {
                self.violated(format!("{token} was refused: {failure}"));
                Fate::Unknown
            }
            Answer::Undone => Fate::Undone,
            Answer::Unknown => Fate::Unknown,
        };
        self.tokens.insert(token, fate);
    }

    async fn write(&mut self, name: &str) {
        self.count += 1;
        let content = Bytes::from(format!("version {};\nthe rest\n", self.count));
        let (sandbox, path) = (self.sandbox.clone(), self.path(name));
        let answer = self.call(sandbox.write(&path, content.clone())).await;
        self.changed("write", name, Some(content), answer);
    }

    async fn upload_big(&mut self) {
        let content: Bytes =
            std::iter::repeat_n(self.random.u8(..), BIG + self.random.usize(0..1000)).collect();
        let (sandbox, path) = (self.sandbox.clone(), self.path("big"));
        let answer = self.call(sandbox.upload(&path, Cursor::new(content.clone()))).await;
        self.changed("upload", "big", Some(content), answer);
    }

    /// Edits a file. A repeated edit fails, because the old text is gone.
    async fn edit(&mut self, name: &str) {
        let [Some(content)] = &self.files[name][..] else { return };
        let text = String::from_utf8_lossy(content).into_owned();
        let (old, rest) = text.split_once(';').expect("a caller wrote it");
        self.count += 1;
        let new = format!("version {}", self.count);
        let edited = Bytes::from(format!("{new};{rest}"));
        let (sandbox, path) = (self.sandbox.clone(), self.path(name));
        let answer = self.call(sandbox.edit(&path, &format!("{old};"), &format!("{new};"), false)).await;
        self.changed("edit", name, Some(edited), answer);
    }

    /// Deletes a file. A repeated deletion fails.
    async fn delete(&mut self, name: &str) {
        let [Some(_)] = &self.files[name][..] else { return };
        let (sandbox, path) = (self.sandbox.clone(), self.path(name));
        let answer = self.call(sandbox.delete(&path)).await;
        self.changed("delete", name, None, answer);
    }

    async fn stat(&mut self, name: &str) {
        let (sandbox, path) = (self.sandbox.clone(), self.path(name));
        let size = match self.call(sandbox.stat(&path, true)).await {
            Answer::Done(info) => Some(info.size),
            Answer::Refused(failure) if failure.code() == ErrorCode::NotFound => None,
            Answer::Refused(failure) => return self.violated(format!("stat of {path}: {failure}")),
            Answer::Undone | Answer::Unknown => return,
        };
        let known = |content: &Content| content.as_ref().map(|bytes| bytes.len() as u64);
        if !self.files[name].iter().any(|content| known(content) == size) {
            self.violated(format!("{path} has size {size:?}, which it never had"));
        }
    }

    /// Reads a file, which settles operations with an unknown outcome.
    async fn look(&mut self, name: &str) {
        let (sandbox, path) = (self.sandbox.clone(), self.path(name));
        let found = match self.call(sandbox.download(&path, MAX_BYTES)).await {
            Answer::Done(content) => Some(content),
            Answer::Refused(failure) if failure.code() == ErrorCode::NotFound => None,
            Answer::Refused(failure) => return self.violated(format!("download of {path}: {failure}")),
            Answer::Undone | Answer::Unknown => return,
        };
        self.found(name, found);
    }

    /// Derives the possible contents of a file from the result of a change.
    fn changed<T>(&mut self, what: &str, name: &str, content: Content, answer: Answer<T>) {
        let states = self.files.entry(name.to_owned()).or_default();
        match answer {
            Answer::Done(_) => *states = vec![content],
            Answer::Unknown => states.push(content),
            Answer::Undone => {}
            Answer::Refused(failure) => {
                states.push(content);
                self.violated(format!("{what} of {name} was refused: {failure}"));
            }
        }
    }

    fn found(&mut self, name: &str, content: Content) {
        if !self.files[name].contains(&content) {
            let expected: Vec<_> = self.files[name].iter().map(beginning).collect();
            let found = beginning(&content);
            self.violated(format!("{} is {found}, and should be one of {expected:?}", self.path(name)));
        }
        self.files.insert(name.to_owned(), vec![content]);
    }

    /// Makes a call and checks that it ends in time.
    async fn call<T>(&mut self, call: impl Future<Output = Result<T, Error>>) -> Answer<T> {
        self.call_within(BOUND, call).await
    }

    async fn call_within<T>(
        &mut self,
        bound: Duration,
        call: impl Future<Output = Result<T, Error>>,
    ) -> Answer<T> {
        let since = Instant::now();
        let result = timeout(bound, call).await;
        self.report.slowest = self.report.slowest.max(since.elapsed());
        match result {
            Ok(Ok(value)) => {
                self.acknowledged.send_modify(|count| *count += 1);
                Answer::Done(value)
            }
            Ok(Err(Error::Failure(failure))) => Answer::Refused(failure),
            Ok(Err(Error::Unreachable { .. })) => {
                self.report.undone += 1;
                Answer::Undone
            }
            Ok(Err(error))
                if error.is_outcome_unknown()
                    && !matches!(error, Error::Gone { .. } | Error::Protocol(_)) =>
            {
                self.report.unknown += 1;
                Answer::Unknown
            }
            Ok(Err(error)) => {
                self.violated(format!("no fault leads to: {error}"));
                Answer::Unknown
            }
            Err(_) => {
                self.violated(format!("a call said nothing for {bound:?}"));
                Answer::Unknown
            }
        }
    }

    /// Compares the sandbox's state with the recorded results, over a connection without faults.
    pub(crate) async fn verify(&mut self, sandbox: &Sandbox) {
        self.verify_log(sandbox).await;
        let names: Vec<_> = self.files.keys().cloned().collect();
        for name in names {
            match sandbox.download(&self.path(&name), MAX_BYTES).await {
                Ok(content) => self.found(&name, Some(content)),
                Err(Error::Failure(failure)) if failure.code() == ErrorCode::NotFound => {
                    self.found(&name, None);
                }
                Err(error) => self.violated(format!("{name} can't be read: {error}")),
            }
        }
    }

    async fn verify_log(&mut self, sandbox: &Sandbox) {
        let log = sandbox.download(&self.path(LOG), MAX_BYTES).await.expect("the log can be read");
        let log = String::from_utf8_lossy(&log);
        let mut seen = BTreeSet::new();
        let twice: Vec<_> = log.lines().filter(|token| !seen.insert(*token)).collect();
        let mut wrong: Vec<_> = twice.into_iter().map(|token| format!("{token} ran twice")).collect();
        for (token, fate) in &self.tokens {
            match (fate, seen.remove(token.as_str())) {
                (Fate::Done, false) => wrong.push(format!("{token} was acknowledged and is lost")),
                (Fate::Undone, true) => wrong.push(format!("{token} was done, against what was said")),
                _ => {}
            }
        }
        wrong.extend(seen.into_iter().map(|line| format!("unexpected line {line:?}")));
        for what in wrong {
            self.violated(what);
        }
    }

    fn violated(&mut self, what: impl Display) {
        let what = format!("{}: {what}", self.dir);
        say(&format!("violation: {what}"));
        self.report.violations.push(what);
    }

    fn path(&self, name: &str) -> String {
        format!("{}/{name}", self.dir)
    }
}

/// Enough of a file to recognize it.
fn beginning(content: &Content) -> String {
    match content {
        Some(bytes) => {
            format!("{} bytes of \"{}\"", bytes.len(), bytes[..bytes.len().min(20)].escape_ascii())
        }
        None => "not there".to_owned(),
    }
}
