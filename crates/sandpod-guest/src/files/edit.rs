//! Replaces text in a file without losing concurrent changes.
//!
//! Edits of one file lock it. Commands take no locks, so the content is compared once more just before the swap, and the
//! edit starts again if it changed.

use std::io::{BufRead as _, BufReader, Read as _};
use std::sync::Arc;

use sandpod_protocol::Failure;
use sandpod_protocol::v1::{EditRequest, EditResponse, ErrorCode};
use sandpod_text::edit::{MAX_BYTES, check, check_size, replace, replacement, text_of};

use super::file_locks;
use super::resolver::{Location, PathResolver, Purpose};
use super::staged::Staged;

/// Maximum number of attempts for an edit while the file keeps changing.
const ATTEMPTS: usize = 5;

pub(super) fn edit(request: &EditRequest, resolver: &PathResolver) -> Result<EditResponse, Failure> {
    edit_watched(request, resolver, || ())
}

/// Edits, and calls `before_swap` when the new content is ready.
fn edit_watched(
    request: &EditRequest,
    resolver: &PathResolver,
    mut before_swap: impl FnMut(),
) -> Result<EditResponse, Failure> {
    let replacement = replacement(request);
    check(&replacement).map_err(|failure| failure.at(&request.path))?;
    let location = Arc::new(resolver.resolve(&request.path, Purpose::EDIT)?);
    let locks = file_locks::lock([&*location])?;
    for _ in 0..ATTEMPTS {
        let old = read_text(&location)?;
        let (new, occurrences) = replace(&old, &replacement).map_err(|failure| failure.at(&request.path))?;
        let mut staged = Staged::new(location.clone(), &resolver.temp_journal, None)?;
        staged.append(new.as_bytes())?;
        before_swap();
        if holds(&location, old.as_bytes())? {
            let atomic = staged.commit(&locks)?;
            return Ok(EditResponse { occurrences, atomic });
        }
    }
    let message =
        format!("'{}' keeps changing: read it again and repeat the edit when it is stable", request.path);
    Err(Failure::new(ErrorCode::Changed, message).at(&request.path))
}

/// Reads a file that can be edited.
pub(super) fn read_text(location: &Location) -> Result<String, Failure> {
    let (file, stat) = location.reopen_regular()?;
    let mut content = Vec::new();
    file.take(MAX_BYTES + 1).read_to_end(&mut content).map_err(|error| location.refused(error))?;
    let path = location.path().to_string_lossy();
    check_size(stat.size.max(content.len() as u64)).map_err(|failure| failure.at(path.clone()))?;
    text_of(content, &path)
}

/// Returns whether the file still has this content.
fn holds(location: &Location, mut content: &[u8]) -> Result<bool, Failure> {
    let (file, _) = location.reopen_regular()?;
    let mut reader = BufReader::with_capacity(64 << 10, file);
    loop {
        let read = reader.fill_buf().map_err(|error| location.refused(error))?;
        let length = read.len();
        if length == 0 {
            return Ok(content.is_empty());
        }
        let Some(rest) = content.strip_prefix(read) else { return Ok(false) };
        content = rest;
        reader.consume(length);
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::{fs, thread};

    use super::*;
    use crate::files::testing::{chmod, code, fifo, mode, text};

    struct Edited {
        dir: tempfile::TempDir,
        path: PathBuf,
    }

    impl Edited {
        fn new(content: impl AsRef<[u8]>) -> Self {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("file");
            fs::write(&path, content).unwrap();
            Self { dir, path }
        }

        fn request(&self, old: &str, new: &str, replace_all: bool) -> EditRequest {
            let (old_text, new_text) = (old.to_owned(), new.to_owned());
            EditRequest { operation: None, path: text(&self.path), old_text, new_text, replace_all }
        }

        fn edit(&self, old: &str, new: &str, replace_all: bool) -> Result<u64, Failure> {
            edit(&self.request(old, new, replace_all), &PathResolver::default())
                .map(|response| response.occurrences)
        }

        fn content(&self) -> String {
            fs::read_to_string(&self.path).unwrap()
        }
    }

    #[test]
    fn one_occurrence_is_replaced_and_the_mode_kept() {
        let file = Edited::new("one two three");
        chmod(&file.path, 0o750);
        assert_eq!(file.edit("two", "2", false).unwrap(), 1);
        assert_eq!(file.content(), "one 2 three");
        assert_eq!(mode(&file.path), 0o750);
        assert_eq!(fs::read_dir(file.dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn more_than_one_occurrence_needs_replace_all() {
        let file = Edited::new("a b a b a");
        assert_eq!(code(file.edit("a", "c", false)), ErrorCode::ManyMatches);
        assert_eq!(file.content(), "a b a b a");
        assert_eq!(file.edit("a", "c", true).unwrap(), 3);
        assert_eq!(file.content(), "c b c b c");
    }

    #[test]
    fn line_endings_of_the_request_are_those_of_the_file() {
        let crlf = Edited::new("one\r\ntwo\r\nthree\r\n");
        assert_eq!(crlf.edit("one\ntwo\n", "1\n2\n", false).unwrap(), 1);
        assert_eq!(crlf.content(), "1\r\n2\r\nthree\r\n");
        let lf = Edited::new("one\ntwo\nthree\n");
        assert_eq!(lf.edit("one\r\ntwo\r\n", "1\r\n2\r\n", false).unwrap(), 1);
        assert_eq!(lf.content(), "1\n2\nthree\n");
        let mixed = Edited::new("one\r\ntwo\n");
        assert_eq!(mixed.edit("two\n", "2\n", false).unwrap(), 1);
        assert_eq!(mixed.content(), "one\r\n2\n");
    }

    #[test]
    fn empty_and_missing_text_is_refused() {
        let file = Edited::new("content");
        let failure = file.edit("", "x", false).unwrap_err();
        assert_eq!(failure.code(), ErrorCode::InvalidArgument);
        assert!(failure.message().starts_with("old_string cannot be empty"));
        assert_eq!(code(file.edit("missing", "x", false)), ErrorCode::NoMatch);
    }

    #[test]
    fn only_text_files_are_edited() {
        assert_eq!(code(Edited::new(b"\xff\xfe").edit("a", "b", false)), ErrorCode::NotText);
        let file = Edited::new("");
        let request = |path: String| EditRequest { path, ..file.request("a", "b", false) };
        assert_eq!(
            code(edit(&request(text(&fifo(file.dir.path()))), &PathResolver::default())),
            ErrorCode::NotAFile
        );
        assert_eq!(
            code(edit(&request(text(file.dir.path())), &PathResolver::default())),
            ErrorCode::IsDirectory
        );
        assert_eq!(
            code(edit(&request("/no/such".to_owned()), &PathResolver::default())),
            ErrorCode::NotFound
        );
    }

    #[test]
    fn a_replacement_that_grows_too_large_is_refused() {
        let file = Edited::new("a".repeat(1 << 17));
        assert_eq!(code(file.edit("a", &"b".repeat(1 << 10), true)), ErrorCode::TooLarge);
    }

    #[test]
    fn a_change_that_a_command_makes_meanwhile_is_kept() {
        for (changed, expected) in [("one two three", "1 two three"), ("one", "1"), ("one owt", "1 owt")] {
            let file = Edited::new("one two");
            let mut done = false;
            let command = || {
                if !std::mem::replace(&mut done, true) {
                    fs::write(&file.path, changed).unwrap();
                }
            };
            edit_watched(&file.request("one", "1", false), &PathResolver::default(), command).unwrap();
            assert_eq!(file.content(), expected);
        }
    }

    #[test]
    fn a_file_that_is_too_large_is_refused() {
        let file = Edited::new("one");
        fs::File::options().write(true).open(&file.path).unwrap().set_len(MAX_BYTES + 1).unwrap();
        assert_eq!(code(file.edit("one", "1", false)), ErrorCode::TooLarge);
    }

    #[test]
    fn an_edit_of_a_file_that_keeps_changing_fails() {
        let file = Edited::new("one");
        let mut count = 0;
        let command = || {
            count += 1;
            fs::write(&file.path, format!("one {count}")).unwrap();
        };
        let failure =
            edit_watched(&file.request("one", "1", false), &PathResolver::default(), command).unwrap_err();
        assert_eq!(failure.code(), ErrorCode::Changed);
        assert_eq!(file.content(), "one 5");
        assert_eq!(fs::read_dir(file.dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn parallel_edits_of_one_file_lose_none() {
        let words: Vec<String> = (0..8).flat_map(|a| (0..50).map(move |b| format!("<{a}.{b}>"))).collect();
        let file = Edited::new(words.concat());
        thread::scope(|scope| {
            for words in words.chunks(50) {
                let file = &file;
                scope.spawn(move || {
                    for word in words {
                        file.edit(word, "+", false).unwrap();
                    }
                });
            }
        });
        assert_eq!(file.content(), "+".repeat(400));
    }

    #[test]
    fn fifty_edits_at_once_lose_none() {
        let words: Vec<String> = (0..50).map(|number| format!("<{number}>")).collect();
        let file = Edited::new(words.concat());
        thread::scope(|scope| {
            for word in &words {
                scope.spawn(|| file.edit(word, "+", false).unwrap());
            }
        });
        assert_eq!(file.content(), "+".repeat(50));
    }
}
