//! The archive of the command, as a user unpacks it: one file that contains the guest.

use std::fs;
use std::path::PathBuf;

use crate::Cluster;

/// The archive of the command for this machine.
fn archive() -> PathBuf {
    let by_hand = || concat!(env!("CARGO_MANIFEST_DIR"), "/../../dist").into();
    let dir = std::env::var_os("SANDPOD_TEST_DIST").unwrap_or_else(by_hand);
    let is_archive =
        |name: &str| name.starts_with("sandpod-0") && name.contains("-linux-") && name.ends_with(".tar.gz");
    let mut paths = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let archive = paths.find(|path| is_archive(&path.file_name().unwrap().to_string_lossy()));
    archive.expect("`cargo xtask dist --quick` makes the archive of the command")
}

#[tokio::test(flavor = "multi_thread")]
async fn the_released_command_needs_no_other_file_for_local_and_raw_sandboxes() {
    let cluster = Cluster::new().await;
    let archive = archive().display().to_string();
    // Without the guest that tests keep in the cache.
    let stage = &cluster.stage;
    let run = |line: &str| {
        stage.run(&format!(
            "export XDG_CACHE_HOME=$HOME/cache; mkdir -p bin cache; PATH=$HOME/bin:/usr/bin:/bin; {line}"
        ))
    };
    run(&format!("tar -xzf {archive} && mv sandpod-*/sandpod bin"));
    assert_eq!(run("sandpod run --mode raw 'echo from a Pod'"), "from a Pod\n");
    assert_eq!(run("sandpod run --mode local 'echo from here'"), "from here\n");
    assert_eq!(run("ls sandpod-*/completions"), "_sandpod\nsandpod.bash\nsandpod.fish\n");
    let page = run("cat sandpod-*/man/man1/sandpod-run.1");
    assert!(page.contains(".TH sandpod-run 1"), "{page}");
    cluster.finish().await;
}
