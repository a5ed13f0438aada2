//! `sandpod cp`: files and directories, in and out.

use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use clap::Args;
use sandpod::{FileInfo, FileKind, Sandbox, SandboxId, TreeLimits, TreeSummary};
use serde_json::json;
use tokio::fs::{self, File};

use super::Context;
use crate::counted::Counted;
use crate::exit::{Failure, Result};
use crate::files::{absolute, join, name, no_directory};
use crate::interrupt::Interrupts;
use crate::output::Output;
use crate::progress::{Progress, size};
use crate::target::Target;

/// What a file of a sandbox may have here: neither setuid nor setgid, which are for another machine.
const MODE: u32 = 0o777;

const EXAMPLES: &str = "\
Directories are copied with all that is in them: modes, times and links are kept, and no link is followed. Into a \
directory that is there, what is copied keeps its name; `DIRECTORY/.` means what is in it. A file is whole or not there.

Examples:
  sandpod cp script.py ID:/workspace
  sandpod cp ./project ID:/workspace/project
  sandpod cp ID:/workspace/out/. ./results";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// A path here, or ID:PATH
    from: String,
    /// A path here, or ID:PATH; one of both is in a sandbox
    to: String,
    /// Taken and not needed: directories are always copied whole
    #[arg(long, short, hide = true)]
    recursive: bool,
}

/// Which side a path is on.
#[derive(Debug, PartialEq)]
enum Side<'a> {
    Here(&'a Path),
    There { id: &'a str, path: &'a str },
}

impl<'a> Side<'a> {
    /// What can't be an id is the beginning of a path here.
    fn of(text: &'a str) -> Self {
        match text.split_once(':') {
            Some((id, path)) if id.parse::<SandboxId>().is_ok() => Self::There { id, path },
            _ => Self::Here(Path::new(text)),
        }
    }
}

/// Copies it and says what it was. Whoever is told to end meanwhile leaves nothing half done here.
pub(crate) async fn run(arguments: Arguments, context: &Context) -> Result<()> {
    let mut interrupts = Interrupts::listen()?;
    let summary = interrupts.or(copy(&arguments, context)).await?;
    report(&summary, &context.output)
}

async fn copy(arguments: &Arguments, context: &Context) -> Result<TreeSummary> {
    if [&arguments.from, &arguments.to].iter().any(|path| *path == "-") {
        return Err(Failure::usage(
            "cp copies files, and '-' is none.",
            "Use `sandpod write` for what comes from stdin, `sandpod cat` for what goes to stdout, or ./- for a file.",
        ));
    }
    let target = context.target()?;
    match (Side::of(&arguments.from), Side::of(&arguments.to)) {
        (Side::Here(from), Side::There { id, path }) => {
            upload(&target, from, id, path, &context.output).await
        }
        (Side::There { id, path }, Side::Here(to)) => download(&target, id, path, to, &context.output).await,
        _ => Err(Failure::usage(
            "One of the two paths must be in a sandbox, and one here.",
            "Write ID:PATH for the one in the sandbox; `sandpod mv` moves within one.",
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
        return Ok(sandbox.upload_tree(from, &to, |done| progress.at(done.bytes)).await?);
    }
    let progress = Progress::new(output, &to, Some(metadata.len()));
    let file = Counted::new(File::open(from).await.map_err(unreadable)?, progress);
    sandbox.upload_with_mode(&to, Some(metadata.permissions().mode() & MODE), file).await?;
    Ok(one_file(metadata.len()))
}

async fn download(target: &Target, id: &str, from: &str, to: &Path, output: &Output) -> Result<TreeSummary> {
    let from = absolute(target, from)?;
    let sandbox = target.sandbox(id).await?.sandbox;
    let info = sandbox.stat(&from, true).await?;
    // The name is what was asked for, and not what the sandbox calls it.
    let to = match name(&from).filter(|_| !from.ends_with("/.") && to.is_dir()) {
        Some(name) => to.join(name),
        None => to.to_owned(),
    };
    if info.kind == FileKind::Directory {
        let unwritable = |cause: io::Error| Failure::local(&format!("make {}", to.display()), &cause);
        fs::create_dir_all(&to).await.map_err(unwritable)?;
        let mut progress = Progress::new(output, &from, None);
        let limits = TreeLimits::default();
        return Ok(sandbox.download_tree(&from, &to, limits, |done| progress.at(done.bytes)).await?);
    }
    if to.as_os_str().as_encoded_bytes().ends_with(b"/") {
        return Err(no_directory(&to.to_string_lossy()));
    }
    let progress = Progress::new(output, &from, Some(info.size));
    Ok(one_file(download_file(&sandbox, &from, &info, &to, progress).await?))
}

/// A file beside its place, which it takes when it is whole.
async fn download_file(
    sandbox: &Sandbox,
    from: &str,
    info: &FileInfo,
    to: &Path,
    progress: Progress,
) -> Result<u64> {
    let unwritable = |cause: io::Error| Failure::local(&format!("write {}", to.display()), &cause);
    // Through a link to what it leads to; what is no file, such as a pipe, is written and not replaced.
    let to = fs::canonicalize(to).await.unwrap_or_else(|_| to.to_owned());
    if fs::metadata(&to).await.is_ok_and(|there| !there.is_file()) {
        let file = fs::OpenOptions::new().write(true).open(&to).await.map_err(unwritable)?;
        return fill(sandbox, from, Counted::new(file, progress)).await?.map_err(unwritable);
    }
    let dir = to
        .parent()
        .filter(|dir| !dir.as_os_str().is_empty())
        .map_or_else(|| PathBuf::from("."), Path::to_owned);
    if !dir.is_dir() {
        return Err(no_directory(&dir.to_string_lossy()));
    }
    let unfinished = tempfile::Builder::new().prefix(".sandpod-").tempfile_in(dir);
    // Without the name that only we know.
    let unfinished = unfinished.map_err(|cause| unwritable(cause.kind().into()))?;
    let file = File::from_std(unfinished.reopen().map_err(unwritable)?);
    let bytes = fill(sandbox, from, Counted::new(file, progress)).await?.map_err(unwritable)?;
    let permissions = std::fs::Permissions::from_mode(info.mode & MODE);
    unfinished.as_file().set_permissions(permissions).map_err(unwritable)?;
    unfinished.persist(&to).map_err(|error| unwritable(error.error))?;
    Ok(bytes)
}

/// Downloads into a file; says apart why that took no more.
async fn fill(sandbox: &Sandbox, from: &str, mut file: Counted) -> Result<io::Result<u64>> {
    let downloaded = sandbox.download_to(from, &mut file).await;
    match file.refused {
        Some(cause) => Ok(Err(cause.into())),
        None => Ok(Ok(downloaded?)),
    }
}

/// The name of what is copied; none for what is in a directory.
fn own_name(path: &Path) -> Result<Option<String>> {
    let text = path.as_os_str().to_string_lossy();
    let Some(name) = path.file_name().filter(|_| !text.ends_with("/.")) else { return Ok(None) };
    let name = name.to_str().ok_or_else(|| {
        Failure::usage(
            format!("The name of {} is no UTF-8.", path.display()),
            "Give the copy a name, or copy the directory that it is in.",
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
        output.note(&format!("left out: {skipped} sockets, devices and pipes"));
    }
    if links_left_out > 0 {
        output.note(&format!("left out: {links_left_out} links that lead out of the directory"));
    }
    let files = if files == 1 { "1 file".to_owned() } else { format!("{files} files") };
    output.note(&format!("copied {files}, {}", size(bytes)));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_begins_with_an_id_and_a_colon_is_in_a_sandbox() {
        assert_eq!(Side::of("sp-1:/a:b"), Side::There { id: "sp-1", path: "/a:b" });
        assert_eq!(Side::of("sp-1:"), Side::There { id: "sp-1", path: "" });
        for here in ["a", "./a:b", "/a:b", "C:\\x", "a b:c", ":x"] {
            assert_eq!(Side::of(here), Side::Here(Path::new(here)), "{here}");
        }
    }
}
