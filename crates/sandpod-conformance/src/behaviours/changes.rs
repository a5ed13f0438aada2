//! Sets of changes, and moves.

use sandpod_client::{Change, ErrorCode, Expected, FileChange, FileKind, Replacement};

use super::{Case, behaviours, code};

behaviours! {
    NOTHING a_set_of_changes_is_made_completely,
    NOTHING a_set_with_an_impossible_change_changes_nothing,
    NOTHING a_file_in_an_unexpected_state_is_not_changed,
    NOTHING files_and_directories_are_moved,
    NOTHING a_move_replaces_only_if_requested,
}

fn change(case: &Case<'_>, name: &str, change: Change) -> FileChange {
    FileChange { path: case.path(name), expected: None, change }
}

fn replace(old_text: &str, new_text: &str) -> Change {
    let (old_text, new_text) = (old_text.to_owned(), new_text.to_owned());
    Change::Replace(vec![Replacement { old_text, new_text, replace_all: false }])
}

async fn a_set_of_changes_is_made_completely(case: Case<'_>) {
    case.write("edited", "one two").await;
    case.write("deleted", "").await;
    let set = vec![
        change(&case, "edited", replace("two", "zwei")),
        change(&case, "new/file", Change::Content("new".into())),
        change(&case, "deleted", Change::Delete),
    ];
    let applied = case.sandbox.apply_edits(set).await.unwrap();
    assert_eq!((applied[0].occurrences, applied[2].sha256), (1, None));
    assert_eq!(case.content(&case.path("edited")).await, "one zwei");
    assert_eq!(case.content(&case.path("new/file")).await, "new");
    assert_eq!(code(case.sandbox.stat(&case.path("deleted"), false).await), ErrorCode::NotFound);
}

async fn a_set_with_an_impossible_change_changes_nothing(case: Case<'_>) {
    case.write("a", "one").await;
    let set = vec![
        change(&case, "a", replace("one", "eins")),
        change(&case, "b", Change::Content("new".into())),
        change(&case, "a2", replace("nothing", "there")),
    ];
    assert_eq!(code(case.sandbox.apply_edits(set).await), ErrorCode::NotFound);
    assert_eq!(case.content(&case.path("a")).await, "one");
    assert_eq!(case.sandbox.list(&case.dir).await.unwrap().len(), 1, "something was left behind");
}

async fn a_file_in_an_unexpected_state_is_not_changed(case: Case<'_>) {
    let set = |expected| {
        vec![FileChange { expected: Some(expected), ..change(&case, "file", Change::Content("x".into())) }]
    };
    let made = case.sandbox.apply_edits(set(Expected::Missing)).await.unwrap();
    assert_eq!(code(case.sandbox.apply_edits(set(Expected::Missing)).await), ErrorCode::Exists);
    assert_eq!(code(case.sandbox.apply_edits(set(Expected::Sha256([7; 32]))).await), ErrorCode::Changed);
    case.sandbox.apply_edits(set(Expected::Sha256(made[0].sha256.unwrap()))).await.unwrap();
}

async fn files_and_directories_are_moved(case: Case<'_>) {
    let file = case.write("d/file", "content").await;
    case.sandbox.move_path(&file, &case.path("e/f/moved"), false).await.unwrap();
    assert_eq!(code(case.sandbox.stat(&file, false).await), ErrorCode::NotFound);
    case.sandbox.move_path(&case.path("e"), &case.path("d/e"), false).await.unwrap();
    assert_eq!(case.content(&case.path("d/e/f/moved")).await, "content");
    assert_eq!(case.sandbox.stat(&case.path("d/e"), false).await.unwrap().kind, FileKind::Directory);
}

async fn a_move_replaces_only_if_requested(case: Case<'_>) {
    let (from, to) = (case.write("from", "new").await, case.write("to", "old").await);
    assert_eq!(code(case.sandbox.move_path(&from, &to, false).await), ErrorCode::Exists);
    assert_eq!(case.content(&to).await, "old");
    case.sandbox.move_path(&from, &to, true).await.unwrap();
    assert_eq!(case.content(&to).await, "new");
}
