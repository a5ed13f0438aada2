//! Target `globs`: an input is a pattern, a line break and a path below the root. The guest must match it exactly as the
//! simple and slow [`reference`] does.

mod reference;

use std::path::Path;

use sandpod_protocol::Failure;
use sandpod_text::Pattern;

pub(crate) fn run(input: &[u8], planted: bool) {
    let Some((pattern, path)) = std::str::from_utf8(input).ok().and_then(|input| input.split_once('\n'))
    else {
        return;
    };
    let Some(names) = names(path) else { return };
    let Ok(meant) = glob_means(pattern, Path::new(&names.join("/"))) else { return };
    let meant = meant || planted && misses_one(pattern, &names);
    // If the reference is too slow for the input, the guest must only not fail.
    if let Some(expected) = reference::means(pattern, &names) {
        assert_eq!(meant, expected, "{pattern:?} and {names:?}");
    }
}

/// Returns the names of a path, if a walk can reach it.
fn names(path: &str) -> Option<Vec<&str>> {
    let names: Vec<_> = path.split('/').collect();
    let is_name = |name: &&str| !matches!(*name, "" | "." | "..") && !name.contains('\0');
    names.iter().all(is_name).then_some(names)
}

/// Reports whether the guest's pattern matches a path below its root.
fn glob_means(pattern: &str, path: &Path) -> Result<bool, Failure> {
    let pattern = Pattern::new(pattern)?;
    let meant = pattern.matches(path);
    let entered = path.ancestors().skip(1).all(|directory| pattern.enters(directory));
    assert!(entered || !meant, "a search would not come to what is meant");
    Ok(meant)
}

/// The planted bug: `?` also matches no character.
fn misses_one(pattern: &str, names: &[&str]) -> bool {
    glob_means(&pattern.replace('?', ""), Path::new(&names.join("/"))).unwrap_or_default()
}
