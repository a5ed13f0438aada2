//! Started commands.

use std::time::SystemTime;

use futures::stream::BoxStream;
use sandpod_client::{Bytes, Error, Event, Exit, TerminalSize};

use super::operation::Operation;
use super::sandbox::Sandbox;

/// A handle of a started command. Dropping it does not stop the command.
#[derive(Clone, Debug)]
pub struct Process {
    inner: sandpod_client::Process,
    sandbox: Sandbox,
}

/// The properties of a started command.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ProcessInfo {
    /// Its handle.
    pub process: Process,
    /// Its process id in the sandbox, while it runs.
    pub pid: Option<u32>,
    /// Its command text, cut if it is long.
    pub command: String,
    /// Its start time by the sandbox's clock.
    pub started: SystemTime,
    /// Its end, if it has ended.
    pub exit: Option<Exit>,
    /// The number of bytes of its output.
    pub output_end: u64,
    /// Whether it runs in a terminal.
    pub terminal: bool,
}

impl ProcessInfo {
    pub(super) fn new(info: sandpod_client::ProcessInfo, sandbox: &Sandbox) -> Self {
        Self {
            process: Process::new(info.process, sandbox),
            pid: info.pid,
            command: info.command,
            started: info.started,
            exit: info.exit,
            output_end: info.output_end,
            terminal: info.terminal,
        }
    }
}

impl Process {
    pub(super) fn new(inner: sandpod_client::Process, sandbox: &Sandbox) -> Self {
        Self { inner, sandbox: sandbox.clone() }
    }

    /// Returns the guest's name for it.
    #[must_use]
    pub fn name(&self) -> &str {
        self.inner.name()
    }

    /// Attaches to the output from an offset to the end. A lost stream is resumed where it broke.
    #[must_use]
    pub fn attach(&self, from_offset: u64) -> BoxStream<'static, Result<Event, Error>> {
        self.inner.attach(from_offset)
    }

    /// Writes to its standard input and returns when all data is accepted. Data that was sent is written even if the
    /// future is dropped.
    pub async fn write(&self, data: impl Into<Bytes>) -> Result<(), Error> {
        let data = data.into();
        let mut intent = self.sandbox.intent(Operation::Control, vec![format!("input of {}", self.name())]);
        intent.size = Some(data.len() as u64);
        self.sandbox.watched(intent, Box::pin(self.inner.write(data))).await
    }

    /// Closes its standard input. In a terminal this has the effect of Ctrl-D.
    pub async fn close_stdin(&self) -> Result<(), Error> {
        self.control("end of input of", Box::pin(self.inner.close_stdin())).await
    }

    /// Sets the size of its terminal.
    pub async fn resize(&self, size: TerminalSize) -> Result<(), Error> {
        self.control("size of", Box::pin(self.inner.resize(size))).await
    }

    /// Sends a signal to it and to all processes that it started.
    pub async fn signal(&self, signal: i32) -> Result<(), Error> {
        self.control(&format!("signal {signal} to"), Box::pin(self.inner.signal(signal))).await
    }

    /// Waits for its end.
    pub async fn wait(&self) -> Result<Exit, Error> {
        self.inner.wait().await
    }

    async fn control(&self, what: &str, work: impl Future<Output = Result<(), Error>>) -> Result<(), Error> {
        let intent = self.sandbox.intent(Operation::Control, vec![format!("{what} {}", self.name())]);
        self.sandbox.watched(intent, work).await
    }
}
