//! Kubeconfigs for single tests: the testbed's with another user, server or certificate.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

/// The number of kubeconfigs of this process, for unique directory names.
static CREATED: AtomicUsize = AtomicUsize::new(0);

/// A directory with a kubeconfig and the files that it names. Dropping it removes the directory.
pub struct Kubeconfig {
    dir: PathBuf,
    content: Value,
}

impl Kubeconfig {
    /// The testbed's kubeconfig, with the admin as its user.
    ///
    /// # Panics
    ///
    /// When there is no testbed.
    #[must_use]
    pub fn admin() -> Self {
        let path = std::env::var_os("SANDPOD_TEST_KUBECONFIG").expect("there is a cluster to test on");
        let text = std::fs::read_to_string(path).expect("the testbed's kubeconfig can be read");
        let content = serde_saphyr::from_str(&text).expect("the testbed's kubeconfig is YAML");
        let number = CREATED.fetch_add(1, Ordering::Relaxed);
        let unique = format!("sandpod-kubeconfig-{}-{number}", std::process::id());
        let dir = std::env::temp_dir().join(unique);
        std::fs::create_dir_all(&dir).expect("a directory can be created");
        Self { dir, content }
    }

    /// The testbed's kubeconfig, with `user` instead of the admin.
    #[must_use]
    pub fn of(user: Value) -> Self {
        let mut kubeconfig = Self::admin();
        *kubeconfig.user() = user;
        kubeconfig
    }

    /// The fields of the user.
    pub fn user(&mut self) -> &mut Value {
        &mut self.content["users"][0]["user"]
    }

    /// The fields of the cluster.
    pub fn cluster(&mut self) -> &mut Value {
        &mut self.content["clusters"][0]["cluster"]
    }

    /// Writes a file into the directory and returns its path.
    ///
    /// # Panics
    ///
    /// When the file cannot be written.
    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let (path, new) = (self.dir.join(name), self.dir.join(format!("{name}.new")));
        std::fs::write(&new, content).expect("a file can be written");
        std::fs::rename(&new, &path).expect("a file can be renamed");
        path
    }

    /// Writes the kubeconfig and returns its path.
    #[must_use]
    pub fn save(&self) -> PathBuf {
        self.write("config", json!(self.content).to_string())
    }

    /// The directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }
}

impl Drop for Kubeconfig {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir); // It is in the directory for temporary files.
    }
}
