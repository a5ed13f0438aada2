//! Kubeconfigs of a test's own: the testbed's, with another user or another way there.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

/// How many were made: tests run side by side.
static MADE: AtomicUsize = AtomicUsize::new(0);

/// A folder for a kubeconfig and the files that it names, until it is dropped.
pub struct Kubeconfig {
    dir: PathBuf,
    content: Value,
}

impl Kubeconfig {
    /// The testbed's own, whose user is the admin.
    ///
    /// # Panics
    ///
    /// When there is no testbed.
    #[must_use]
    pub fn admin() -> Self {
        let path = std::env::var_os("SANDPOD_TEST_KUBECONFIG").expect("there is a cluster to test on");
        let text = std::fs::read_to_string(path).expect("the testbed's kubeconfig can be read");
        let content = serde_saphyr::from_str(&text).expect("the testbed's kubeconfig is YAML");
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let unique = format!("sandpod-kubeconfig-{}-{number}", std::process::id());
        let dir = std::env::temp_dir().join(unique);
        std::fs::create_dir_all(&dir).expect("a folder can be made");
        Self { dir, content }
    }

    /// The testbed's with `user` instead of the admin.
    #[must_use]
    pub fn of(user: Value) -> Self {
        let mut kubeconfig = Self::admin();
        *kubeconfig.user() = user;
        kubeconfig
    }

    /// The fields of its user.
    pub fn user(&mut self) -> &mut Value {
        &mut self.content["users"][0]["user"]
    }

    /// The fields of its cluster.
    pub fn cluster(&mut self) -> &mut Value {
        &mut self.content["clusters"][0]["cluster"]
    }

    /// Writes a file beside it.
    ///
    /// # Panics
    ///
    /// When it can't be written.
    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let (path, new) = (self.dir.join(name), self.dir.join(format!("{name}.new")));
        std::fs::write(&new, content).expect("a file can be written");
        std::fs::rename(&new, &path).expect("a file can be renamed");
        path
    }

    /// Writes it, as it is now.
    #[must_use]
    pub fn save(&self) -> PathBuf {
        self.write("config", json!(self.content).to_string())
    }

    /// Where its files are.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }
}

impl Drop for Kubeconfig {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir); // It is in the folder for temporary files.
    }
}
