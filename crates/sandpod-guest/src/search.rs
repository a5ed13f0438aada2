//! Finding files by name and by content. [`Pattern`](pattern::Pattern) says which paths are meant,
//! for both; `walk` goes through a tree within its budget.

mod braces;
mod glob;
mod grep;
mod pattern;
mod walk;
mod wildcard;

pub(crate) use glob::glob;
pub(crate) use grep::grep;

/// Whether a pattern means a path below its root.
#[cfg(fuzzing)]
pub fn glob_means(pattern: &str, path: &std::path::Path) -> Result<bool, sandpod_protocol::Failure> {
    let pattern = pattern::Pattern::new(pattern)?;
    let meant = pattern.matches(path);
    let entered = path.ancestors().skip(1).all(|directory| pattern.enters(directory));
    assert!(entered || !meant, "a search would not come to what is meant");
    Ok(meant)
}
