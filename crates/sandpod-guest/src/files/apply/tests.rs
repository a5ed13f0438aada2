use std::process::{Command, Stdio};
use std::{env, thread};

use sandpod_protocol::v1::file_change::Expected;
use sandpod_protocol::v1::{
    AppliedChange, EditRequest, MoveRequest, Replacement, Replacements, WriteRequest,
};
use sha2::{Digest as _, Sha256};

use super::*;
use crate::files::edit;
use crate::files::file_stat::FileStat;
use crate::files::testing::{as_nobody, chmod, code, disabled_features, names, text};

/// A directory with files to change, and one for the guest's state.
struct Setup {
    dir: tempfile::TempDir,
    state: tempfile::TempDir,
}

impl Setup {
    fn new(files: &[(&str, &str)]) -> Self {
        let setup = Self { dir: tempfile::tempdir().unwrap(), state: tempfile::tempdir().unwrap() };
        for (name, content) in files {
            fs::write(setup.path(name), content).unwrap();
        }
        setup
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn resolver(&self) -> PathResolver {
        PathResolver::new(self.state.path(), disabled_features())
    }

    fn change(&self, name: &str, change: Change) -> FileChange {
        FileChange { path: text(&self.path(name)), expected: None, change: Some(change) }
    }

    fn apply(&self, changes: &[FileChange]) -> Result<Vec<AppliedChange>, Failure> {
        let request = ApplyEditsRequest { operation: None, changes: changes.to_vec() };
        apply(&request, &self.resolver()).map(|response| response.applied)
    }

    fn content(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }

    /// Returns the temporary files that are left.
    fn left_over(&self) -> Vec<String> {
        let state = |name: &str| fs::read_dir(self.state.path().join(name)).map_or(0, Iterator::count);
        assert_eq!((state("temporary"), state("edits")), (0, 0));
        names(self.dir.path()).into_iter().filter(|name| name.starts_with(".sandpod-")).collect()
    }
}

fn content(content: &str) -> Change {
    Change::Content(content.to_owned().into())
}

fn replace(pairs: &[(&str, &str)]) -> Change {
    let replacement = |(old, new): &(&str, &str)| Replacement {
        old_text: (*old).to_owned(),
        new_text: (*new).to_owned(),
        replace_all: false,
    };
    Change::Replacements(Replacements { replacements: pairs.iter().map(replacement).collect() })
}

fn sha256(content: &str) -> Expected {
    Expected::Sha256(Sha256::digest(content).to_vec().into())
}

#[test]
fn contents_replacements_and_deletions_are_done_together() {
    let setup = Setup::new(&[("edited", "one\r\ntwo\r\n"), ("deleted", "x"), ("replaced", "old")]);
    chmod(&setup.path("replaced"), 0o640);
    let changes = [
        setup.change("edited", replace(&[("one\ntwo", "1\n2"), ("2", "zwei")])),
        setup.change("deleted", Change::Delete(true)),
        FileChange { expected: Some(sha256("old")), ..setup.change("replaced", content("new")) },
        FileChange { expected: Some(Expected::Missing(true)), ..setup.change("sub/made", content("made")) },
    ];
    let applied = setup.apply(&changes).unwrap();
    assert_eq!(setup.content("edited"), "1\r\nzwei\r\n");
    assert_eq!((setup.content("replaced"), setup.content("sub/made")), ("new".to_owned(), "made".to_owned()));
    assert_eq!(crate::files::testing::mode(&setup.path("replaced")), 0o640);
    assert_eq!(names(setup.dir.path()), ["edited", "replaced", "sub"]);
    let paths: Vec<_> = applied.iter().map(|applied| applied.path.clone()).collect();
    assert_eq!(paths, changes.map(|change| change.path));
    assert_eq!((applied[0].occurrences, applied[2].occurrences), (2, 0));
    assert_eq!(applied[2].sha256, Sha256::digest("new").to_vec());
    assert!(applied[1].sha256.is_empty() && applied.iter().all(|applied| applied.atomic));
    assert_eq!(setup.left_over(), [""; 0]);
}

#[test]
fn one_impossible_change_prevents_all_changes() {
    let setup = Setup::new(&[("a", "one one"), ("b", "old"), ("binary", "")]);
    fs::write(setup.path("binary"), b"\xff").unwrap();
    let expected =
        |name, expected| FileChange { expected: Some(expected), ..setup.change(name, content("new")) };
    let wrong = [
        (setup.change("a", replace(&[("one", "1")])), ErrorCode::ManyMatches),
        (setup.change("a", replace(&[("two", "2")])), ErrorCode::NoMatch),
        (setup.change("a", replace(&[("", "2")])), ErrorCode::InvalidArgument),
        (setup.change("a", replace(&[])), ErrorCode::InvalidArgument),
        (setup.change("binary", replace(&[("a", "b")])), ErrorCode::NotText),
        (setup.change("no", replace(&[("a", "b")])), ErrorCode::NotFound),
        (setup.change("no", Change::Delete(true)), ErrorCode::NotFound),
        (setup.change("a", Change::Delete(false)), ErrorCode::InvalidArgument),
        (setup.change(".", Change::Delete(true)), ErrorCode::IsDirectory),
        (setup.change("b", content("twice")), ErrorCode::InvalidArgument),
        (expected("a", sha256("other")), ErrorCode::Changed),
        (expected("no", sha256("other")), ErrorCode::NotFound),
        (expected("a", Expected::Missing(true)), ErrorCode::Exists),
        (FileChange { change: None, ..setup.change("a", content("")) }, ErrorCode::InvalidArgument),
    ];
    for (wrong, why) in wrong {
        let changes = [setup.change("deep/er/new", content("x")), setup.change("b", content("new")), wrong];
        assert_eq!(code(setup.apply(&changes)), why);
        assert_eq!((setup.content("a"), setup.content("b")), ("one one".to_owned(), "old".to_owned()));
        assert_eq!(names(setup.dir.path()), ["a", "b", "binary"]);
        assert_eq!(setup.left_over(), [""; 0]);
    }
}

#[test]
fn more_files_than_can_be_changed_at_once_are_refused() {
    let setup = Setup::new(&[]);
    let many: Vec<_> = (0..=limits::MAX_CHANGES).map(|n| setup.change(&n.to_string(), content(""))).collect();
    assert_eq!(code(setup.apply(&many)), ErrorCode::TooLarge);
    setup.apply(&many[1..]).unwrap();
    assert_eq!(names(setup.dir.path()).len(), limits::MAX_CHANGES);
}

#[test]
fn concurrent_changes_by_commands_are_detected() {
    let setup = Setup::new(&[("a", "one"), ("b", "one")]);
    let changes = vec![setup.change("a", replace(&[("one", "1")])), setup.change("b", content("new"))];
    let request = ApplyEditsRequest { operation: None, changes };
    let mut command = || fs::write(setup.path("a"), "two").unwrap();
    assert_eq!(code(apply_watched(&request, &setup.resolver(), &mut command)), ErrorCode::Changed);
    assert_eq!((setup.content("a"), setup.content("b")), ("two".to_owned(), "one".to_owned()));
}

#[test]
fn a_failed_step_rolls_all_previous_steps_back() {
    let setup = Setup::new(&[("a", "old a"), ("b", "old b"), ("d", "old d")]);
    let changes = vec![
        setup.change("a", content("new a")),
        setup.change("b", Change::Delete(true)),
        setup.change("c", content("new c")),
        setup.change("d", content("new d")),
    ];
    let inode = FileStat::from(&fs::metadata(setup.path("a")).unwrap()).identity;
    let request = ApplyEditsRequest { operation: None, changes };
    let mut steps = 0;
    // After three of four changes, a directory replaces the fourth file.
    let mut command = || {
        steps += 1;
        if steps == 8 {
            fs::remove_file(setup.path("d")).unwrap();
            fs::create_dir(setup.path("d")).unwrap();
        }
    };
    let failure = apply_watched(&request, &setup.resolver(), &mut command).unwrap_err();
    assert_eq!(failure.code(), ErrorCode::IsDirectory);
    assert!(failure.message().contains("could not be restored"), "{failure}");
    assert_eq!((setup.content("a"), setup.content("b")), ("old a".to_owned(), "old b".to_owned()));
    assert!(!setup.path("c").exists());
    assert_eq!(FileStat::from(&fs::metadata(setup.path("a")).unwrap()).identity, inode);
    assert_eq!(setup.left_over(), [""; 0]);
}

#[test]
fn files_in_a_read_only_directory_are_changed_and_rolled_back_in_place() {
    let setup = Setup::new(&[("a", "old a"), ("b", "old b")]);
    for name in ["a", "b"] {
        chmod(&setup.path(name), 0o666);
    }
    chmod(setup.state.path(), 0o777);
    chmod(setup.dir.path(), 0o555);
    let changes = [setup.change("a", content("new a")), setup.change("b", replace(&[("old", "new")]))];
    let applied = as_nobody(|| setup.apply(&changes)).unwrap();
    assert!(applied.iter().all(|applied| !applied.atomic));
    assert_eq!((setup.content("a"), setup.content("b")), ("new a".to_owned(), "new b".to_owned()));
    let changes = [setup.change("a", content("newer")), setup.change("b", Change::Delete(true))];
    assert_eq!(code(as_nobody(|| setup.apply(&changes))), ErrorCode::PermissionDenied);
    assert_eq!((setup.content("a"), setup.content("b")), ("new a".to_owned(), "new b".to_owned()));
    chmod(setup.dir.path(), 0o755);
    assert_eq!(setup.left_over(), [""; 0]);
}

#[test]
fn fifty_concurrent_edits_writes_moves_and_sets_lose_nothing() {
    let words: Vec<String> = (0..50).map(|n| format!("<{n}>")).collect();
    let setup = Setup::new(&[("a", &words.concat()), ("b", &words.concat())]);
    let (a, b) = (text(&setup.path("a")), text(&setup.path("b")));
    thread::scope(|scope| {
        for (number, word) in words.iter().enumerate() {
            let (setup, a, b) = (&setup, &a, &b);
            scope.spawn(move || {
                let resolver = setup.resolver();
                let edit = |path: &str| {
                    let (old_text, new_text) = (word.clone(), "+".to_owned());
                    let path = path.to_owned();
                    let request =
                        EditRequest { operation: None, path, old_text, new_text, replace_all: false };
                    edit::edit(&request, &resolver).unwrap();
                };
                match number % 3 {
                    0 => {
                        let both = [
                            setup.change("a", replace(&[(word, "+")])),
                            setup.change("b", replace(&[(word, "+")])),
                        ];
                        setup.apply(&both).unwrap();
                    }
                    1 => {
                        edit(a);
                        edit(b);
                    }
                    _ => {
                        edit(b);
                        edit(a);
                        // A write to another file, which is then renamed.
                        let (from, to) = (format!("{a}-{number}"), format!("{a}-moved-{number}"));
                        let request =
                            WriteRequest { operation: None, path: from.clone(), content: "x".into() };
                        crate::files::write::write(&request, &resolver).unwrap();
                        let request = MoveRequest { operation: None, from, to, replace: false };
                        crate::files::rename::move_path(&request, &resolver).unwrap();
                    }
                }
            });
        }
    });
    assert_eq!((setup.content("a"), setup.content("b")), ("+".repeat(50), "+".repeat(50)));
    assert_eq!(names(setup.dir.path()).len(), 2 + 16);
    assert_eq!(setup.left_over(), [""; 0]);
}

/// Aborts this process at a step, like a kill would.
fn crash_at(step: usize) -> impl FnMut() {
    let mut steps = 0;
    move || {
        steps += 1;
        if steps == step {
            std::process::abort();
        }
    }
}

const CRASHING: [&str; 3] = ["SANDPOD_CRASH_DIR", "SANDPOD_CRASH_APPLY", "SANDPOD_CRASH_REPAIR"];

/// The child process of the crash tests: changes the files of a directory and is killed meanwhile.
#[test]
fn crashing_child() {
    let [Ok(dir), apply_step, repair_step] = CRASHING.map(env::var) else { return };
    let dir = Path::new(&dir);
    let resolver = PathResolver::new(&dir.join("state"), disabled_features());
    if let Ok(step) = apply_step {
        let _ =
            apply_watched(&crash_set(&dir.join("files")), &resolver, &mut crash_at(step.parse().unwrap()));
    }
    if let Ok(step) = repair_step {
        journal::recover_watched(&resolver, &mut crash_at(step.parse().unwrap()));
        resolver.recover();
    }
}

fn crash_set(dir: &Path) -> ApplyEditsRequest {
    let change =
        |name: &str, change| FileChange { path: text(&dir.join(name)), expected: None, change: Some(change) };
    let changes = vec![
        change("a", content("new a")),
        change("b", Change::Delete(true)),
        change("c", content("new c")),
        change("d", replace(&[("old", "new")])),
    ];
    ApplyEditsRequest { operation: None, changes }
}

/// Runs the child. Returns whether it was killed.
fn killed(dir: &Path, variable: &str, step: usize) -> bool {
    let mut child = Command::new(env::current_exe().unwrap());
    child
        .args(["--exact", "files::apply::tests::crashing_child"])
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    !child.env(CRASHING[0], dir).env(variable, step.to_string()).status().unwrap().success()
}

fn crash_bench() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("files")).unwrap();
    for name in ["a", "b", "d"] {
        fs::write(dir.path().join("files").join(name), format!("old {name}")).unwrap();
        chmod(&dir.path().join("files").join(name), 0o640);
    }
    dir
}

/// Returns whether all changes were made. Fails if only some were, or if temporary files are left.
fn is_done(dir: &Path) -> bool {
    let files = dir.join("files");
    let found: Vec<_> = names(&files)
        .into_iter()
        .map(|name| (fs::read_to_string(files.join(&name)).unwrap(), name))
        .collect();
    let found: Vec<_> = found.iter().map(|(content, name)| (name.as_str(), content.as_str())).collect();
    let state = |name: &str| fs::read_dir(dir.join("state").join(name)).map_or(0, Iterator::count);
    assert_eq!((state("temporary"), state("edits")), (0, 0));
    assert_eq!(crate::files::testing::mode(&files.join("a")), 0o640);
    if found == [("a", "old a"), ("b", "old b"), ("d", "old d")] {
        return false;
    }
    assert_eq!(found, [("a", "new a"), ("c", "new c"), ("d", "new d")]);
    true
}

#[test]
fn a_crash_at_any_step_leaves_all_or_no_changes_after_recovery() {
    let (mut nothing, mut all) = (0, 0);
    for step in 1.. {
        let dir = crash_bench();
        let was_killed = killed(dir.path(), CRASHING[1], step);
        PathResolver::new(&dir.path().join("state"), disabled_features()).recover();
        if is_done(dir.path()) {
            all += 1;
        } else {
            nothing += 1;
        }
        if !was_killed {
            break;
        }
    }
    // Four files are prepared; the journal's start, four changes and the journal's end follow; then the child is not killed.
    assert_eq!((nothing, all), (4, 7));
}

#[test]
fn recovery_that_is_killed_is_completed_by_the_next_guest() {
    let steps = [4, 5, 7, 9, 10].into_iter().flat_map(|apply| (1..=6).map(move |repair| (apply, repair)));
    for (apply_step, repair_step) in steps {
        let dir = crash_bench();
        assert!(killed(dir.path(), CRASHING[1], apply_step));
        let was_killed = killed(dir.path(), CRASHING[2], repair_step);
        // Recovery has four steps and an end, and there is a journal once the files are prepared.
        assert_eq!(
            was_killed,
            (5..10).contains(&apply_step) && repair_step <= 5,
            "{apply_step} {repair_step}"
        );
        PathResolver::new(&dir.path().join("state"), disabled_features()).recover();
        assert_eq!(is_done(dir.path()), apply_step >= 5);
    }
}
