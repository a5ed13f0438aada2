//! A shell in a Pod, on a terminal.

use crate::Cluster;
use crate::pty::Terminal;

#[tokio::test(flavor = "multi_thread")]
async fn a_shell_in_a_pod_handles_resizes_ctrl_c_and_exit_codes() {
    let cluster = Cluster::new().await;
    let mut terminal = Terminal::shell(&cluster.stage, "sandpod shell");
    assert!(!terminal.is_as_before(), "every key belongs to the sandbox");
    terminal.types("echo in $PWD of $(hostname | cut -c1-3)\r");
    terminal.shows("in /workspace of sp-");

    terminal.types("stty size\r");
    terminal.shows("24 80");
    terminal.resize(40, 120);
    terminal.types("until [ \"$(stty size)\" = '40 120' ]; do :; done; echo follo''wed\r");
    terminal.shows("followed");

    terminal.types("echo beg''un; sleep 1000\r");
    terminal.shows("begun\r\n");
    terminal.types("\x03");
    terminal.shows("ready> ");
    terminal.types("echo still $((1 + 1))\r");
    terminal.shows("still 2");

    terminal.types("exit 7\r");
    terminal.ends_with(7);
    assert_eq!(
        cluster.stage.run("kubectl -n $NS get leases,pods -o name").trim(),
        "",
        "it was a sandbox for this"
    );
    cluster.finish().await;
}
