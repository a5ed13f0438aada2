//! Commands that attack the guest, or try to outlive their timeout.

use std::time::Duration;

use sandpod::{ExecuteOptions, Provider, SandboxHandle, SandboxRequest};
use sandpod_testbed::Namespace;
use sandpod_testbed::proxy::FaultProxy;
use tokio::time::sleep;

use crate::calm;
use crate::setup::{BUSYBOX, config, execute, provider, soon};

const PYTHON: &str = "sandpod.test/python:1";

/// Each attack prints its result; `refused` stands for any error of the kernel.
const ATTACKS: &str = r##"
import ctypes, os, socket

def attack(name, act):
    try:
        print(name, act())
    except OSError:
        print(name, "refused")

def connect():
    peer = socket.socket(socket.AF_UNIX)
    peer.settimeout(10)
    peer.connect("\0sandpod-guest " + os.readlink("/proc/self/ns/mnt"))
    return "answered" if peer.recv(1) else "refused"

def orphan_connects():
    # An orphan has the guest, or its supervisor, for a parent: no more of a right.
    read, write = os.pipe()
    if os.fork() == 0:
        if os.fork() == 0:
            os.setsid()
            try:
                os.write(write, connect().encode())
            except OSError:
                os.write(write, b"refused")
        os._exit(0)
    os.wait()
    return os.read(read, 100).decode()

def ptrace(pid):
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.ptrace(16, pid, None, None) != 0: # PTRACE_ATTACH
        raise OSError(ctypes.get_errno())
    return "attached"

def memory(pid):
    with open(f"/proc/{pid}/mem", "rb") as memory:
        return "read"

def overwrite(path):
    os.close(os.open(path, os.O_WRONLY))
    return "written"

def replace(path):
    with open("other", "w") as other:
        other.write("#!/bin/sh\n")
    os.rename("other", path)
    return "replaced"

supervisor = os.getppid()
attack("connect", connect)
attack("orphan", orphan_connects)
attack("ptrace", lambda: ptrace(1))
attack("memory", lambda: memory(1))
attack("supervisor-ptrace", lambda: ptrace(supervisor))
attack("supervisor-memory", lambda: memory(supervisor))
attack("environment", lambda: open("/proc/1/environ", "rb").read(1) and "read")
attack("files", lambda: os.listdir("/proc/1/fd") and "read")
attack("boot", lambda: overwrite("/sandpod/boot"))
attack("remove", lambda: os.remove("/sandpod/boot") or "removed")
attack("replace", lambda: replace("/sandpod/boot"))
attack("exe", lambda: overwrite("/proc/1/exe"))
"##;

async fn unharmed(handle: &SandboxHandle) {
    let next = handle.sandbox.execute("echo hello", ExecuteOptions::default());
    let next = soon("the next command", next).await.expect("the sandbox works");
    assert_eq!(next.output, "hello\n");
    assert_eq!(next.notices, [], "the guest restarted");
}

#[tokio::test(flavor = "multi_thread")]
async fn command_cannot_connect_to_read_trace_or_replace_the_guest() {
    let _calm = calm().await;
    let namespace = Namespace::create().await;
    let provider = provider(&namespace, config(&namespace, PYTHON)).await;
    let handle = soon("creating", provider.get_or_create(SandboxRequest::default())).await.unwrap();

    handle.sandbox.write("/workspace/attack.py", ATTACKS).await.unwrap();
    // exec makes the supervisor the parent, not a shell.
    let said = execute(&handle, "exec python3 attack.py").await;

    let names: Vec<_> = said.lines().map(|line| line.strip_suffix(" refused").unwrap_or(line)).collect();
    let expected = [
        "connect",
        "orphan",
        "ptrace",
        "memory",
        "supervisor-ptrace",
        "supervisor-memory",
        "environment",
        "files",
        "boot",
        "remove",
        "replace",
        "exe",
    ];
    assert_eq!(names, expected);
    unharmed(&handle).await;
    soon("deleting", provider.delete(handle.id.as_str(), true)).await.unwrap();
    namespace.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn command_cannot_kill_or_stop_the_guest() {
    let _calm = calm().await;
    let namespace = Namespace::create().await;
    let provider = provider(&namespace, config(&namespace, BUSYBOX)).await;
    let handle = soon("creating", provider.get_or_create(SandboxRequest::default())).await.unwrap();

    execute(&handle, "for signal in KILL STOP TERM INT QUIT HUP SEGV; do kill -$signal 1; done").await;
    unharmed(&handle).await;
    // All processes but the guest and the shell itself.
    execute(&handle, "kill -KILL -1").await;
    unharmed(&handle).await;

    soon("deleting", provider.delete(handle.id.as_str(), true)).await.unwrap();
    namespace.finish().await;
}

/// Eight lineages of processes, each of which forks and exits.
const LINEAGES: &str = "f() { f & }; for i in 1 2 3 4 5 6 7 8; do f; done; sleep 600";

/// The id of the newest process in the sandbox.
async fn last_pid(handle: &SandboxHandle) -> i64 {
    let load = execute(handle, "cat /proc/loadavg").await;
    load.split_whitespace().last().and_then(|pid| pid.parse().ok()).expect("it ends with a pid")
}

#[tokio::test(flavor = "multi_thread")]
async fn timeout_kills_forking_descendants_although_the_stream_was_lost() {
    let _calm = calm().await;
    let namespace = Namespace::create().await;
    namespace.raw().await; // its rights are there
    let proxy = FaultProxy::start(namespace.api_address()).await.unwrap();
    let client = namespace.raw_through(proxy.address()).await;
    let provider = Provider::with_client(client, config(&namespace, BUSYBOX)).unwrap();
    let handle = soon("creating", provider.get_or_create(SandboxRequest::default())).await.unwrap();

    let before = last_pid(&handle).await;
    let options = ExecuteOptions { timeout: Some(Duration::from_secs(3)), ..ExecuteOptions::default() };
    let (ended, ()) = tokio::join!(soon("the timeout", handle.sandbox.execute(LINEAGES, options)), async {
        sleep(Duration::from_secs(1)).await;
        proxy.reset_all();
    });

    assert!(ended.unwrap().timed_out);
    let after = last_pid(&handle).await;
    assert_ne!(after, before, "they did not live");
    sleep(Duration::from_millis(500)).await;
    let later = last_pid(&handle).await;
    // The check itself starts a few processes.
    assert!((0..20).contains(&(later - after)), "something still forks: {after}, {later}");
    unharmed(&handle).await;
    soon("deleting", provider.delete(handle.id.as_str(), true)).await.unwrap();
    namespace.finish().await;
}
