//! Kernel features that a guest does without, as if its kernel lacked them: so everything can be seen to
//! hold there, too.

use std::sync::LazyLock;

/// What to do without. [`Options::new`](crate::Options::new) takes what `SANDPOD_WITHOUT` names,
/// separated by commas: `openat2,landlock`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Without {
    /// Paths are resolved step by step.
    pub openat2: bool,
    /// Commands are not held to roots and ports by Landlock.
    pub landlock: bool,
}

impl Without {
    /// What the environment names, read once.
    #[must_use]
    pub fn from_env() -> Self {
        static FROM_ENV: LazyLock<Without> =
            LazyLock::new(|| Without::named(&std::env::var("SANDPOD_WITHOUT").unwrap_or_default()));
        *FROM_ENV
    }

    fn named(names: &str) -> Self {
        let names = |name| names.split(',').any(|named| named.trim() == name);
        Self { openat2: names("openat2"), landlock: names("landlock") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_are_named_and_separated_by_commas() {
        assert_eq!(Without::named(""), Without::default());
        assert_eq!(Without::named("landlock"), Without { landlock: true, ..Without::default() });
        assert_eq!(Without::named("openat2, landlock"), Without { openat2: true, landlock: true });
    }
}
