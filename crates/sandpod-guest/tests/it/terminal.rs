//! Started commands in a terminal.

use sandpod_protocol::v1::{ErrorCode, StartRequest, Terminal};

use crate::harness::{Client, argv, client, line};
use crate::process_helpers::{exit, outputs};

async fn start(client: &Client, script: &str) -> String {
    let terminal = Some(Terminal { rows: 30, columns: 100 });
    client.start_with(line(script), StartRequest { terminal, ..StartRequest::default() }).await
}

#[tokio::test]
async fn all_streams_of_a_command_are_a_terminal_of_the_given_size() {
    let (client, _dir) = client().await;
    let script =
        "test -t 0 && test -t 1 && test -t 2 && echo all; stty size; echo $TERM; : > /dev/tty && echo mine";
    let process = start(&client, script).await;
    let (output, nothing, end) = outputs(&client.events(&process, 0).await);
    assert_eq!((output.as_str(), nothing.as_str()), ("all\r\n30 100\r\nxterm-256color\r\nmine\r\n", ""));
    assert_eq!(end, Some(exit(0)));
    assert!(client.list().await[0].terminal);
}

#[tokio::test]
async fn a_command_is_notified_of_a_new_size() {
    let (client, _dir) = client().await;
    let script = "trap 'stty size; exit 3' WINCH; echo ready; while :; do sleep 0.05; done";
    let process = start(&client, script).await;
    client.await_output(&process, "ready").await;
    client.resize(&process, 50, 132).await.unwrap();
    assert_eq!(client.wait(&process).await, exit(3));
    assert!(outputs(&client.events(&process, 0).await).0.ends_with("50 132\r\n"));
}

#[tokio::test]
async fn input_is_echoed_and_read_and_control_c_interrupts() {
    let (client, _dir) = client().await;
    // A shell handles an interrupt between two commands, so each of them is short.
    let line =
        "trap 'echo interrupted; exit 4' INT; read -r line; echo got $line; while :; do sleep 0.05; done";
    let process = start(&client, line).await;
    client.input(&process, "hello\n", false).await.unwrap();
    client.await_output(&process, "hello\r\ngot hello\r\n").await;
    client.input(&process, "\x03", false).await.unwrap();
    assert_eq!(client.wait(&process).await, exit(4));
    assert!(outputs(&client.events(&process, 0).await).0.ends_with("interrupted\r\n"));
}

#[tokio::test]
async fn the_end_of_input_is_sent_as_control_d() {
    let (client, _dir) = client().await;
    let process = start(&client, "cat; echo over").await;
    client.input(&process, "line\n", true).await.unwrap();
    assert_eq!(client.wait(&process).await, exit(0));
    assert!(outputs(&client.events(&process, 0).await).0.ends_with("line\r\nover\r\n"));
}

#[tokio::test]
async fn job_control_works() {
    let (client, _dir) = client().await;
    // A job is stopped by its terminal and brought back to the foreground.
    let job = "sh -c 'echo ready; exec sleep 600'";
    let process = start(&client, &format!("set -m; {job}; echo stopped; kill %1; fg; echo status $?")).await;
    client.await_output(&process, "ready").await;
    client.input(&process, "\x1a", false).await.unwrap();
    client.await_output(&process, "stopped").await;
    assert_eq!(client.wait(&process).await, exit(0));
    let (output, _, _) = outputs(&client.events(&process, 0).await);
    assert!(output.contains("status 143"), "{output}");
}

#[tokio::test]
async fn all_output_before_the_exit_is_delivered() {
    let (client, _dir) = client().await;
    let process = start(&client, "seq 1 20000").await;
    client.wait(&process).await;
    let (output, _, _) = outputs(&client.events(&process, 0).await);
    assert_eq!(output.lines().count(), 20_000);
}

#[tokio::test]
async fn only_a_terminal_has_a_size() {
    let (client, _dir) = client().await;
    let process = client.start(argv(&["sleep", "600"])).await;
    assert_eq!(client.resize(&process, 1, 1).await.unwrap_err().code(), ErrorCode::InvalidArgument);
    client.signal(&process, 9).await.unwrap();
    let over = start(&client, "true").await;
    client.wait(&over).await;
    assert_eq!(client.resize(&over, 1, 1).await.unwrap_err().code(), ErrorCode::NotFound);
}
