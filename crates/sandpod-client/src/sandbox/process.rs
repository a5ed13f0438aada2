//! Commands that go on by themselves.

use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream::BoxStream;
use sandpod_protocol::v1::process_event::Event as Wire;
use sandpod_protocol::v1::{self, AttachRequest, ProcessEvent, SignalRequest, StartRequest, WaitRequest};

use super::Sandbox;
use super::command::{Command, ExecuteOptions};
use crate::connection::{Attempts, Channel, Connection, Lease, MAX_NAME_BYTES};
use crate::error::Error;

/// A started command. It goes on when this is dropped.
#[derive(Clone, Debug)]
pub struct Process {
    connection: Connection,
    name: String,
    /// The guest names processes anew when it restarts.
    boot_id: String,
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
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Exit {
    /// As that of [`Executed`](crate::Executed).
    pub exit_code: Option<i32>,
    /// It was ended because its time was up.
    pub timed_out: bool,
}

impl From<v1::Exit> for Exit {
    fn from(exit: v1::Exit) -> Self {
        let exit_code = Some(exit.exit_code).filter(|code| (0..=255).contains(code));
        Self { exit_code, timed_out: exit.timed_out }
    }
}

impl Sandbox {
    /// Starts a command and does not wait for it. Of its output the last is kept for whoever attaches.
    pub async fn start(
        &self,
        command: impl Into<Command>,
        options: ExecuteOptions,
    ) -> Result<Process, Error> {
        self.start_as(options.message(command.into()), false).await
    }

    /// Starts a command whose output waits for whoever attaches, and the command with it: nothing is
    /// lost, unless nobody attaches for a minute.
    pub async fn start_paced(
        &self,
        command: impl Into<Command>,
        options: ExecuteOptions,
    ) -> Result<Process, Error> {
        self.start_as(options.message(command.into()), true).await
    }

    async fn start_as(&self, command: v1::Command, paced: bool) -> Result<Process, Error> {
        let attempts = Attempts::change(&self.connection, "starting a command");
        let ticket = self.connection.ticket();
        let request = |operation| StartRequest {
            operation: Some(operation),
            command: Some(command.clone()),
            paced,
            ..StartRequest::default()
        };
        let send = |channel: Channel, request| async move { channel.process().start(request).await };
        let (response, lease) = self.connection.change(attempts, &ticket, request, send).await?;
        if response.process.is_empty() || response.process.len() > MAX_NAME_BYTES {
            return Err(Error::Protocol("it gave a process a name that is none".to_owned()));
        }
        Ok(Process {
            connection: self.connection.clone(),
            name: response.process,
            boot_id: lease.greeting.boot_id.clone(),
        })
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
            offset: from_offset,
            has_ended: false,
        };
        futures::stream::try_unfold(attachment, |mut attachment| async move {
            Ok(attachment.next().await?.map(|event| (event, attachment)))
        })
        .boxed()
    }

    /// Sends a signal to it and all that it started.
    pub async fn signal(&self, signal: i32) -> Result<(), Error> {
        let what = format!("a signal to process {}", self.name);
        let attempts = Attempts::change(&self.connection, what).in_boot(&self.boot_id);
        let ticket = self.connection.ticket();
        let request =
            |operation| SignalRequest { operation: Some(operation), process: self.name.clone(), signal };
        let send = |channel: Channel, request| async move { channel.process().signal(request).await };
        self.connection.change(attempts, &ticket, request, send).await?;
        Ok(())
    }

    /// Waits for its end.
    pub async fn wait(&self) -> Result<Exit, Error> {
        let what = format!("the end of process {}", self.name);
        let attempts = Attempts::ask(&self.connection, what).in_boot(&self.boot_id).stalled_after(None);
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
    open: Option<(tonic::Streaming<ProcessEvent>, Lease)>,
    /// What the caller has.
    offset: u64,
    has_ended: bool,
}

impl Attachment {
    async fn next(&mut self) -> Result<Option<Event>, Error> {
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
        let lease = self.attempts.next().await?;
        let request = AttachRequest { process: self.process.clone(), from_offset: self.offset };
        let mut client = lease.channel.process();
        let answer = self.attempts.answer(client.attach(request)).await?;
        self.open = answer.map(|response| (response.into_inner(), lease));
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
