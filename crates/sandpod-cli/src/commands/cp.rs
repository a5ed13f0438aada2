//! `sandpod cp`: copies files and directories into a sandbox or out of it.

use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use clap::Args;
use sandpod::{FileInfo, FileKind, Sandbox, SandboxId, TreeLimits, TreeSummary};
use serde_json::json;
use tokio::fs::{self, File};
use tokio::io::AsyncRead;

use super::Context;
use super::cat::print_file;
use crate::complete::copy_paths;
use crate::exit::{Failure, Result};
use crate::files::{absolute, join, missing_directory, name};
use crate::interrupt::Interrupts;
use crate::output::Output;
use crate::progress::{Progress, format_size};
use crate::target::Target;
use crate::tracked_file::TrackedFile;

/// The mode bits that are copied: neither setuid nor setgid.
const MODE: u32 = 0o777;
/// The name of stdin and stdout.
const STDIO: &str = "-";

const EXAMPLES: &str = "\
Directories are copied recursively with their modes, times and links; links are not followed. If the destination is an \
existing directory, the sources are copied into it; use DIRECTORY/. to copy only its content. A failed copy leaves no \
incomplete file. A dash stands for stdin, or for stdout if the source is a file.

Examples:
  sandpod cp script.py ID:/workspace
  sandpod cp one.txt two.txt ID:
  sandpod cp ./project ID:/workspace/project
  sandpod cp ID:/workspace/out/. ./results
  curl -s URL | sandpod cp - ID:page.html
  sandpod cp ID:log.txt - | tail";

#[derive(Args)]
#[command(
    override_usage = "sandpod cp [OPTIONS] SOURCE... ID:PATH\n       sandpod cp [OPTIONS] ID:SOURCE... PATH",
    after_help = EXAMPLES
)]
pub(crate) struct Arguments {
    /// Sources, then the destination: local paths and paths in a sandbox as ID:PATH; either side is in a sandbox
    #[arg(required = true, num_args = 2.., value_name = "PATH", add = copy_paths())]
    paths: Vec<String>,
    /// Accepted and ignored: directories are always copied recursively, with modes and times
    #[arg(long, short, short_alias = 'a', hide = true)]
    recursive: bool,
}

/// A path on this machine or in a sandbox.
#[derive(Debug, PartialEq)]
enum Location<'a> {
    Local(&'a Path),
    Sandbox { id: &'a str, path: &'a str },
}

impl<'a> Location<'a> {
    /// A prefix that is not a valid id is part of a local path.
    fn of(text: &'a str) -> Self {
        match text.split_once(':') {
            Some((id, path)) if id.parse::<SandboxId>().is_ok() => Self::Sandbox { id, path },
            _ => Self::Local(Path::new(text)),
        }
    }
}

/// Copies and prints a summary. An interrupt leaves no incomplete file on this machine.
pub(crate) async fn run(arguments: Arguments, context: &Context) -> Result<()> {
    let mut interrupts = Interrupts::listen()?;
    let summary = interrupts.unless_interrupted(copy(&arguments, context)).await?;
    report(&summary, &context.output)
}

async fn copy(arguments: &Arguments, context: &Context) -> Result<TreeSummary> {
    let Some((to, sources)) = arguments.paths.split_last() else { return Ok(TreeSummary::default()) };
    if to == STDIO {
        context.refuse_json("stdout has the content of the file")?;
    }
    let target = context.target()?;
    let mut copier =
        Copier { target, output: &context.output, sandbox: None, has_several: sources.len() > 1 };
    let mut all = TreeSummary::default();
    for from in sources {
        let summary = match (Location::of(from), Location::of(to)) {
            (Location::Local(from), Location::Sandbox { id, path }) => copier.upload(from, id, path).await?,
            (Location::Sandbox { id, path }, Location::Local(to)) => copier.download(id, path, to).await?,
            _ => {
                return Err(Failure::usage(
                    "Either the sources or the destination must be in a sandbox.",
                    "Write ID:PATH for a path in a sandbox. To move a file within a sandbox, use `sandpod mv`.",
                ));
            }
        };
        add(&mut all, &summary);
    }
    Ok(all)
}

fn add(all: &mut TreeSummary, more: &TreeSummary) {
    all.files += more.files;
    all.directories += more.directories;
    all.links += more.links;
    all.bytes += more.bytes;
    all.skipped += more.skipped;
    all.links_left_out += more.links_left_out;
}

/// Copies several sources over one connection.
struct Copier<'a> {
    target: Target,
    output: &'a Output,
    /// The sandbox of the last source, with its id as typed.
    sandbox: Option<(String, Sandbox)>,
    /// Several sources need a directory as their destination.
    has_several: bool,
}

impl Copier<'_> {
    async fn sandbox(&mut self, id: &str) -> Result<Sandbox> {
        if let Some((known, sandbox)) = &self.sandbox
            && known == id
        {
            return Ok(sandbox.clone());
        }
        let sandbox = self.target.sandbox(id).await?.sandbox;
        self.sandbox = Some((id.to_owned(), sandbox.clone()));
        Ok(sandbox)
    }

    async fn upload(&mut self, from: &Path, id: &str, to: &str) -> Result<TreeSummary> {
        let into_dir = to.ends_with('/') || self.has_several;
        let to = absolute(&self.target, to)?;
        let sandbox = self.sandbox(id).await?;
        upload(&sandbox, from, to, into_dir, self.output).await
    }

    async fn download(&mut self, id: &str, from: &str, to: &Path) -> Result<TreeSummary> {
        if self.has_several && !to.is_dir() {
            return Err(missing_directory(&to.to_string_lossy()));
        }
        let from = absolute(&self.target, from)?;
        let sandbox = self.sandbox(id).await?;
        download(&sandbox, &from, to, self.output).await
    }
}

/// Copies a file, or the content of a directory, into the working directory.
pub(super) async fn copy_in(target: &Target, sandbox: &Sandbox, from: &Path, output: &Output) -> Result<()> {
    let from = if from.is_dir() { from.join(".") } else { from.to_owned() };
    upload(sandbox, &from, absolute(target, "")?, true, output).await.map(drop)
}

async fn upload(
    sandbox: &Sandbox,
    from: &Path,
    to: String,
    into_dir: bool,
    output: &Output,
) -> Result<TreeSummary> {
    let unreadable = |cause: io::Error| Failure::local(&format!("read {}", from.display()), &cause);
    let is_dir = into_dir || sandbox.stat(&to, true).await.is_ok_and(|info| info.kind == FileKind::Directory);
    if from == Path::new(STDIO) {
        return upload_stream(sandbox, tokio::io::stdin(), "stdin", (&to, is_dir), output).await;
    }
    let metadata = fs::metadata(from).await.map_err(unreadable)?;
    if !metadata.is_dir() && !metadata.is_file() {
        let shown = from.display().to_string();
        let pipe = File::open(from).await.map_err(unreadable)?;
        return upload_stream(sandbox, pipe, &shown, (&to, is_dir), output).await;
    }
    let to = match own_name(from)?.filter(|_| is_dir) {
        Some(name) => join(&to, &name),
        None => to,
    };
    if metadata.is_dir() {
        let total = if output.shows_progress() { tree_size(from.to_owned()).await } else { None };
        let mut progress = Progress::new(output, &to, total);
        return Ok(sandbox.upload_tree(from, &to, |done| progress.update(done.bytes)).await?);
    }
    let progress = Progress::new(output, &to, Some(metadata.len()));
    let file = TrackedFile::new(File::open(from).await.map_err(unreadable)?, progress);
    sandbox.upload_with_mode(&to, Some(metadata.permissions().mode() & MODE), file).await?;
    Ok(one_file(metadata.len()))
}

/// Uploads a stream, such as a pipe. It is spooled first: an incomplete input must not be written, and a retry after a lost
/// stream reads it again.
async fn upload_stream(
    sandbox: &Sandbox,
    mut stream: impl AsyncRead + Unpin,
    shown: &str,
    (to, is_dir): (&str, bool),
    output: &Output,
) -> Result<TreeSummary> {
    if is_dir {
        return Err(Failure::usage(
            format!("The destination of {shown} is the directory {to}."),
            "Name the file to write: a stream has no name of its own.",
        ));
    }
    let unread = |cause| Failure::local(&format!("read {shown}"), &cause);
    let mut spool = File::from_std(tempfile::tempfile().map_err(unread)?);
    let bytes = tokio::io::copy(&mut stream, &mut spool).await.map_err(unread)?;
    let file = TrackedFile::new(spool, Progress::new(output, to, Some(bytes)));
    sandbox.upload_with_mode(to, None, file).await?;
    Ok(one_file(bytes))
}

/// The bytes of all files of a local directory, as far as it can be read.
async fn tree_size(dir: PathBuf) -> Option<u64> {
    let work = move || {
        let (mut dirs, mut bytes) = (vec![dir], 0_u64);
        while let Some(dir) = dirs.pop() {
            for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
                let Ok(metadata) = entry.metadata() else { continue };
                if metadata.is_dir() {
                    dirs.push(entry.path());
                } else if metadata.is_file() {
                    bytes += metadata.len();
                }
            }
        }
        bytes
    };
    tokio::task::spawn_blocking(work).await.ok()
}

async fn download(sandbox: &Sandbox, from: &str, to: &Path, output: &Output) -> Result<TreeSummary> {
    let info = sandbox.stat(from, true).await?;
    if ![FileKind::File, FileKind::Directory].contains(&info.kind) {
        return Err(Failure::usage(
            format!("{from} is neither a file nor a directory."),
            "Read a pipe or device with a command: `sandpod exec ID cat PATH`.",
        ));
    }
    // Not /dev/stdout: a download to a path replaces the file there, but stdout may be a file that others append to.
    if to == Path::new(STDIO) {
        if info.kind == FileKind::Directory {
            return Err(Failure::usage(
                format!("{from} is a directory, which cannot be written to stdout."),
                "Name a file, or copy the directory to a path.",
            ));
        }
        return Ok(one_file(print_file(sandbox, from).await?));
    }
    // The name is from the argument, not from the untrusted answer of the sandbox.
    let to = match name(from).filter(|_| !from.ends_with("/.") && to.is_dir()) {
        Some(name) => to.join(name),
        None => to.to_owned(),
    };
    if info.kind == FileKind::Directory {
        let unwritable = |cause: io::Error| Failure::local(&format!("create {}", to.display()), &cause);
        fs::create_dir_all(&to).await.map_err(unwritable)?;
        let mut progress = Progress::new(output, from, None);
        let limits = TreeLimits::default();
        return Ok(sandbox.download_tree(from, &to, limits, |done| progress.update(done.bytes)).await?);
    }
    if to.as_os_str().as_encoded_bytes().ends_with(b"/") {
        return Err(missing_directory(&to.to_string_lossy()));
    }
    let progress = Progress::new(output, from, Some(info.size));
    Ok(one_file(download_file(sandbox, from, &info, &to, progress).await?))
}

/// Downloads into a temporary file beside `to`, and renames it when it is complete.
async fn download_file(
    sandbox: &Sandbox,
    from: &str,
    info: &FileInfo,
    to: &Path,
    progress: Progress,
) -> Result<u64> {
    let unwritable = |cause: io::Error| Failure::local(&format!("write {}", to.display()), &cause);
    // A link is resolved to its target; a target that is no regular file, such as a pipe, is written in place.
    let to = fs::canonicalize(to).await.unwrap_or_else(|_| to.to_owned());
    if fs::metadata(&to).await.is_ok_and(|there| !there.is_file()) {
        let file = fs::OpenOptions::new().write(true).open(&to).await.map_err(unwritable)?;
        return fill(sandbox, from, TrackedFile::new(file, progress)).await?.map_err(unwritable);
    }
    let dir = to
        .parent()
        .filter(|dir| !dir.as_os_str().is_empty())
        .map_or_else(|| PathBuf::from("."), Path::to_owned);
    if !dir.is_dir() {
        return Err(missing_directory(&dir.to_string_lossy()));
    }
    let temporary = tempfile::Builder::new().prefix(".sandpod-").tempfile_in(dir);
    // The message omits the random name of the temporary file.
    let temporary = temporary.map_err(|cause| unwritable(cause.kind().into()))?;
    let file = File::from_std(temporary.reopen().map_err(unwritable)?);
    let bytes = fill(sandbox, from, TrackedFile::new(file, progress)).await?.map_err(unwritable)?;
    let permissions = std::fs::Permissions::from_mode(info.mode & MODE);
    temporary.as_file().set_permissions(permissions).map_err(unwritable)?;
    temporary.persist(&to).map_err(|error| unwritable(error.error))?;
    Ok(bytes)
}

/// Downloads into a file. The inner error is that of the local file.
async fn fill(sandbox: &Sandbox, from: &str, mut file: TrackedFile) -> Result<io::Result<u64>> {
    let downloaded = sandbox.download_to(from, &mut file).await;
    match file.write_error {
        Some(cause) => Ok(Err(cause.into())),
        None => Ok(Ok(downloaded?)),
    }
}

/// The name of the source; none if only the content of a directory is copied.
fn own_name(path: &Path) -> Result<Option<String>> {
    let text = path.as_os_str().to_string_lossy();
    let Some(name) = path.file_name().filter(|_| !text.ends_with("/.")) else { return Ok(None) };
    let name = name.to_str().ok_or_else(|| {
        Failure::usage(
            format!("The name of {} is not UTF-8.", path.display()),
            "Name the destination, or copy the parent directory.",
        )
    })?;
    Ok(Some(name.to_owned()))
}

fn one_file(bytes: u64) -> TreeSummary {
    TreeSummary { files: 1, bytes, ..TreeSummary::default() }
}

fn report(summary: &TreeSummary, output: &Output) -> Result<()> {
    let TreeSummary { files, directories, links, bytes, skipped, links_left_out } = *summary;
    if output.is_json() {
        return output.json(&json!({
            "files": files,
            "directories": directories,
            "links": links,
            "bytes": bytes,
            "skipped": skipped,
            "links_left_out": links_left_out,
        }));
    }
    if skipped > 0 {
        output.note(&match skipped {
            1 => "skipped: 1 socket, device or pipe".to_owned(),
            _ => format!("skipped: {skipped} sockets, devices and pipes"),
        });
    }
    if links_left_out > 0 {
        output.note(&match links_left_out {
            1 => "skipped: 1 link that points outside the directory".to_owned(),
            _ => format!("skipped: {links_left_out} links that point outside the directory"),
        });
    }
    let files = if files == 1 { "1 file".to_owned() } else { format!("{files} files") };
    output.note(&format!("copied {files}, {}", format_size(bytes)));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_with_an_id_and_a_colon_is_in_a_sandbox() {
        assert_eq!(Location::of("sp-1:/a:b"), Location::Sandbox { id: "sp-1", path: "/a:b" });
        assert_eq!(Location::of("sp-1:"), Location::Sandbox { id: "sp-1", path: "" });
        for local in ["a", "./a:b", "/a:b", "C:\\x", "a b:c", ":x"] {
            assert_eq!(Location::of(local), Location::Local(Path::new(local)), "{local}");
        }
    }
}
