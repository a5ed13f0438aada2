//! Standard input of started commands.

use std::time::Duration;

use sandpod_protocol::limits;
use sandpod_protocol::v1::{ErrorCode, Operation, StartRequest};

use crate::harness::{argv, client, line};
use crate::process_helpers::{exit, outputs};

fn with_input() -> StartRequest {
    StartRequest { stdin: true, ..StartRequest::default() }
}

#[tokio::test]
async fn a_process_reads_what_is_written_and_then_the_end() {
    let (client, _dir) = client().await;
    let process = client.start_with(line("cat; echo done"), with_input()).await;
    client.input(&process, "one\n", false).await.unwrap();
    client.await_output(&process, "one\n").await;
    client.input(&process, "two\n", true).await.unwrap();
    assert_eq!(client.wait(&process).await, exit(0));
    assert_eq!(outputs(&client.events(&process, 0).await).0, "one\ntwo\ndone\n");
}

#[tokio::test]
async fn input_waits_until_the_process_reads_it() {
    let (client, dir) = client().await;
    let gate = dir.path().join("gate");
    let script = format!("while ! [ -e {} ]; do sleep 0.05; done; wc -c", gate.display());
    let process = client.start_with(line(&script), with_input()).await;
    let write = client.input(&process, vec![b'x'; 1 << 20], true);
    tokio::pin!(write);
    // A pipe holds 64 KiB.
    assert!(tokio::time::timeout(Duration::from_millis(300), &mut write).await.is_err());
    std::fs::write(gate, "").unwrap();
    write.await.unwrap();
    client.wait(&process).await;
    assert_eq!(outputs(&client.events(&process, 0).await).0.trim(), "1048576");
}

#[tokio::test]
async fn a_repeated_write_is_written_once() {
    let (client, _dir) = client().await;
    let process = client.start_with(argv(&["cat"]), with_input()).await;
    let operation = client.operation();
    client.input_as(operation.clone(), &process, "once\n", false).await.unwrap();
    let repeat = Operation { repeated: true, ..operation };
    client.input_as(repeat, &process, "once\n", false).await.unwrap();
    client.input(&process, "", true).await.unwrap();
    client.wait(&process).await;
    assert_eq!(outputs(&client.events(&process, 0).await).0, "once\n");
}

#[tokio::test]
async fn writes_that_overlap_are_not_mixed() {
    let (client, _dir) = client().await;
    let process = client.start_with(argv(&["cat"]), with_input()).await;
    let letters = [b'a', b'b', b'c'];
    let writes = letters.map(|letter| client.input(&process, vec![letter; 300_000], false));
    for written in futures_util::future::join_all(writes).await {
        written.unwrap();
    }
    client.input(&process, "", true).await.unwrap();
    let mut output = outputs(&client.events(&process, 0).await).0.into_bytes();
    assert_eq!(output.len(), 900_000);
    output.dedup();
    assert_eq!(output.len(), 3, "{output:?}");
}

#[tokio::test]
async fn a_write_fails_when_no_process_reads() {
    let (client, _dir) = client().await;
    let none = client.start(argv(&["sleep", "600"])).await;
    let failure = client.input(&none, "x", false).await.unwrap_err();
    assert_eq!(failure.code(), ErrorCode::InvalidArgument);
    assert!(failure.message().contains("start it with one"), "{failure}");

    let closed = client.start_with(line("exec <&-; echo closed; exec sleep 600"), with_input()).await;
    client.await_output(&closed, "closed").await;
    // A process that another test forks meanwhile holds the pipe until its exec.
    let refused = async {
        loop {
            if let Err(failure) = client.input(&closed, "x", false).await {
                return failure;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let refused = tokio::time::timeout(Duration::from_secs(20), refused).await;
    assert_eq!(refused.expect("no process reads").code(), ErrorCode::NotFound);

    let over = client.start_with(argv(&["true"]), with_input()).await;
    client.wait(&over).await;
    assert_eq!(client.input(&over, "x", false).await.unwrap_err().code(), ErrorCode::NotFound);

    let ended = client.start_with(argv(&["sleep", "600"]), with_input()).await;
    client.input(&ended, "", true).await.unwrap();
    assert_eq!(client.input(&ended, "x", false).await.unwrap_err().code(), ErrorCode::InvalidArgument);
    let large = vec![0; limits::MAX_INPUT_BYTES + 1];
    let other = client.start_with(argv(&["sleep", "600"]), with_input()).await;
    assert_eq!(client.input(&other, large, false).await.unwrap_err().code(), ErrorCode::TooLarge);
    for process in [none, closed, ended, other] {
        client.signal(&process, 9).await.unwrap();
    }
}

#[tokio::test]
async fn waiting_writes_end_with_the_process_and_are_limited() {
    let (client, _dir) = client().await;
    let process = client.start_with(argv(&["sleep", "600"]), with_input()).await;
    let block = vec![b'x'; 200_000];
    let writes: Vec<_> = (0..9).map(|_| client.input(&process, block.clone(), false)).collect();
    let kill = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        client.signal(&process, 9).await.unwrap();
    };
    let (written, ()) = tokio::join!(futures_util::future::join_all(writes), kill);
    let mut codes: Vec<_> = written.into_iter().map(|written| written.unwrap_err().code()).collect();
    codes.sort();
    assert_eq!(codes[..8], [ErrorCode::NotFound; 8]);
    assert_eq!(codes[8], ErrorCode::Limit);
}
