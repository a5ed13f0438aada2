//! The results of Deep Agents' tools. A failure of a sandbox is a result, because a rejection would end an agent's run.
//!
//! The library provides the texts of errors.

use std::future::{Future, pending};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use data_encoding::BASE64;
use futures::FutureExt as _;
use napi::Env;
use napi::bindgen_prelude::{Either, Null, Object, ToNapiValue, Uint8Array};
use napi_derive::napi;
use sandpod::agents::{self, MAX_DOWNLOAD_BYTES, Surface, ToolError};
use sandpod::{CANCELLED, Receipt, SandboxPolicy};
use sandpod_client::{Bytes, Error, Executed, GrepOptions, Page, ReadOptions, copied};
use sandpod_text::Pattern;

use crate::bridge::{Resident, promise_until, promise_with_late_receipt};
use crate::guard;
use crate::media_types;
use crate::options::ExecConfig;
use crate::process::exit_code;
use crate::sandbox::{CommandDefaults, Entry, Grepped, Match, RunOptions, Sandbox, bytes, modified};
use crate::threads::Threads;
use crate::tree::{number, whole};

/// The most bytes of one page of a text file.
const PAGE_BYTES: u64 = 500_000;
/// The most bytes of a binary file: Deep Agents rejects larger files after the download.
const BINARY_BYTES: u64 = 10 * 1024 * 1024;
/// The error code if no sandbox was found or created.
const NO_SANDBOX: &str = "no_sandbox";
/// The exit code of a command that was cancelled.
pub(crate) const CANCELLED_CODE: i32 = 124;
/// Deep Agents' message for an empty file.
const EMPTY: &str = "System reminder: File exists but has empty contents";

/// A sandbox for Deep Agents' tools.
#[napi]
pub struct Tools(Resident<Source>);

/// The source of the sandbox.
#[derive(Clone)]
enum Source {
    Fixed {
        sandbox: sandpod::Sandbox,
        defaults: CommandDefaults,
    },
    /// The sandbox of a conversation thread, under additional policies.
    OfThread {
        threads: Arc<agents::Threads>,
        thread: String,
        policies: Vec<SandboxPolicy>,
        exec: ExecConfig,
    },
}

/// A sandbox and the defaults of its commands.
struct Found {
    sandbox: sandpod::Sandbox,
    defaults: CommandDefaults,
}

impl Source {
    async fn find(&self) -> sandpod::Result<Found> {
        match self {
            Self::Fixed { sandbox, defaults } => {
                Ok(Found { sandbox: sandbox.clone(), defaults: defaults.clone() })
            }
            Self::OfThread { threads, thread, policies, exec } => {
                let handle = threads.get(thread).await?;
                let narrow =
                    |sandbox: sandpod::Sandbox, policy: &SandboxPolicy| sandbox.narrowed(policy.clone());
                let sandbox = policies.iter().try_fold(handle.sandbox, narrow)?;
                let defaults = CommandDefaults { timeout: handle.default_exec_timeout, exec: exec.clone() };
                Ok(Found { sandbox, defaults })
            }
        }
    }

    /// Returns the result of `work`, or what `failed` makes of its error.
    async fn answer<T, F>(
        self,
        quiet: bool,
        work: impl FnOnce(Found) -> F,
        failed: impl FnOnce(Unanswered) -> T,
    ) -> (T, Option<Receipt>)
    where
        F: Future<Output = Result<T, Error>>,
    {
        let Found { sandbox, defaults } = match self.find().await {
            Ok(found) => found,
            Err(error) => {
                let (code, message) = (NO_SANDBOX, error.to_string());
                return (failed(Unanswered { code, message }), None);
            }
        };
        let (sandbox, receipt) = match sandbox.with_receipt() {
            Some(_) if quiet => (sandbox.without_reports(), None),
            Some((reporting, receipt)) => (reporting, Some(receipt)),
            None => (sandbox, None),
        };
        let result = work(Found { sandbox, defaults }).await.unwrap_or_else(|error| {
            self.lose_if_gone(&error);
            failed(Unanswered::of(&error))
        });
        (result, receipt)
    }

    /// Removes the thread's entry if its sandbox is gone, so that the next call creates another.
    fn lose_if_gone(&self, error: &Error) {
        if let (Self::OfThread { threads, thread, .. }, Error::Gone { .. }) = (self, error) {
            threads.lose(thread);
        }
    }
}

/// The reason why a call failed.
struct Unanswered {
    code: &'static str,
    message: String,
}

impl Unanswered {
    fn of(error: &Error) -> Self {
        Self { code: error.code(), message: error.to_string() }
    }

    /// Returns the error texts for Deep Agents' tools.
    fn text(&self) -> ToolError<'_> {
        ToolError::new(Surface::JavaScript, self.code, self.message.as_str())
    }
}

impl Tools {
    /// Returns a promise of a result. `failed` converts an error. A `quiet` call does not report a loss of files.
    fn call<'env, T, F>(
        &self,
        env: &'env Env,
        call: Call,
        work: impl FnOnce(Found) -> F + Send + 'static,
        failed: impl FnOnce(Unanswered) -> T + Send + 'static,
    ) -> napi::Result<Object<'env>>
    where
        F: Future<Output = Result<T, Error>> + Send + 'static,
        T: ToNapiValue + Send + 'static,
    {
        let place = self.0.get()?.clone();
        promise_with_late_receipt(env, call.id, place.answer(call.quiet, work, failed))
    }
}

/// The options of a call.
#[napi(object, object_to_js = false)]
#[derive(Clone, Copy, Default)]
pub struct Call {
    /// The number from `beginCall`.
    pub id: Option<u32>,
    /// No model reads the result, so the call does not report a loss of files.
    pub quiet: bool,
}

#[napi]
impl Tools {
    #[napi(constructor)]
    pub fn new(sandbox: &Sandbox) -> napi::Result<Self> {
        let defaults = sandbox.defaults();
        Ok(Self(Resident::new(Source::Fixed { sandbox: sandbox.get()?.clone(), defaults })))
    }

    /// Creates tools that use the current sandbox of a thread in each call, under these policies, which are JSON.
    #[napi(factory)]
    pub fn of_thread(threads: &Threads, thread: String, policies: Vec<String>) -> napi::Result<Self> {
        let policies = policies.iter().map(|policy| guard::policy(policy)).collect::<Result<_, _>>()?;
        let (threads, exec) = (threads.registry()?, threads.exec()?);
        Ok(Self(Resident::new(Source::OfThread { threads, thread, policies, exec })))
    }

    /// Runs a command. If the call is cancelled, the result has the output until then.
    #[napi]
    pub fn execute<'env>(
        &self,
        env: &'env Env,
        call: Call,
        command: String,
        options: RunOptions,
    ) -> napi::Result<Object<'env>> {
        options.check()?;
        let place = self.0.get()?.clone();
        promise_until(env, call.id, |cancelled| async move {
            let (cancelled, has_begun) = (cancelled.wait().shared(), AtomicBool::new(false));
            let until = cancelled.clone();
            let work = |Found { sandbox, defaults }: Found| {
                has_begun.store(true, Ordering::Relaxed);
                let (command, options) = options.read(command, defaults);
                async move { sandbox.execute_until(command, options, until).await.map(ExecuteResult::from) }
            };
            let failed = |error: Unanswered| ExecuteResult {
                exit_code: exit_code(error.text().exit_code()),
                output: error.message,
                truncated: false,
            };
            let cancelled_before = async {
                cancelled.await;
                if has_begun.load(Ordering::Relaxed) {
                    pending::<()>().await;
                }
            };
            tokio::select! {
                biased;
                answer = place.answer(call.quiet, work, failed) => answer,
                () = cancelled_before => (cancelled_command(), None),
            }
        })
    }

    #[napi]
    pub fn read<'env>(
        &self,
        env: &'env Env,
        call: Call,
        path: String,
        offset: f64,
        limit: f64,
    ) -> napi::Result<Object<'env>> {
        let (line_offset, line_limit) = (whole(offset), whole(limit));
        let mime_type = media_types::of(&path);
        let binary = !media_types::is_text(mime_type);
        let max_bytes = Some(if binary { BINARY_BYTES } else { PAGE_BYTES });
        let asked = path.clone();
        let work = move |Found { sandbox, .. }: Found| async move {
            let options = ReadOptions { line_offset, line_limit, max_bytes, binary };
            match sandbox.read(&asked, options).await {
                Err(error) if is_beyond_end(&error) => Ok(ReadResult::text(String::new(), mime_type)),
                page => Ok(ReadResult::of(page?, mime_type, line_limit)),
            }
        };
        self.call(env, call, work, move |error| ReadResult {
            error: Some(error.text().read(&path, BINARY_BYTES)),
            ..ReadResult::default()
        })
    }

    #[napi]
    pub fn read_raw<'env>(&self, env: &'env Env, call: Call, path: String) -> napi::Result<Object<'env>> {
        let asked = path.clone();
        let work = |Found { sandbox, .. }: Found| async move {
            let info = sandbox.stat(&asked, true).await?;
            let content = sandbox.read_bytes(&asked, MAX_DOWNLOAD_BYTES).await?;
            let mime_type = media_types::of(&asked);
            let content = content_of(content, media_types::is_text(mime_type));
            let file = RawFile { content, mime_type: mime_type.to_owned(), modified: modified(&info) };
            Ok(ReadRawResult { error: None, file: Some(file) })
        };
        self.call(env, call, work, move |error| ReadRawResult {
            error: Some(error.text().read(&path, BINARY_BYTES)),
            file: None,
        })
    }

    /// Writes a file. The content of a file with a binary media type is decoded from base64.
    #[napi]
    pub fn write<'env>(
        &self,
        env: &'env Env,
        call: Call,
        path: String,
        content: String,
    ) -> napi::Result<Object<'env>> {
        let asked = path.clone();
        let work = |Found { sandbox, .. }: Found| async move {
            let content = to_write(&asked, content)?;
            sandbox.write(&asked, content).await?;
            Ok(PathResult::of(asked))
        };
        self.call(env, call, work, move |error| PathResult::failed(error.text().write(&path)))
    }

    #[napi]
    pub fn edit<'env>(
        &self,
        env: &'env Env,
        call: Call,
        path: String,
        old: String,
        new: String,
        replace_all: bool,
    ) -> napi::Result<Object<'env>> {
        let (asked, sought) = (path.clone(), old.clone());
        let work = move |Found { sandbox, .. }: Found| async move {
            let edited = sandbox.edit(&asked, &old, &new, replace_all).await?;
            Ok(EditResult { error: None, path: Some(asked), occurrences: Some(number(edited.occurrences)) })
        };
        self.call(env, call, work, move |error| EditResult {
            error: Some(error.text().edit(&path, &sought)),
            path: None,
            occurrences: None,
        })
    }

    #[napi]
    pub fn delete<'env>(&self, env: &'env Env, call: Call, path: String) -> napi::Result<Object<'env>> {
        let asked = path.clone();
        let work = |Found { sandbox, .. }: Found| async move {
            sandbox.delete(&asked).await?;
            Ok(PathResult::of(asked))
        };
        self.call(env, call, work, move |error| PathResult::failed(error.text().delete(&path)))
    }

    /// Lists a directory. A missing directory has no files, as in Deep Agents' own sandboxes.
    #[napi]
    pub fn ls<'env>(&self, env: &'env Env, call: Call, path: String) -> napi::Result<Object<'env>> {
        let asked = path.clone();
        let work = |Found { sandbox, .. }: Found| async move {
            let mut files: Vec<_> = sandbox.list(&asked).await?.into_iter().map(Entry::from).collect();
            files.sort_by(|one, other| one.path.cmp(&other.path));
            Ok(FilesResult { error: None, files: Some(files), truncated: None })
        };
        self.call(env, call, work, move |error| match error.code {
            "not_found" => FilesResult { error: None, files: Some(Vec::new()), truncated: None },
            _ => FilesResult { error: Some(error.text().list(&path)), files: None, truncated: None },
        })
    }

    /// Finds files. Paths are relative to `root`, or absolute for a pattern that leads out of it.
    #[napi]
    pub fn glob<'env>(
        &self,
        env: &'env Env,
        call: Call,
        pattern: String,
        root: String,
    ) -> napi::Result<Object<'env>> {
        let asked = root.clone();
        let work = |Found { sandbox, .. }: Found| async move {
            let search = Search::new(&pattern, &asked);
            let (files, truncated) = if search.has_one_level() {
                (search.entries(&sandbox).await?, false)
            } else {
                let found = sandbox.glob(&search.pattern, &search.root).await?;
                let truncated = found.incomplete.is_some();
                (found.matches.into_iter().map(Entry::from).collect(), truncated)
            };
            let files = files.into_iter().map(|entry| search.shown(entry)).collect();
            Ok(FilesResult { error: None, files: Some(files), truncated: Some(truncated) })
        };
        self.call(env, call, work, move |error| FilesResult {
            error: Some(error.text().glob(&root)),
            files: None,
            truncated: None,
        })
    }

    #[napi]
    pub fn grep<'env>(
        &self,
        env: &'env Env,
        call: Call,
        text: String,
        root: Option<String>,
        glob: Option<String>,
        max_count: Option<f64>,
    ) -> napi::Result<Object<'env>> {
        let path = root.clone().unwrap_or_else(|| ".".to_owned());
        let options = GrepOptions { root, glob, max_count: max_count.map(|most| whole(most).max(1)) };
        let work = |Found { sandbox, .. }: Found| async move {
            let Grepped { matches, truncated } = sandbox.grep(&text, options).await?.into();
            Ok(GrepResult { error: None, matches: Some(matches), truncated: Some(truncated) })
        };
        self.call(env, call, work, move |error| GrepResult {
            error: Some(error.text().list(&path)),
            matches: None,
            truncated: None,
        })
    }

    /// Writes files. Each file has its own outcome.
    #[napi]
    pub fn upload_files<'env>(
        &self,
        env: &'env Env,
        call: Call,
        files: Vec<(String, Uint8Array)>,
    ) -> napi::Result<Object<'env>> {
        let files: Vec<_> = files.into_iter().map(|(path, content)| (path, copied(&content))).collect();
        let paths: Vec<_> = files.iter().map(|(path, _)| path.clone()).collect();
        let asked = paths.clone();
        let work = |Found { sandbox, .. }: Found| async move {
            let outcomes = agents::upload_files(&sandbox, files).await;
            let of = |(path, outcome): (String, Result<(), Error>)| Uploaded {
                path,
                error: outcome.err().map(|error| Unanswered::of(&error).text().transfer()),
            };
            Ok(asked.into_iter().zip(outcomes).map(of).collect::<Vec<_>>())
        };
        self.call(env, call, work, move |error| {
            paths.into_iter().map(|path| Uploaded { path, error: Some(error.text().transfer()) }).collect()
        })
    }

    /// Reads files. Each file has its own outcome.
    #[napi]
    pub fn download_files<'env>(
        &self,
        env: &'env Env,
        call: Call,
        paths: Vec<String>,
    ) -> napi::Result<Object<'env>> {
        let asked = paths.clone();
        let work = |Found { sandbox, .. }: Found| async move {
            let outcomes = agents::download_files(&sandbox, asked.clone()).await;
            Ok(asked.into_iter().zip(outcomes).map(Downloaded::of).collect::<Vec<_>>())
        };
        self.call(env, call, work, move |error| {
            let failed = |path| Downloaded { path, content: None, error: Some(error.text().transfer()) };
            paths.into_iter().map(failed).collect()
        })
    }
}

/// Returns the result of a command that was cancelled before it began.
#[napi]
pub fn cancelled_command() -> ExecuteResult {
    ExecuteResult { output: CANCELLED.to_owned(), exit_code: Either::A(CANCELLED_CODE), truncated: false }
}

fn to_write(path: &str, content: String) -> Result<Bytes, Error> {
    if media_types::is_text(media_types::of(path)) {
        return Ok(content.into());
    }
    let content = BASE64.decode(content.trim().as_bytes());
    let content = content.map_err(|_| {
        Error::InvalidArgument("the content of a binary file must be base64 with padding".to_owned())
    });
    content.map(Bytes::from)
}

fn content_of(content: Bytes, is_text: bool) -> Either<String, Uint8Array> {
    if is_text {
        Either::A(String::from_utf8_lossy(&content).into_owned())
    } else {
        Either::B(bytes(content))
    }
}

/// A search for files: the arguments of the call, and the prefix of its results.
struct Search {
    pattern: String,
    root: String,
    /// The prefix that is removed from found paths.
    prefix: String,
}

impl Search {
    fn new(pattern: &str, root: &str) -> Self {
        let prefix = format!("{}/", root.trim_end_matches('/'));
        let Some(absolute) = pattern.strip_prefix('/') else {
            return Self { pattern: pattern.to_owned(), root: root.to_owned(), prefix };
        };
        match pattern.strip_prefix(&prefix) {
            Some(relative) => Self { pattern: relative.to_owned(), root: root.to_owned(), prefix },
            None => Self { pattern: absolute.to_owned(), root: "/".to_owned(), prefix: String::new() },
        }
    }

    /// Reports whether the pattern matches only entries of the root, as Deep Agents' patterns without a slash do.
    fn has_one_level(&self) -> bool {
        !self.pattern.contains('/') && !self.pattern.contains("**")
    }

    /// Returns the matching entries of the root, including directories.
    async fn entries(&self, sandbox: &sandpod::Sandbox) -> Result<Vec<Entry>, Error> {
        let pattern = Pattern::new(&self.pattern).map_err(Error::Failure)?;
        let entries = sandbox.list(&self.root).await?.into_iter().map(Entry::from);
        let name =
            |path: &str| Path::new(path).file_name().is_some_and(|name| pattern.matches(Path::new(name)));
        let mut found: Vec<_> = entries.filter(|entry| name(&entry.path)).collect();
        found.sort_by(|one, other| one.path.cmp(&other.path));
        Ok(found)
    }

    fn shown(&self, entry: Entry) -> Entry {
        match entry.path.strip_prefix(&self.prefix) {
            Some(relative) => Entry { path: relative.to_owned(), ..entry },
            None => entry,
        }
    }
}

#[napi(object, object_from_js = false)]
pub struct ExecuteResult {
    pub output: String,
    pub exit_code: Either<i32, Null>,
    pub truncated: bool,
}

impl From<Executed> for ExecuteResult {
    fn from(executed: Executed) -> Self {
        let mut output = String::new();
        for notice in &executed.notices {
            output.extend(["[", &notice.to_string(), "]\n"]);
        }
        output += &String::from_utf8_lossy(&executed.output);
        Self { output, exit_code: exit_code(executed.exit_code), truncated: executed.truncated }
    }
}

#[napi(object, object_from_js = false)]
#[derive(Default)]
pub struct ReadResult {
    pub error: Option<String>,
    pub content: Option<Either<String, Uint8Array>>,
    pub mime_type: Option<String>,
    pub total_lines: Option<f64>,
    pub start_line: Option<f64>,
    pub end_line: Option<f64>,
    pub next_offset: Option<f64>,
}

impl ReadResult {
    fn text(content: String, mime_type: &str) -> Self {
        let (content, mime_type) = (Some(Either::A(content)), Some(mime_type.to_owned()));
        Self { content, mime_type, ..Self::default() }
    }

    fn of(page: Page, mime_type: &str, limit: u64) -> Self {
        let text = |content| Self::text(content, mime_type);
        let page = match page {
            Page::Text(page) => page,
            Page::Binary(content) if content.is_empty() => return text(EMPTY.to_owned()),
            Page::Binary(content) => {
                let is_known = !media_types::is_text(mime_type);
                let mime_type = if is_known { mime_type } else { "application/octet-stream" };
                let (content, mime_type) = (Some(Either::B(bytes(content))), Some(mime_type.to_owned()));
                return Self { content, mime_type, ..Self::default() };
            }
        };
        if page.empty_file {
            return text(EMPTY.to_owned());
        }
        if limit == 0 || page.end_line == 0 {
            return text(String::new());
        }
        let cut = format!("\n\n[The page was cut at {PAGE_BYTES} bytes. Read fewer lines at a time.]");
        Self {
            total_lines: page.total_lines.map(number),
            start_line: Some(number(page.start_line)),
            end_line: Some(number(page.end_line)),
            next_offset: page.more.then(|| number(page.end_line)),
            ..text(page.content + if page.truncated { &cut } else { "" })
        }
    }
}

#[napi(object, object_from_js = false)]
pub struct RawFile {
    pub content: Either<String, Uint8Array>,
    pub mime_type: String,
    /// Milliseconds since the Unix epoch.
    pub modified: f64,
}

#[napi(object, object_from_js = false)]
pub struct ReadRawResult {
    pub error: Option<String>,
    pub file: Option<RawFile>,
}

#[napi(object, object_from_js = false)]
pub struct PathResult {
    pub error: Option<String>,
    pub path: Option<String>,
}

impl PathResult {
    fn of(path: String) -> Self {
        Self { error: None, path: Some(path) }
    }

    fn failed(error: String) -> Self {
        Self { error: Some(error), path: None }
    }
}

#[napi(object, object_from_js = false)]
pub struct EditResult {
    pub error: Option<String>,
    pub path: Option<String>,
    pub occurrences: Option<f64>,
}

#[napi(object, object_from_js = false)]
pub struct FilesResult {
    pub error: Option<String>,
    pub files: Option<Vec<Entry>>,
    pub truncated: Option<bool>,
}

#[napi(object, object_from_js = false)]
pub struct GrepResult {
    pub error: Option<String>,
    pub matches: Option<Vec<Match>>,
    pub truncated: Option<bool>,
}

#[napi(object, object_from_js = false, use_nullable = true)]
pub struct Uploaded {
    pub path: String,
    pub error: Option<String>,
}

#[napi(object, object_from_js = false, use_nullable = true)]
pub struct Downloaded {
    pub path: String,
    pub content: Option<Uint8Array>,
    pub error: Option<String>,
}

impl Downloaded {
    fn of((path, outcome): (String, Result<Bytes, Error>)) -> Self {
        match outcome {
            Ok(content) => Self { path, content: Some(bytes(content)), error: None },
            Err(error) => Self { path, content: None, error: Some(Unanswered::of(&error).text().transfer()) },
        }
    }
}

/// Reports whether a page begins after the last line. Deep Agents' own sandboxes then return no lines.
fn is_beyond_end(error: &Error) -> bool {
    error.code() == "invalid_argument" && error.to_string().contains("exceeds file length")
}
