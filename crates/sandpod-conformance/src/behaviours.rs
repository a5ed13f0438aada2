//! Behaviours of every sandbox.

mod changes;
mod execute;
mod files;
mod policy;
mod search;
mod session;
mod shell;
mod started;
mod transfer;

use std::time::Duration;

use futures::future::BoxFuture;
use sandpod_client::{Error, ErrorCode, ExecuteOptions, Executed, Page, ReadOptions, Sandbox, TextPage};

use crate::{Capability, Kernel, OpenedSandbox, Target};

/// The output of a line in an image without a shell.
const NO_SHELL: &str = "the command was not started: the image has no /bin/sh; give a program and its \
                        arguments instead of a line";

/// One behaviour, named by a sentence.
pub(crate) struct Behaviour {
    pub(crate) name: &'static str,
    pub(crate) needs: Needs,
    pub(crate) run: for<'a> fn(Case<'a>) -> BoxFuture<'a, ()>,
}

/// Requirements of a behaviour.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Needs {
    pub(crate) shell: bool,
    pub(crate) losses: bool,
}

const NOTHING: Needs = Needs { shell: false, losses: false };
const SHELL: Needs = Needs { shell: true, losses: false };
const LOSSES: Needs = Needs { shell: false, losses: true };
const SHELL_AND_LOSSES: Needs = Needs { shell: true, losses: true };

/// Declares the behaviours of a file, each a function of [`Case`], with their requirements.
macro_rules! behaviours {
    ($($needs:ident $name:ident),* $(,)?) => {
        pub(super) const ALL: &[$crate::behaviours::Behaviour] = &[$(
            $crate::behaviours::Behaviour {
                name: stringify!($name),
                needs: $crate::behaviours::$needs,
                run: |case| Box::pin($name(case)),
            }
        ),*];
    };
}
use behaviours;

/// Returns all behaviours.
pub(crate) fn all() -> impl Iterator<Item = &'static Behaviour> {
    let all = [
        execute::ALL,
        started::ALL,
        shell::ALL,
        files::ALL,
        changes::ALL,
        transfer::ALL,
        search::ALL,
        session::ALL,
        policy::ALL,
    ];
    all.into_iter().flatten()
}

/// Returns the behaviours that can run on a target.
pub(crate) fn of(target: &Target) -> impl Iterator<Item = &'static Behaviour> {
    let loses_streams = target.loses_streams;
    all().filter(move |behaviour| loses_streams || !behaviour.needs.losses)
}

/// Environment of one behaviour: a shared sandbox, and a directory of its own.
#[derive(Clone)]
pub(crate) struct Case<'a> {
    place: &'a OpenedSandbox,
    kernel: Kernel,
    sandbox: Sandbox,
    dir: String,
}

impl<'a> Case<'a> {
    pub(crate) async fn new(place: &'a OpenedSandbox, kernel: Kernel, behaviour: &str) -> Self {
        let dir = format!("{}/{behaviour}", place.dir);
        // A write creates the parent directories.
        place.sandbox.write(&format!("{dir}/.here"), "").await.unwrap();
        place.sandbox.delete(&format!("{dir}/.here")).await.unwrap();
        Self { place, kernel, sandbox: place.sandbox.clone(), dir }
    }

    fn path(&self, name: &str) -> String {
        format!("{}/{name}", self.dir)
    }

    async fn write(&self, name: &str, content: &str) -> String {
        let path = self.path(name);
        self.sandbox.write(&path, content.to_owned()).await.unwrap();
        path
    }

    async fn content(&self, path: &str) -> String {
        let content = self.sandbox.download(path, 1 << 20).await.unwrap();
        String::from_utf8(content.to_vec()).unwrap()
    }

    async fn page(&self, path: &str, line_offset: u64, line_limit: u64) -> TextPage {
        let options = ReadOptions { line_offset, line_limit, ..ReadOptions::default() };
        match self.sandbox.read(path, options).await.unwrap() {
            Page::Text(page) => page,
            Page::Binary(_) => panic!("{path} is text"),
        }
    }

    /// Runs a line in the directory; returns its output and exit code.
    async fn run(&self, line: &str) -> (String, Option<i32>) {
        let executed = self.execute(line, ExecuteOptions::default()).await;
        (text(&executed), executed.exit_code)
    }

    async fn execute(&self, line: &str, options: ExecuteOptions) -> Executed {
        let options = ExecuteOptions { working_dir: Some(self.dir.clone()), ..options };
        self.sandbox.execute(line, options).await.unwrap()
    }

    /// Waits until a process is gone. A zombie counts as gone: PID 1 must reap it, and not every target has an init that does.
    async fn is_gone(&self, pid: &str) -> bool {
        let pid = pid.trim();
        let lives = format!("kill -0 {pid} && ! grep -q '^State:.Z' /proc/{pid}/status");
        for _ in 0..200 {
            if self.run(&lives).await.1 != Some(0) {
                return true;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        false
    }
}

/// Replaces a behaviour that needs a shell, on a target without one: the line is refused by name.
pub(crate) async fn without_shell(case: Case<'_>) {
    let executed = case.execute("true", ExecuteOptions::default()).await;
    assert_eq!((text(&executed).as_str(), executed.exit_code), (NO_SHELL, Some(125)));
}

/// Replaces a behaviour that needs a missing capability: the capability is refused by name.
pub(crate) async fn without_capability(case: Case<'_>, capability: Capability) {
    capability.is_refused(&case.sandbox, &case.dir).await;
}

fn text(executed: &Executed) -> String {
    String::from_utf8(executed.output.to_vec()).unwrap()
}

fn within(timeout: Duration) -> ExecuteOptions {
    ExecuteOptions { timeout: Some(timeout), ..ExecuteOptions::default() }
}

/// Returns code and message of an error of the guest.
fn refusal<T: std::fmt::Debug>(result: Result<T, Error>) -> (ErrorCode, String) {
    match result.unwrap_err() {
        Error::Failure(failure) => (failure.code(), failure.message().to_owned()),
        error => panic!("expected an error of the guest: {error}"),
    }
}

fn code<T: std::fmt::Debug>(result: Result<T, Error>) -> ErrorCode {
    refusal(result).0
}
