//! Background commands and their output.

use std::future::Future;
use std::sync::Arc;

use futures::StreamExt as _;
use futures::stream::BoxStream;
use pyo3::prelude::*;
use sandpod::Event;
use sandpod::agents::unix_seconds;
use sandpod_client::{Bytes, TerminalSize};
use tokio::sync::Mutex;

use crate::bridge::{Call, NOTHING};
use crate::errors::{OperationError, forked};
use crate::runtime::Resident;

/// A started command. It continues to run after this object is dropped.
#[pyclass(frozen, module = "sandpod._native")]
pub(crate) struct Process {
    name: String,
    inner: Resident<sandpod::Process>,
}

impl From<sandpod::Process> for Process {
    fn from(process: sandpod::Process) -> Self {
        Self { name: process.name().to_owned(), inner: Resident::new(process) }
    }
}

impl Process {
    /// Creates a call that runs `work` with the process.
    fn call<T, F>(&self, work: impl FnOnce(sandpod::Process) -> F) -> PyResult<Call>
    where
        F: Future<Output = Result<T, sandpod_client::Error>> + Send + 'static,
        T: for<'py> IntoPyObject<'py> + Send + 'static,
    {
        let work = work(self.get()?.clone());
        Ok(Call::new(async { work.await.map_err(OperationError::from) }))
    }

    fn get(&self) -> PyResult<&sandpod::Process> {
        self.inner
            .get()
            .ok_or_else(|| forked("process", "Find its sandbox again here, and list its processes."))
    }
}

#[pymethods]
impl Process {
    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    /// Returns the events of the command from an output offset until its exit.
    fn attach(&self, from_offset: u64) -> PyResult<Output> {
        let events = self.get()?.attach(from_offset);
        Ok(Output(Resident::new(Arc::new(Mutex::new(events)))))
    }

    fn write(&self, data: Bytes) -> PyResult<Call> {
        self.call(|process| async move { process.write(data).await.map(|()| NOTHING) })
    }

    fn close_stdin(&self) -> PyResult<Call> {
        self.call(|process| async move { process.close_stdin().await.map(|()| NOTHING) })
    }

    fn resize(&self, rows: u16, columns: u16) -> PyResult<Call> {
        let size = TerminalSize { rows, columns };
        self.call(|process| async move { process.resize(size).await.map(|()| NOTHING) })
    }

    fn signal(&self, signal: i32) -> PyResult<Call> {
        self.call(|process| async move { process.signal(signal).await.map(|()| NOTHING) })
    }

    fn wait(&self) -> PyResult<Call> {
        self.call(|process| async move { process.wait().await.map(Exit::from) })
    }
}

type Events = BoxStream<'static, Result<Event, sandpod_client::Error>>;

/// The events of a command.
#[pyclass(frozen, module = "sandpod._native")]
pub(crate) struct Output(Resident<Arc<Mutex<Events>>>);

#[pymethods]
impl Output {
    /// Returns the next event, or None after the last one. A cancelled call loses no event.
    fn next(&self) -> PyResult<Call> {
        let events = self.0.get().ok_or_else(|| forked("output", "Attach to the process again here."))?;
        let events = events.clone();
        Ok(Call::new(async move {
            let event = events.lock().await.next().await.transpose();
            event.map(|event| event.map(Happening::from)).map_err(OperationError::from)
        }))
    }
}

/// An event, as a dict with the keys of its kind.
#[derive(IntoPyObject)]
enum Happening {
    Written(Written),
    Missing(Missing),
    Exit(Exit),
}

#[derive(IntoPyObject)]
struct Written {
    offset: u64,
    data: Bytes,
    stderr: bool,
}

#[derive(IntoPyObject)]
struct Missing {
    missing_from: u64,
    missing_until: u64,
}

impl From<Event> for Happening {
    fn from(event: Event) -> Self {
        match event {
            Event::Output { offset, data, stderr } => Self::Written(Written { offset, data, stderr }),
            Event::Hole { from, until } => {
                Self::Missing(Missing { missing_from: from, missing_until: until })
            }
            Event::Exit(exit) => Self::Exit(exit.into()),
        }
    }
}

#[derive(IntoPyObject)]
#[expect(clippy::struct_field_names, reason = "they are Python's keys")]
struct Exit {
    exit_code: Option<i32>,
    timed_out: bool,
    note: Option<String>,
}

impl From<sandpod_client::Exit> for Exit {
    fn from(exit: sandpod_client::Exit) -> Self {
        Self { exit_code: exit.exit_code, timed_out: exit.timed_out, note: exit.note }
    }
}

/// A listed command.
#[derive(IntoPyObject)]
pub(crate) struct ProcessInfo {
    process: Process,
    pid: Option<u32>,
    command: String,
    started: f64,
    exit: Option<Exit>,
    output_end: u64,
    terminal: bool,
}

impl From<sandpod::ProcessInfo> for ProcessInfo {
    fn from(info: sandpod::ProcessInfo) -> Self {
        Self {
            process: info.process.into(),
            pid: info.pid,
            command: info.command,
            started: unix_seconds(info.started),
            exit: info.exit.map(Exit::from),
            output_end: info.output_end,
            terminal: info.terminal,
        }
    }
}
