//! Execution of a command to its end.

use std::future::{Future, pending};
use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use sandpod_protocol::v1::{CancelRequest, ExecuteRequest};
use tokio::runtime::Handle;
use tokio::time::timeout;

use super::Sandbox;
use super::command::{Command, ExecuteOptions};
use crate::connection::{Attempts, Channel, Connection, Deadline, PendingOperation};
use crate::error::{Error, Notice};
use crate::escaped::Escaped;

/// Longest wait for the result of a cancelled command.
const CANCEL_LIMIT: Duration = Duration::from_secs(10);

/// Result of a command.
#[derive(Clone, Debug)]
pub struct Executed {
    /// Both outputs in the order written, byte for byte.
    pub output: Bytes,
    /// 128 + the signal that ended it; 124 after a timeout; 125 if it never started; `None` if the guest sent no valid code.
    pub exit_code: Option<i32>,
    /// The command wrote more output than was kept.
    pub truncated: bool,
    /// The command was killed because of its timeout.
    pub timed_out: bool,
    /// A sentence that explains why the guest killed the command, other than for its timeout, or that it failed because the
    /// sandbox has no network (it is also the last line of the output); or which state of the shell session could not be kept.
    pub note: Option<String>,
    /// Events since the previous result.
    pub notices: Vec<Notice>,
}

impl Sandbox {
    /// Runs a command to its end. The command runs once, even if the stream is lost meanwhile. Failures of the command itself are
    /// in the result; an error means that the call failed.
    ///
    /// With a timeout the call returns soon after the timeout, even if the sandbox cannot be reached. The error is then
    /// [`Error::DeadlineExceeded`], and the outcome is unknown.
    /// Dropping the future cancels the command with all that it started.
    pub async fn execute(
        &self,
        command: impl Into<Command>,
        options: ExecuteOptions,
    ) -> Result<Executed, Error> {
        self.execute_until(command, options, pending()).await
    }

    /// Same as [`execute`](Self::execute), but when `cancelled` resolves, the command is killed and the result has the output
    /// that it wrote until then, as after a timeout. Without a result within ten seconds, the call is an error.
    pub async fn execute_until(
        &self,
        command: impl Into<Command>,
        options: ExecuteOptions,
        cancelled: impl Future<Output = ()>,
    ) -> Result<Executed, Error> {
        let deadline = options.limit().and_then(Deadline::of);
        let command = options.message(command.into());
        let attempts = Attempts::change(&self.connection, "a command").stalled_after(None).until(deadline);
        let running = Running::new(&self.connection);
        let request =
            |operation| ExecuteRequest { operation: Some(operation), command: Some(command.clone()) };
        let send = |channel: Channel, request| async move { channel.process().execute(request).await };
        let result = {
            let mut answer = pin!(self.connection.change(attempts, &running.operation, request, send));
            tokio::select! {
                biased;
                result = &mut answer => result,
                () = cancelled => {
                    running.runtime.spawn(running.cancel());
                    let late = || Error::Stalled { what: "a cancel".to_owned(), limit: CANCEL_LIMIT };
                    let answer = timeout(CANCEL_LIMIT, answer).await;
                    answer.unwrap_or_else(|_| Err(late()))
                }
            }
        };
        // After its deadline, or without an answer, the command is cancelled as soon as the guest can be reached.
        if !matches!(result, Err(Error::DeadlineExceeded { .. } | Error::Stalled { .. })) {
            running.end();
        }
        let (response, _) = result?;
        Ok(Executed {
            output: response.output,
            exit_code: Some(response.exit_code).filter(|code| (0..=255).contains(code)),
            truncated: response.truncated,
            timed_out: response.timed_out,
            note: note(&response.note),
            notices: self.connection.take_notices(),
        })
    }
}

/// Escapes a guest's note for display.
pub(super) fn note(note: &str) -> Option<String> {
    (!note.is_empty()).then(|| Escaped(note).to_string())
}

/// A running command, cancelled when this is dropped before `end`.
struct Running {
    connection: Connection,
    operation: std::sync::Arc<PendingOperation>,
    runtime: Handle,
    is_over: bool,
}

impl Running {
    fn new(connection: &Connection) -> Self {
        let operation = connection.begin_operation().into();
        Self { connection: connection.clone(), operation, runtime: Handle::current(), is_over: false }
    }

    fn end(mut self) {
        self.is_over = true;
    }

    /// Asks the guest to kill the command. If the guest cannot be reached, it kills the command itself after a grace period.
    fn cancel(&self) -> impl Future<Output = ()> + Send + use<> {
        let (connection, operation) = (self.connection.clone(), self.operation.clone());
        async move {
            let request =
                CancelRequest { session: connection.session().to_owned(), number: operation.number };
            let cancel = |channel: Channel, request| async move { channel.process().cancel(request).await };
            let _ = connection.ask(Attempts::ask(&connection, "a cancel"), request, cancel).await;
            // Keeps the record of the call in the guest until here.
            drop(operation);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.is_over || !self.operation.was_sent() {
            return;
        }
        self.runtime.spawn(self.cancel());
    }
}
