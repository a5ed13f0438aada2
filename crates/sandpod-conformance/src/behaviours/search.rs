//! Searches for files by name and by content.

use sandpod_client::{ErrorCode, GrepOptions};

use super::{Case, behaviours, code};

behaviours! {
    NOTHING a_name_is_found_at_any_depth,
    NOTHING a_pattern_with_a_slash_matches_whole_paths,
    NOTHING hidden_files_are_found_by_patterns_with_a_dot,
    NOTHING braces_match_each_alternative,
    SHELL a_link_to_a_file_is_found_unless_its_target_is_outside,
    NOTHING patterns_that_leave_the_root_or_expand_too_far_are_refused,
    NOTHING text_is_found_literally_with_its_line_numbers,
    NOTHING a_glob_selects_the_files_to_search,
    NOTHING the_number_of_matches_is_limited,
    NOTHING binary_files_are_not_searched,
}

async fn tree(case: &Case<'_>) {
    for name in ["b.py", "a/z.py", "a/deep/x.rs", ".hidden/c.py", "notes.txt", "ä.md"] {
        case.write(name, &format!("needle in {name}\n")).await;
    }
}

async fn found(case: &Case<'_>, pattern: &str) -> Vec<String> {
    let found = case.sandbox.glob(pattern, &case.dir).await.unwrap();
    assert_eq!(found.incomplete, None);
    found.matches.into_iter().map(|info| info.path[case.dir.len() + 1..].to_owned()).collect()
}

async fn grep(case: &Case<'_>, pattern: &str, options: GrepOptions) -> (Vec<(String, u64, String)>, bool) {
    let options = GrepOptions { root: Some(case.dir.clone()), ..options };
    let grepped = case.sandbox.grep(pattern, options).await.unwrap();
    let below = |path: &str| path[case.dir.len() + 1..].to_owned();
    let matches = grepped.matches.into_iter().map(|found| (below(&found.path), found.line, found.text));
    let mut matches: Vec<_> = matches.collect();
    matches.sort();
    (matches, grepped.truncated)
}

async fn a_name_is_found_at_any_depth(case: Case<'_>) {
    tree(&case).await;
    assert_eq!(found(&case, "*.py").await, [".hidden/c.py", "a/z.py", "b.py"]);
    assert_eq!(found(&case, "x.rs").await, ["a/deep/x.rs"]);
    assert_eq!(found(&case, "?.md").await, ["ä.md"]);
}

async fn a_pattern_with_a_slash_matches_whole_paths(case: Case<'_>) {
    tree(&case).await;
    assert_eq!(found(&case, "a/*.py").await, ["a/z.py"]);
    assert_eq!(found(&case, "/*.py").await, ["b.py"]);
    assert_eq!(found(&case, "a/**").await, ["a/deep/x.rs", "a/z.py"]);
    assert_eq!(found(&case, "**/*.py").await, ["a/z.py", "b.py"]);
}

async fn hidden_files_are_found_by_patterns_with_a_dot(case: Case<'_>) {
    tree(&case).await;
    assert_eq!(found(&case, ".hidden/*").await, [".hidden/c.py"]);
    case.write(".env", "").await;
    assert_eq!(found(&case, ".*").await, [".env"]);
    assert!(!found(&case, "*").await.contains(&".env".to_owned()));
}

async fn braces_match_each_alternative(case: Case<'_>) {
    tree(&case).await;
    assert_eq!(found(&case, "*.{rs,txt}").await, ["a/deep/x.rs", "notes.txt"]);
    assert_eq!(found(&case, "{a/{deep/x,z}.*,no}").await, ["a/deep/x.rs", "a/z.py"]);
}

async fn a_link_to_a_file_is_found_unless_its_target_is_outside(case: Case<'_>) {
    case.write("sub/file.py", "12345").await;
    let made =
        "ln -s sub/file.py inside.py; ln -s /etc/passwd outside.py; ln -s gone broken.py; ln -s sub dir.py";
    assert_eq!(case.run(made).await.1, Some(0));
    assert_eq!(found(&case, "*.py").await, ["inside.py", "sub/file.py"]);
    let sizes: Vec<_> =
        case.sandbox.glob("*.py", &case.dir).await.unwrap().matches.iter().map(|info| info.size).collect();
    assert_eq!(sizes, [5, 5]);
}

async fn patterns_that_leave_the_root_or_expand_too_far_are_refused(case: Case<'_>) {
    for pattern in ["", "../*", "a/../b", "[z-a]", &"{a,b}".repeat(20)] {
        assert_eq!(
            code(case.sandbox.glob(pattern, &case.dir).await),
            ErrorCode::InvalidArgument,
            "{pattern}"
        );
    }
    assert_eq!(code(case.sandbox.glob("*", &case.path("missing")).await), ErrorCode::NotFound);
}

async fn text_is_found_literally_with_its_line_numbers(case: Case<'_>) {
    case.write("a", "one\na.c and (x\nabc\n").await;
    case.write(".hidden/b", "a.c").await;
    let expected =
        [(".hidden/b".to_owned(), 1, "a.c".to_owned()), ("a".to_owned(), 2, "a.c and (x".to_owned())];
    assert_eq!(grep(&case, "a.c", GrepOptions::default()).await, (expected.to_vec(), false));
    assert_eq!(grep(&case, "(x", GrepOptions::default()).await.0.len(), 1);
}

async fn a_glob_selects_the_files_to_search(case: Case<'_>) {
    tree(&case).await;
    let options = |glob: &str| GrepOptions { glob: Some(glob.to_owned()), ..GrepOptions::default() };
    let names = async |glob| {
        grep(&case, "needle", options(glob)).await.0.into_iter().map(|found| found.0).collect::<Vec<_>>()
    };
    assert_eq!(names("*.py").await, [".hidden/c.py", "a/z.py", "b.py"]);
    assert_eq!(names("a/**").await, ["a/deep/x.rs", "a/z.py"]);
    assert_eq!(names("*.{rs,txt}").await, ["a/deep/x.rs", "notes.txt"]);
}

async fn the_number_of_matches_is_limited(case: Case<'_>) {
    case.write("a", &"needle\n".repeat(10)).await;
    let options = |most| GrepOptions { max_count: Some(most), ..GrepOptions::default() };
    let (matches, truncated) = grep(&case, "needle", options(3)).await;
    assert_eq!((matches.len(), truncated), (3, true));
    assert_eq!(grep(&case, "needle", options(10)).await.0.len(), 10);
}

async fn binary_files_are_not_searched(case: Case<'_>) {
    case.write("binary", "needle\0").await;
    case.write("text", "needle").await;
    assert_eq!(grep(&case, "needle", GrepOptions::default()).await.0.len(), 1);
}
