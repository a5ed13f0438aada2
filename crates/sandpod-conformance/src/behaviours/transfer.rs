//! Transfers of contents of any size.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};

use sandpod_client::{Bytes, ErrorCode, TreeLimits};

use super::{Case, behaviours, code};

behaviours! {
    NOTHING large_files_are_uploaded_and_downloaded_completely,
    NOTHING concurrent_transfers_do_not_mix,
    NOTHING a_file_above_the_limit_is_not_downloaded,
    NOTHING a_part_of_a_file_is_read_by_its_bytes,
    NOTHING directories_are_uploaded_and_downloaded_unchanged,
}

/// Returns bytes that no other seed produces.
fn content(seed: u32, length: u32) -> Bytes {
    (0..length).map(|case| (case.wrapping_mul(seed).wrapping_add(case >> 8)).to_le_bytes()[1]).collect()
}

async fn large_files_are_uploaded_and_downloaded_completely(case: Case<'_>) {
    let (path, content) = (case.path("large"), content(31, 3_000_001));
    assert!(case.sandbox.write(&path, content.clone()).await.unwrap().atomic);
    assert_eq!(case.sandbox.stat(&path, false).await.unwrap().size, 3_000_001);
    assert!(case.sandbox.download(&path, u64::MAX).await.unwrap() == content, "it came down as another one");
    case.sandbox.write(&path, "small").await.unwrap();
    assert_eq!(case.content(&path).await, "small");
}

async fn concurrent_transfers_do_not_mix(case: Case<'_>) {
    let transfers = (1..=4).map(|seed| {
        let case = case.clone();
        async move {
            let (path, content) = (case.path(&seed.to_string()), content(seed, 1_500_000));
            case.sandbox.write(&path, content.clone()).await.unwrap();
            assert!(case.sandbox.download(&path, u64::MAX).await.unwrap() == content, "{path} was mixed up");
        }
    });
    futures::future::join_all(transfers).await;
}

async fn a_file_above_the_limit_is_not_downloaded(case: Case<'_>) {
    let path = case.write("file", "12345").await;
    assert_eq!(case.sandbox.download(&path, 5).await.unwrap(), "12345");
    assert_eq!(code(case.sandbox.download(&path, 4).await), ErrorCode::TooLarge);
}

async fn a_part_of_a_file_is_read_by_its_bytes(case: Case<'_>) {
    let path = case.write("file", "0123456789").await;
    assert_eq!(case.sandbox.read_range(&path, 3, 4).await.unwrap(), "3456");
    assert_eq!(case.sandbox.read_range(&path, 8, 100).await.unwrap(), "89");
    assert_eq!(case.sandbox.read_range(&path, 20, 1).await.unwrap(), "");
}

async fn directories_are_uploaded_and_downloaded_unchanged(case: Case<'_>) {
    let here = tempfile::tempdir().unwrap();
    let (from, to) = (here.path().join("from"), here.path().join("to"));
    fs::create_dir_all(from.join("sub/empty")).unwrap();
    fs::write(from.join("sub/large"), content(3, 2_000_000)).unwrap();
    fs::write(from.join("run\nme"), "x").unwrap();
    fs::set_permissions(from.join("run\nme"), fs::Permissions::from_mode(0o750)).unwrap();
    symlink("sub/large", from.join("link")).unwrap();
    let up = case.sandbox.upload_tree(&from, &case.path("tree"), |_| ()).await.unwrap();
    assert_eq!((up.files, up.directories, up.links, up.bytes), (2, 2, 1, 2_000_001));
    assert_eq!(case.sandbox.stat(&case.path("tree/run\nme"), false).await.unwrap().mode, 0o750);

    let down =
        case.sandbox.download_tree(&case.path("tree"), &to, TreeLimits::default(), |_| ()).await.unwrap();
    assert_eq!((down.files, down.directories, down.links), (2, 2, 1));
    assert!(fs::read(to.join("sub/large")).unwrap() == content(3, 2_000_000), "the content differs");
    assert_eq!(fs::read_link(to.join("link")).unwrap().to_str(), Some("sub/large"));
}
