//! Recognises a container around this process, and the flags that it needs for local mode.

use std::path::Path;

use super::Finding;

const CHECK: &str = "container";

/// A container in which this process runs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Container {
    /// A development container of an editor or of Codespaces.
    Dev,
    Docker,
    Podman,
    Kubernetes,
}

impl Container {
    /// Returns the container of this process, by its variables and the files below `root`.
    pub(super) fn of_process(root: &Path) -> Option<Self> {
        Self::find(root, |name| std::env::var_os(name).is_some())
    }

    fn find(root: &Path, has_variable: impl Fn(&str) -> bool) -> Option<Self> {
        let is_container = root.join(".dockerenv").exists() || root.join("run/.containerenv").exists();
        if ["REMOTE_CONTAINERS", "CODESPACES", "DEVCONTAINER"].into_iter().any(&has_variable) && is_container
        {
            Some(Self::Dev)
        } else if root.join("run/.containerenv").exists() {
            Some(Self::Podman)
        } else if root.join(".dockerenv").exists() {
            Some(Self::Docker)
        } else {
            has_variable("KUBERNETES_SERVICE_HOST").then_some(Self::Kubernetes)
        }
    }

    /// Returns the finding, which depends on whether the container allows sandboxes. None: unknown.
    pub(super) fn finding(self, allows_sandboxes: Option<bool>) -> Finding {
        let name = match self {
            Self::Dev => "this is a devcontainer",
            Self::Docker => "this is a Docker container",
            Self::Podman => "this is a Podman container",
            Self::Kubernetes => "this is a Pod",
        };
        if allows_sandboxes == Some(true) {
            return Finding::good(CHECK, format!("{name}, which allows sandboxes"));
        }
        let fix = match self {
            Self::Dev => {
                "Add to devcontainer.json: \"runArgs\": [\"--security-opt=seccomp=unconfined\", \
                 \"--security-opt=apparmor=unconfined\", \"--security-opt=systempaths=unconfined\"], and rebuild it."
            }
            Self::Docker => {
                "Start it with: docker run --security-opt seccomp=unconfined --security-opt apparmor=unconfined \
                 --security-opt systempaths=unconfined"
            }
            Self::Podman => {
                "Start it with: podman run --security-opt seccomp=unconfined --security-opt unmask=ALL"
            }
            Self::Kubernetes => "Use --mode raw, which creates sandboxes as Pods beside this one.",
        };
        match allows_sandboxes {
            Some(_) => Finding::bad(CHECK, format!("{name}, which does not allow sandboxes"), fix),
            None => Finding::unsure(CHECK, format!("{name}, which may not allow sandboxes"), fix),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::{Verdict, fix};
    use super::*;

    fn found(files: &[&str], variables: &[&str]) -> Option<Container> {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("run")).unwrap();
        for file in files {
            fs::write(root.path().join(file), "").unwrap();
        }
        Container::find(root.path(), |name| variables.contains(&name))
    }

    #[test]
    fn containers_are_recognised_by_their_files_and_variables() {
        assert_eq!(found(&[], &[]), None);
        assert_eq!(found(&[".dockerenv"], &[]), Some(Container::Docker));
        assert_eq!(found(&["run/.containerenv"], &[]), Some(Container::Podman));
        assert_eq!(found(&[".dockerenv"], &["REMOTE_CONTAINERS"]), Some(Container::Dev));
        assert_eq!(
            found(&[], &["REMOTE_CONTAINERS"]),
            None,
            "a terminal of the editor on the machine itself"
        );
        assert_eq!(found(&[], &["KUBERNETES_SERVICE_HOST"]), Some(Container::Kubernetes));
    }

    #[test]
    fn container_without_sandboxes_is_bad_and_names_its_flags() {
        for (container, flag) in [
            (Container::Dev, "\"runArgs\": [\"--security-opt=seccomp=unconfined\""),
            (Container::Docker, "docker run --security-opt seccomp=unconfined"),
            (Container::Podman, "--security-opt unmask=ALL"),
            (Container::Kubernetes, "--mode raw"),
        ] {
            assert!(fix(container.finding(Some(false))).contains(flag), "{container:?}");
            assert_eq!(container.finding(Some(true)).verdict, Verdict::Good);
            assert_eq!(container.finding(None).verdict, Verdict::Unsure);
        }
    }
}
