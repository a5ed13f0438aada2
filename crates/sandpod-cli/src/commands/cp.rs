//! `sandpod cp`: copies files and directories into a sandbox or out of it.

use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use clap::Args;
use sandpod::{FileInfo, FileKind, Sandbox, SandboxId, TreeLimits, TreeSummary};
use serde_json::json;
use tokio::fs::{self, File};

use super::Context;
use crate::exit::{Failure, Result};
use crate::files::{absolute, join, missing_directory, name};
use crate::interrupt::Interrupts;
use crate::output::Output;
use crate::progress::{Progress, format_size};
use crate::target::Target;
use crate::tracked_file::TrackedFile;

/// The mode bits that are copied: neither setuid nor setgid.
const MODE: u32 = 0o777;

const EXAMPLES: &str = "\
Directories are copied recursively with their modes, times and links; links are not followed. If the destination is an \
existing directory, the source is copied into it; use DIRECTORY/. to copy only its content. A failed copy leaves no \
incomplete file.

Examples:
  sandpod cp script.py ID:/workspace
  sandpod cp ./project ID:/workspace/project
  sandpod cp ID:/workspace/out/. ./results";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Source: a local path, or ID:PATH
    from: String,
    /// Destination: a local path, or ID:PATH; exactly one of the two is in a sandbox
    to: String,
    /// Accepted and ignored: directories are always copied recursively
    #[arg(long, short, hide = true)]
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
    if [&arguments.from, &arguments.to].iter().any(|path| *path == "-") {
        return Err(Failure::usage(
            "`sandpod cp` cannot copy stdin or stdout ('-').",
            "Write stdin with `sandpod write`, print a file with `sandpod cat`, or use ./- for a file of that name.",
        ));
    }
    let target = context.target()?;
    match (Location::of(&arguments.from), Location::of(&arguments.to)) {
        (Location::Local(from), Location::Sandbox { id, path }) => {
            upload(&target, from, id, path, &context.output).await
        }
        (Location::Sandbox { id, path }, Location::Local(to)) => {
            download(&target, id, path, to, &context.output).await
        }
        _ => Err(Failure::usage(
            "Exactly one of the two paths must be in a sandbox.",
            "Write ID:PATH for a path in a sandbox. To move a file within a sandbox, use `sandpod mv`.",
        )),
    }
}

async fn upload(target: &Target, from: &Path, id: &str, to: &str, output: &Output) -> Result<TreeSummary> {
    let unreadable = |cause: io::Error| Failure::local(&format!("read {}", from.display()), &cause);
    let metadata = fs::metadata(from).await.map_err(unreadable)?;
    let into_dir = to.ends_with('/');
    let to = absolute(target, to)?;
    let sandbox = target.sandbox(id).await?.sandbox;
    let is_dir = into_dir || sandbox.stat(&to, true).await.is_ok_and(|info| info.kind == FileKind::Directory);
    let to = match own_name(from)?.filter(|_| is_dir) {
        Some(name) => join(&to, &name),
        None => to,
    };
    if metadata.is_dir() {
        let mut progress = Progress::new(output, &to, None);
        return Ok(sandbox.upload_tree(from, &to, |done| progress.update(done.bytes)).await?);
    }
    let progress = Progress::new(output, &to, Some(metadata.len()));
    let file = TrackedFile::new(File::open(from).await.map_err(unreadable)?, progress);
    sandbox.upload_with_mode(&to, Some(metadata.permissions().mode() & MODE), file).await?;
    Ok(one_file(metadata.len()))
}

async fn download(target: &Target, id: &str, from: &str, to: &Path, output: &Output) -> Result<TreeSummary> {
    let from = absolute(target, from)?;
    let sandbox = target.sandbox(id).await?.sandbox;
    let info = sandbox.stat(&from, true).await?;
    // The name is from the argument, not from the untrusted answer of the sandbox.
    let to = match name(&from).filter(|_| !from.ends_with("/.") && to.is_dir()) {
        Some(name) => to.join(name),
        None => to.to_owned(),
    };
    if info.kind == FileKind::Directory {
        let unwritable = |cause: io::Error| Failure::local(&format!("create {}", to.display()), &cause);
        fs::create_dir_all(&to).await.map_err(unwritable)?;
        let mut progress = Progress::new(output, &from, None);
        let limits = TreeLimits::default();
        return Ok(sandbox.download_tree(&from, &to, limits, |done| progress.update(done.bytes)).await?);
    }
    if to.as_os_str().as_encoded_bytes().ends_with(b"/") {
        return Err(missing_directory(&to.to_string_lossy()));
    }
    let progress = Progress::new(output, &from, Some(info.size));
    Ok(one_file(download_file(&sandbox, &from, &info, &to, progress).await?))
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
        output.note(&format!("skipped: {skipped} sockets, devices and pipes"));
    }
    if links_left_out > 0 {
        output.note(&format!("skipped: {links_left_out} links that point outside the directory"));
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
