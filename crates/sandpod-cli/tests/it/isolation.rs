//! Attempts to escape from a local sandbox. Each attempt first succeeds outside, which proves that it works, and then fails
//! inside.
//!
//! An attempt that requires root runs outside as root. Inside, every attempt runs in sandboxes of root and of an ordinary
//! user, because the kernel treats them differently; without root, only in sandboxes of the current user.

use std::fs::{self, Permissions};
use std::io::{BufRead as _, BufReader};
use std::net::{TcpListener, UdpSocket};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::process::{Child, Command, Output, Stdio};

use super::user::{ORDINARY, PYTHON, User, Victim, is_root, python};
use super::{stderr, stdout};

fn works_outside_only(line: &str) {
    for user in User::all() {
        user.works_outside_only(line);
    }
}

/// As [`works_outside_only`], for an attempt that requires root outside; tests of an ordinary user skip that half.
fn works_for_root_outside_only(line: &str) {
    if is_root() {
        let free = User::new(None).outside(line);
        assert!(free.status.success(), "this should work outside: {line}\n{}", stderr(&free));
    }
    for user in User::all() {
        user.fails_inside(line);
    }
}

#[test]
fn files_in_the_home_directory_cannot_be_read() {
    for user in User::all() {
        let secret = user.file("secret", "content");
        user.works_outside_only(&format!("cat {secret}"));
        user.works_outside_only(&format!("ls {}", user.home.path().display()));
    }
}

#[test]
fn secrets_of_the_machine_cannot_be_read() {
    works_for_root_outside_only("cat /etc/shadow");
    works_outside_only("grep ^root: /etc/passwd");
    works_outside_only("ls /var/lib /root /home /mnt /boot > /dev/null; test -d /var/lib");
    works_for_root_outside_only("dmesg > /dev/null");
}

#[test]
fn the_environment_of_the_machines_processes_cannot_be_read() {
    for user in User::all() {
        let victim = Victim::of(&user);
        user.works_outside_only(&format!("grep -q SECRET=in /proc/{}/environ", victim.id()));
        user.works_outside_only("grep -qs SECRET=in /proc/[0-9]*/environ");
    }
    let output = Command::new(env!("CARGO_BIN_EXE_sandpod"))
        .args(["run", "env"])
        .env("SECRET", "of the caller")
        .output()
        .unwrap();
    assert!(stdout(&output).contains("HOME=/home/sandbox"), "{}", stdout(&output));
    assert!(!stdout(&output).contains("SECRET"), "{}", stdout(&output));
}

#[test]
fn tcp_listeners_of_the_machine_cannot_be_reached() {
    let listener = TcpListener::bind("0.0.0.0:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let connect = |address: &str| python(&format!("socket.create_connection(('{address}', {port}), 2)"));
    works_outside_only(&connect("127.0.0.1"));
    if let Some(address) = own_address() {
        works_outside_only(&connect(&address));
    }
}

/// The address of this machine in its network.
fn own_address() -> Option<String> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    // Connecting a UDP socket sends nothing.
    socket.connect("192.0.2.1:9").ok()?;
    Some(socket.local_addr().ok()?.ip().to_string())
}

#[test]
fn udp_listeners_of_the_machine_cannot_be_reached() {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = socket.local_addr().unwrap().port();
    std::thread::spawn(move || {
        while let Ok((_, from)) = socket.recv_from(&mut [0; 16]) {
            socket.send_to(b"heard", from).unwrap();
        }
    });
    works_outside_only(&python(&format!(
        "s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n\
         s.settimeout(2)\n\
         s.connect(('127.0.0.1', {port}))\n\
         s.send(b'hello')\n\
         assert s.recv(16) == b'heard'"
    )));
}

#[test]
fn unix_sockets_of_the_machine_cannot_be_reached() {
    let name = format!("sandpod-test-{}", std::process::id());
    let _abstract = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
    let connect = |name: &str| python(&format!("socket.socket(socket.AF_UNIX).connect('{name}')"));
    works_outside_only(&connect(&format!("\\0{name}")));
    for user in User::all() {
        let path = user.home.path().join("socket");
        let _listener = UnixListener::bind(&path).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o777)).unwrap();
        user.works_outside_only(&connect(path.to_str().unwrap()));
    }
}

#[test]
fn processes_of_the_machine_cannot_be_seen_signalled_or_traced() {
    for user in User::all() {
        let victim = Victim::of(&user);
        let pid = victim.id();
        user.works_outside_only(&format!("test -d /proc/{pid}"));
        user.works_outside_only(&format!("kill -0 {pid}"));
        user.works_outside_only(&format!("cat /proc/{pid}/root/etc/passwd"));
        user.works_outside_only(&format!("head -c 0 /proc/{pid}/mem"));
        let attach = libc::PTRACE_SEIZE;
        user.works_outside_only(&python(&format!(
            "sys.exit(call({}, {attach}, {pid}, 0, 0))",
            libc::SYS_ptrace
        )));
        user.works_outside_only(&python(&format!("sys.exit(call({}, {pid}, 0))", libc::SYS_pidfd_open)));
        user.works_outside_only(&format!("kill -9 {pid}"));
    }
}

#[test]
fn the_guest_cannot_be_signalled_traced_or_inspected() {
    for user in User::all() {
        let signalled = user.inside("for signal in TERM KILL STOP; do kill -s $signal 1; done; echo alive");
        assert_eq!(stdout(&signalled), "alive\n", "{}", stderr(&signalled));
        for line in ["cat /proc/1/environ", "ls /proc/1/fd", "ls /proc/1/root/"] {
            user.fails_inside(line);
        }
        let attach = libc::PTRACE_SEIZE;
        user.fails_inside(&python(&format!("sys.exit(call({}, {attach}, 1, 0, 0))", libc::SYS_ptrace)));
    }
}

/// Two ways to send SIGTERM without a sender's pid: a forged siginfo, and the owner of an asynchronous pipe.
fn forge_sigterm(pid: u32) -> [String; 2] {
    let siginfo = "struct.pack('iiiiii', 15, 0, -1, 0, 0, 0) + bytes(104)";
    let queued = format!(
        "info = ctypes.create_string_buffer({siginfo})\n\
         sys.exit(call({}, {pid}, 15, ctypes.addressof(info)))",
        libc::SYS_rt_sigqueueinfo
    );
    let (owner, on_input) = (libc::F_SETOWN, libc::O_ASYNC);
    let by_pipe = format!(
        "r, w = os.pipe()\n\
         fcntl.fcntl(r, {owner}, {pid}); fcntl.fcntl(r, 10, 15)\n\
         fcntl.fcntl(r, fcntl.F_SETFL, {on_input}); os.write(w, b'x')"
    );
    [queued, by_pipe].map(|program| python(&program))
}

#[test]
fn the_guest_ignores_forged_shutdown_signals() {
    for user in User::all() {
        for number in 0..2 {
            let mut victim = Victim::of(&user);
            let forged = user.outside(&forge_sigterm(victim.id())[number]);
            assert!(forged.status.success(), "{}", stderr(&forged));
            assert!(victim.ends(), "this should work outside");
            let inside = user.inside(&format!("{}sleep 1; echo alive", forge_sigterm(1)[number]));
            assert_eq!(stdout(&inside), "alive\n", "{}", stderr(&inside));
        }
    }
}

#[test]
fn sandboxes_can_be_created_under_tight_limits() {
    for user in User::all() {
        let sandpod = user.home.path().join("sandpod");
        for hardening in ["ulimit -c 0", "umask 077", "umask 0"] {
            let line = format!("{hardening} && exec {} run 'touch file && umask'", sandpod.display());
            let output = user.command("/bin/bash").args(["-c", &line]).output().unwrap();
            assert_eq!(stdout(&output), "0022\n", "{hardening}: {}", stderr(&output));
        }
    }
}

#[test]
fn a_lower_process_limit_of_the_caller_is_kept() {
    // The limit counts all processes of a user; only root can switch to a user without any.
    if !is_root() {
        return;
    }
    let user = User::new(Some(ORDINARY + 1));
    let limited = ["-c", "ulimit -u 500 && exec ~/sandpod run \"$0\"", "grep processes /proc/self/limits"];
    let output = user.command("/bin/bash").args(limited).output().unwrap();
    let columns = stdout(&output);
    assert_eq!(columns.split_whitespace().nth(2), Some("500"), "{columns}{}", stderr(&output));
}

#[test]
fn nothing_can_be_written_outside_writable_directories() {
    for user in User::all() {
        let file = user.home.path().join("written");
        user.works_outside_only(&format!("echo > {}", file.display()));
        fs::remove_file(&file).unwrap();
        // The sandbox has a /tmp of its own, where the same path is another file.
        user.inside(&format!("mkdir -p {0} && echo > {0}/file", file.display()));
        assert!(!file.exists());
    }
    for dir in ["/usr", "/usr/bin", "/opt", "/etc", "/"] {
        let file = format!("{}/sandpod-test-{}", dir.trim_end_matches('/'), std::process::id());
        works_for_root_outside_only(&format!("echo > {file} && rm {file}"));
    }
    let output = super::run("cd /; for d in *; do test -w /$d && echo $d; done");
    let writable = "app\nblobs\nconversation_history\nlarge_tool_results\ntmp\nworkspace\n";
    assert_eq!(stdout(&output), writable);
}

#[test]
fn kernel_settings_cannot_be_changed() {
    // The attempt writes the current value.
    for file in ["/proc/sys/kernel/core_pattern", "/proc/sys/vm/swappiness"] {
        works_for_root_outside_only(&format!("x=$(cat {file}) && echo \"$x\" > {file}"));
    }
    works_outside_only("ls /sys/kernel");
}

#[test]
fn mounts_and_namespaces_cannot_be_created() {
    works_outside_only("unshare --user true");
    works_outside_only("unshare --user --map-root-user --mount mount -t tmpfs none /tmp");
    works_for_root_outside_only("unshare --mount mount -t tmpfs none /tmp");
    works_for_root_outside_only("unshare --mount sh -c 'mount --bind / /tmp && umount /tmp'");
    works_for_root_outside_only("unshare --mount mount -t proc proc /proc");
    works_for_root_outside_only("nsenter --target $$ --mount true");
    // With clone, which creates a process and a namespace at once.
    let flags = libc::CLONE_NEWUSER | libc::SIGCHLD;
    works_outside_only(&python(&format!(
        "error = call({}, {flags}, 0, 0, 0, 0)\nif os.getpid() != 1 and error: sys.exit(error)\nos._exit(0)",
        libc::SYS_clone
    )));
}

#[test]
fn an_open_directory_is_no_way_out_of_a_root() {
    works_for_root_outside_only(&python(
        "out = os.open('/', os.O_RDONLY)\n\
         os.makedirs('/tmp/sandpod-cell', exist_ok=True)\n\
         os.chroot('/tmp/sandpod-cell')\n\
         os.fchdir(out)\n\
         os.chroot('.')\n\
         os.rmdir('/tmp/sandpod-cell')",
    ));
}

#[test]
fn open_files_of_the_creator_are_not_inherited() {
    for user in User::all() {
        let secret = user.file("open", "content");
        let read = "cat <&9 2> /dev/null || cat /proc/[0-9]*/fd/9";
        let inheriting = |mut command: Command| {
            // The shell passes it to its children as a descriptor that we do not use.
            let words = std::iter::once(command.get_program()).chain(command.get_args());
            let words: Vec<_> = words.map(std::ffi::OsStr::to_owned).collect();
            command = user.command("/bin/sh");
            command.args(["-c", "exec 9<&0 < /dev/null; exec \"$@\"", "sh"]).args(words);
            command.stdin(fs::File::open(&secret).unwrap()).output().unwrap()
        };
        let mut free = Command::new("/bin/sh");
        free.args(["-c", read]);
        assert_eq!(stdout(&inheriting(free)), "content");
        let mut confined = Command::new(user.home.path().join("sandpod"));
        confined.args(["run", read]);
        let confined = inheriting(confined);
        assert!(!confined.status.success() && stdout(&confined).is_empty(), "{}", stdout(&confined));
    }
}

#[test]
fn setuid_programs_do_not_become_root() {
    if !is_root() {
        // Only root can create a setuid program of root.
        return;
    }
    let dir = tempfile::tempdir_in("/opt").unwrap();
    fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    let id = dir.path().join("id");
    // `cp` is another process, as in `User::new`.
    assert!(Command::new("cp").arg("/usr/bin/id").arg(&id).status().unwrap().success());
    fs::set_permissions(&id, Permissions::from_mode(0o4755)).unwrap();
    let line = format!("{} -u", id.display());
    let user = User::new(Some(ORDINARY));
    assert_eq!(stdout(&user.outside(&line)), "0\n");
    for user in User::all() {
        assert_eq!(stdout(&user.inside(&line)), "1000\n");
    }
    let status = super::run("grep -E '^(CapEff|CapPrm|CapAmb|NoNewPrivs)' /proc/self/status");
    let expected =
        "CapPrm:\t0000000000000000\nCapEff:\t0000000000000000\nCapAmb:\t0000000000000000\nNoNewPrivs:\t1\n";
    assert_eq!(stdout(&status), expected);
}

#[test]
fn a_sandbox_cannot_type_into_a_terminal() {
    // A terminal of its own, into which it types with TIOCSTI.
    let allowed =
        fs::read_to_string("/proc/sys/dev/tty/legacy_tiocsti").is_ok_and(|value| value.trim() == "1");
    let type_x = python(
        "pid, terminal = pty.fork()\n\
         if pid == 0:\n    \
             try: fcntl.ioctl(0, 0x5412, b'x')\n    \
             except OSError: os._exit(1)\n    \
             os._exit(0)\n\
         sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))",
    );
    if allowed || is_root() {
        works_outside_only(&type_x);
    } else {
        for user in User::all() {
            user.fails_inside(&type_x);
        }
    }
    // With bits set above those that the kernel reads.
    let ioctl = libc::SYS_ioctl;
    let hidden =
        format!("a, b = pty.openpty()\nsys.exit(call({ioctl}, b, 0x100005412, 0) == {})", libc::EPERM);
    assert!(super::run(&python(&hidden)).status.code() == Some(1));
}

#[test]
fn keyrings_of_the_creator_cannot_be_read() {
    let (add, keyctl) = (libc::SYS_add_key, libc::SYS_keyctl);
    // A program in a session whose keyring has a key.
    let session = format!(
        "import ctypes, os, sys\n\
         libc = ctypes.CDLL(None)\n\
         libc.syscall({keyctl}, 1, None)\n\
         assert libc.syscall({add}, b'user', b'sandpod-test', b'known to one', 12, -3) > 0\n\
         os.execv(sys.argv[1], sys.argv[1:])"
    );
    let find = python(&format!(
        "key = libc.syscall({keyctl}, 10, -3, b'user', b'sandpod-test', 0)\n\
         into = ctypes.create_string_buffer(12)\n\
         sys.exit(libc.syscall({keyctl}, 11, key, into, 12) != 12 or into.raw != b'known to one')"
    ));
    let listed = "grep -q sandpod-test /proc/keys";
    for user in User::all() {
        let sandpod = user.home.path().join("sandpod").display().to_string();
        let in_session = |program: &str, word: &str, line: &str| {
            let mut command = user.command(PYTHON);
            command.args(["-c", &session, program, word, line]).output().unwrap()
        };
        for line in [find.as_str(), listed] {
            let free = in_session("/bin/sh", "-c", line);
            assert!(free.status.success(), "{}", stderr(&free));
            let confined = in_session(&sandpod, "run", line);
            assert_eq!(confined.status.code(), Some(1), "{}", stderr(&confined));
        }
    }
}

#[test]
fn a_crash_writes_no_core_and_starts_no_handler_of_the_machine() {
    for user in User::all() {
        let output = user.inside(
            "ulimit -c unlimited 2> /dev/null; sh -c 'kill -SEGV $$'; ls | wc -l; cat /proc/self/limits",
        );
        let printed = stdout(&output);
        assert_eq!(printed.lines().next(), Some("0"), "{printed}");
        let core = printed.lines().find(|line| line.starts_with("Max core file size")).unwrap();
        assert_eq!(core.split_whitespace().nth(4), Some("1"), "{core}");
    }
}

/// System calls that are refused for all arguments, with harmless arguments.
const REFUSED: [(&str, libc::c_long, [i64; 5]); 39] = [
    ("mount", libc::SYS_mount, [1, 1, 1, 0, 0]),
    ("umount2", libc::SYS_umount2, [1, 0, 0, 0, 0]),
    ("pivot_root", libc::SYS_pivot_root, [1, 1, 0, 0, 0]),
    ("chroot", libc::SYS_chroot, [1, 0, 0, 0, 0]),
    ("mount_setattr", libc::SYS_mount_setattr, [-1, 1, 0, 0, 0]),
    ("move_mount", libc::SYS_move_mount, [-1, 1, -1, 1, 0]),
    ("open_tree", libc::SYS_open_tree, [-1, 1, 0, 0, 0]),
    ("fsopen", libc::SYS_fsopen, [1, 0, 0, 0, 0]),
    ("fsconfig", libc::SYS_fsconfig, [-1, 0, 0, 0, 0]),
    ("fsmount", libc::SYS_fsmount, [-1, 0, 0, 0, 0]),
    ("fspick", libc::SYS_fspick, [-1, 1, 0, 0, 0]),
    ("keyctl", libc::SYS_keyctl, [0xffff, 0, 0, 0, 0]),
    ("add_key", libc::SYS_add_key, [1, 1, 0, 0, 0]),
    ("request_key", libc::SYS_request_key, [1, 1, 0, 0, 0]),
    ("bpf", libc::SYS_bpf, [0xffff, 0, 0, 0, 0]),
    ("perf_event_open", libc::SYS_perf_event_open, [1, 0, 0, 0, 0]),
    ("userfaultfd", libc::SYS_userfaultfd, [0xffff, 0, 0, 0, 0]),
    ("open_by_handle_at", libc::SYS_open_by_handle_at, [-1, 1, 0, 0, 0]),
    ("init_module", libc::SYS_init_module, [1, 0, 1, 0, 0]),
    ("finit_module", libc::SYS_finit_module, [-1, 1, 0, 0, 0]),
    ("delete_module", libc::SYS_delete_module, [1, 0, 0, 0, 0]),
    ("kexec_load", libc::SYS_kexec_load, [0, 17, 0, 0, 0]),
    ("kexec_file_load", libc::SYS_kexec_file_load, [-1, -1, 0, 0, 0]),
    ("reboot", libc::SYS_reboot, [0, 0, 0, 0, 0]),
    ("settimeofday", libc::SYS_settimeofday, [1, 0, 0, 0, 0]),
    ("clock_settime", libc::SYS_clock_settime, [0, 1, 0, 0, 0]),
    ("clock_adjtime", libc::SYS_clock_adjtime, [0, 1, 0, 0, 0]),
    ("swapon", libc::SYS_swapon, [1, 0, 0, 0, 0]),
    ("swapoff", libc::SYS_swapoff, [1, 0, 0, 0, 0]),
    ("acct", libc::SYS_acct, [1, 0, 0, 0, 0]),
    ("quotactl", libc::SYS_quotactl, [-1, 1, 0, 0, 0]),
    ("syslog", libc::SYS_syslog, [100, 0, 0, 0, 0]),
    ("setns", libc::SYS_setns, [-1, 0, 0, 0, 0]),
    ("fanotify_init", libc::SYS_fanotify_init, [0, 0, 0, 0, 0]),
    ("quotactl_fd", 443, [-1, 0, 0, 0, 0]),
    ("open_tree_attr", 467, [-1, 0, 0, 0, 0]),
    ("prlimit64 of another", libc::SYS_prlimit64, [1, 0, 0, 0, 0]),
    ("clone3", libc::SYS_clone3, [0, 0, 0, 0, 0]),
    ("io_uring_setup", libc::SYS_io_uring_setup, [0, 0, 0, 0, 0]),
];

#[test]
fn dangerous_system_calls_are_refused_for_all_arguments() {
    let calls: Vec<_> = REFUSED
        .iter()
        .map(|(name, number, arguments)| format!("('{name}', {number}, {arguments:?})"))
        .collect();
    let program = python(&format!(
        "for name, number, arguments in [{}]: print(name, call(number, *arguments))",
        calls.join(", ")
    ));
    let answers = |output: Output| -> Vec<(String, i32)> {
        let printed = stdout(&output);
        let answers = printed.lines().filter_map(|line| line.rsplit_once(' '));
        answers.map(|(name, error)| (name.to_owned(), error.parse().unwrap())).collect()
    };
    let refusals = [libc::EPERM, libc::ENOSYS];
    if is_root() {
        let outside = answers(User::new(None).outside(&program));
        assert_eq!(outside.len(), REFUSED.len());
        // A kernel may be built without some of these.
        let reached = outside.iter().filter(|(_, error)| !refusals.contains(error)).count();
        assert!(reached >= 25, "{outside:?}");
        assert!(outside.iter().all(|(_, error)| *error != libc::EPERM), "{outside:?}");
    }
    for user in User::all() {
        let inside = answers(user.inside(&program));
        assert_eq!(inside.len(), REFUSED.len());
        assert!(inside.iter().all(|(_, error)| refusals.contains(error)), "{inside:?}");
    }
}

#[test]
fn sockets_without_a_namespace_cannot_be_created() {
    let make = |family: i32, kind: i32| python(&format!("socket.socket({family}, {kind})"));
    let [ciphers, machines] =
        [make(libc::AF_ALG, libc::SOCK_SEQPACKET), make(libc::AF_VSOCK, libc::SOCK_STREAM)];
    for line in [ciphers, machines] {
        // A kernel may be built without these.
        if User::new(None).outside(&line).status.success() {
            works_outside_only(&line);
        } else {
            for user in User::all() {
                user.fails_inside(&line);
            }
        }
    }
    let usual =
        python("for family in (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6): socket.socket(family)");
    assert!(super::run(&usual).status.success());
}

#[test]
fn programs_with_threads_children_and_debuggers_work() {
    let line = python(
        "import threading, subprocess\n\
         threads = [threading.Thread(target=lambda: subprocess.run(['true'], check=True)) for _ in range(8)]\n\
         [thread.start() for thread in threads]\n\
         [thread.join() for thread in threads]\n\
         pid = os.fork()\n\
         if pid == 0: os.pause() if hasattr(os, 'pause') else __import__('signal').pause()\n\
         assert libc.ptrace(0x4206, pid, 0, 0) == 0\n\
         os.kill(pid, 9)",
    );
    for user in User::all() {
        let output = user.inside(&line);
        assert!(output.status.success(), "{}", stderr(&output));
    }
}

#[test]
fn a_fork_bomb_does_not_exhaust_the_machines_processes() {
    let bomb = python(
        "import time\n\
         made = 0\n\
         try:\n    \
             while made < 10000:\n        \
                 if os.fork() == 0: time.sleep(60); os._exit(0)\n        \
                 made += 1\n\
         except BlockingIOError: print(made)",
    );
    for user in User::all() {
        let output = user.inside(&bomb);
        let made: u32 = stdout(&output).trim().parse().unwrap();
        assert!((4000..4096).contains(&made), "{made}");
    }
}

/// A program in a sandbox that allocates as much of a resource as it can, prints the number and holds them.
struct Hoard {
    run: Child,
    got: u32,
}

impl Hoard {
    fn of(user: &User, program: &str) -> Self {
        let keep = "print(got, flush=True)\nimport time\ntime.sleep(3600)";
        let line = python(&format!("import resource\n{program}\n{keep}"));
        let mut command = user.command(user.home.path().join("sandpod"));
        let mut run = command.args(["run", &line]).stdout(Stdio::piped()).spawn().unwrap();
        let mut printed = String::new();
        BufReader::new(run.stdout.take().unwrap()).read_line(&mut printed).unwrap();
        Self { got: printed.trim().parse().unwrap(), run }
    }
}

impl Drop for Hoard {
    fn drop(&mut self) {
        // After SIGTERM, the command deletes its sandbox.
        let _ = Command::new("kill").args(["-TERM", &self.run.id().to_string()]).status();
        let _ = self.run.wait();
    }
}

const ALL_FILES: &str = "_, most = resource.getrlimit(resource.RLIMIT_NOFILE)\n\
                         resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))";

#[test]
fn one_sandbox_cannot_use_up_inotify_watches() {
    let watching = "paths = [os.path.join(dir, name) for dir, dirs, files in os.walk('/usr') for name in dirs + files]\n\
                    def watch(most):\n    \
                        got = 0\n    \
                        while got < most:\n        \
                            file = libc.inotify_init1(0)\n        \
                            if file < 0: break\n        \
                            for path in paths:\n            \
                                if libc.inotify_add_watch(file, os.fsencode(path), 2) < 0:\n                \
                                    if ctypes.get_errno() == 28: return got\n            \
                                else: got += 1\n    \
                        return got\n";
    let all = fs::read_to_string("/proc/sys/fs/inotify/max_user_watches").unwrap();
    let all: u32 = all.trim().parse().unwrap();
    for user in User::all() {
        let hoard = Hoard::of(&user, &format!("{watching}got = watch({all})"));
        assert!((1..=all / 4).contains(&hoard.got), "{} of {all}", hoard.got);
        let some = python(&format!("{watching}assert watch(10) >= 10"));
        let outside = user.outside(&some);
        assert!(outside.status.success(), "{}", stderr(&outside));
        let beside = user.inside(&some);
        assert!(beside.status.success(), "{}", stderr(&beside));
    }
}

#[test]
fn one_sandbox_cannot_use_up_pseudo_terminals() {
    let opening = format!(
        "{ALL_FILES}\n\
         got, kept = 0, []\n\
         try:\n    \
             while got < 10000: kept.append(os.open('/dev/ptmx', os.O_RDWR | os.O_NOCTTY)); got += 1\n\
         except OSError as error: assert error.errno == 28, error"
    );
    for user in User::all() {
        let hoard = Hoard::of(&user, &opening);
        assert!((100..=512).contains(&hoard.got), "{}", hoard.got);
        let beside = user.inside(&python("pty.openpty()"));
        assert!(beside.status.success(), "{}", stderr(&beside));
        let outside = user.outside(&python("pty.openpty()"));
        assert!(outside.status.success(), "{}", stderr(&outside));
    }
}

#[test]
fn without_user_namespaces_the_error_names_the_setting_to_change() {
    for user in User::all() {
        let line = "unshare --user --map-root-user sh -c \
                    'echo 0 > /proc/sys/user/max_user_namespaces && exec ~/sandpod run true'";
        let refused = user.outside(line);
        let expected = "error: Can't make a sandbox on this machine: this machine does not let you make user namespaces \
                        (No space left on device (os error 28)): `sysctl user.max_user_namespaces=15000` allows them.\n  \
                        next: Fix that, or use a cluster.\n";
        assert_eq!((stderr(&refused).as_str(), refused.status.code()), (expected, Some(125)));
        let state = user.home.path().join(".local/state/sandpod/local");
        assert_eq!(fs::read_dir(state).unwrap().count(), 0);
    }
}
