//! Many files at once, and files that go elsewhere.

use sandpod_client::{Change, ErrorCode, Expected, FileChange, FileKind, Replacement};

use super::{At, behaviours, code};

behaviours! {
    NOTHING a_set_of_changes_is_made_as_a_whole,
    NOTHING a_set_with_one_change_that_can_not_be_made_changes_nothing,
    NOTHING a_file_that_is_not_as_expected_is_not_changed,
    NOTHING a_file_and_a_directory_move,
    NOTHING a_move_replaces_only_if_it_is_told_to,
}

fn change(at: &At<'_>, name: &str, change: Change) -> FileChange {
    FileChange { path: at.path(name), expected: None, change }
}

fn replace(old_text: &str, new_text: &str) -> Change {
    let (old_text, new_text) = (old_text.to_owned(), new_text.to_owned());
    Change::Replace(vec![Replacement { old_text, new_text, replace_all: false }])
}

async fn a_set_of_changes_is_made_as_a_whole(at: At<'_>) {
    at.write("edited", "one two").await;
    at.write("deleted", "").await;
    let set = vec![
        change(&at, "edited", replace("two", "zwei")),
        change(&at, "new/file", Change::Content("new".into())),
        change(&at, "deleted", Change::Delete),
    ];
    let applied = at.sandbox.apply_edits(set).await.unwrap();
    assert_eq!((applied[0].occurrences, applied[2].sha256), (1, None));
    assert_eq!(at.content(&at.path("edited")).await, "one zwei");
    assert_eq!(at.content(&at.path("new/file")).await, "new");
    assert_eq!(code(at.sandbox.stat(&at.path("deleted"), false).await), ErrorCode::NotFound);
}

async fn a_set_with_one_change_that_can_not_be_made_changes_nothing(at: At<'_>) {
    at.write("a", "one").await;
    let set = vec![
        change(&at, "a", replace("one", "eins")),
        change(&at, "b", Change::Content("new".into())),
        change(&at, "a2", replace("nothing", "there")),
    ];
    assert_eq!(code(at.sandbox.apply_edits(set).await), ErrorCode::NotFound);
    assert_eq!(at.content(&at.path("a")).await, "one");
    assert_eq!(at.sandbox.list(&at.dir).await.unwrap().len(), 1, "something was left behind");
}

async fn a_file_that_is_not_as_expected_is_not_changed(at: At<'_>) {
    let set = |expected| {
        vec![FileChange { expected: Some(expected), ..change(&at, "file", Change::Content("x".into())) }]
    };
    let made = at.sandbox.apply_edits(set(Expected::Missing)).await.unwrap();
    assert_eq!(code(at.sandbox.apply_edits(set(Expected::Missing)).await), ErrorCode::Exists);
    assert_eq!(code(at.sandbox.apply_edits(set(Expected::Sha256([7; 32]))).await), ErrorCode::Changed);
    at.sandbox.apply_edits(set(Expected::Sha256(made[0].sha256.unwrap()))).await.unwrap();
}

async fn a_file_and_a_directory_move(at: At<'_>) {
    let file = at.write("d/file", "content").await;
    at.sandbox.move_path(&file, &at.path("e/f/moved"), false).await.unwrap();
    assert_eq!(code(at.sandbox.stat(&file, false).await), ErrorCode::NotFound);
    at.sandbox.move_path(&at.path("e"), &at.path("d/e"), false).await.unwrap();
    assert_eq!(at.content(&at.path("d/e/f/moved")).await, "content");
    assert_eq!(at.sandbox.stat(&at.path("d/e"), false).await.unwrap().kind, FileKind::Directory);
}

async fn a_move_replaces_only_if_it_is_told_to(at: At<'_>) {
    let (from, to) = (at.write("from", "new").await, at.write("to", "old").await);
    assert_eq!(code(at.sandbox.move_path(&from, &to, false).await), ErrorCode::Exists);
    assert_eq!(at.content(&to).await, "old");
    at.sandbox.move_path(&from, &to, true).await.unwrap();
    assert_eq!(at.content(&to).await, "new");
}
