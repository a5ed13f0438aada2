//! Running a command to its end.

use bytes::Bytes;
use sandpod_protocol::v1::{CancelRequest, ExecuteRequest};
use tokio::runtime::Handle;

use super::Sandbox;
use super::command::{Command, ExecuteOptions};
use crate::connection::{Attempts, Channel, Connection, Deadline, PendingOperation};
use crate::error::{Error, Notice};
use crate::escaped::Escaped;

/// How a command ended.
#[derive(Clone, Debug)]
pub struct Executed {
    /// Both outputs in the order written: whatever bytes the command wrote.
    pub output: Bytes,
    /// 128 + the signal that ended it; 124 after a timeout; 125 if it never started; none if the
    /// guest did not say.
    pub exit_code: Option<i32>,
    /// There was more output than was kept.
    pub truncated: bool,
    /// It was ended because its time was up.
    pub timed_out: bool,
    /// Why the guest ended it, as a sentence, if it did and not for its time (the output's last line says it, too), or
    /// what it left in its shell session that could not be kept.
    pub note: Option<String>,
    /// What happened since the result before.
    pub notices: Vec<Notice>,
}

impl Sandbox {
    /// Runs a command to its end, once, also when the stream is lost meanwhile. What the command
    /// itself does wrong is in the result; an error is trouble on the way.
    ///
    /// With a timeout the call ends soon after it, also if the sandbox can't be reached:
    /// [`Error::DeadlineExceeded`] says then that the outcome is unknown.
    ///
    /// Dropping the future cancels the command with all that it started.
    pub async fn execute(
        &self,
        command: impl Into<Command>,
        options: ExecuteOptions,
    ) -> Result<Executed, Error> {
        let deadline = options.limit().and_then(Deadline::of);
        let command = options.message(command.into());
        let attempts = Attempts::change(&self.connection, "a command").stalled_after(None).until(deadline);
        let running = Running::new(&self.connection);
        let request =
            |operation| ExecuteRequest { operation: Some(operation), command: Some(command.clone()) };
        let send = |channel: Channel, request| async move { channel.process().execute(request).await };
        let result = self.connection.change(attempts, &running.operation, request, send).await;
        // A command that nobody waits for any more is cancelled, as soon as the guest can be told.
        if !matches!(result, Err(Error::DeadlineExceeded { .. })) {
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

/// A guest's sentence about an end, for people.
pub(super) fn note(note: &str) -> Option<String> {
    (!note.is_empty()).then(|| Escaped(note).to_string())
}

/// A command that somebody waits for: cancelled when nobody does any more.
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
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.is_over || !self.operation.was_sent() {
            return;
        }
        let (connection, operation) = (self.connection.clone(), self.operation.clone());
        self.runtime.spawn(async move {
            let request =
                CancelRequest { session: connection.session().to_owned(), number: operation.number };
            let cancel = |channel: Channel, request| async move { channel.process().cancel(request).await };
            // If the guest can't be told, it finds out itself that nobody waits.
            let _ = connection.ask(Attempts::ask(&connection, "a cancel"), request, cancel).await;
            // Before this, the guest must not forget the number.
            drop(operation);
        });
    }
}
