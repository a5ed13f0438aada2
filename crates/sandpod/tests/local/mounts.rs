//! Files and directories of the machine that are mounted in a local sandbox.

use std::fs;
use std::os::unix::fs::symlink;

use sandpod::{LocalConfig, LocalMount, Provider, SandboxRequest};

use crate::support::{guest, run};

pub(crate) async fn a_mounted_link_is_resolved_when_the_sandbox_is_created() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().canonicalize().unwrap();
    let (real, link, state) = (dir.join("real"), dir.join("link"), dir.join("state"));
    fs::create_dir(&real).unwrap();
    fs::write(real.join("file"), "content").unwrap();
    symlink(&real, &link).unwrap();
    let config = LocalConfig {
        program: Some(guest()),
        state_dir: Some(state.clone()),
        mounts: vec![LocalMount { host: link, guest: "/data".into(), writable: false }],
        ends_with_process: true,
        ..LocalConfig::default()
    };
    let provider = Provider::local(&config).unwrap();
    let handle = provider.get_or_create(SandboxRequest::named("linked")).await.unwrap();
    assert_eq!(run(&handle.sandbox, "cat /data/file").await, ("content".to_owned(), Some(0)));
    let record = fs::read_to_string(state.join("linked/record.json")).unwrap();
    let record: serde_json::Value = serde_json::from_str(&record).unwrap();
    assert_eq!(record["mounts"][0]["host"].as_str(), real.to_str());
}
