//! Operations on single files.

use sandpod_client::{ErrorCode, FileKind, Page, ReadOptions};

use super::{Case, behaviours, code, refusal};

behaviours! {
    NOTHING a_file_is_written_with_the_directories_above_it,
    NOTHING a_file_is_replaced_completely,
    NOTHING names_may_contain_all_bytes_but_nul_and_slash,
    NOTHING invalid_paths_are_refused,
    NOTHING a_page_has_the_requested_lines_and_their_numbers,
    NOTHING an_offset_beyond_the_end_is_an_error_with_the_number_of_lines,
    NOTHING an_empty_file_is_no_error,
    NOTHING all_line_endings_are_read_as_newlines,
    NOTHING a_full_page_ends_within_its_last_line,
    NOTHING a_binary_file_is_returned_as_bytes_or_is_too_large,
    NOTHING an_edit_replaces_its_text_once,
    NOTHING an_ambiguous_edit_changes_nothing,
    NOTHING an_edit_matches_text_with_other_line_endings,
    NOTHING parallel_edits_lose_nothing,
    NOTHING a_file_and_a_directory_with_its_content_are_deleted,
    NOTHING stat_returns_the_metadata_of_a_path,
    NOTHING list_returns_the_entries_of_a_directory,
    NOTHING a_missing_path_is_not_found,
    NOTHING directories_and_files_are_told_apart,
    SHELL a_write_keeps_the_mode_and_follows_a_link,
    SHELL a_pipe_is_refused_without_blocking,
    SHELL a_forbidden_write_names_its_path,
}

async fn a_file_is_written_with_the_directories_above_it(case: Case<'_>) {
    let path = case.path("a/b/c");
    assert!(case.sandbox.write(&path, "content").await.unwrap().atomic);
    assert_eq!(case.content(&path).await, "content");
    assert_eq!(case.sandbox.stat(&path, false).await.unwrap().mode, 0o644);
}

async fn a_file_is_replaced_completely(case: Case<'_>) {
    let path = case.write("file", "a long content").await;
    case.write("file", "short").await;
    assert_eq!(case.content(&path).await, "short");
    assert_eq!(case.sandbox.list(&case.dir).await.unwrap().len(), 1, "something was left behind");
}

async fn names_may_contain_all_bytes_but_nul_and_slash(case: Case<'_>) {
    for name in [" ", "a\nb", "-rf", "*", "é\u{1f980}", "'\"$(x)`", "...", &"n".repeat(255)] {
        let path = case.write(name, name).await;
        assert_eq!(case.content(&path).await, name);
    }
}

async fn invalid_paths_are_refused(case: Case<'_>) {
    let long = format!("/{}", "x".repeat(1 << 20));
    for path in ["", "relative", "/a\0b", &long] {
        assert_eq!(code(case.sandbox.stat(path, false).await), ErrorCode::InvalidArgument);
        assert_eq!(code(case.sandbox.write(path, "x").await), ErrorCode::InvalidArgument);
    }
}

async fn a_page_has_the_requested_lines_and_their_numbers(case: Case<'_>) {
    let lines: Vec<_> = (1..=10).map(|number| format!("line {number}")).collect();
    let path = case.write("lines", &(lines.join("\n") + "\n")).await;
    let page = case.page(&path, 3, 4).await;
    assert_eq!(page.content, lines[3..7].join("\n"));
    assert_eq!((page.start_line, page.end_line, page.total_lines), (4, 7, Some(10)));
    assert!(page.more && !page.truncated);
    let last = case.page(&path, 8, 100).await;
    assert_eq!((last.content, last.end_line, last.more), (lines[8..].join("\n"), 10, false));
}

async fn an_offset_beyond_the_end_is_an_error_with_the_number_of_lines(case: Case<'_>) {
    let path = case.write("lines", "1\n2\n").await;
    let options = ReadOptions { line_offset: 5, ..ReadOptions::default() };
    let (code, message) = refusal(case.sandbox.read(&path, options).await);
    assert_eq!(
        (code, message.as_str()),
        (ErrorCode::InvalidArgument, "Line offset 5 exceeds file length (2 lines)")
    );
}

async fn an_empty_file_is_no_error(case: Case<'_>) {
    let path = case.write("empty", "").await;
    let page = case.page(&path, 0, 10).await;
    assert!(page.empty_file && page.content.is_empty() && !page.more);
}

async fn all_line_endings_are_read_as_newlines(case: Case<'_>) {
    let path = case.write("endings", "a\nb\r\nc\rd").await;
    assert_eq!(case.page(&path, 0, 10).await.content, "a\nb\nc\nd");
}

async fn a_full_page_ends_within_its_last_line(case: Case<'_>) {
    let path = case.write("long", &format!("short\n{}\nnext\n", "é".repeat(1000))).await;
    let options = ReadOptions { max_bytes: Some(100), ..ReadOptions::default() };
    let Page::Text(page) = case.sandbox.read(&path, options).await.unwrap() else { panic!("it is text") };
    assert!(page.truncated && page.more);
    assert!(page.content.starts_with("short\né") && (99..=100).contains(&page.content.len()), "{page:?}");
}

async fn a_binary_file_is_returned_as_bytes_or_is_too_large(case: Case<'_>) {
    let (path, content) = (case.path("binary"), b"\x00\xff\xfe".repeat(1000));
    case.sandbox.write(&path, content.clone()).await.unwrap();
    assert_eq!(case.sandbox.read(&path, ReadOptions::default()).await.unwrap(), Page::Binary(content.into()));
    let options = ReadOptions { max_bytes: Some(100), ..ReadOptions::default() };
    let (code, message) = refusal(case.sandbox.read(&path, options).await);
    assert_eq!(code, ErrorCode::TooLarge);
    assert_eq!(message, "Binary file exceeds maximum preview size of 100 bytes");
}

async fn an_edit_replaces_its_text_once(case: Case<'_>) {
    let path = case.write("file", "one two three").await;
    assert_eq!(case.sandbox.edit(&path, "two", "zwei", false).await.unwrap().occurrences, 1);
    assert_eq!(case.content(&path).await, "one zwei three");
    assert_eq!(case.sandbox.edit(&path, "e", "E", true).await.unwrap().occurrences, 4);
    assert_eq!(case.content(&path).await, "onE zwEi thrEE");
}

async fn an_ambiguous_edit_changes_nothing(case: Case<'_>) {
    let path = case.write("file", "a b a").await;
    assert_eq!(code(case.sandbox.edit(&path, "a", "x", false).await), ErrorCode::ManyMatches);
    assert_eq!(code(case.sandbox.edit(&path, "c", "x", false).await), ErrorCode::NoMatch);
    assert_eq!(code(case.sandbox.edit(&path, "", "x", true).await), ErrorCode::InvalidArgument);
    assert_eq!(case.content(&path).await, "a b a");
    case.sandbox.write(&case.path("binary"), vec![0xff, 0xfe]).await.unwrap();
    assert_eq!(code(case.sandbox.edit(&case.path("binary"), "a", "x", true).await), ErrorCode::NotText);
}

async fn an_edit_matches_text_with_other_line_endings(case: Case<'_>) {
    let path = case.write("dos", "one\r\ntwo\r\nthree\r\n").await;
    case.sandbox.edit(&path, "one\ntwo", "1\n2", false).await.unwrap();
    assert_eq!(case.content(&path).await, "1\r\n2\r\nthree\r\n");
    let path = case.write("unix", "one\ntwo\n").await;
    case.sandbox.edit(&path, "one\r\ntwo", "1\r\n2", false).await.unwrap();
    assert_eq!(case.content(&path).await, "1\n2\n");
}

async fn parallel_edits_lose_nothing(case: Case<'_>) {
    let lines: Vec<_> = (0..20).map(|number| format!("<{number}>")).collect();
    let path = case.write("file", &lines.join("\n")).await;
    let edits = lines.iter().map(|line| case.sandbox.edit(&path, line, "done", false));
    for edited in futures::future::join_all(edits).await {
        assert_eq!(edited.unwrap().occurrences, 1);
    }
    assert_eq!(case.content(&path).await, ["done"; 20].join("\n"));
}

async fn a_file_and_a_directory_with_its_content_are_deleted(case: Case<'_>) {
    case.write("d/e/file", "").await;
    let file = case.write("file", "").await;
    case.sandbox.delete(&file).await.unwrap();
    case.sandbox.delete(&case.path("d")).await.unwrap();
    assert!(case.sandbox.list(&case.dir).await.unwrap().is_empty());
    assert_eq!(code(case.sandbox.delete(&file).await), ErrorCode::NotFound);
}

async fn stat_returns_the_metadata_of_a_path(case: Case<'_>) {
    let path = case.write("file", "12345").await;
    let info = case.sandbox.stat(&path, false).await.unwrap();
    assert_eq!(
        (info.path.as_str(), info.kind, info.size, info.mode),
        (path.as_str(), FileKind::File, 5, 0o644)
    );
    assert!(info.modified_ns > 1_600_000_000_000_000_000, "{info:?}");
    assert_eq!(case.sandbox.stat(&case.dir, true).await.unwrap().kind, FileKind::Directory);
    assert_eq!(case.sandbox.stat("/dev/null", false).await.unwrap().kind, FileKind::Other);
}

async fn list_returns_the_entries_of_a_directory(case: Case<'_>) {
    case.write("b", "").await;
    case.write(".hidden", "").await;
    case.write("d/file", "").await;
    let mut listed = case.sandbox.list(&case.dir).await.unwrap();
    listed.sort_by(|one, other| one.path.cmp(&other.path));
    let listed: Vec<_> = listed.iter().map(|info| (info.path.as_str(), info.kind)).collect();
    let (hidden, b, d) = (case.path(".hidden"), case.path("b"), case.path("d"));
    assert_eq!(listed, [(hidden.as_str(), FileKind::File), (&b, FileKind::File), (&d, FileKind::Directory)]);
}

async fn a_missing_path_is_not_found(case: Case<'_>) {
    let path = case.path("missing");
    assert_eq!(code(case.sandbox.stat(&path, true).await), ErrorCode::NotFound);
    assert_eq!(code(case.sandbox.read(&path, ReadOptions::default()).await), ErrorCode::NotFound);
    assert_eq!(code(case.sandbox.edit(&path, "a", "b", false).await), ErrorCode::NotFound);
    assert_eq!(code(case.sandbox.list(&path).await), ErrorCode::NotFound);
    assert_eq!(code(case.sandbox.download(&path, 10).await), ErrorCode::NotFound);
}

async fn directories_and_files_are_told_apart(case: Case<'_>) {
    let file = case.write("file", "").await;
    assert_eq!(code(case.sandbox.read(&case.dir, ReadOptions::default()).await), ErrorCode::IsDirectory);
    assert_eq!(code(case.sandbox.write(&case.dir, "x").await), ErrorCode::IsDirectory);
    assert_eq!(code(case.sandbox.list(&file).await), ErrorCode::NotADirectory);
    assert_eq!(code(case.sandbox.write(&format!("{file}/below"), "x").await), ErrorCode::NotADirectory);
}

async fn a_write_keeps_the_mode_and_follows_a_link(case: Case<'_>) {
    case.write("file", "old").await;
    assert_eq!(case.run("chmod 750 file; ln -s file link").await.1, Some(0));
    case.write("link", "new").await;
    assert_eq!(case.sandbox.stat(&case.path("link"), false).await.unwrap().kind, FileKind::Link);
    assert_eq!(case.sandbox.stat(&case.path("file"), false).await.unwrap().mode, 0o750);
    assert_eq!(case.content(&case.path("file")).await, "new");
}

async fn a_pipe_is_refused_without_blocking(case: Case<'_>) {
    assert_eq!(case.run("mkfifo pipe").await.1, Some(0));
    let path = case.path("pipe");
    assert_eq!(code(case.sandbox.read(&path, ReadOptions::default()).await), ErrorCode::NotAFile);
    assert_eq!(code(case.sandbox.write(&path, "x").await), ErrorCode::NotAFile);
}

async fn a_forbidden_write_names_its_path(case: Case<'_>) {
    // No user can write there.
    let (code, message) = refusal(case.sandbox.write("/proc/none/file", "x").await);
    assert!(matches!(code, ErrorCode::PermissionDenied | ErrorCode::NotFound), "{code:?} {message}");
    assert!(message.contains("/proc/none"), "{message}");
}
