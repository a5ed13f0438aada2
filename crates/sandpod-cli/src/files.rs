//! Paths in sandboxes, and how files are printed.

use std::time::{Duration, SystemTime};

use sandpod::{ErrorKind, FileInfo, FileKind};
use serde_json::{Value, json};

use crate::exit::{Failure, Result};
use crate::target::Target;
use crate::time::timestamp;

/// Resolves a path of a sandbox against the working directory of commands.
pub(crate) fn absolute(target: &Target, path: &str) -> Result<String> {
    if path.starts_with('/') {
        return Ok(path.to_owned());
    }
    let workdir = target.raw()?.workdir;
    Ok(if path.is_empty() || path == "." { workdir } else { join(&workdir, path) })
}

/// Joins a directory and a name.
pub(crate) fn join(dir: &str, name: &str) -> String {
    format!("{}/{name}", dir.trim_end_matches('/'))
}

/// The last component of a path, if it has one.
pub(crate) fn name(path: &str) -> Option<&str> {
    let name = path.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
    Some(name).filter(|name| !["", ".", ".."].contains(name))
}

/// The failure for a missing destination directory.
pub(crate) fn missing_directory(path: &str) -> Failure {
    let shown = if path == "/" { path } else { path.trim_end_matches('/') };
    Failure::new(
        ErrorKind::NotFound,
        format!("There is no directory {shown}."),
        "Create the directory first, or choose another.",
    )
}

/// A file as JSON.
pub(crate) fn value(info: &FileInfo) -> Value {
    json!({
        "path": info.path,
        "kind": kind(info),
        "size": info.size,
        "mode": format!("{:04o}", info.mode),
        "modified_at": modified(info).and_then(timestamp),
        "uid": info.uid,
        "gid": info.gid,
        "link_target": info.link_target,
    })
}

/// The modification time.
pub(crate) fn modified(info: &FileInfo) -> Option<SystemTime> {
    let since = Duration::from_nanos(u64::try_from(info.modified_ns).ok()?);
    SystemTime::UNIX_EPOCH.checked_add(since)
}

fn kind(info: &FileInfo) -> &'static str {
    match info.kind {
        FileKind::File => "file",
        FileKind::Directory => "directory",
        FileKind::Link => "link",
        _ => "other",
    }
}

/// The kind and the permission bits, as ls shows them.
pub(crate) fn format_mode(info: &FileInfo) -> String {
    let kind = match info.kind {
        FileKind::File => '-',
        FileKind::Directory => 'd',
        FileKind::Link => 'l',
        _ => '?',
    };
    let bits = "rwxrwxrwx"
        .chars()
        .enumerate()
        .map(|(place, letter)| if info.mode & (1 << (8 - place)) == 0 { '-' } else { letter });
    std::iter::once(kind).chain(bits).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_component_of_a_path_is_its_name() {
        assert_eq!([name("/a/b"), name("/a/b/"), name("b")], [Some("b"); 3]);
        assert_eq!([name("/"), name(""), name("/a/."), name("/a/..")], [None; 4]);
        assert_eq!((join("/a/", "b"), join("/", "b")), ("/a/b".to_owned(), "/b".to_owned()));
    }
}
