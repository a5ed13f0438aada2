//! What `stat` says of files, in the form that the scripts ask for: mode, size, time, owner, group, and a name.

use sandpod_protocol::v1::{ErrorCode, FileInfo, FileKind};
use sandpod_protocol::{Failure, limits};

/// What a mode says of a file's kind.
const KIND: u32 = 0o170_000;
const NANOSECONDS: i64 = 1_000_000_000;

/// One line about the file at `path`.
pub(crate) fn parse(line: &str, path: &str) -> Result<FileInfo, Failure> {
    let (info, _) = fields(line).ok_or_else(nonsense)?;
    Ok(FileInfo { path: path.to_owned(), ..info })
}

/// Many lines, each with a name below `root` at its end. A name may have line ends in it: what does not begin as a line
/// does goes on with the name before.
pub(crate) fn parse_all(lines: &str, root: &str) -> Vec<FileInfo> {
    let mut found: Vec<FileInfo> = Vec::new();
    for line in lines.split('\n') {
        match (fields(line), found.last_mut()) {
            (Some((info, name)), _) if !name.is_empty() => {
                found.push(FileInfo { path: below(root, name), ..info });
            }
            (_, Some(last)) if last.path.len() < limits::MAX_PATH_BYTES => {
                last.path.push('\n');
                last.path.push_str(line);
            }
            _ => {}
        }
    }
    // The last line end is no part of a name.
    if let Some(last) = found.last_mut().filter(|_| lines.ends_with('\n')) {
        last.path.pop();
    }
    found
}

/// The path of a name that `find` printed.
pub(crate) fn below(root: &str, name: &str) -> String {
    match name.strip_prefix("./").unwrap_or(name) {
        "." => root.to_owned(),
        name => format!("{}/{name}", root.trim_end_matches('/')),
    }
}

fn fields(line: &str) -> Option<(FileInfo, &str)> {
    let mut parts = line.splitn(6, ' ');
    let mode = u32::from_str_radix(parts.next()?, 16).ok()?;
    let size = parts.next()?.parse().ok()?;
    let modified: i64 = parts.next()?.parse().ok()?;
    let (uid, gid) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    let kind = match mode & KIND {
        0o100_000 => FileKind::File,
        0o040_000 => FileKind::Directory,
        0o120_000 => FileKind::Link,
        _ => FileKind::Other,
    };
    let info = FileInfo {
        path: String::new(),
        kind: kind.into(),
        size,
        mode: mode & 0o7777,
        modified_ns: modified.saturating_mul(NANOSECONDS),
        uid,
        gid,
        link_target: String::new(),
    };
    Some((info, parts.next().unwrap_or_default()))
}

fn nonsense() -> Failure {
    Failure::new(ErrorCode::Internal, "the image's stat says something else than stat -c should")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_stat_is_a_file() {
        let info = parse("81a4 12 1700000000 1000 1000\n".trim_end(), "/a").unwrap();
        assert_eq!((info.kind(), info.size, info.mode, info.uid), (FileKind::File, 12, 0o644, 1000));
        assert_eq!(info.modified_ns, 1_700_000_000 * NANOSECONDS);
        parse("stat: no such option", "/a").unwrap_err();
    }

    #[test]
    fn a_name_may_have_spaces_and_line_ends_in_it() {
        let said = "81a4 1 2 0 0 ./a b\n41ed 1 2 0 0 ./two\nlines\n81a4 1 2 0 0 ./c\n";
        let paths: Vec<_> = parse_all(said, "/w/").into_iter().map(|info| info.path).collect();
        assert_eq!(paths, ["/w/a b", "/w/two\nlines", "/w/c"]);
        assert!(parse_all("", "/w").is_empty());
    }
}
