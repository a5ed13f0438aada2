//! Parses the output of `stat` in the format that the scripts use: mode, size, time, owner, group, and name.

use sandpod_protocol::v1::{ErrorCode, FileInfo, FileKind};
use sandpod_protocol::{Failure, limits};

/// The file type bits of a mode.
const KIND: u32 = 0o170_000;
const NANOSECONDS: i64 = 1_000_000_000;

/// Parses one line about the file at `path`.
pub(crate) fn parse(line: &str, path: &str) -> Result<FileInfo, Failure> {
    let (info, _) = fields(line).ok_or_else(nonsense)?;
    Ok(FileInfo { path: path.to_owned(), ..info })
}

/// Parses several lines, each with a name below `root` at its end. Names may contain line breaks: a line that does not parse
/// continues the previous name.
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
    // The last line break does not belong to a name.
    if let Some(last) = found.last_mut().filter(|_| lines.ends_with('\n')) {
        last.path.pop();
    }
    found
}

/// Returns the path of a name that `find` printed.
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
    Failure::new(ErrorCode::Internal, "the output of the image's stat -c is invalid")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_of_stat_is_parsed() {
        let info = parse("81a4 12 1700000000 1000 1000\n".trim_end(), "/a").unwrap();
        assert_eq!((info.kind(), info.size, info.mode, info.uid), (FileKind::File, 12, 0o644, 1000));
        assert_eq!(info.modified_ns, 1_700_000_000 * NANOSECONDS);
        parse("stat: no such option", "/a").unwrap_err();
    }

    #[test]
    fn names_may_contain_spaces_and_line_breaks() {
        let said = "81a4 1 2 0 0 ./a b\n41ed 1 2 0 0 ./two\nlines\n81a4 1 2 0 0 ./c\n";
        let paths: Vec<_> = parse_all(said, "/w/").into_iter().map(|info| info.path).collect();
        assert_eq!(paths, ["/w/a b", "/w/two\nlines", "/w/c"]);
        assert!(parse_all("", "/w").is_empty());
    }
}
