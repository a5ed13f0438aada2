//! Commands that go on by themselves.

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

/// A started command. It goes on when this is dropped.
#[derive(Clone, Debug)]
pub struct Process {
    connection: Connection,
    name: String,
    /// The guest names processes anew when it restarts.
    boot_id: String,
    /// When its end is known, if it was started here with a timeout.
    deadline: Option<Deadline>,
}

/// What a started command does.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Event {
    /// It wrote something.
    Output {
        /// Of the first byte, counted over both outputs.
        offset: u64,
        /// What it wrote.
        data: Bytes,
        /// To its standard error output.
        stderr: bool,
    },
    /// Output between these offsets was dropped to keep within bounds.
    Hole {
        /// Of the first byte that is missing.
        from: u64,
        /// Of the first byte that is there again.
        until: u64,
    },
    /// It ended; nothing comes after this.
    Exit(Exit),
}

/// How a started command ended.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Exit {
    /// As that of [`Executed`](crate::Executed).
    pub exit_code: Option<i32>,
    /// It was ended because its time was up.
    pub timed_out: bool,
    /// As that of [`Executed`](crate::Executed).
    pub note: Option<String>,
}

impl From<v1::Exit> for Exit {
    fn from(exit: v1::Exit) -> Self {
        let exit_code = Some(exit.exit_code).filter(|code| (0..=255).contains(code));
        Self { exit_code, timed_out: exit.timed_out, note: note(&exit.note) }
    }
}

/// A command that somebody has started.
#[derive(Clone, Debug)]
pub struct ProcessInfo {
    /// The way to it.
    pub process: Process,
    /// Its number in the sandbox, while it runs.
    pub pid: Option<u32>,
    /// What it runs, cut where it is long.
    pub command: String,
    /// When it was started, by the sandbox's clock.
    pub started: SystemTime,
    /// How it ended, if it did.
    pub exit: Option<Exit>,
    /// Bytes of output so far.
    pub output_end: u64,
    /// It runs in a terminal.
    pub terminal: bool,
}

impl Sandbox {
    /// Starts a command and does not wait for it. Of its output the last is kept for whoever attaches.
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

    /// The commands that were started, by whichever client, oldest first. Of those that have ended only the
    /// last are known.
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
            return Err(Error::Protocol("it gave a process a name that is none".to_owned()));
        }
        let (connection, boot_id) = (self.connection.clone(), slot.greeting.boot_id.clone());
        Ok(Process { connection, name, boot_id, deadline: None })
    }
}

impl Process {
    /// The guest's name for it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The output from an offset on, and the end. A lost stream is taken up where it broke.
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

    /// Writes to its standard input; done when all of it was taken. What was sent when this is dropped is written
    /// none the less.
    pub async fn write(&self, data: impl Into<Bytes>) -> Result<(), Error> {
        let mut data = data.into();
        while !data.is_empty() {
            let part = data.split_to(data.len().min(limits::MAX_INPUT_BYTES));
            self.input(part, false).await?;
        }
        Ok(())
    }

    /// Ends its standard input; in a terminal, as a user does who types Ctrl-D.
    pub async fn close_stdin(&self) -> Result<(), Error> {
        self.input(Bytes::new(), true).await
    }

    async fn input(&self, data: Bytes, end: bool) -> Result<(), Error> {
        // A command may take as long as it likes to read.
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

    /// Tells it that its terminal has another size.
    pub async fn resize(&self, size: TerminalSize) -> Result<(), Error> {
        let operation = self.connection.begin_operation();
        let request = |operation| ResizeRequest {
            operation: Some(operation),
            process: self.name.clone(),
            terminal: Some(size.message()),
        };
        let send = |channel: Channel, request| async move { channel.process().resize(request).await };
        self.connection.change(self.change("another size for"), &operation, request, send).await?;
        Ok(())
    }

    fn change(&self, what: &str) -> Attempts {
        let what = format!("{what} process {}", self.name);
        Attempts::change(&self.connection, what).in_boot(&self.boot_id).until(self.deadline())
    }

    /// When a call about it must have ended. One that begins when its time is over asks for what is known already.
    fn deadline(&self) -> Option<Deadline> {
        self.deadline.filter(|deadline| !deadline.has_passed())
    }

    /// Sends a signal to it and all that it started.
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

/// The reading end of one `attach`.
struct Attachment {
    process: String,
    attempts: Attempts,
    open: Option<(tonic::Streaming<ProcessEvent>, CallSlot)>,
    deadline: Option<Deadline>,
    /// What the caller has.
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
                    return Err(Error::Protocol("a process's output ended before the process".to_owned()));
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

    /// Checks that an event goes on where the one before ended.
    fn take(&mut self, event: ProcessEvent) -> Result<Event, Error> {
        let from = self.offset;
        match event.event {
            Some(Wire::Output(output)) if output.offset == from && !output.data.is_empty() => {
                let end = from.checked_add(output.data.len() as u64);
                self.offset =
                    end.ok_or_else(|| Error::Protocol("a process wrote more than there is".to_owned()))?;
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
            _ => Err(Error::Protocol(format!(
                "a process's output does not go on at byte {from}, where it should"
            ))),
        }
    }
}
