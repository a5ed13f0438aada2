//! Helpers for tests of started commands.

use bytes::Bytes;
use sandpod_protocol::Failure;
use sandpod_protocol::v1::process_event::Event;
use sandpod_protocol::v1::{
    AttachRequest, Command, Exit, InputRequest, ListProcessesRequest, Operation, ProcessEvent, ProcessInfo,
    ResizeRequest, SignalRequest, StartRequest, Terminal, WaitRequest,
};

use crate::harness::Client;

impl Client {
    pub(crate) async fn start(&self, command: Command) -> String {
        self.start_as(self.operation(), command).await.unwrap()
    }

    pub(crate) async fn start_as(&self, operation: Operation, command: Command) -> Result<String, Failure> {
        let request =
            StartRequest { operation: Some(operation), command: Some(command), ..StartRequest::default() };
        let answer = self.process.clone().start(request).await;
        answer.map(|answer| answer.into_inner().process).map_err(|status| Failure::from(&status))
    }

    /// Starts a command with the streams of `request`; its operation and command are filled in.
    pub(crate) async fn start_with(&self, command: Command, request: StartRequest) -> String {
        let request = StartRequest { operation: Some(self.operation()), command: Some(command), ..request };
        self.process.clone().start(request).await.unwrap().into_inner().process
    }

    pub(crate) async fn input(
        &self,
        process: &str,
        data: impl Into<Bytes>,
        end: bool,
    ) -> Result<(), Failure> {
        self.input_as(self.operation(), process, data, end).await
    }

    pub(crate) async fn input_as(
        &self,
        operation: Operation,
        process: &str,
        data: impl Into<Bytes>,
        end: bool,
    ) -> Result<(), Failure> {
        let (operation, process, data) = (Some(operation), process.to_owned(), data.into());
        let answer = self.process.clone().input(InputRequest { operation, process, data, end }).await;
        answer.map(drop).map_err(|status| Failure::from(&status))
    }

    pub(crate) async fn resize(&self, process: &str, rows: u32, columns: u32) -> Result<(), Failure> {
        let request = ResizeRequest {
            operation: Some(self.operation()),
            process: process.to_owned(),
            terminal: Some(Terminal { rows, columns }),
        };
        self.process.clone().resize(request).await.map(drop).map_err(|status| Failure::from(&status))
    }

    pub(crate) async fn list(&self) -> Vec<ProcessInfo> {
        self.process.clone().list(ListProcessesRequest {}).await.unwrap().into_inner().processes
    }

    /// Follows a process until its output contains a text.
    pub(crate) async fn await_output(&self, process: &str, text: &str) -> String {
        let mut stream = self.attach(process, 0).await.unwrap();
        let mut output = String::new();
        while let Some(event) = stream.message().await.unwrap() {
            match event.event.unwrap() {
                Event::Output(piece) => output.push_str(&String::from_utf8_lossy(&piece.data)),
                event => panic!("{text:?} never came after {output:?}: {event:?}"),
            }
            if output.contains(text) {
                break;
            }
        }
        output
    }

    pub(crate) async fn wait(&self, process: &str) -> Exit {
        let request = WaitRequest { process: process.to_owned() };
        self.process.clone().wait(request).await.unwrap().into_inner().exit.unwrap()
    }

    pub(crate) async fn signal(&self, process: &str, signal: i32) -> Result<(), Failure> {
        let request =
            SignalRequest { operation: Some(self.operation()), process: process.to_owned(), signal };
        self.process.clone().signal(request).await.map(drop).map_err(|status| Failure::from(&status))
    }

    pub(crate) async fn attach(
        &self,
        process: &str,
        from_offset: u64,
    ) -> Result<tonic::Streaming<ProcessEvent>, Failure> {
        let request = AttachRequest { process: process.to_owned(), from_offset };
        let answer = self.process.clone().attach(request).await;
        answer.map(tonic::Response::into_inner).map_err(|status| Failure::from(&status))
    }

    /// Returns all events from an offset to the end.
    pub(crate) async fn events(&self, process: &str, from_offset: u64) -> Vec<Event> {
        let mut stream = self.attach(process, from_offset).await.unwrap();
        let mut events = Vec::new();
        while let Some(event) = stream.message().await.unwrap() {
            events.push(event.event.unwrap());
        }
        events
    }
}

/// Returns both outputs as text, and the exit.
pub(crate) fn outputs(events: &[Event]) -> (String, String, Option<Exit>) {
    let (mut stdout, mut stderr, mut exit) = (Vec::new(), Vec::new(), None);
    for event in events {
        match event {
            Event::Output(output) if output.stderr => stderr.extend_from_slice(&output.data),
            Event::Output(output) => stdout.extend_from_slice(&output.data),
            Event::Exit(last) => exit = Some(last.clone()),
            Event::HoleUntil(_) => panic!("there is a hole"),
        }
    }
    (String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap(), exit)
}

pub(crate) fn exit(exit_code: i32) -> Exit {
    Exit { exit_code, ..Exit::default() }
}
