//! The files of `examples/k8s` and `docs` that the command prints, and the scripts that use them.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::transcript::Stage;

/// Each printed file, from the root, and the commands that print its documents.
const PRINTED: [(&str, &[&str]); 4] = [
    (
        "examples/k8s/raw-mode-rbac.yaml",
        &["namespace --namespace deepagents-sandboxes", "rbac --namespace deepagents-sandboxes"],
    ),
    ("examples/k8s/sandbox-router-rbac.yaml", &["rbac --mode agent-sandbox --namespace default"]),
    (
        "examples/k8s/sandbox-router.yaml",
        &["router --namespace default --image registry.k8s.io/agent-sandbox/sandbox-router-go:v0.5.6"],
    ),
    (
        "docs/reaper-cronjob.yaml",
        &["reaper --namespace deepagents-sandboxes --image registry.example.com/sandpod:0.1"],
    ),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn example_manifests_are_those_that_the_command_prints() {
    let stage = Stage::new();
    for (file, commands) in PRINTED {
        let printed: Vec<String> =
            commands.iter().map(|arguments| stage.run(&format!("sandpod manifests {arguments}"))).collect();
        let printed = printed.join("---\n");
        assert!(!printed.contains("error:"), "{printed}");
        let path = root().join(file);
        if std::env::var_os("SANDPOD_UPDATE").is_some() {
            fs::write(&path, &printed).unwrap();
        }
        let written = fs::read_to_string(&path).unwrap_or_default();
        assert!(written == printed, "{file} is not what the command prints; SANDPOD_UPDATE=1 writes it");
    }
}

/// Runs a script with `kind` and `kubectl` that only print their arguments. `clusters` are the existing clusters.
fn with_recorded_commands(script: &str, clusters: &str) -> String {
    let bin = tempfile::tempdir().unwrap();
    for program in ["kind", "kubectl"] {
        let path = bin.path().join(program);
        let listing = format!("[ \"$*\" = 'get clusters' ] && echo '{clusters}' && exit");
        fs::write(&path, format!("#!/bin/sh\n{listing}\necho {program} \"$*\"\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let script = root().join("scripts").join(script).canonicalize().unwrap();
    Stage::new().run(&format!("PATH={}:$PATH; {}", bin.path().display(), script.display()))
}

#[test]
fn kind_setup_creates_the_cluster_and_applies_the_examples() {
    let printed = with_recorded_commands("kind-setup.sh", "other");
    assert!(printed.starts_with("kind create cluster --name langchain-k8s "), "{printed}");
    assert!(printed.contains("/v0.5.6/sandbox-with-extensions.yaml"), "{printed}");
    for file in ["sandbox-router.yaml", "sandbox-router-rbac.yaml", "sandbox-template.yaml", "warm-pool.yaml"]
    {
        let applied = printed.lines().find(|line| line.ends_with(&format!("/examples/k8s/{file}"))).unwrap();
        assert!(
            applied.starts_with("kubectl --context kind-langchain-k8s apply --server-side --filename /"),
            "{applied}"
        );
    }
    assert!(!printed.contains("[exit"), "{printed}");
}

#[test]
fn kind_setup_uses_a_cluster_that_exists_and_teardown_deletes_it() {
    let printed = with_recorded_commands("kind-setup.sh", "langchain-k8s");
    assert!(printed.starts_with("The kind cluster langchain-k8s exists already.\n"), "{printed}");
    assert_eq!(with_recorded_commands("kind-teardown.sh", ""), "kind delete cluster --name langchain-k8s\n");
}
