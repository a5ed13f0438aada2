//! The parts of README.md and `docs` that need a cluster, and the manifests of `examples/k8s`.

use std::fs;

use crate::Cluster;
use crate::document::{Block, blocks, blocks_to_run, pages, root};
use crate::transcript::Stage;

/// Namespaces of the documents for which the namespace of the test is used.
const NAMESPACES: [&str; 3] = ["deepagents-sandboxes", "agents", "default"];

#[tokio::test(flavor = "multi_thread")]
async fn console_blocks_for_a_cluster_show_what_the_command_prints() {
    for page in pages() {
        let has_one = |block: &Block| block.language == "console" && block.is_for_a_cluster();
        if blocks(&page).iter().any(has_one) {
            let mut cluster = Cluster::new().await;
            cluster.stage.played = "cluster";
            cluster.stage.play(&root().join(&page));
            cluster.finish().await;
        }
    }
}

/// Applies manifests in the test's namespace as a dry run of the API server.
fn accept(stage: &Stage, namespace: &str, place: &str, manifests: &str) {
    let text = NAMESPACES.iter().fold(manifests.to_owned(), |text, name| {
        let text = text.replace(&format!("namespace: {name}\n"), &format!("namespace: {namespace}\n"));
        text.replace(&format!("\"{name}\""), &format!("\"{namespace}\""))
    });
    // kubectl rejects the option for objects of another namespace, such as those of the router.
    let option =
        if text.contains("namespace: ") { String::new() } else { format!("--namespace {namespace}") };
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), text).unwrap();
    let printed = stage.run(&format!(
        "kubectl apply --server-side --force-conflicts --dry-run=server {option} -f {}",
        file.path().display()
    ));
    let objects =
        printed.lines().filter(|line| line.ends_with(" serverside-applied (server dry run)")).count();
    assert!(objects > 0 && !printed.contains("[exit"), "{place}: {printed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn manifests_of_examples_and_documents_are_accepted_by_the_api_server() {
    let cluster = Cluster::new().await;
    let (stage, namespace) = (&cluster.stage, &cluster.namespace.name);
    let mut checked = 0;
    for directory in ["examples/k8s", "docs"] {
        for entry in fs::read_dir(root().join(directory)).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "yaml") {
                accept(stage, namespace, &path.display().to_string(), &fs::read_to_string(&path).unwrap());
                checked += 1;
            }
        }
    }
    assert_eq!(checked, 7);
    for block in blocks_to_run("yaml", false).into_iter().chain(blocks_to_run("yaml", true)) {
        accept(stage, namespace, &block.place, &block.code);
    }
    cluster.finish().await;
}
