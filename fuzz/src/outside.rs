//! What inputs must not touch: a file beside the directory that they are confined to, and links in there
//! that lead to it.

use std::fs::{self, Metadata};
use std::os::unix::fs::{MetadataExt as _, symlink};

use crate::cell::WORK;

/// What nobody should know.
pub(crate) const SECRET: &str = "a secret";

/// A file, and what it was before.
pub(crate) struct Outside {
    directory: String,
    before: (Times, Times),
}

type Times = (u64, u32, i64, i64);

impl Outside {
    /// Makes both; the second is the directory that inputs are confined to.
    pub(crate) fn prepare() -> (Self, String) {
        let (directory, inside) = (format!("{WORK}/out"), format!("{WORK}/in"));
        for path in [&directory, &inside, &format!("{inside}/d")] {
            fs::create_dir_all(path).expect("the cell can be written");
        }
        fs::write(format!("{directory}/file"), SECRET).expect("the cell can be written");
        fs::write(format!("{inside}/f"), "text\n").expect("the cell can be written");
        for (target, link) in
            [("../out", "up"), ("../out/file", "file"), (&directory, "d/absolute"), ("..", "d/dots")]
        {
            // Left by an input before that could not be cleaned up.
            let _ = symlink(target, format!("{inside}/{link}"));
        }
        let outside = Self { before: Self::seen(&directory), directory };
        (outside, inside)
    }

    /// Panics if somebody read, wrote, made or removed something there.
    pub(crate) fn assert_untouched(&self) {
        assert_eq!(Self::seen(&self.directory), self.before, "somebody was outside");
        let content = fs::read_to_string(format!("{}/file", self.directory)).unwrap_or_default();
        assert_eq!(content, SECRET, "somebody wrote outside");
    }

    fn seen(directory: &str) -> (Times, Times) {
        let times = |path: &str| {
            let metadata = fs::symlink_metadata(path);
            metadata.map_or((0, 0, 0, 0), |m: Metadata| (m.ino(), m.mode(), m.ctime(), m.ctime_nsec()))
        };
        (times(directory), times(&format!("{directory}/file")))
    }
}
