//! Attacks of commands on the first process of their container, and on processes placed beside it.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Stdio;

use crate::probes::has_landlock;
use crate::programs::as_nobody;

/// Each attempt prints its result. The last ones use system calls of other architectures.
const LIMITS: &str = r#"
import ctypes, os, resource
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
page = libc.mmap(None, 4096, 7, 0x62, -1, 0)
ctypes.memmove(page + 2048, (ctypes.c_uint64 * 2)(1, 1), 16)

def attempt(name, act):
    try:
        act()
        print(name, "done", flush=True)
    except OSError:
        print(name, "refused", flush=True)

def check(returned):
    if returned < 0:
        raise OSError(returned)

def i386(process):
    code = bytes.fromhex("53b85401000089fb89f131f6cd805bc3")
    ctypes.memmove(page, code, len(code))
    call = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_uint)(page)
    check(call(process, 0, page + 2048))

attempt("guest", lambda: resource.prlimit(1, resource.RLIMIT_CPU, (1, 1)))
attempt("supervisor", lambda: resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE, (0, 0)))
attempt("look", lambda: resource.prlimit(1, resource.RLIMIT_CPU))
attempt("own", lambda: resource.setrlimit(resource.RLIMIT_CORE, (0, 0)))
if os.uname().machine == "x86_64":
    attempt("x32", lambda: check(libc.syscall(0x40000000 | 302, 1, 0, ctypes.c_void_p(page + 2048), None)))
    attempt("i386", lambda: i386(1))
"#;

#[tokio::test]
async fn a_command_cannot_limit_the_guest_or_another_process() {
    let programs = tempfile::tempdir().unwrap();
    let Some((_container, client)) = as_nobody(&programs).await else { return };
    let script = programs.path().join("limits.py");
    fs::write(&script, LIMITS).unwrap();
    let (said, code) = client.run(&format!("exec python3 {}", script.display())).await;
    let mut expected = "guest refused\nsupervisor refused\nlook done\nown done\n".to_owned();
    if cfg!(target_arch = "x86_64") {
        expected += "x32 refused\n";
        // A kernel without support for 32-bit programs ends a process that makes such a call.
        expected += if code == 0 { "i386 refused\n" } else { "" };
    }
    assert_eq!(said, expected);
    assert_eq!(client.run("ulimit -n 99; ulimit -n").await.0, "99\n");
}

/// Attacks of a process on another one of the same user.
fn attacks(pid: &str) -> [String; 4] {
    let trace =
        "import ctypes, sys; sys.exit(ctypes.CDLL(None).ptrace(16, int(sys.argv[1]), None, None) != 0)";
    [
        format!("cat /proc/{pid}/environ"),
        format!("readlink /proc/{pid}/fd/0"),
        format!(": < /proc/{pid}/mem"),
        format!("python3 -c '{trace}' {pid}"),
    ]
}

#[tokio::test]
async fn a_command_cannot_trace_processes_that_the_runtime_placed() {
    let programs = tempfile::tempdir().unwrap();
    let Some((container, client)) = as_nobody(&programs).await else { return };
    if !has_landlock() {
        return;
    }
    // This imitates, for longer, the moment in which a client's process is not closed to others yet.
    let mut placed = container.exec(Path::new("setpriv"), "--reuid=65534");
    let placed = placed.args(["--regid=65534", "--clear-groups", "--inh-caps=-all", "sleep", "60"]);
    let _placed = placed.stdin(Stdio::piped()).kill_on_drop(true).spawn().unwrap();
    let find =
        "until grep -lsx 'Name:.sleep' $(grep -lsx 'PPid:.0' /proc/[0-9]*/status); do sleep 0.05; done";
    let (found, _) = client.run(find).await;
    let placed = found.trim().split('/').nth(2).unwrap().to_owned();

    let (neighbour, _) = client.run("sleep 60 > /dev/null 2>&1 & echo $!").await;
    for (of_placed, of_neighbour) in attacks(&placed).iter().zip(attacks(neighbour.trim())) {
        let (said, code) = client.run(of_placed).await;
        assert_ne!(code, 0, "{of_placed}: {said}");
        // Commands can trace each other, as a debugger needs.
        let (said, code) = client.run(&of_neighbour).await;
        assert_eq!(code, 0, "{of_neighbour}: {said}");
    }
    assert_eq!(client.run(&format!("kill -9 {neighbour}")).await.1, 0);
}

#[tokio::test]
async fn a_confined_guest_and_its_commands_rename_across_directories() {
    let programs = tempfile::tempdir().unwrap();
    let Some((_container, client)) = as_nobody(&programs).await else { return };
    let open = programs.path().join("open");
    fs::create_dir(&open).unwrap();
    fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
    let rename = format!(
        "cd {} && mkdir a b && echo x > a/f && was=$(stat -c %i a/f) && mv a/f b/f && \
         [ $(stat -c %i b/f) = $was ] && ln b/f a/g && mv a b/ && cat b/a/g",
        open.display()
    );
    assert_eq!(client.run(&rename).await, ("x\n".to_owned(), 0));
}
