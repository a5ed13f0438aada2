//! The same sessions as on this machine, in Pods.

use std::path::Path;

use crate::Cluster;
use crate::transcript::transcript;

/// What is written of this machine's sandboxes, and what a cluster's command prints in its place.
const OTHERWISE: [(&str, &str); 3] = [
    ("mode:         local", "mode:         raw"),
    ("namespace:    local", "namespace:    agents"),
    (" in local mode", " in raw mode"),
];

#[tokio::test(flavor = "multi_thread")]
async fn sandboxes_are_made_listed_extended_and_deleted() {
    let cluster = Cluster::new().await;
    cluster.stage.play_here(&transcript("sandboxes.md"), &OTHERWISE);
    cluster.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn files_are_written_read_searched_moved_removed_and_copied() {
    let cluster = Cluster::new().await;
    cluster.stage.play_here(&transcript("files.md"), &OTHERWISE);
    cluster.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_run_in_the_foreground_and_in_the_background() {
    let cluster = Cluster::new().await;
    cluster.stage.play_here(&transcript("commands.md"), &OTHERWISE);
    cluster.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_session_in_the_docs_is_what_happens() {
    let cluster = Cluster::new().await;
    cluster.stage.play(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/cli.md"));
    cluster.finish().await;
}
