//! Started commands, which run independently of a call.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream::BoxStream;
use sandpod_protocol::limits;
use sandpod_protocol::v1::process_event::Event as Wire;
use sandpod_protocol::v1::{
    self, AttachRequest, InputRequest, ListProcessesRequest, ProcessEvent, ResizeRequest, SignalRequest,
    WaitRequest,
};

use super::Sandbox;
use super::command::{Command, StartOptions, TerminalSize};
use super::execute::note;
use crate::connection::{Attempts, CallSlot, Channel, Connection, Deadline, MAX_NAME_BYTES};
use crate::error::Error;
use crate::escaped::Escaped;

/// A started command. It keeps running when this is dropped.
#[derive(Clone, Debug)]
pub struct Process {
    connection: Connection,
    name: String,
    /// Process names are valid for one boot of the guest.
    boot_id: String,
    /// When its end must be known, if it was started by this handle with a timeout.
    deadline: Option<Deadline>,
}

/// An event of a started command.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Event {
    /// The command wrote output.
    Output {
        /// Offset of the first byte, counted over both outputs.
        offset: u64,
        /// The bytes written.
        data: Bytes,
        /// Whether it was written to standard error.
        stderr: bool,
    },
    /// Output between these offsets was dropped to limit its size.
    Hole {
        /// Offset of the first missing byte.
        from: u64,
        /// Offset of the first byte after the gap.
        until: u64,
    },
    /// The command ended. No event follows.
    Exit(Exit),
}

/// How a started command ended.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Exit {
    /// As in [`Executed`](crate::Executed).
    pub exit_code: Option<i32>,
    /// The command was killed because of its timeout.
    pub timed_out: bool,
    /// As in [`Executed`](crate::Executed).
    pub note: Option<String>,
}

impl From<v1::Exit> for Exit {
    fn from(exit: v1::Exit) -> Self {
        let exit_code = Some(exit.exit_code).filter(|code| (0..=255).contains(code));
        Self { exit_code, timed_out: exit.timed_out, note: note(&exit.note) }
    }
}

/// An entry of the list of started commands.
#[derive(Clone, Debug)]
pub struct ProcessInfo {
    /// Handle of the process.
    pub process: Process,
    /// Process id in the sandbox, while it runs.
    pub pid: Option<u32>,
    /// The command, shortened if it is long.
    pub command: String,
    /// Start time, by the sandbox's clock.
    pub started: SystemTime,
    /// How it ended.
    pub exit: Option<Exit>,
    /// Number of bytes of output so far.
    pub output_end: u64,
    /// Whether it runs in a terminal.
    pub terminal: bool,
}

impl Sandbox {
    /// Starts a command and returns at once. The guest keeps the end of its output for later readers.
    ///
    /// ```no_run
    /// # use sandpod_client::{Error, Sandbox, StartOptions};
    /// # async fn run(sandbox: Sandbox) -> Result<(), Error> {
    /// let options = StartOptions { stdin: true, ..StartOptions::default() };
    /// let process = sandbox.start("wc -l", options).await?;
    /// process.write("one\ntwo\n").await?;
    /// process.close_stdin().await?;
    /// assert_eq!(process.wait().await?.exit_code, Some(0));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn start(
        &self,
        command: impl Into<Command>,
        options: impl Into<StartOptions>,
    ) -> Result<Process, Error> {
        let options = options.into();
        let limit = options.run.limit();
        let start = options.message(command.into());
        let attempts =
            Attempts::change(&self.connection, "starting a command").until(limit.and_then(Deadline::of));
        let operation = self.connection.begin_operation();
        let request = |operation| v1::StartRequest { operation: Some(operation), ..start.clone() };
        let send = |channel: Channel, request| async move { channel.process().start(request).await };
        let (response, slot) = self.connection.change(attempts, &operation, request, send).await?;
        let process = self.process(response.process, &slot)?;
        Ok(Process { deadline: limit.and_then(Deadline::of), ..process })
    }

    /// Lists the commands that any client started, oldest first. Of ended commands only the last ones are listed.
    pub async fn processes(&self) -> Result<Vec<ProcessInfo>, Error> {
        let mut attempts = Attempts::ask(&self.connection, "a list of processes");
        let (response, slot) = loop {
            let slot = attempts.next().await?;
            let mut client = slot.channel.process();
            if let Some(response) = attempts.answer(client.list(ListProcessesRequest {})).await? {
                break (response.into_inner(), slot);
            }
        };
        response.processes.into_iter().map(|info| self.listed(info, &slot)).collect()
    }

    fn listed(&self, info: v1::ProcessInfo, slot: &CallSlot) -> Result<ProcessInfo, Error> {
        let begun = Duration::from_millis(u64::try_from(info.started_ms).unwrap_or_default());
        Ok(ProcessInfo {
            process: self.process(info.process, slot)?,
            pid: Some(info.pid).filter(|pid| *pid > 0),
            command: Escaped(&info.command).to_string(),
            started: SystemTime::UNIX_EPOCH.checked_add(begun).unwrap_or(SystemTime::UNIX_EPOCH),
            exit: info.exit.map(Exit::from),
            output_end: info.output_end,
            terminal: info.terminal,
        })
    }

    fn process(&self, name: String, slot: &CallSlot) -> Result<Process, Error> {
        if name.is_empty() || name.len() > MAX_NAME_BYTES {
            return Err(Error::Protocol("the name of a process is invalid".to_owned()));
        }
        let (connection, boot_id) = (self.connection.clone(), slot.greeting.boot_id.clone());
        Ok(Process { connection, name, boot_id, deadline: None })
    }
}

impl Process {
    /// The guest's name of the process.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Streams the output from an offset on, and the end. Continues at the same offset after the loss of a stream.
    #[must_use]
    pub fn attach(&self, from_offset: u64) -> BoxStream<'static, Result<Event, Error>> {
        let what = format!("the output of process {}", self.name);
        let attempts = Attempts::ask(&self.connection, what).in_boot(&self.boot_id).stalled_after(None);
        let attachment = Attachment {
            process: self.name.clone(),
            attempts,
            open: None,
            deadline: self.deadline(),
            offset: from_offset,
            has_ended: false,
        };
        futures::stream::try_unfold(attachment, |mut attachment| async move {
            Ok(attachment.next().await?.map(|event| (event, attachment)))
        })
        .boxed()
    }

    /// Writes to its standard input, and returns when the command's pipe has taken all of it. Dropping the future does not undo
    /// what was sent.
    pub async fn write(&self, data: impl Into<Bytes>) -> Result<(), Error> {
        let mut data = data.into();
        while !data.is_empty() {
            let part = data.split_to(data.len().min(limits::MAX_INPUT_BYTES));
            self.input(part, false).await?;
        }
        Ok(())
    }

    /// Ends its standard input. In a terminal this is the same as typing Ctrl-D.
    pub async fn close_stdin(&self) -> Result<(), Error> {
        self.input(Bytes::new(), true).await
    }

    async fn input(&self, data: Bytes, end: bool) -> Result<(), Error> {
        // A command may read at any speed.
        let attempts = self.change("input for").stalled_after(None);
        let operation = self.connection.begin_operation();
        let request = |operation| InputRequest {
            operation: Some(operation),
            process: self.name.clone(),
            data: data.clone(),
            end,
        };
        let send = |channel: Channel, request| async move { channel.process().input(request).await };
        self.connection.change(attempts, &operation, request, send).await?;
        Ok(())
    }

    /// Changes the size of its terminal.
    pub async fn resize(&self, size: TerminalSize) -> Result<(), Error> {
        let operation = self.connection.begin_operation();
        let request = |operation| ResizeRequest {
            operation: Some(operation),
            process: self.name.clone(),
            terminal: Some(size.message()),
        };
        let send = |channel: Channel, request| async move { channel.process().resize(request).await };
        self.connection.change(self.change("resizing the terminal of"), &operation, request, send).await?;
        Ok(())
    }

    fn change(&self, what: &str) -> Attempts {
        let what = format!("{what} process {}", self.name);
        Attempts::change(&self.connection, what).in_boot(&self.boot_id).until(self.deadline())
    }

    /// Returns when a call about it must end. After the command's deadline, calls have none: they return what is known.
    fn deadline(&self) -> Option<Deadline> {
        self.deadline.filter(|deadline| !deadline.has_passed())
    }

    /// Sends a signal to the process and all that it started.
    pub async fn signal(&self, signal: i32) -> Result<(), Error> {
        let attempts = self.change("a signal to");
        let operation = self.connection.begin_operation();
        let request =
            |operation| SignalRequest { operation: Some(operation), process: self.name.clone(), signal };
        let send = |channel: Channel, request| async move { channel.process().signal(request).await };
        self.connection.change(attempts, &operation, request, send).await?;
        Ok(())
    }

    /// Waits for its end.
    pub async fn wait(&self) -> Result<Exit, Error> {
        let what = format!("the end of process {}", self.name);
        let attempts = Attempts::ask(&self.connection, what).in_boot(&self.boot_id).stalled_after(None);
        let attempts = attempts.until(self.deadline());
        let send = |channel: Channel, request| async move { channel.process().wait(request).await };
        let response =
            self.connection.ask(attempts, WaitRequest { process: self.name.clone() }, send).await?;
        let exit =
            response.exit.ok_or_else(|| Error::Protocol("a process ended without an exit".to_owned()))?;
        Ok(exit.into())
    }
}

/// The state of one `attach`.
struct Attachment {
    process: String,
    attempts: Attempts,
    open: Option<(tonic::Streaming<ProcessEvent>, CallSlot)>,
    deadline: Option<Deadline>,
    /// Offset after the last byte that the caller has.
    offset: u64,
    has_ended: bool,
}

impl Attachment {
    async fn next(&mut self) -> Result<Option<Event>, Error> {
        self.attempts.prolong(self.deadline.map(Deadline::with_grace_from_now));
        while !self.has_ended {
            let Some((stream, _)) = &mut self.open else {
                self.open().await?;
                continue;
            };
            match self.attempts.answer(stream.message()).await? {
                Some(Some(event)) => return self.take(event).map(Some),
                Some(None) => {
                    return Err(Error::Protocol(
                        "the output of a process ended before the process".to_owned(),
                    ));
                }
                None => self.open = None,
            }
        }
        Ok(None)
    }

    async fn open(&mut self) -> Result<(), Error> {
        let slot = self.attempts.next().await?;
        let request = AttachRequest { process: self.process.clone(), from_offset: self.offset };
        let mut client = slot.channel.process();
        let answer = self.attempts.answer(client.attach(request)).await?;
        self.open = answer.map(|response| (response.into_inner(), slot));
        Ok(())
    }

    /// Checks that an event continues where the previous one ended.
    fn take(&mut self, event: ProcessEvent) -> Result<Event, Error> {
        let from = self.offset;
        match event.event {
            Some(Wire::Output(output)) if output.offset == from && !output.data.is_empty() => {
                let end = from.checked_add(output.data.len() as u64);
                self.offset = end.ok_or_else(|| {
                    Error::Protocol("the offset of a process's output overflows".to_owned())
                })?;
                Ok(Event::Output { offset: from, data: output.data, stderr: output.stderr })
            }
            Some(Wire::HoleUntil(until)) if until > from => {
                self.offset = until;
                Ok(Event::Hole { from, until })
            }
            Some(Wire::Exit(exit)) => {
                self.has_ended = true;
                Ok(Event::Exit(exit.into()))
            }
            _ => Err(Error::Protocol(format!("the output of a process does not continue at byte {from}"))),
        }
    }
}
