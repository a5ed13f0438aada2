//! Every operation on a sandbox, with its policy and its audit.

use std::future::{Future, pending};
use std::io::SeekFrom;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sandpod_client::{
    AppliedChange, Bytes, Change, Command, Edited, Error, ErrorCode, ExecuteOptions, Executed, Failure,
    FileChange, FileInfo, Found, GrepOptions, Grepped, Notice, Page, ReadOptions, Sandbox as Client,
    StartOptions, Stats, TreeLimits, TreeProgress, TreeSummary, Written,
};
use tokio::io::{AsyncRead, AsyncSeek, AsyncSeekExt as _, AsyncWrite};

use super::cancelled::mark_cancelled;
use super::loss::{Loss, Receipt, Reporter};
use super::operation::Operation;
use super::policy::SandboxPolicy;
use super::process::{Process, ProcessInfo};
use super::rules::{PolicyLayer, Rules};
use super::watch::{Intent, watch};
use crate::audit::{Audit, AuditEvent, command_text};

/// A sandbox: commands, files, searches and transfers, under the sandbox's policy and recorded by its audit. Clones
/// share one sandbox, and every future may be dropped at any time.
///
/// If the sandbox lost its files since its last use, the first call reports it: `execute` among its notices, and every
/// other call has no effect and fails with [`Error::Replaced`].
#[derive(Clone, Debug)]
pub struct Sandbox(Arc<Inner>);

#[derive(Clone, Debug)]
struct Inner {
    id: String,
    client: Client,
    rules: Rules,
    audit: Option<Audit>,
    reporter: Reporter,
}

impl Sandbox {
    pub(crate) fn new(
        id: impl Into<String>,
        client: Client,
        layers: Vec<PolicyLayer>,
        audit: Option<Audit>,
        loss: Loss,
    ) -> Self {
        let (rules, reporter) = (Rules::new(layers), Reporter::new(loss));
        Self(Arc::new(Inner { id: id.into(), client, rules, audit, reporter }))
    }

    /// Returns the same sandbox under an additional policy, which can only narrow its rights.
    ///
    /// Its `root_dir` is inside the present root: below `/app` both `/src` and `/app/src` are `/app/src`. The prefixes
    /// are paths in the sandbox, as in any policy.
    pub fn narrowed(&self, policy: SandboxPolicy) -> crate::Result<Self> {
        let rules = self.0.rules.narrowed(policy)?;
        Ok(Self(Arc::new(Inner { rules, ..Inner::clone(&self.0) })))
    }

    /// Returns the same sandbox for calls whose results no caller reads. They do not report a loss.
    #[must_use]
    pub fn without_reports(&self) -> Self {
        self.reporting(self.0.reporter.silent())
    }

    /// Returns the same sandbox for calls whose results take longer to reach their caller. A reported loss counts once
    /// [`Receipt::given`] is called. None if there is nothing to report.
    #[must_use]
    pub fn with_receipt(&self) -> Option<(Self, Receipt)> {
        let (reporter, receipt) = self.0.reporter.with_receipt()?;
        Some((self.reporting(reporter), receipt))
    }

    /// Returns whether the next call reports a loss.
    #[must_use]
    pub fn has_report(&self) -> bool {
        self.0.reporter.notice().is_some()
    }

    /// Makes the next call report that the sandbox was replaced, for a caller that used an earlier place.
    pub fn report_replaced(&self) {
        self.0.reporter.begin(Notice::Replaced { kept: Vec::new() });
    }

    pub(crate) fn report(&self, notice: Notice) {
        self.0.reporter.begin(notice);
    }

    fn reporting(&self, reporter: Reporter) -> Self {
        Self(Arc::new(Inner { reporter, ..Inner::clone(&self.0) }))
    }

    /// Returns the client without the guard: without checks of the policy and without audit. Bounds that the guest
    /// enforces still apply.
    #[must_use]
    pub fn unguarded(&self) -> &Client {
        &self.0.client
    }

    /// Returns the notices since the last call; `execute` returns its own. A loss among them counts as reported.
    #[must_use]
    pub fn take_notices(&self) -> Vec<Notice> {
        self.0.reporter.take().into_iter().chain(self.0.client.take_notices()).collect()
    }

    /// Reads the resource usage and limits of the sandbox.
    pub async fn stats(&self) -> Result<Stats, Error> {
        let intent = self.intent(Operation::Stats, Vec::new());
        self.watched(intent, Box::pin(self.0.client.stats())).await
    }

    /// Runs a command once and waits for its end, even if the stream is lost meanwhile. The result reports a failure
    /// of the command itself, and a denial by the policy (exit code 1). Every other failure is an error.
    ///
    /// Dropping the future cancels the command and all processes that it started.
    pub async fn execute(
        &self,
        command: impl Into<Command>,
        options: ExecuteOptions,
    ) -> Result<Executed, Error> {
        self.execute_until(command, options, pending()).await
    }

    /// Same as [`execute`](Self::execute), but when `cancelled` resolves, the command is killed and the result has the
    /// exit code 124, the output that it wrote until then, and `Command cancelled` as last line. Without a result
    /// within ten seconds, the call is an error.
    pub async fn execute_until(
        &self,
        command: impl Into<Command>,
        mut options: ExecuteOptions,
        cancelled: impl Future<Output = ()> + Send,
    ) -> Result<Executed, Error> {
        let was_cancelled = AtomicBool::new(false);
        let cancelled = async {
            cancelled.await;
            was_cancelled.store(true, Ordering::Relaxed);
        };
        let command = command.into();
        options.policy = self.0.rules.narrowing(options.policy)?;
        let refused = self.0.rules.refused(&command);
        let is_refused = refused.is_some();
        let loss = self.0.reporter.notice();
        let intent = self.intent(Operation::Execute, vec![command_text(&command).into_owned()]);
        let describe = |executed: &Executed, event: &mut AuditEvent| event.exit_code = executed.exit_code;
        let work = Box::pin(self.0.client.execute_until(command, options, cancelled));
        match watch(self.0.audit.as_ref(), intent, refused, work, describe).await {
            Err(Error::Failure(failure)) if is_refused && failure.code() == ErrorCode::Policy => {
                Ok(blocked(&failure))
            }
            Ok(mut executed) => {
                if executed.timed_out && was_cancelled.load(Ordering::Relaxed) {
                    let mut output = Vec::from(executed.output);
                    mark_cancelled(&mut output);
                    (executed.output, executed.timed_out) = (output.into(), false);
                }
                if let Some(loss) = loss {
                    executed.notices.insert(0, loss);
                    self.0.reporter.carried();
                }
                Ok(executed)
            }
            Err(error) => Err(error),
        }
    }

    /// Starts a command and does not wait for it. The end of its output is kept for readers that attach.
    pub async fn start(
        &self,
        command: impl Into<Command>,
        options: impl Into<StartOptions>,
    ) -> Result<Process, Error> {
        let (command, mut options) = (command.into(), options.into());
        options.run.policy = self.0.rules.narrowing(options.run.policy)?;
        let refused = self.0.rules.refused(&command);
        let intent = self.intent(Operation::Start, vec![command_text(&command).into_owned()]);
        let work = Box::pin(self.0.client.start(command, options));
        let process = self.unless_lost(intent, refused, work).await?;
        Ok(Process::new(process, self))
    }

    /// Lists the commands that any client has started, oldest first. Of ended commands only the last ones are listed.
    pub async fn processes(&self) -> Result<Vec<ProcessInfo>, Error> {
        let intent = self.intent(Operation::Processes, Vec::new());
        let all = self.unless_lost(intent, None, Box::pin(self.0.client.processes())).await?;
        Ok(all.into_iter().map(|info| ProcessInfo::new(info, self)).collect())
    }

    /// Reads the properties of a path; with `follow`, of a link's target.
    pub async fn stat(&self, path: &str, follow: bool) -> Result<FileInfo, Error> {
        let work = |client: Client, path: String| async move { client.stat(&path, follow).await };
        Ok(self.public_info(self.on_path(Operation::Stat, path, work).await?))
    }

    /// Lists a directory, in no particular order.
    pub async fn list(&self, path: &str) -> Result<Vec<FileInfo>, Error> {
        let work = |client: Client, path: String| async move { client.list(&path).await };
        let entries = self.on_path(Operation::List, path, work).await?;
        Ok(entries.into_iter().map(|info| self.public_info(info)).collect())
    }

    /// Reads a page of a text file, or a whole small binary one.
    pub async fn read(&self, path: &str, options: ReadOptions) -> Result<Page, Error> {
        let work = |client: Client, path: String| async move { client.read(&path, options).await };
        self.on_path(Operation::Read, path, work).await
    }

    /// As [`read`](Self::read), with the file's properties at that moment if the guest reports them.
    pub async fn read_with_info(
        &self,
        path: &str,
        options: ReadOptions,
    ) -> Result<(Page, Option<FileInfo>), Error> {
        let work = |client: Client, path: String| async move { client.read_with_info(&path, options).await };
        let (page, info) = self.on_path(Operation::Read, path, work).await?;
        Ok((page, info.map(|info| self.public_info(info))))
    }

    /// Reads a whole file of at most `max_bytes`. As [`download`](Self::download), but a read for policy and audit.
    pub async fn read_bytes(&self, path: &str, max_bytes: u64) -> Result<Bytes, Error> {
        self.get(Operation::Read, path, max_bytes).await
    }

    async fn get(&self, operation: Operation, path: &str, max_bytes: u64) -> Result<Bytes, Error> {
        let work = |client: Client, path: String| async move { client.download(&path, max_bytes).await };
        self.on_path(operation, path, work).await
    }

    /// Reads bytes of a file from an offset: at most as many as requested, and no more than fit into one answer.
    pub async fn read_range(&self, path: &str, offset: u64, length: u64) -> Result<Bytes, Error> {
        let work =
            |client: Client, path: String| async move { client.read_range(&path, offset, length).await };
        self.on_path(Operation::Read, path, work).await
    }

    /// Creates or replaces a file of any size, with the directories above it.
    pub async fn write(&self, path: &str, content: impl Into<Bytes>) -> Result<Written, Error> {
        self.put(Operation::Write, path, content.into()).await
    }

    async fn put(&self, operation: Operation, path: &str, content: Bytes) -> Result<Written, Error> {
        let mut intent = self.intent(operation, vec![path.to_owned()]);
        intent.size = Some(content.len() as u64);
        let work = |client: Client, path: String| async move { client.write(&path, content).await };
        self.about_path(intent, path, work).await
    }

    /// Replaces text in a file: all occurrences, or the only one.
    pub async fn edit(
        &self,
        path: &str,
        old_text: &str,
        new_text: &str,
        replace_all: bool,
    ) -> Result<Edited, Error> {
        let mut intent = self.intent(Operation::Edit, vec![path.to_owned()]);
        intent.replace_all = Some(replace_all);
        let work = |client: Client, path: String| async move {
            client.edit(&path, old_text, new_text, replace_all).await
        };
        self.about_path(intent, path, work).await
    }

    /// Changes several files, all or none, even if the guest is killed meanwhile.
    pub async fn apply_edits(&self, mut changes: Vec<FileChange>) -> Result<Vec<AppliedChange>, Error> {
        let operation = Operation::ApplyEdits;
        let shown: Vec<_> = changes.iter().map(|change| change.path.clone()).collect();
        let mut intent = self.intent(operation, shown.clone());
        intent.size = Some(changes.iter().map(written_bytes).sum());
        let refused = changes.iter_mut().try_for_each(|change| {
            change.path = self.0.rules.real(operation, &change.path)?;
            Ok(())
        });
        let work = Box::pin(async {
            let result = self.client(operation)?.apply_edits(changes).await;
            result.map_err(|error| self.public_error(error))
        });
        let mut applied = self.unless_lost(intent, refused.err(), work).await?;
        applied.iter_mut().zip(shown).for_each(|(applied, shown)| applied.path = shown);
        Ok(applied)
    }

    /// Removes a file, a link, or a directory with its contents.
    pub async fn delete(&self, path: &str) -> Result<(), Error> {
        let work = |client: Client, path: String| async move { client.delete(&path).await };
        self.on_path(Operation::Delete, path, work).await
    }

    /// Renames a file, a link or a directory, and creates the directories above the new path. An existing file there
    /// is replaced only with `replace`.
    pub async fn move_path(&self, from: &str, to: &str, replace: bool) -> Result<Written, Error> {
        let operation = Operation::Move;
        let intent = self.intent(operation, vec![from.to_owned(), to.to_owned()]);
        let real = |path| self.0.rules.real(operation, path);
        let (paths, refused) = match real(from).and_then(|from| Ok((from, real(to)?))) {
            Ok(paths) => (paths, None),
            Err(error) => (Default::default(), Some(error)),
        };
        let work = Box::pin(async {
            let result = self.client(operation)?.move_path(&paths.0, &paths.1, replace).await;
            result.map_err(|error| self.public_error(error))
        });
        self.unless_lost(intent, refused, work).await
    }

    /// Creates or replaces a file with the contents of `source`, which is read again from the beginning if the stream
    /// is lost.
    pub async fn upload(
        &self,
        path: &str,
        source: impl AsyncRead + AsyncSeek + Send + Unpin,
    ) -> Result<Written, Error> {
        self.upload_with_mode(path, None, source).await
    }

    /// As [`upload`](Self::upload), with permission bits. Without them the file keeps its own, or gets 0644.
    pub async fn upload_with_mode(
        &self,
        path: &str,
        mode: Option<u32>,
        mut source: impl AsyncRead + AsyncSeek + Send + Unpin,
    ) -> Result<Written, Error> {
        let mut intent = self.intent(Operation::Upload, vec![path.to_owned()]);
        intent.size = source.seek(SeekFrom::End(0)).await.ok();
        let work =
            |client: Client, path: String| async move { client.upload_with_mode(&path, mode, source).await };
        self.about_path(intent, path, work).await
    }

    /// As [`upload`](Self::upload), from memory. As [`write`](Self::write), but an upload for policy and audit.
    pub async fn upload_bytes(&self, path: &str, content: impl Into<Bytes>) -> Result<Written, Error> {
        self.put(Operation::Upload, path, content.into()).await
    }

    /// Reads a whole file of at most `max_bytes`.
    pub async fn download(&self, path: &str, max_bytes: u64) -> Result<Bytes, Error> {
        self.get(Operation::Download, path, max_bytes).await
    }

    /// Writes a whole file to `target` and returns the number of bytes. After an error the contents of the target are
    /// not the file.
    pub async fn download_to(
        &self,
        path: &str,
        target: impl AsyncWrite + Send + Unpin,
    ) -> Result<u64, Error> {
        let work = |client: Client, path: String| async move { client.download_to(&path, target).await };
        self.on_path(Operation::Download, path, work).await
    }

    /// Copies the contents of a directory of this machine into one of the sandbox, over existing files. Modes, times
    /// and links are kept, and no link is followed. Each file is complete or absent; if a transfer fails, the files
    /// before it stay.
    pub async fn upload_tree(
        &self,
        local_dir: impl AsRef<Path>,
        path: &str,
        progress: impl FnMut(TreeProgress) + Send,
    ) -> Result<TreeSummary, Error> {
        let work = |client: Client, path: String| async move {
            client.upload_tree(local_dir, &path, progress).await
        };
        self.on_path(Operation::UploadTree, path, work).await
    }

    /// Copies the contents of a directory of the sandbox into one of this machine, over existing files. Nothing is
    /// written outside of it, whatever the sandbox sends: no link is followed, and links that lead out are left out.
    /// Each file is complete or absent; if a transfer fails, the files before it stay.
    pub async fn download_tree(
        &self,
        path: &str,
        local_dir: impl AsRef<Path>,
        limits: TreeLimits,
        progress: impl FnMut(TreeProgress) + Send,
    ) -> Result<TreeSummary, Error> {
        let work = |client: Client, path: String| async move {
            client.download_tree(&path, local_dir, limits, progress).await
        };
        self.on_path(Operation::DownloadTree, path, work).await
    }

    /// Finds files below `root` whose paths match a pattern such as `**/*.rs`. A relative root is below `/`.
    pub async fn glob(&self, pattern: &str, root: &str) -> Result<Found, Error> {
        let intent = self.intent(Operation::Glob, vec![root.to_owned()]);
        let rules = &self.0.rules;
        let real = rules.check_traversal(pattern).and_then(|()| rules.real(Operation::Glob, root));
        let work = |client: Client, root: String| async move {
            let root = if root.starts_with('/') { root } else { format!("/{root}") };
            client.glob(pattern, &root).await
        };
        let mut found = self.about_real(intent, root, real, work).await?;
        found.matches = found.matches.into_iter().map(|info| self.public_info(info)).collect();
        Ok(found)
    }

    /// Finds lines that contain `pattern` literally.
    pub async fn grep(&self, pattern: &str, mut options: GrepOptions) -> Result<Grepped, Error> {
        let operation = Operation::Grep;
        // The default root is the working directory, unless callers see a root of their own.
        if options.root.is_none() && self.0.rules.root().is_some() {
            options.root = Some("/".to_owned());
        }
        let intent = self.intent(operation, options.root.iter().cloned().collect());
        let real = options.root.as_deref().map(|root| self.0.rules.real(operation, root)).transpose();
        let (root, refused) = match real {
            Ok(root) => (root, None),
            Err(error) => (None, Some(error)),
        };
        let work = Box::pin(async {
            let result = self.client(operation)?.grep(pattern, GrepOptions { root, ..options }).await;
            result.map_err(|error| self.public_error(error))
        });
        let mut found = self.unless_lost(intent, refused, work).await?;
        for line in &mut found.matches {
            line.path = self.public(std::mem::take(&mut line.path));
        }
        Ok(found)
    }

    pub(super) fn intent(&self, operation: Operation, targets: Vec<String>) -> Intent<'_> {
        Intent::new(operation, &self.0.id, targets)
    }

    /// Performs work that needs no policy check and no files.
    pub(super) async fn watched<T>(
        &self,
        intent: Intent<'_>,
        work: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        watch(self.0.audit.as_ref(), intent, None, work, |_, _| ()).await
    }

    /// Performs work unless it is denied, or a loss has to be reported first.
    async fn unless_lost<T>(
        &self,
        intent: Intent<'_>,
        refused: Option<Error>,
        work: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let refused = refused.or_else(|| self.0.reporter.refusal());
        let result = watch(self.0.audit.as_ref(), intent, refused, work, |_, _| ()).await;
        if matches!(result, Err(Error::Replaced(_))) {
            self.0.reporter.carried();
        }
        result
    }

    async fn on_path<T, F: Future<Output = Result<T, Error>>>(
        &self,
        operation: Operation,
        path: &str,
        work: impl FnOnce(Client, String) -> F,
    ) -> Result<T, Error> {
        self.about_path(self.intent(operation, vec![path.to_owned()]), path, work).await
    }

    /// Performs work on the real path of `path`.
    async fn about_path<T, F: Future<Output = Result<T, Error>>>(
        &self,
        intent: Intent<'_>,
        path: &str,
        work: impl FnOnce(Client, String) -> F,
    ) -> Result<T, Error> {
        let real = self.0.rules.real(intent.operation, path);
        self.about_real(intent, path, real, work).await
    }

    /// Performs work on a real path, unless that is an error. `path` is the path that the caller used.
    async fn about_real<T, F: Future<Output = Result<T, Error>>>(
        &self,
        intent: Intent<'_>,
        path: &str,
        real: Result<String, Error>,
        work: impl FnOnce(Client, String) -> F,
    ) -> Result<T, Error> {
        let operation = intent.operation;
        let (real, refused) = match real {
            Ok(real) => (real, None),
            Err(error) => (String::new(), Some(error)),
        };
        let work = Box::pin(async {
            let result = work(self.client(operation)?, real.clone()).await;
            result.map_err(|error| {
                self.warn_of_rights(operation, path, &real, &error);
                self.public_error(error)
            })
        });
        self.unless_lost(intent, refused, work).await
    }

    /// Returns the client with the bounds for this operation.
    fn client(&self, operation: Operation) -> Result<Client, Error> {
        self.0.client.within(self.0.rules.bounds(operation)?)
    }

    /// Warns if the policy allows a path that the sandbox's user cannot write to.
    fn warn_of_rights(&self, operation: Operation, path: &str, real: &str, error: &Error) {
        let has_no_right = |failure: &Failure| failure.code() == ErrorCode::PermissionDenied;
        let is_that = matches!(error, Error::Failure(failure) if has_no_right(failure));
        if is_that && operation.is_change() && self.0.rules.ask_paths() {
            tracing::warn!(
                "{operation}: container permission denied for path='{path}' (resolved='{real}'). The sandbox policy \
                 (allow_prefixes) permits this path, but the container's OS user cannot write to it. Use one of \
                 writable_dirs, or mount a volume there."
            );
        }
    }

    fn public(&self, real: String) -> String {
        match self.0.rules.root() {
            Some(root) => root.public(real),
            None => real,
        }
    }

    fn public_info(&self, mut info: FileInfo) -> FileInfo {
        info.path = self.public(info.path);
        info
    }

    /// Replaces the real path in an error by the public one.
    fn public_error(&self, error: Error) -> Error {
        let Error::Failure(failure) = &error else { return error };
        let Some(real) = failure.path() else { return error };
        let shown = self.public(real.to_owned());
        let message = failure.message().replace(&format!("'{real}'"), &format!("'{shown}'"));
        Error::Failure(Failure::new(failure.code(), message).at(shown))
    }
}

/// Returns the result of a denied command.
fn blocked(denial: &Failure) -> Executed {
    Executed {
        output: Bytes::copy_from_slice(denial.message().as_bytes()),
        exit_code: Some(1),
        truncated: false,
        timed_out: false,
        note: None,
        notices: Vec::new(),
    }
}

fn written_bytes(change: &FileChange) -> u64 {
    match &change.change {
        Change::Content(content) => content.len() as u64,
        _ => 0,
    }
}
