//! Finds files by content.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use grep_regex::{RegexMatcher, RegexMatcherBuilder};
use grep_searcher::{BinaryDetection, Searcher, SearcherBuilder, Sink, SinkMatch};
use sandpod_protocol::v1::{FileKind, GrepMatch, GrepRequest, GrepResponse};
use sandpod_protocol::{Failure, limits};
use sandpod_text::Pattern;
use sandpod_text::grep::{Found, check, shown, wrong};
use tokio::time::Instant;

use super::walk::{WalkEntry, walk};
use crate::files::{Location, PathResolver, Purpose};

/// Maximum memory of each thread for a file's line. A file with a longer line is not searched to its end.
const MAX_BUFFER_BYTES: usize = 8 << 20;

/// Finds the lines that contain a text, in files below a root.
pub(crate) fn grep(
    request: &GrepRequest,
    working_dir: &Path,
    resolver: &PathResolver,
) -> Result<GrepResponse, Failure> {
    grep_until(request, working_dir, resolver, Instant::now() + limits::SEARCH_BUDGET)
}

fn grep_until(
    request: &GrepRequest,
    working_dir: &Path,
    resolver: &PathResolver,
    deadline: Instant,
) -> Result<GrepResponse, Failure> {
    let root = if request.root.is_empty() {
        resolver.resolve_own(working_dir.to_owned(), Purpose::SEARCH)?
    } else {
        resolver.resolve(&request.root, Purpose::SEARCH)?
    };
    let files =
        Some(&request.glob).filter(|glob| !glob.is_empty()).map(|glob| Pattern::new(glob)).transpose()?;
    let wanted = |path: &Path| files.as_ref().is_none_or(|files| files.matches(path));
    let search = Search::new(request, deadline)?;

    let (found, root) = (root.found()?, &root);
    if found.is_directory() {
        let enters = |directory: &Path| {
            !directory.ends_with(".git") && files.as_ref().is_none_or(|files| files.enters(directory))
        };
        let visitor = || {
            let mut searcher = searcher();
            let (search, wanted) = (&search, &wanted);
            move |entry: &WalkEntry<'_>| {
                if entry.kind == FileKind::File && wanted(entry.path) {
                    // Unreadable files are skipped, as grep does.
                    let path = root.path().join(entry.path);
                    let location = resolver.location_in(entry.dir.clone(), entry.name, path, Purpose::READ);
                    let _ = location.and_then(|location| search.search_file(&location, &mut searcher));
                }
                if search.found().full { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            }
        };
        let incomplete = walk(root, resolver, deadline, enters, visitor)?;
        search.incomplete.fetch_or(incomplete.out_of_time, Relaxed);
    } else if found.is_file() && root.path().file_name().is_some_and(|name| wanted(Path::new(name))) {
        search.search_file(root, &mut searcher())?;
    }
    Ok(search.response())
}

/// The search's matcher and the matches so far.
struct Search {
    matcher: RegexMatcher,
    deadline: Instant,
    found: Mutex<Found>,
    /// Whether some file was not searched to its end.
    incomplete: AtomicBool,
}

fn searcher() -> Searcher {
    SearcherBuilder::new()
        .binary_detection(BinaryDetection::quit(0))
        .heap_limit(Some(MAX_BUFFER_BYTES))
        .line_number(true)
        .build()
}

impl Search {
    fn new(request: &GrepRequest, deadline: Instant) -> Result<Self, Failure> {
        check(request)?;
        let matcher = RegexMatcherBuilder::new()
            .fixed_strings(true)
            .line_terminator(Some(b'\n'))
            .build(&request.pattern)
            .map_err(|error| wrong(&error.to_string()))?;
        let (found, incomplete) = (Mutex::new(Found::nothing(request)), AtomicBool::new(false));
        Ok(Self { matcher, deadline, found, incomplete })
    }

    fn found(&self) -> MutexGuard<'_, Found> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Searches a regular file. Its matches are dropped if it turns out to be binary.
    fn search_file(&self, location: &Location, searcher: &mut Searcher) -> Result<(), Failure> {
        let (file, _) = location.open_regular()?;
        let reader = UntilDeadline { file, deadline: self.deadline };
        let mut lines = Lines::new(location.path(), self.found().beside());
        let end = searcher.search_reader(&self.matcher, reader, &mut lines);
        self.incomplete.fetch_or(end.is_err(), Relaxed);
        if !lines.binary {
            let mut found = self.found();
            found.full |= lines.found.full;
            lines.found.matches.into_iter().for_each(|line| found.add(line));
        }
        Ok(())
    }

    fn response(self) -> GrepResponse {
        let mut found = self.found.into_inner().unwrap_or_else(PoisonError::into_inner);
        found.matches.sort_by(|a, b| (&a.path, a.line).cmp(&(&b.path, b.line)));
        GrepResponse { matches: found.matches, truncated: found.full || self.incomplete.into_inner() }
    }
}

/// The matching lines of one file.
struct Lines {
    path: String,
    found: Found,
    binary: bool,
}

impl Lines {
    fn new(path: &Path, found: Found) -> Self {
        let path = path.to_string_lossy().into_owned();
        Self { path, found, binary: false }
    }
}

impl Sink for Lines {
    type Error = io::Error;

    fn matched(&mut self, _searcher: &Searcher, found: &SinkMatch<'_>) -> io::Result<bool> {
        let (text, line) = (shown(found.bytes()), found.line_number().unwrap_or_default());
        self.found.add(GrepMatch { path: self.path.clone(), line, text });
        Ok(!self.found.full)
    }

    fn binary_data(&mut self, _searcher: &Searcher, _offset: u64) -> io::Result<bool> {
        self.binary = true;
        Ok(false)
    }
}

/// A file that can be read until the search's deadline.
struct UntilDeadline {
    file: File,
    deadline: Instant,
}

impl Read for UntilDeadline {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if Instant::now() >= self.deadline {
            return Err(ErrorKind::TimedOut.into());
        }
        self.file.read(buffer)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use prost::Message as _;
    use sandpod_protocol::v1::ErrorCode;
    use sandpod_text::grep::MAX_LINE_BYTES;

    use super::*;
    use crate::files::testing::{as_nobody, chmod, code, text};

    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (file, content) in files {
            let path = dir.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        dir
    }

    fn request(root: &Path, pattern: &str) -> GrepRequest {
        GrepRequest { pattern: pattern.to_owned(), root: text(root), ..GrepRequest::default() }
    }

    /// Formats matches as `path:line:text`, with paths below `root`.
    fn shown(root: &Path, response: &GrepResponse) -> Vec<String> {
        let below = |path: &str| text(Path::new(path).strip_prefix(root).unwrap());
        response
            .matches
            .iter()
            .map(|found| format!("{}:{}:{}", below(&found.path), found.line, found.text))
            .collect()
    }

    fn found(root: &Path, request: &GrepRequest) -> Vec<String> {
        let response = grep(request, Path::new("/nowhere"), &PathResolver::default()).unwrap();
        assert!(!response.truncated);
        shown(root, &response)
    }

    #[test]
    fn literal_text_is_found_sorted_by_path_and_line() {
        let dir = tree(&[("b", "a.c\nabc\nA.C\nxa.cx\r\n"), ("a/f", "a.c"), ("c", "nothing")]);
        assert_eq!(found(dir.path(), &request(dir.path(), "a.c")), ["a/f:1:a.c", "b:1:a.c", "b:4:xa.cx"]);
        assert_eq!(found(dir.path(), &request(dir.path(), "(")), [""; 0]);
    }

    #[test]
    fn hidden_and_ignored_files_are_searched_but_not_the_git_directory() {
        let files = [
            (".gitignore", "hit.log"),
            ("hit.log", "hit"),
            (".hidden/f", "hit"),
            (".git/f", "hit"),
            ("x/.git/f", "hit"),
        ];
        let dir = tree(&files);
        let hits = [".gitignore:1:hit.log", ".hidden/f:1:hit", "hit.log:1:hit"];
        assert_eq!(found(dir.path(), &request(dir.path(), "hit")), hits);
        let git = dir.path().join(".git");
        assert_eq!(found(&git, &request(&git, "hit")), ["f:1:hit"]);
    }

    #[test]
    fn binary_files_are_skipped_as_a_whole() {
        let late = "hit\n".to_owned() + &"x\n".repeat(100_000) + "\0";
        let dir = tree(&[("early", "\0hit"), ("late", &late), ("text", "hit")]);
        assert_eq!(found(dir.path(), &request(dir.path(), "hit")), ["text:1:hit"]);
    }

    #[test]
    fn only_a_root_that_is_a_link_is_followed() {
        let dir = tree(&[("real/f", "hit")]);
        symlink("real", dir.path().join("link")).unwrap();
        symlink("real/f", dir.path().join("file")).unwrap();
        assert_eq!(found(dir.path(), &request(dir.path(), "hit")), ["real/f:1:hit"]);
        let link = dir.path().join("link");
        assert_eq!(found(dir.path(), &request(&link, "hit")), ["link/f:1:hit"]);
    }

    #[test]
    fn a_glob_picks_files_by_name_or_with_a_slash_by_path() {
        let dir = tree(&[("a.py", "hit"), ("a.rs", "hit"), ("src/b.py", "hit"), (".x/c.py", "hit")]);
        let with = |glob: &str| GrepRequest { glob: glob.to_owned(), ..request(dir.path(), "hit") };
        assert_eq!(found(dir.path(), &with("*.py")), [".x/c.py:1:hit", "a.py:1:hit", "src/b.py:1:hit"]);
        assert_eq!(found(dir.path(), &with("src/*.py")), ["src/b.py:1:hit"]);
        assert_eq!(found(dir.path(), &with("/*.{py,rs}")), ["a.py:1:hit", "a.rs:1:hit"]);
        assert_eq!(
            code(grep(&with("../x"), Path::new("/"), &PathResolver::default())),
            ErrorCode::InvalidArgument
        );
    }

    #[test]
    fn max_count_is_a_total_and_only_more_is_truncated() {
        let dir = tree(&[("a", "hit\nhit\n"), ("b", "hit\nhit\n")]);
        let count = |max_count| {
            let response = grep(
                &GrepRequest { max_count, ..request(dir.path(), "hit") },
                Path::new("/"),
                &PathResolver::default(),
            )
            .unwrap();
            (response.matches.len(), response.truncated)
        };
        assert_eq!(count(3), (3, true));
        assert_eq!(count(4), (4, false));
        assert_eq!(count(0), (4, false));
    }

    #[test]
    fn the_root_may_be_a_file_and_is_the_working_directory_by_default() {
        let dir = tree(&[("file.py", "hit")]);
        let file = dir.path().join("file.py");
        assert_eq!(found(dir.path(), &request(&file, "hit")), ["file.py:1:hit"]);
        let other = GrepRequest { glob: "*.rs".to_owned(), ..request(&file, "hit") };
        assert_eq!(found(dir.path(), &other), [""; 0]);
        let here = GrepRequest { root: String::new(), ..request(&file, "hit") };
        assert_eq!(
            shown(dir.path(), &grep(&here, dir.path(), &PathResolver::default()).unwrap()),
            ["file.py:1:hit"]
        );
    }

    #[test]
    fn a_long_line_is_cut_at_a_character() {
        let dir = tree(&[("file", &format!("hit{}\n", "ä".repeat(MAX_LINE_BYTES)))]);
        let response = grep(&request(dir.path(), "hit"), Path::new("/"), &PathResolver::default()).unwrap();
        assert_eq!(response.matches[0].text.len(), MAX_LINE_BYTES - 1);
        assert!(response.matches[0].text.ends_with('ä'));
    }

    #[test]
    fn a_response_fits_into_a_message() {
        let dir = tree(&[("file", &format!("hit{}\n", "x".repeat(MAX_LINE_BYTES)).repeat(200))]);
        let response = grep(&request(dir.path(), "hit"), Path::new("/"), &PathResolver::default()).unwrap();
        assert!(response.truncated && response.encoded_len() < limits::MAX_MESSAGE_BYTES);
        assert!(response.matches.len() > 100);
    }

    #[test]
    fn an_endless_line_is_not_buffered_and_other_files_are_searched() {
        let dir = tree(&[("b", "hit")]);
        fs::write(dir.path().join("a"), "x".repeat(MAX_BUFFER_BYTES * 2)).unwrap();
        let response = grep(&request(dir.path(), "hit"), Path::new("/"), &PathResolver::default()).unwrap();
        assert_eq!(shown(dir.path(), &response), ["b:1:hit"]);
        assert!(response.truncated);
    }

    #[test]
    fn a_search_that_takes_too_long_is_truncated() {
        let dir = tree(&[("file", "hit")]);
        for root in [dir.path(), &dir.path().join("file")] {
            assert!(
                grep_until(&request(root, "hit"), Path::new("/"), &PathResolver::default(), Instant::now())
                    .unwrap()
                    .truncated
            );
        }
    }

    #[test]
    fn invalid_patterns_and_roots_are_refused() {
        let dir = tree(&[]);
        let long = "x".repeat(limits::MAX_PATTERN_BYTES + 1);
        for pattern in ["two\nlines", &long] {
            assert_eq!(
                code(grep(&request(dir.path(), pattern), Path::new("/"), &PathResolver::default())),
                ErrorCode::InvalidArgument
            );
        }
        assert_eq!(
            code(grep(&request(Path::new("/no/such"), "x"), Path::new("/"), &PathResolver::default())),
            ErrorCode::NotFound
        );
    }

    #[test]
    fn link_loops_closed_directories_and_odd_names_do_not_stop_a_search() {
        let dir =
            tree(&[("file", "hit"), ("closed/file", "hit"), ("new\nline", "hit"), ("sub/x:1:y", "hit")]);
        symlink("..", dir.path().join("sub/ring")).unwrap();
        symlink("self", dir.path().join("self")).unwrap();
        chmod(dir.path(), 0o755);
        chmod(&dir.path().join("closed"), 0o000);
        let response =
            as_nobody(|| grep(&request(dir.path(), "hit"), Path::new("/"), &PathResolver::default()))
                .unwrap();
        chmod(&dir.path().join("closed"), 0o755);
        assert_eq!(shown(dir.path(), &response), ["file:1:hit", "new\nline:1:hit", "sub/x:1:y:1:hit"]);
    }

    #[test]
    fn a_name_that_is_not_utf8_is_shown_lossily() {
        use std::os::unix::ffi::OsStrExt as _;
        let dir = tree(&[]);
        fs::write(dir.path().join(std::ffi::OsStr::from_bytes(b"odd\xff")), "hit").unwrap();
        assert_eq!(found(dir.path(), &request(dir.path(), "hit")), ["odd\u{fffd}:1:hit"]);
    }

    #[test]
    fn huge_patterns_are_refused_and_a_nul_byte_is_found_nowhere() {
        let dir = tree(&[("file", "hit")]);
        let long = GrepRequest { glob: "x".repeat(1 << 20), ..request(dir.path(), "hit") };
        assert_eq!(code(grep(&long, Path::new("/"), &PathResolver::default())), ErrorCode::InvalidArgument);
        let root = GrepRequest { root: format!("/{}", "x".repeat(1 << 20)), ..request(dir.path(), "hit") };
        assert_eq!(code(grep(&root, Path::new("/"), &PathResolver::default())), ErrorCode::InvalidArgument);
        assert_eq!(found(dir.path(), &request(dir.path(), "\0")), [""; 0]);
        let nul = GrepRequest { glob: "fi\0le".to_owned(), ..request(dir.path(), "hit") };
        assert_eq!(found(dir.path(), &nul), [""; 0]);
    }
}
