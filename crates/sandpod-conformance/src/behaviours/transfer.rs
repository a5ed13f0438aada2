//! Contents of any size.

use sandpod_client::{Bytes, ErrorCode};

use super::{At, behaviours, code};

behaviours! {
    NOTHING large_files_go_up_and_come_down_whole,
    NOTHING transfers_at_once_do_not_mix,
    NOTHING a_file_larger_than_asked_for_is_not_downloaded,
}

/// Bytes that no other seed gives.
fn content(seed: u32, length: u32) -> Bytes {
    (0..length).map(|at| (at.wrapping_mul(seed).wrapping_add(at >> 8)).to_le_bytes()[1]).collect()
}

async fn large_files_go_up_and_come_down_whole(at: At<'_>) {
    let (path, content) = (at.path("large"), content(31, 3_000_001));
    assert!(at.sandbox.write(&path, content.clone()).await.unwrap().atomic);
    assert_eq!(at.sandbox.stat(&path, false).await.unwrap().size, 3_000_001);
    assert!(at.sandbox.download(&path, u64::MAX).await.unwrap() == content, "it came down as another one");
    at.sandbox.write(&path, "small").await.unwrap();
    assert_eq!(at.content(&path).await, "small");
}

async fn transfers_at_once_do_not_mix(at: At<'_>) {
    let transfers = (1..=4).map(|seed| {
        let at = at.clone();
        async move {
            let (path, content) = (at.path(&seed.to_string()), content(seed, 1_500_000));
            at.sandbox.write(&path, content.clone()).await.unwrap();
            assert!(at.sandbox.download(&path, u64::MAX).await.unwrap() == content, "{path} was mixed up");
        }
    });
    futures::future::join_all(transfers).await;
}

async fn a_file_larger_than_asked_for_is_not_downloaded(at: At<'_>) {
    let path = at.write("file", "12345").await;
    assert_eq!(at.sandbox.download(&path, 5).await.unwrap(), "12345");
    assert_eq!(code(at.sandbox.download(&path, 4).await), ErrorCode::TooLarge);
}
