//! Files that inputs must not access: a file beside the directory to which they are confined, and links in the directory
//! that lead to it.

use std::fs::{self, Metadata};
use std::os::unix::fs::{MetadataExt as _, symlink};

use crate::cell::WORK;

/// The content that must not be read.
pub(crate) const SECRET: &str = "a secret";

/// A file and its earlier state.
pub(crate) struct Outside {
    directory: String,
    before: (Times, Times),
}

type Times = (u64, u32, i64, i64);

impl Outside {
    /// Creates both; the second is the directory to which inputs are confined.
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
            // An earlier input left it, and it could not be removed.
            let _ = symlink(target, format!("{inside}/{link}"));
        }
        let outside = Self { before: Self::seen(&directory), directory };
        (outside, inside)
    }

    /// Panics if a file there was read, written, created or removed.
    pub(crate) fn assert_untouched(&self) {
        assert_eq!(Self::seen(&self.directory), self.before, "the directory outside has changed");
        let content = fs::read_to_string(format!("{}/file", self.directory)).unwrap_or_default();
        assert_eq!(content, SECRET, "the file outside has changed");
    }

    fn seen(directory: &str) -> (Times, Times) {
        let times = |path: &str| {
            let metadata = fs::symlink_metadata(path);
            metadata.map_or((0, 0, 0, 0), |m: Metadata| (m.ino(), m.mode(), m.ctime(), m.ctime_nsec()))
        };
        (times(directory), times(&format!("{directory}/file")))
    }
}
