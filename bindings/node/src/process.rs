//! Background commands and streamed output.

use std::sync::Arc;

use futures::StreamExt as _;
use futures::stream::BoxStream;
use napi::Env;
use napi::bindgen_prelude::{Either, Null, Object, Uint8Array};
use napi_derive::napi;
use sandpod::{CANCELLED, Event};
use sandpod_client::{Bytes, TerminalSize};
use sandpod_text::output::add_line;
use tokio::sync::Mutex;

use crate::bridge::{Resident, promise};
use crate::info::milliseconds;
use crate::results::{CANCELLED_CODE, ExecuteResult};
use crate::tree::{number, whole};

/// A started command. It continues to run after this object is garbage-collected.
#[napi]
pub struct Process {
    name: String,
    inner: Resident<sandpod::Process>,
}

impl From<sandpod::Process> for Process {
    fn from(process: sandpod::Process) -> Self {
        Self { name: process.name().to_owned(), inner: Resident::new(process) }
    }
}

#[napi]
impl Process {
    #[napi(getter)]
    pub fn name(&self) -> String {
        self.name.clone()
    }

    /// Returns the events of the command from an output offset until its exit.
    #[napi]
    pub fn attach(&self, from_offset: f64) -> napi::Result<Output> {
        let _inside = crate::bridge::runtime()?.enter();
        let events = self.inner.get()?.attach(whole(from_offset));
        Ok(Output(Resident::new(Arc::new(Mutex::new(events)))))
    }

    #[napi]
    pub fn write<'env>(&self, env: &'env Env, data: Uint8Array) -> napi::Result<Object<'env>> {
        let (process, data) = (self.inner.get()?.clone(), Bytes::copy_from_slice(&data));
        promise(env, None, async move { process.write(data).await })
    }

    #[napi]
    pub fn close_stdin<'env>(&self, env: &'env Env) -> napi::Result<Object<'env>> {
        let process = self.inner.get()?.clone();
        promise(env, None, async move { process.close_stdin().await })
    }

    #[napi]
    pub fn resize<'env>(&self, env: &'env Env, rows: u16, columns: u16) -> napi::Result<Object<'env>> {
        let process = self.inner.get()?.clone();
        promise(env, None, async move { process.resize(TerminalSize { rows, columns }).await })
    }

    #[napi]
    pub fn signal<'env>(&self, env: &'env Env, signal: i32) -> napi::Result<Object<'env>> {
        let process = self.inner.get()?.clone();
        promise(env, None, async move { process.signal(signal).await })
    }

    #[napi]
    pub fn wait<'env>(&self, env: &'env Env, call: Option<u32>) -> napi::Result<Object<'env>> {
        let process = self.inner.get()?.clone();
        promise(env, call, async move { process.wait().await.map(Exit::from) })
    }
}

type Events = BoxStream<'static, Result<Event, sandpod_client::Error>>;

/// The events of a command.
#[napi]
pub struct Output(Resident<Arc<Mutex<Events>>>);

#[napi]
impl Output {
    /// Returns the next event, or nothing after the last one. A cancelled call loses no event.
    #[napi]
    pub fn next<'env>(&self, env: &'env Env, call: Option<u32>) -> napi::Result<Object<'env>> {
        let events = self.0.get()?.clone();
        promise(env, call, async move {
            let event = events.lock().await.next().await.transpose()?;
            Ok::<_, sandpod_client::Error>(event.map(Happened::from))
        })
    }
}

/// An event. Its kind is `output`, `hole` or `exit`, and only the fields of that kind are set.
#[napi(object, object_from_js = false)]
pub struct Happened {
    pub kind: String,
    pub data: Option<Uint8Array>,
    pub stderr: Option<bool>,
    pub offset: Option<f64>,
    pub missing: Option<f64>,
    pub exit: Option<Exit>,
}

impl From<Event> for Happened {
    fn from(event: Event) -> Self {
        let none =
            Self { kind: String::new(), data: None, stderr: None, offset: None, missing: None, exit: None };
        match event {
            Event::Output { offset, data, stderr } => Self {
                kind: "output".to_owned(),
                data: Some(Uint8Array::new(data.into())),
                stderr: Some(stderr),
                offset: Some(number(offset)),
                ..none
            },
            Event::Hole { from, until } => {
                let missing = Some(number(until.saturating_sub(from)));
                Self { kind: "hole".to_owned(), offset: Some(number(from)), missing, ..none }
            }
            Event::Exit(exit) => Self { kind: "exit".to_owned(), exit: Some(exit.into()), ..none },
        }
    }
}

#[napi(object, object_from_js = false)]
#[expect(clippy::struct_field_names, reason = "they are JavaScript's keys")]
pub struct Exit {
    pub exit_code: Either<i32, Null>,
    pub timed_out: bool,
    pub note: Option<String>,
}

impl From<sandpod_client::Exit> for Exit {
    fn from(exit: sandpod_client::Exit) -> Self {
        let exit_code = exit_code(exit.exit_code);
        Self { exit_code, timed_out: exit.timed_out, note: exit.note }
    }
}

pub(crate) fn exit_code(code: Option<i32>) -> Either<i32, Null> {
    code.map_or(Either::B(Null), Either::A)
}

/// A listed command.
#[napi]
pub struct ProcessInfo(Option<sandpod::ProcessInfo>);

impl From<sandpod::ProcessInfo> for ProcessInfo {
    fn from(info: sandpod::ProcessInfo) -> Self {
        Self(Some(info))
    }
}

/// The state of a command when it was listed.
#[napi(object, object_from_js = false)]
pub struct ProcessFacts {
    pub pid: Option<u32>,
    pub command: String,
    pub started: f64,
    pub exit: Option<Exit>,
    pub output_end: f64,
    pub terminal: bool,
}

#[napi]
impl ProcessInfo {
    #[napi]
    pub fn facts(&self) -> Option<ProcessFacts> {
        let info = self.0.as_ref()?;
        Some(ProcessFacts {
            pid: info.pid,
            command: info.command.clone(),
            started: milliseconds(info.started),
            exit: info.exit.clone().map(Exit::from),
            output_end: number(info.output_end),
            terminal: info.terminal,
        })
    }

    /// Returns the command. It can be taken once.
    #[napi]
    pub fn take_process(&mut self) -> Option<Process> {
        self.0.take().map(|info| info.process.into())
    }
}

/// Collects the output of a command that is streamed at the same time.
#[napi]
pub struct Collected {
    output: Vec<u8>,
    most: usize,
    truncated: bool,
}

/// The default limit of kept output in bytes.
const KEPT_BYTES: f64 = 1_048_576.0;

#[napi]
impl Collected {
    #[napi(constructor)]
    pub fn new(max_output_bytes: Option<f64>) -> Self {
        let most = usize::try_from(whole(max_output_bytes.unwrap_or(KEPT_BYTES))).unwrap_or(usize::MAX);
        Self { output: Vec::new(), most, truncated: false }
    }

    /// Appends a chunk of output. `missing` is the number of bytes that were dropped before it.
    #[napi]
    pub fn add(&mut self, data: Uint8Array, missing: f64) {
        let room = self.most.saturating_sub(self.output.len()).min(data.len());
        self.truncated |= missing > 0.0 || room < data.len();
        self.output.extend_from_slice(&data[..room]);
    }

    /// Returns the result of a cancelled command.
    #[napi]
    pub fn cancelled(&self) -> ExecuteResult {
        let mut output = self.output.clone();
        add_line(&mut output, CANCELLED);
        self.finished(output, Some(CANCELLED_CODE))
    }

    /// Returns the result, including the line that reports a timeout.
    #[napi]
    pub fn result(&self, exit_code: Option<i32>, timed_out: bool, timeout: Option<f64>) -> ExecuteResult {
        let mut output = self.output.clone();
        if timed_out {
            add_line(&mut output, &sandpod_text::output::timed_out(timeout.unwrap_or_default()));
        }
        self.finished(output, exit_code)
    }
}

impl Collected {
    fn finished(&self, output: Vec<u8>, exit_code: Option<i32>) -> ExecuteResult {
        let output = String::from_utf8_lossy(&output).into_owned();
        ExecuteResult { output, exit_code: self::exit_code(exit_code), truncated: self.truncated }
    }
}
