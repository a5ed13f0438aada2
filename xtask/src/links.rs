//! Checks the relative links and `#anchors` in the Markdown files of the repository.
//!
//! A link must lead to a file or directory of a clone, and its anchor to a heading there, by GitHub's rules. URLs are
//! not fetched.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result, bail};
use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

use crate::workspace::files;

/// Fails with one line for each broken link.
pub(crate) fn check(root: &Path) -> Result<()> {
    // Without ignored files: a link to one would be broken in a clone.
    let files: BTreeSet<PathBuf> = files(root)?.into_iter().collect();
    let mut broken = Vec::new();
    for page in files.iter().filter(|file| file.extension().is_some_and(|extension| extension == "md")) {
        let text =
            fs::read_to_string(root.join(page)).with_context(|| format!("cannot read {}", page.display()))?;
        for (line, target) in links(&text) {
            if let Some(problem) = problem(root, &files, page, &target) {
                broken.push(format!("{}:{line}: {problem}", page.display()));
            }
        }
    }
    if !broken.is_empty() {
        bail!("broken links:\n{}", broken.join("\n"));
    }
    Ok(())
}

/// The anchors that GitHub gives to the headings of a page.
pub(crate) fn anchors(markdown: &str) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    for heading in headings(markdown) {
        let slug = slug(&heading);
        // A repeated heading gets a number.
        let numbered = (1..).map(|number| format!("{slug}-{number}"));
        let free = std::iter::once(slug.clone()).chain(numbered).find(|anchor| !anchors.contains(anchor));
        anchors.extend(free);
    }
    anchors
}

/// Why the link `target` on `page` is broken, if it is.
fn problem(root: &Path, files: &BTreeSet<PathBuf>, page: &Path, target: &str) -> Option<String> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
    let file = if path.is_empty() { page.to_owned() } else { normalize(&page.with_file_name("").join(path)) };
    let exists = files.iter().any(|known| known.starts_with(&file));
    if !exists {
        return Some(format!("`{path}` is no file or directory of the repository"));
    }
    if anchor.is_empty() {
        return None;
    }
    let text = fs::read_to_string(root.join(&file)).unwrap_or_default();
    (!anchors(&text).contains(anchor)).then(|| format!("{} has no heading `#{anchor}`", file.display()))
}

/// The path without `.` and `..`.
fn normalize(path: &Path) -> PathBuf {
    path.components().fold(PathBuf::new(), |mut whole, part| {
        match part {
            Component::CurDir => {}
            Component::ParentDir => {
                whole.pop();
            }
            part => whole.push(part),
        }
        whole
    })
}

/// The targets of a page's links and images, each with its line.
fn links(markdown: &str) -> Vec<(usize, String)> {
    Parser::new_ext(markdown, Options::ENABLE_TABLES)
        .into_offset_iter()
        .filter_map(|(event, range)| match event {
            Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                Some((markdown[..range.start].matches('\n').count() + 1, dest_url.into_string()))
            }
            _ => None,
        })
        .collect()
}

/// The visible text of each heading.
fn headings(markdown: &str) -> Vec<String> {
    let mut headings = Vec::new();
    let mut open: Option<String> = None;
    for event in Parser::new_ext(markdown, Options::ENABLE_TABLES) {
        match event {
            Event::Start(Tag::Heading { .. }) => open = Some(String::new()),
            Event::End(TagEnd::Heading(_)) => headings.extend(open.take()),
            Event::Text(text) | Event::Code(text) => {
                if let Some(heading) = &mut open {
                    heading.push_str(&text);
                }
            }
            _ => {}
        }
    }
    headings
}

/// A heading's anchor: in lower case, without punctuation, with hyphens for spaces.
fn slug(heading: &str) -> String {
    heading
        .to_lowercase()
        .chars()
        .filter(|&c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'))
        .map(|c| if c == ' ' { '-' } else { c })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn repository() -> (PathBuf, BTreeSet<PathBuf>) {
        let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
        (root, ["src/links.rs", "docs/a.md", "b.md"].map(PathBuf::from).into())
    }

    #[test]
    fn headings_get_the_anchors_that_github_gives_them() {
        let page = "# One & two\n## `code` and *more*\n## Twice\n## Twice\n```\n# no heading\n```\n";
        let expected = ["code-and-more", "one--two", "twice", "twice-1"].map(str::to_owned);
        assert_eq!(anchors(page), BTreeSet::from(expected));
    }

    #[test]
    fn links_are_found_with_their_lines_but_not_in_code() {
        let page = "[a](x.md)\n\n`[b](y.md)`\n\n![c](z.png) [d][e]\n\n[e]: w.md\n";
        let expected =
            [(1, "x.md"), (5, "z.png"), (5, "w.md")].map(|(line, target)| (line, target.to_owned()));
        assert_eq!(links(page), expected);
    }

    #[test]
    fn a_link_is_relative_to_its_page() {
        let (root, files) = repository();
        for target in ["../b.md", "../src", "../src/links.rs", "a.md", "https://example.org/x"] {
            assert_eq!(problem(&root, &files, Path::new("docs/a.md"), target), None, "{target}");
        }
    }

    #[test]
    fn a_link_without_its_file_or_heading_is_broken() {
        let (root, files) = repository();
        let page = Path::new("docs/a.md");
        assert_eq!(
            problem(&root, &files, page, "c.md").unwrap(),
            "`c.md` is no file or directory of the repository"
        );
        assert_eq!(problem(&root, &files, page, "../b.md#x").unwrap(), "b.md has no heading `#x`");
    }
}
