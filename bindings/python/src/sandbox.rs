//! A sandbox and its operations.

use std::collections::HashMap;
use std::future::Future;
use std::path::PathBuf;
use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use sandpod::agents::{MAX_DOWNLOAD_BYTES, download_files, upload_files};
use sandpod::{ExecuteOptions, SandboxHandle, StartOptions};
use sandpod_client::{Bytes, FileKind, GrepOptions, Incomplete, Page, ReadOptions, TerminalSize, TreeLimits};

use crate::bridge::{Call, NOTHING};
use crate::errors::{OperationError, Outcome, forked};
use crate::guard;
use crate::process::{Process, ProcessInfo};
use crate::runtime::Resident;
use crate::tree::{Progress, TreeSummary};

/// A connected sandbox.
#[pyclass(frozen, module = "sandpod._native")]
pub(crate) struct Sandbox {
    id: String,
    place: String,
    is_new: bool,
    default_timeout: Option<Duration>,
    inner: Resident<sandpod::Sandbox>,
}

impl From<SandboxHandle> for Sandbox {
    fn from(handle: SandboxHandle) -> Self {
        Self {
            id: handle.id.to_string(),
            place: handle.place,
            is_new: handle.is_new,
            default_timeout: handle.default_exec_timeout,
            inner: Resident::new(handle.sandbox),
        }
    }
}

impl Sandbox {
    /// Creates a call that runs `work` with the sandbox.
    fn call<T, F>(&self, work: impl FnOnce(sandpod::Sandbox) -> F) -> PyResult<Call>
    where
        F: Future<Output = Result<T, sandpod_client::Error>> + Send + 'static,
        T: for<'py> IntoPyObject<'py> + Send + 'static,
    {
        let sandbox = self.get()?;
        let Some((reporting, receipt)) = sandbox.with_receipt() else {
            let work = work(sandbox.clone());
            return Ok(Call::new(async { work.await.map_err(OperationError::from) }));
        };
        let work = work(reporting);
        let work = async { work.await.map_err(OperationError::from) };
        Ok(Call::with_receipt(work, || receipt.given()))
    }

    /// Returns the same sandbox with another inner handle.
    fn with(&self, inner: sandpod::Sandbox) -> Self {
        Self {
            id: self.id.clone(),
            place: self.place.clone(),
            is_new: self.is_new,
            default_timeout: self.default_timeout,
            inner: Resident::new(inner),
        }
    }

    fn get(&self) -> PyResult<&sandpod::Sandbox> {
        let next = format!("Find it again here: reconnect({:?}).", self.id);
        self.inner.get().ok_or_else(|| forked("sandbox", &next))
    }
}

#[pymethods]
impl Sandbox {
    #[getter]
    fn id(&self) -> &str {
        &self.id
    }

    /// Returns the same sandbox under an additional policy, which is JSON.
    fn narrowed(&self, policy: &str) -> PyResult<Self> {
        let sandbox = self.inner.get().ok_or_else(|| forked("sandbox", "Find it again here."))?;
        let narrowed = sandbox.narrowed(guard::policy(policy)?);
        Ok(self.with(narrowed.map_err(|error| PyValueError::new_err(error.to_string()))?))
    }

    /// Returns the unique name of the sandbox's current place.
    #[getter]
    fn place(&self) -> &str {
        &self.place
    }

    /// Reports whether the sandbox's place is new and unused.
    #[getter]
    fn is_new(&self) -> bool {
        self.is_new
    }

    /// Returns the same sandbox for calls whose results are not read: they do not report a loss.
    fn without_reports(&self) -> PyResult<Self> {
        Ok(self.with(self.get()?.without_reports()))
    }

    /// Reports whether the next call reports a loss.
    fn has_report(&self) -> PyResult<bool> {
        Ok(self.get()?.has_report())
    }

    /// Returns the notices since the previous call, such as a loss of files.
    fn take_notices(&self) -> PyResult<Vec<String>> {
        Ok(self.get()?.take_notices().iter().map(ToString::to_string).collect())
    }

    /// Makes the next call report that the sandbox was replaced.
    fn report_replaced(&self) -> PyResult<()> {
        self.get()?.report_replaced();
        Ok(())
    }

    /// Runs a command. Default timeout: that of the configuration; 0 disables it.
    #[pyo3(signature = (command, timeout, *, shell_session = None, max_output_bytes = None, working_dir = None))]
    fn execute(
        &self,
        command: String,
        timeout: Option<u64>,
        shell_session: Option<String>,
        max_output_bytes: Option<u64>,
        working_dir: Option<String>,
    ) -> PyResult<Call> {
        let timeout = timeout.map(Duration::from_secs).or(self.default_timeout);
        let options = ExecuteOptions {
            timeout,
            shell_session,
            max_output_bytes,
            working_dir,
            ..ExecuteOptions::default()
        };
        self.call(|sandbox| async move { sandbox.execute(command, options).await.map(Executed::from) })
    }

    #[pyo3(signature = (path, offset, limit, max_bytes, *, binary))]
    fn read(&self, path: String, offset: u64, limit: u64, max_bytes: u64, binary: bool) -> PyResult<Call> {
        let options =
            ReadOptions { line_offset: offset, line_limit: limit, max_bytes: Some(max_bytes), binary };
        self.call(|sandbox| async move { sandbox.read(&path, options).await.map(Content::from) })
    }

    fn write(&self, path: String, content: String) -> PyResult<Call> {
        self.call(|sandbox| async move { sandbox.write(&path, content).await.map(|_| NOTHING) })
    }

    fn write_bytes(&self, path: String, content: Bytes) -> PyResult<Call> {
        self.call(|sandbox| async move { sandbox.write(&path, content).await.map(|_| NOTHING) })
    }

    fn read_bytes(&self, path: String) -> PyResult<Call> {
        self.call(|sandbox| async move { sandbox.read_bytes(&path, MAX_DOWNLOAD_BYTES).await })
    }

    /// Replaces text in a file and returns the number of replacements.
    #[pyo3(signature = (path, old, new, *, replace_all))]
    fn edit(&self, path: String, old: String, new: String, replace_all: bool) -> PyResult<Call> {
        self.call(|sandbox| async move {
            sandbox.edit(&path, &old, &new, replace_all).await.map(|edited| edited.occurrences)
        })
    }

    fn list(&self, path: String) -> PyResult<Call> {
        self.call(|sandbox| async move { sandbox.list(&path).await.map(entries) })
    }

    fn glob(&self, pattern: String, root: String) -> PyResult<Call> {
        self.call(|sandbox| async move { sandbox.glob(&pattern, &root).await.map(Found::from) })
    }

    fn grep(
        &self,
        pattern: String,
        root: Option<String>,
        glob: Option<String>,
        max_count: Option<u64>,
    ) -> PyResult<Call> {
        let options = GrepOptions { root, glob, max_count };
        self.call(|sandbox| async move { sandbox.grep(&pattern, options).await.map(Grepped::from) })
    }

    fn delete(&self, path: String) -> PyResult<Call> {
        self.call(|sandbox| async move { sandbox.delete(&path).await.map(|()| NOTHING) })
    }

    /// Starts a command in the background. Default timeout: none.
    #[pyo3(signature = (command, timeout, *, env, working_dir, stdin, combined, paced, terminal))]
    #[expect(clippy::too_many_arguments, reason = "each is a keyword in Python")]
    fn start(
        &self,
        command: String,
        timeout: Option<u64>,
        env: HashMap<String, String>,
        working_dir: Option<String>,
        stdin: bool,
        combined: bool,
        paced: bool,
        terminal: Option<(u16, u16)>,
    ) -> PyResult<Call> {
        let timeout = timeout.map(Duration::from_secs);
        let run = ExecuteOptions { timeout, env, working_dir, ..ExecuteOptions::default() };
        let terminal = terminal.map(|(rows, columns)| TerminalSize { rows, columns });
        let options = StartOptions { run, paced, stdin, combined, terminal };
        self.call(|sandbox| async move { sandbox.start(command, options).await.map(Process::from) })
    }

    /// Lists the started commands, oldest first.
    fn processes(&self) -> PyResult<Call> {
        self.call(|sandbox| async move {
            let all = sandbox.processes().await?;
            Ok(all.into_iter().map(ProcessInfo::from).collect::<Vec<_>>())
        })
    }

    /// Copies a directory of this machine into the sandbox. Returns the call and its progress.
    fn upload_tree(&self, local_dir: PathBuf, path: String) -> PyResult<(Call, Progress)> {
        let (tell, progress) = Progress::channel();
        let call = self.call(|sandbox| async move {
            sandbox.upload_tree(local_dir, &path, tell).await.map(TreeSummary::from)
        })?;
        Ok((call, progress))
    }

    /// Copies a directory of the sandbox to this machine. Returns the call and its progress.
    fn download_tree(&self, path: String, local_dir: PathBuf) -> PyResult<(Call, Progress)> {
        let (tell, progress) = Progress::channel();
        let call = self.call(|sandbox| async move {
            let limits = TreeLimits::default();
            sandbox.download_tree(&path, local_dir, limits, tell).await.map(TreeSummary::from)
        })?;
        Ok((call, progress))
    }

    /// Writes files. Returns None or an exception for each file, in the given order.
    fn upload(&self, files: Vec<(String, Bytes)>) -> PyResult<Call> {
        self.call(|sandbox| async move { Ok(outcomes(upload_files(&sandbox, files).await, |()| NOTHING)) })
    }

    /// Reads files. Returns the content or an exception for each file, in the given order.
    fn download(&self, paths: Vec<String>) -> PyResult<Call> {
        self.call(
            |sandbox| async move { Ok(outcomes(download_files(&sandbox, paths).await, |content| content)) },
        )
    }
}

/// Converts the outcome of each file.
fn outcomes<T, U>(
    outcomes: Vec<Result<T, sandpod_client::Error>>,
    convert: impl Fn(T) -> U,
) -> Vec<Outcome<U>> {
    let outcomes = outcomes.into_iter();
    outcomes.map(|outcome| Outcome(outcome.map(&convert).map_err(OperationError::from))).collect()
}

/// The result of a command.
#[derive(IntoPyObject)]
struct Executed {
    output: String,
    exit_code: Option<i32>,
    truncated: bool,
    notices: Vec<String>,
}

impl From<sandpod_client::Executed> for Executed {
    fn from(executed: sandpod_client::Executed) -> Self {
        Self {
            output: String::from_utf8_lossy(&executed.output).into_owned(),
            exit_code: executed.exit_code,
            truncated: executed.truncated,
            notices: executed.notices.iter().map(ToString::to_string).collect(),
        }
    }
}

#[derive(IntoPyObject)]
enum Content {
    Text(Text),
    Binary(Bytes),
}

#[derive(IntoPyObject)]
struct Text {
    content: String,
    start_line: u64,
    end_line: u64,
    total_lines: Option<u64>,
    more: bool,
    truncated: bool,
    empty_file: bool,
}

impl From<Page> for Content {
    fn from(page: Page) -> Self {
        match page {
            Page::Binary(content) => Self::Binary(content),
            Page::Text(page) => Self::Text(Text {
                content: page.content,
                start_line: page.start_line,
                end_line: page.end_line,
                total_lines: page.total_lines,
                more: page.more,
                truncated: page.truncated,
                empty_file: page.empty_file,
            }),
        }
    }
}

#[derive(IntoPyObject)]
struct Entry {
    path: String,
    is_dir: bool,
    size: u64,
    modified_ns: i64,
}

fn entries(infos: Vec<sandpod_client::FileInfo>) -> Vec<Entry> {
    let entry = |info: sandpod_client::FileInfo| Entry {
        path: info.path,
        is_dir: info.kind == FileKind::Directory,
        size: info.size,
        modified_ns: info.modified_ns,
    };
    infos.into_iter().map(entry).collect()
}

#[derive(IntoPyObject)]
struct Found {
    matches: Vec<Entry>,
    incomplete: Option<&'static str>,
}

impl From<sandpod_client::Found> for Found {
    fn from(found: sandpod_client::Found) -> Self {
        let incomplete = found.incomplete.map(Incomplete::as_str);
        Self { matches: entries(found.matches), incomplete }
    }
}

#[derive(IntoPyObject)]
struct Grepped {
    matches: Vec<Match>,
    truncated: bool,
}

#[derive(IntoPyObject)]
struct Match {
    path: String,
    line: u64,
    text: String,
}

impl From<sandpod_client::Grepped> for Grepped {
    fn from(found: sandpod_client::Grepped) -> Self {
        let matches = found.matches.into_iter();
        let matches =
            matches.map(|found| Match { path: found.path, line: found.line, text: found.text }).collect();
        Self { matches, truncated: found.truncated }
    }
}
