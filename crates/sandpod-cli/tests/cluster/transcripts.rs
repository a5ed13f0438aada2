//! The transcripts of local sandboxes, played in Pods.

use std::path::Path;

use crate::Cluster;
use crate::transcript::transcript;

/// Texts of the transcripts for local mode, and those expected in a cluster.
const OTHERWISE: [(&str, &str); 3] = [
    ("mode:         local", "mode:         raw"),
    ("namespace:    local", "namespace:    agents"),
    (" in local mode", " in raw mode"),
];

#[tokio::test(flavor = "multi_thread")]
async fn sandboxes_are_created_listed_extended_and_deleted() {
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
async fn the_session_of_the_cli_document_is_as_recorded() {
    let cluster = Cluster::new().await;
    cluster.stage.play(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/cli.md"));
    cluster.finish().await;
}
