//! A sandbox and its operations. Calls return values, and reject if they fail.

use std::collections::HashMap;
use std::future::Future;
use std::time::Duration;

use napi::Env;
use napi::bindgen_prelude::{Either, Null, Object, ToNapiValue, Uint8Array};
use napi_derive::napi;
use sandpod::agents::MAX_DOWNLOAD_BYTES;
use sandpod::{ExecuteOptions, SandboxHandle, StartOptions};
use sandpod_client::{Bytes, Command, FileKind, GrepOptions, TerminalSize, TreeLimits, copied};
use tokio::fs::File;
use tokio::io::AsyncWriteExt as _;

use crate::bridge::{Resident, promise_with_receipt};
use crate::errors::Failed;
use crate::guard;
use crate::options::ExecConfig;
use crate::process::{Process, ProcessInfo, exit_code};
use crate::tree::{Progress, TreeSummary, number, whole};

/// A connected sandbox.
#[napi]
pub struct Sandbox {
    id: String,
    place: String,
    is_new: bool,
    defaults: CommandDefaults,
    inner: Resident<sandpod::Sandbox>,
}

/// The options of commands for calls without them.
#[derive(Clone)]
pub(crate) struct CommandDefaults {
    pub(crate) timeout: Option<Duration>,
    pub(crate) exec: ExecConfig,
}

/// The options of a command.
#[napi(object, object_to_js = false)]
#[derive(Default)]
pub struct RunOptions {
    /// Seconds; 0 disables the timeout.
    pub timeout: Option<f64>,
    pub env: Option<HashMap<String, String>>,
    pub cwd: Option<String>,
    pub max_output_bytes: Option<f64>,
    pub shell_session: Option<String>,
}

impl RunOptions {
    /// Rejects invalid options.
    pub(crate) fn check(&self) -> Result<(), Failed> {
        match self.timeout {
            Some(timeout) if timeout.is_nan() || timeout < 0.0 => Err(Failed::argument(format!(
                "timeout is {timeout}, but must be at least 0 seconds (0 waits for ever)"
            ))),
            _ => Ok(()),
        }
    }

    /// Converts a command line with checked options to those of the library.
    pub(crate) fn read(self, line: String, defaults: CommandDefaults) -> (Command, ExecuteOptions) {
        let CommandDefaults { timeout: default_timeout, exec } = defaults;
        let timeout =
            self.timeout.map(|timeout| Duration::try_from_secs_f64(timeout).unwrap_or(Duration::MAX));
        // Only the sandbox's own shell has sessions.
        let shell_session = self.shell_session.filter(|_| exec.shell.is_none());
        let command = match exec.shell {
            Some(shell) => Command::Argv(vec![shell, "-c".to_owned(), line]),
            None => Command::Line(line),
        };
        let options = ExecuteOptions {
            timeout: timeout.or(default_timeout),
            env: self.env.unwrap_or_default(),
            working_dir: self.cwd,
            max_output_bytes: self.max_output_bytes.map(whole).or(exec.max_output_bytes),
            shell_session,
            ..ExecuteOptions::default()
        };
        (command, options)
    }
}

/// The options of a background command.
#[napi(object, object_to_js = false)]
pub struct BackgroundOptions {
    pub stdin: bool,
    pub combined: bool,
    pub paced: bool,
    pub rows: Option<u16>,
    pub columns: Option<u16>,
}

impl Sandbox {
    /// Returns a promise of `work` with the sandbox.
    fn call<'env, T, F>(
        &self,
        env: &'env Env,
        call: Option<u32>,
        work: impl FnOnce(sandpod::Sandbox) -> F,
    ) -> napi::Result<Object<'env>>
    where
        F: Future<Output = Result<T, sandpod_client::Error>> + Send + 'static,
        T: ToNapiValue + Send + 'static,
    {
        let sandbox = self.get()?;
        match sandbox.with_receipt() {
            None => promise_with_receipt(env, call, work(sandbox.clone()), None),
            Some((reporting, receipt)) => {
                promise_with_receipt(env, call, work(reporting), Some(Box::new(|| receipt.given())))
            }
        }
    }

    pub(crate) fn get(&self) -> napi::Result<&sandpod::Sandbox> {
        self.inner.get()
    }

    /// Returns a sandbox that its provider calls `id`.
    pub(crate) fn new(id: String, handle: SandboxHandle, exec: ExecConfig) -> Self {
        Self {
            id,
            place: handle.place,
            is_new: handle.is_new,
            defaults: CommandDefaults { timeout: handle.default_exec_timeout, exec },
            inner: Resident::new(handle.sandbox),
        }
    }

    pub(crate) fn defaults(&self) -> CommandDefaults {
        self.defaults.clone()
    }

    fn with(&self, inner: sandpod::Sandbox) -> Self {
        Self {
            id: self.id.clone(),
            place: self.place.clone(),
            is_new: self.is_new,
            defaults: self.defaults.clone(),
            inner: Resident::new(inner),
        }
    }
}

#[napi]
impl Sandbox {
    #[napi(getter)]
    pub fn id(&self) -> String {
        self.id.clone()
    }

    /// The unique name of the sandbox's current place.
    #[napi(getter)]
    pub fn place(&self) -> String {
        self.place.clone()
    }

    #[napi(getter)]
    pub fn is_new(&self) -> bool {
        self.is_new
    }

    /// The default timeout of commands in seconds, or nothing if there is none.
    #[napi(getter)]
    pub fn default_seconds(&self) -> Option<f64> {
        self.defaults.timeout.map(|timeout| timeout.as_secs_f64())
    }

    /// The default limit of kept output in bytes, or nothing for that of the library.
    #[napi(getter)]
    pub fn default_output_bytes(&self) -> Option<f64> {
        self.defaults.exec.max_output_bytes.map(number)
    }

    /// Returns the same sandbox under an additional policy, which is JSON.
    #[napi]
    pub fn narrowed(&self, policy: String) -> napi::Result<Self> {
        let narrowed = self.get()?.narrowed(guard::policy(&policy)?).map_err(Failed::from)?;
        Ok(self.with(narrowed))
    }

    /// Returns notices that no call has reported yet. Later calls do not report them.
    #[napi]
    pub fn take_notices(&self) -> napi::Result<Vec<String>> {
        Ok(self.get()?.take_notices().iter().map(ToString::to_string).collect())
    }

    #[napi]
    pub fn execute<'env>(
        &self,
        env: &'env Env,
        call: Option<u32>,
        command: String,
        options: RunOptions,
    ) -> napi::Result<Object<'env>> {
        options.check()?;
        let (command, options) = options.read(command, self.defaults());
        self.call(
            env,
            call,
            |sandbox| async move { sandbox.execute(command, options).await.map(Executed::from) },
        )
    }

    /// Starts a command in the background. Default timeout: none.
    #[napi]
    pub fn start<'env>(
        &self,
        env: &'env Env,
        call: Option<u32>,
        command: String,
        options: RunOptions,
        background: BackgroundOptions,
    ) -> napi::Result<Object<'env>> {
        let BackgroundOptions { stdin, combined, paced, rows, columns } = background;
        let terminal = rows.zip(columns).map(|(rows, columns)| TerminalSize { rows, columns });
        options.check()?;
        let defaults = CommandDefaults { timeout: None, ..self.defaults() };
        let (command, run) = options.read(command, defaults);
        let options = StartOptions { run, paced, stdin, combined, terminal };
        self.call(
            env,
            call,
            |sandbox| async move { sandbox.start(command, options).await.map(Process::from) },
        )
    }

    /// Lists the started commands, oldest first.
    #[napi]
    pub fn processes<'env>(&self, env: &'env Env) -> napi::Result<Object<'env>> {
        self.call(env, None, |sandbox| async move {
            let all = sandbox.processes().await?;
            Ok(all.into_iter().map(ProcessInfo::from).collect::<Vec<_>>())
        })
    }

    #[napi]
    pub fn read<'env>(&self, env: &'env Env, call: Option<u32>, path: String) -> napi::Result<Object<'env>> {
        self.call(env, call, |sandbox| async move {
            sandbox.read_bytes(&path, MAX_DOWNLOAD_BYTES).await.map(bytes)
        })
    }

    /// Reads a file from an offset, at most as many bytes as fit into one answer. Returns no bytes at its end.
    #[napi]
    pub fn read_range<'env>(
        &self,
        env: &'env Env,
        call: Option<u32>,
        path: String,
        offset: f64,
        length: f64,
    ) -> napi::Result<Object<'env>> {
        self.call(env, call, move |sandbox| async move {
            sandbox.read_range(&path, whole(offset), whole(length)).await.map(bytes)
        })
    }

    #[napi]
    pub fn write<'env>(
        &self,
        env: &'env Env,
        call: Option<u32>,
        path: String,
        content: Uint8Array,
    ) -> napi::Result<Object<'env>> {
        let content = copied(&content);
        self.call(env, call, |sandbox| async move { sandbox.write(&path, content).await.map(drop) })
    }

    /// Uploads a file of this machine.
    #[napi]
    pub fn upload_from<'env>(
        &self,
        env: &'env Env,
        call: Option<u32>,
        local_file: String,
        path: String,
    ) -> napi::Result<Object<'env>> {
        self.call(env, call, |sandbox| async move {
            let file = File::open(local_file).await.map_err(local)?;
            sandbox.upload(&path, file).await.map(drop)
        })
    }

    /// Downloads a file to this machine and returns its size.
    #[napi]
    pub fn download_to<'env>(
        &self,
        env: &'env Env,
        call: Option<u32>,
        path: String,
        local_file: String,
    ) -> napi::Result<Object<'env>> {
        self.call(env, call, |sandbox| async move {
            let mut file = File::create(local_file).await.map_err(local)?;
            let size = sandbox.download_to(&path, &mut file).await?;
            file.flush().await.map_err(local)?;
            Ok(number(size))
        })
    }

    /// Replaces text in a file and returns the number of replacements.
    #[napi]
    pub fn edit<'env>(
        &self,
        env: &'env Env,
        path: String,
        old: String,
        new: String,
        replace_all: bool,
    ) -> napi::Result<Object<'env>> {
        self.call(env, None, move |sandbox| async move {
            sandbox.edit(&path, &old, &new, replace_all).await.map(|edited| number(edited.occurrences))
        })
    }

    #[napi]
    pub fn list<'env>(&self, env: &'env Env, path: String) -> napi::Result<Object<'env>> {
        self.call(env, None, |sandbox| async move { sandbox.list(&path).await.map(entries) })
    }

    #[napi]
    pub fn glob<'env>(
        &self,
        env: &'env Env,
        call: Option<u32>,
        pattern: String,
        root: String,
    ) -> napi::Result<Object<'env>> {
        self.call(env, call, |sandbox| async move { sandbox.glob(&pattern, &root).await.map(Found::from) })
    }

    #[napi]
    pub fn grep<'env>(
        &self,
        env: &'env Env,
        call: Option<u32>,
        text: String,
        root: Option<String>,
        glob: Option<String>,
        max_count: Option<f64>,
    ) -> napi::Result<Object<'env>> {
        let options = GrepOptions { root, glob, max_count: max_count.map(whole) };
        self.call(env, call, |sandbox| async move { sandbox.grep(&text, options).await.map(Grepped::from) })
    }

    #[napi]
    pub fn delete<'env>(&self, env: &'env Env, path: String) -> napi::Result<Object<'env>> {
        self.call(env, None, |sandbox| async move { sandbox.delete(&path).await })
    }

    /// Copies a directory of this machine into the sandbox.
    #[napi]
    pub fn upload_tree<'env>(
        &self,
        env: &'env Env,
        call: Option<u32>,
        local_dir: String,
        path: String,
        progress: &mut Progress,
    ) -> napi::Result<Object<'env>> {
        let report = progress.take();
        self.call(env, call, |sandbox| async move {
            sandbox.upload_tree(local_dir, &path, report).await.map(TreeSummary::from)
        })
    }

    /// Copies a directory of the sandbox to this machine.
    #[napi]
    pub fn download_tree<'env>(
        &self,
        env: &'env Env,
        call: Option<u32>,
        path: String,
        local_dir: String,
        progress: &mut Progress,
    ) -> napi::Result<Object<'env>> {
        let report = progress.take();
        self.call(env, call, |sandbox| async move {
            let limits = TreeLimits::default();
            sandbox.download_tree(&path, local_dir, limits, report).await.map(TreeSummary::from)
        })
    }
}

/// The result of a command.
#[napi(object, object_from_js = false)]
pub struct Executed {
    pub output: String,
    pub exit_code: Either<i32, Null>,
    pub truncated: bool,
    pub notices: Vec<String>,
}

impl From<sandpod_client::Executed> for Executed {
    fn from(executed: sandpod_client::Executed) -> Self {
        Self {
            output: String::from_utf8_lossy(&executed.output).into_owned(),
            exit_code: exit_code(executed.exit_code),
            truncated: executed.truncated,
            notices: executed.notices.iter().map(ToString::to_string).collect(),
        }
    }
}

/// A file or a directory.
#[napi(object, object_from_js = false)]
pub struct Entry {
    pub path: String,
    pub is_dir: bool,
    pub size: f64,
    /// Milliseconds since the Unix epoch.
    pub modified: f64,
}

impl From<sandpod_client::FileInfo> for Entry {
    fn from(info: sandpod_client::FileInfo) -> Self {
        let is_dir = info.kind == FileKind::Directory;
        Self { modified: modified(&info), path: info.path, is_dir, size: number(info.size) }
    }
}

#[expect(clippy::cast_precision_loss, reason = "a millisecond is precise enough")]
pub(crate) fn modified(info: &sandpod_client::FileInfo) -> f64 {
    (info.modified_ns / 1_000_000) as f64
}

fn entries(infos: Vec<sandpod_client::FileInfo>) -> Vec<Entry> {
    infos.into_iter().map(Entry::from).collect()
}

#[napi(object, object_from_js = false)]
pub struct Found {
    pub matches: Vec<Entry>,
    pub incomplete: Option<String>,
}

impl From<sandpod_client::Found> for Found {
    fn from(found: sandpod_client::Found) -> Self {
        let incomplete = found.incomplete.map(|reason| reason.as_str().to_owned());
        Self { matches: entries(found.matches), incomplete }
    }
}

#[napi(object, object_from_js = false)]
pub struct Grepped {
    pub matches: Vec<Match>,
    pub truncated: bool,
}

#[napi(object, object_from_js = false)]
pub struct Match {
    pub path: String,
    pub line: f64,
    pub text: String,
}

impl From<sandpod_client::Grepped> for Grepped {
    fn from(found: sandpod_client::Grepped) -> Self {
        let of = |found: sandpod_client::GrepMatch| Match {
            path: found.path,
            line: number(found.line),
            text: found.text,
        };
        Self { matches: found.matches.into_iter().map(of).collect(), truncated: found.truncated }
    }
}

fn local(error: std::io::Error) -> sandpod_client::Error {
    sandpod_client::Error::Local(error.to_string())
}

pub(crate) fn bytes(content: Bytes) -> Uint8Array {
    Uint8Array::new(content.into())
}
