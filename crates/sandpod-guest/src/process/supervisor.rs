//! A supervisor process runs between the guest and each command, so that no descendant of the command escapes.
//!
//! It is a subreaper without open files: orphaned descendants of the command are reparented to it. It ends with the
//! command's exit code when the command ends, and background processes are then reparented to the guest. While the
//! command runs, all its descendants are below the supervisor, also those that left its session or lost their
//! parents. A name, a session or an environment variable could not guarantee that for a hostile process.
//!
//! To kill a command, the guest calls [`SharedState::request_kill`]. The supervisor then outlives the command, kills each
//! process that is reparented to it, and ends when the kernel reports that it has no child left, and thus no
//! descendant. Scanning `/proc` could not find out for processes that fork and exit all the time.
//!
//! The supervisor shares the guest's memory, and so does the command until its exec: no page tables are copied, which is
//! most of the cost of a fork. Both make system calls only, allocate nothing and take no lock; all that they need is
//! prepared before ([`SharedState`]).

use std::ffi::CString;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};

use rustix::event::Timespec;
use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, FdFlags};
use rustix::process::{Pid, Signal, WaitOptions};

use super::running::shell_exit_code;
use super::streams::Streams;
use crate::open_file_limit;
use crate::policy::Restriction;
use crate::syscalls::{self, Mask};

/// More than a supervisor or a command before its exec needs; a multiple of 16.
const STACK_BYTES: usize = 32 << 10;
/// The guest detects a supervisor's end by its pidfd. A signal for each would wake another thread of the guest.
const NO_EXIT_SIGNAL: libc::c_int = 0;
/// The children of a process that has one thread.
const CHILDREN: &std::ffi::CStr = c"/proc/thread-self/children";
/// Time that a killing supervisor waits for the end of a child before it lists the children again.
const KILL_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 5_000_000 };
/// Reaps any child, without waiting.
const ANY_NO_WAIT: WaitOptions =
    WaitOptions::NOHANG.union(WaitOptions::from_bits_retain(libc::__WALL.cast_unsigned()));
/// Exit code of a killed command whose own is unknown.
const KILLED: i32 = 137;

/// A program for the kernel.
pub(crate) struct Program {
    /// Candidate paths; the first that can be executed is used.
    pub(crate) paths: Vec<CString>,
    pub(crate) arguments: Vec<CString>,
    pub(crate) env: Vec<CString>,
    pub(crate) working_dir: CString,
    /// Descriptors besides the standard ones that the program inherits under the same numbers.
    pub(crate) inherited: Vec<OwnedFd>,
    /// Restriction that the process enters before its exec.
    pub(crate) restriction: Arc<Restriction>,
}

/// The step at which starting a command failed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u32)]
pub(crate) enum Step {
    Fork,
    Files,
    WorkingDir,
    Terminal,
    Restrict,
    Program,
}

const STEPS: [Step; 6] =
    [Step::Fork, Step::Files, Step::WorkingDir, Step::Terminal, Step::Restrict, Step::Program];

/// Why a command never ran.
#[derive(Debug)]
pub(crate) struct NotStarted {
    pub(crate) step: Step,
    pub(crate) error: io::Error,
}

impl NotStarted {
    pub(crate) fn new(step: Step, error: impl Into<io::Error>) -> Self {
        Self { step, error: error.into() }
    }
}

/// Memory that the guest shares with a supervisor and its command.
pub(super) struct SharedState {
    program: Program,
    arguments: Vec<*const libc::c_char>,
    env: Vec<*const libc::c_char>,
    stdio: [RawFd; 3],
    terminal: bool,
    /// One stack for each of the two.
    stacks: Vec<MaybeUninit<u8>>,
    /// Not 0 while the command uses this memory: the kernel clears it.
    in_use: AtomicU32,
    step: AtomicU32,
    errno: AtomicI32,
    kill_requested: AtomicBool,
}

// SAFETY: the pointers are to strings that `program` owns and that do not change.
#[expect(unsafe_code, reason = "pointers for the kernel are not Send by themselves")]
unsafe impl Send for SharedState {}
// SAFETY: as above; all that changes is atomic.
#[expect(unsafe_code, reason = "pointers for the kernel are not Sync by themselves")]
unsafe impl Sync for SharedState {}

impl SharedState {
    fn new(program: Program, streams: &Streams) -> Self {
        Self {
            arguments: pointers(&program.arguments),
            env: pointers(&program.env),
            program,
            stdio: [&streams.stdin, &streams.stdout, &streams.stderr].map(AsRawFd::as_raw_fd),
            terminal: streams.terminal,
            stacks: Vec::with_capacity(2 * STACK_BYTES),
            in_use: AtomicU32::new(1),
            step: AtomicU32::new(0),
            errno: AtomicI32::new(0),
            kill_requested: AtomicBool::new(false),
        }
    }

    /// Makes the supervisor kill all its descendants from the next end of a child on, and stay until none is left.
    pub(super) fn request_kill(&self) {
        self.kill_requested.store(true, Ordering::Release);
    }

    /// Returns why the command never ran, if it did not; known when its supervisor has ended.
    pub(super) fn failure(&self) -> Option<NotStarted> {
        let errno = self.errno.load(Ordering::Acquire);
        let step = STEPS.get(self.step.load(Ordering::Acquire) as usize).copied().unwrap_or(Step::Fork);
        (errno != 0).then(|| NotStarted::new(step, io::Error::from_raw_os_error(errno)))
    }

    /// Returns whether the command no longer uses this memory: it has executed its program, or ended.
    pub(super) fn is_released(&self) -> bool {
        self.in_use.load(Ordering::Acquire) == 0
    }

    fn record_failure(&self, step: Step, errno: Errno) {
        self.step.store(step as u32, Ordering::Release);
        self.errno.store(errno.raw_os_error(), Ordering::Release);
    }

    /// Returns the upper end of a stack, where it starts.
    fn top(&self, stack: usize) -> *mut u8 {
        let end = self.stacks.as_ptr().addr() + (stack + 1) * STACK_BYTES;
        self.stacks.as_ptr().with_addr(end & !15).cast_mut().cast()
    }
}

fn pointers(strings: &[CString]) -> Vec<*const libc::c_char> {
    strings.iter().map(|string| string.as_ptr()).chain([std::ptr::null()]).collect()
}

/// Starts a supervisor that starts a program. Whether the exec succeeded is known when the supervisor ends.
#[expect(unsafe_code, reason = "the supervisor uses memory of the guest")]
pub(super) fn start(program: Program, streams: Streams) -> Result<(Pid, Box<SharedState>), NotStarted> {
    let shared = Box::new(SharedState::new(program, &streams));
    // No signal handler of the guest may run in a process that shares its memory.
    let before = Mask::ALL.set();
    // SAFETY: the caller keeps the state until the supervisor has ended and the command no longer uses it.
    let supervisor =
        unsafe { syscalls::clone(NO_EXIT_SIGNAL, shared.top(0), supervisor, &raw const *shared) };
    before.set();
    let supervisor = supervisor.and_then(|pid| Pid::from_raw(pid).ok_or(Errno::SRCH));
    // The guest's descriptors close here: the two processes have copies.
    drop(streams);
    supervisor.map(|pid| (pid, shared)).map_err(|errno| NotStarted::new(Step::Fork, errno))
}

/// Entry point of the supervisor.
#[expect(unsafe_code, reason = "the state is passed as a pointer")]
extern "C" fn supervisor(shared: *const SharedState) -> ! {
    // SAFETY: see `start`.
    let shared = unsafe { &*shared };
    // It stays in the guest's session: only signals that cannot be blocked reach it anyway, and many kernels make a
    // scheduling group for each session.
    let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
    syscalls::reset_signals();
    // SAFETY: see `start`; the command has a stack of its own.
    match unsafe { syscalls::clone(libc::SIGCHLD, shared.top(1), command, shared) } {
        Ok(command) => watch(command, &shared.kill_requested),
        Err(errno) => {
            shared.in_use.store(0, Ordering::Release);
            shared.record_failure(Step::Fork, errno);
            syscalls::exit(255)
        }
    }
}

/// Waits for the command, and reaps orphans meanwhile.
fn watch(command: i32, kill_requested: &AtomicBool) -> ! {
    close_files();
    loop {
        let code = match rustix::process::wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if pid.as_raw_nonzero().get() == command => shell_exit_code(status),
            Ok(_) | Err(Errno::INTR) => None,
            Err(_) => syscalls::exit(255),
        };
        if kill_requested.load(Ordering::Acquire) {
            kill_all(command, code);
        }
        if let Some(code) = code {
            syscalls::exit(code);
        }
    }
}

/// Kills children until there are none. Deeper descendants are reparented to the supervisor when their parents end.
fn kill_all(command: i32, mut code: Option<i32>) -> ! {
    loop {
        match rustix::process::wait(ANY_NO_WAIT) {
            Ok(Some((pid, status))) if pid.as_raw_nonzero().get() == command => {
                code = shell_exit_code(status);
            }
            Ok(Some(_)) | Err(Errno::INTR) => {}
            Ok(None) => {
                kill_children();
                wait_for_child();
            }
            // The kernel checks all children atomically: there are none, also no zombies.
            Err(_) => syscalls::exit(code.unwrap_or(KILLED)),
        }
    }
}

/// Kills each child and its process group. Their numbers are not reused before the supervisor has reaped them.
fn kill_children() {
    let Ok(list) = rustix::fs::open(CHILDREN, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) else {
        return;
    };
    let (mut part, mut number) = ([0; 1024], 0);
    while let Ok(read @ 1..) = rustix::io::read(&list, &mut part) {
        for byte in &part[..read] {
            if byte.is_ascii_digit() {
                number = number * 10 + i32::from(byte - b'0');
            } else {
                Pid::from_raw(std::mem::take(&mut number)).into_iter().for_each(kill_group);
            }
        }
    }
}

/// Kills a process and its group atomically, including processes that are being forked.
fn kill_group(pid: Pid) {
    // The supervisor's own group is the guest's; it has no number here if the guest was started into a new namespace.
    let group = group_of(pid.as_raw_nonzero().get());
    if let Some(group) = group.filter(|_| group != group_of(0)) {
        let _ = rustix::process::kill_process_group(group, Signal::KILL);
    }
    let _ = rustix::process::kill_process(pid, Signal::KILL);
}

#[expect(unsafe_code, reason = "the safe interface assumes that every process has a group in this namespace")]
fn group_of(pid: i32) -> Option<Pid> {
    // SAFETY: the call takes no memory.
    let group = unsafe { syscalls::call(libc::SYS_getpgid, [pid.cast_unsigned() as usize, 0, 0, 0]) };
    Pid::from_raw(i32::try_from(group.ok()?).ok()?)
}

/// Waits for the blocked signal of a child's end, for a limited time.
#[expect(unsafe_code, reason = "waiting for a signal has no safe interface")]
fn wait_for_child() {
    let (ended, limit) = (Mask::of(libc::SIGCHLD), KILL_INTERVAL);
    let (set, limit) = (&raw const ended as usize, &raw const limit as usize);
    // SAFETY: the kernel reads a set of the given size, and a time.
    let _ = unsafe { syscalls::call(libc::SYS_rt_sigtimedwait, [set, 0, limit, size_of::<Mask>()]) };
}

/// Closes all descriptors, so that the supervisor does not keep the command's output or the guest's streams open.
#[expect(unsafe_code, reason = "closes descriptors that other code owns")]
fn close_files() {
    /// For kernels without `close_range`.
    const FILES: usize = 65_536;
    // SAFETY: this process uses none of its descriptors again.
    unsafe {
        if syscalls::close_from(0, 0).is_err() {
            for file in 0..FILES {
                let _ = syscalls::call(libc::SYS_close, [file, 0, 0, 0]);
            }
        }
    }
}

/// Entry point of the command, until its exec.
#[expect(unsafe_code, reason = "the state is passed as a pointer")]
extern "C" fn command(shared: *const SharedState) -> ! {
    // SAFETY: see `start`.
    let shared = unsafe { &*shared };
    // SAFETY: the kernel writes a zero there when this process releases the memory, and the state is kept until
    // then.
    let _ = unsafe { syscalls::call(libc::SYS_set_tid_address, [shared.in_use.as_ptr() as usize, 0, 0, 0]) };
    let (step, errno) = shared.exec_program();
    shared.record_failure(step, errno);
    syscalls::exit(255)
}

impl SharedState {
    /// Executes the program. Returns only on failure.
    #[expect(unsafe_code, reason = "the guest's descriptors are known by number here")]
    fn exec_program(&self) -> (Step, Errno) {
        // SAFETY: this process has a copy of the guest's descriptors from when it was started.
        let [stdin, stdout, stderr] = self.stdio.map(|file| unsafe { BorrowedFd::borrow_raw(file) });
        let files = || {
            rustix::stdio::dup2_stdin(stdin)?;
            rustix::stdio::dup2_stdout(stdout)?;
            rustix::stdio::dup2_stderr(stderr)?;
            // The guest opens all its descriptors with close-on-exec, but may have inherited some. A kernel without
            // `close_range` leaves those open.
            // SAFETY: no descriptor is closed before the exec.
            let _ = unsafe { syscalls::close_from(3, libc::CLOSE_RANGE_CLOEXEC) };
            let mut inherited = self.program.inherited.iter();
            inherited.try_for_each(|file| rustix::io::fcntl_setfd(file, FdFlags::empty()))?;
            open_file_limit::lower()
        };
        let terminal = || {
            rustix::process::setsid()?;
            if self.terminal { rustix::process::ioctl_tiocsctty(stdin.as_fd()) } else { Ok(()) }
        };
        let ready = files().map_err(|errno| (Step::Files, errno)).and_then(|()| {
            terminal().map_err(|errno| (Step::Terminal, errno))?;
            rustix::process::chdir(self.program.working_dir.as_c_str())
                .map_err(|errno| (Step::WorkingDir, errno))?;
            self.program.restriction.enter().map_err(|errno| (Step::Restrict, errno))
        });
        match ready {
            Ok(()) => (Step::Program, self.execute()),
            Err(why) => why,
        }
    }

    /// Tries each candidate path.
    #[expect(unsafe_code, reason = "exec without libc has no safe interface")]
    fn execute(&self) -> Errno {
        Mask::NONE.set();
        let mut why = Errno::NOENT;
        for path in &self.program.paths {
            let (arguments, env) = (self.arguments.as_ptr() as usize, self.env.as_ptr() as usize);
            // SAFETY: all strings end with a NUL, and the lists with a null pointer.
            match unsafe { syscalls::call(libc::SYS_execve, [path.as_ptr() as usize, arguments, env, 0]) } {
                Ok(_) | Err(Errno::NOENT | Errno::NOTDIR) => {}
                Err(Errno::ACCESS) => why = Errno::ACCESS,
                Err(other) => return other,
            }
        }
        why
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::super::running::EVERY_CHILD;
    use super::*;
    use crate::process::running::Children;
    use crate::process::streams;

    fn program(paths: &[&str], arguments: &[&str]) -> Program {
        let strings = |words: &[&str]| words.iter().map(|word| CString::new(*word).unwrap()).collect();
        let (paths, arguments) = (strings(paths), strings(arguments));
        let (env, working_dir) = (vec![], c"/".to_owned());
        Program { paths, arguments, env, working_dir, inherited: vec![], restriction: Arc::default() }
    }

    fn streams(output: &io::PipeWriter) -> Streams {
        let stdout: Arc<OwnedFd> = Arc::new(output.try_clone().unwrap().into());
        let stderr = stdout.clone();
        Streams { stdin: streams::empty_input().unwrap(), stdout, stderr, terminal: false }
    }

    async fn run(program: Program) -> Result<(i32, String), NotStarted> {
        let (mut reader, writer) = io::pipe().unwrap();
        let mut running = Arc::new(Children::default()).start(program, streams(&writer))?;
        drop(writer);
        let code = running.wait().await?;
        let mut output = String::new();
        reader.read_to_string(&mut output).unwrap();
        Ok((code, output))
    }

    #[tokio::test]
    async fn the_first_candidate_path_with_the_program_is_used() {
        let echo = program(&["/no/such/echo", "/etc/passwd/echo", "/bin/echo"], &["echo", "hello"]);
        assert_eq!(run(echo).await.unwrap(), (0, "hello\n".to_owned()));
    }

    #[tokio::test]
    async fn a_forbidden_program_differs_from_a_missing_one() {
        for (paths, errno) in [
            (vec!["/no/such", "/etc/passwd", "/nor/this"], Errno::ACCESS),
            (vec!["/no/such"], Errno::NOENT),
            (vec![], Errno::NOENT),
        ] {
            let why = run(program(&paths, &["x"])).await.unwrap_err();
            assert_eq!((why.step, why.error.raw_os_error()), (Step::Program, Some(errno.raw_os_error())));
        }
    }

    #[tokio::test]
    async fn commands_start_with_default_signal_handlers() {
        // SIGPIPE is ignored in every Rust program, and the async runtime handles SIGCHLD.
        let _handled = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::child()).unwrap();
        let (_, status) = run(program(&["/bin/cat"], &["cat", "/proc/self/status"])).await.unwrap();
        let sets = ["SigBlk", "SigIgn", "SigCgt"].map(|name| format!("{name}:\t{:016x}\n", 0));
        assert!(sets.iter().all(|set| status.contains(set)), "{status}");
    }

    #[test]
    fn the_guests_memory_is_released_after_exec_and_after_failure() {
        for path in ["/bin/true", "/no/such/program"] {
            let (_reader, writer) = io::pipe().unwrap();
            let (pid, shared) = start(program(&[path], &["x"]), streams(&writer)).unwrap();
            rustix::process::waitpid(Some(pid), WaitOptions::from_bits_retain(EVERY_CHILD)).unwrap();
            assert!(shared.is_released(), "{path}");
        }
    }
}
