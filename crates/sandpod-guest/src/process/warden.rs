//! A warden stands between the guest and each command, so that nothing the command starts gets away.
//!
//! It is a process without files that takes in every process of the command that loses its parent, and
//! ends with the command's exit code when the command ends. What the command leaves in the background
//! then falls to the guest. While the command runs, all that it started is below its warden, also what
//! left its session or lost its parents: neither a name, a session nor an environment variable could say
//! that of a process that would rather not be found.
//!
//! A command that must end is condemned ([`Ground::condemn`]). Its warden then outlives it, kills whatever falls to
//! it, and ends when the kernel says that it has no child left, so when nothing below it lives. No look at
//! `/proc` could tell that of processes that fork and exit all the time.
//!
//! The warden lives in the guest's memory, and so does the command until its program takes over: no page
//! table is copied, which is most of what a fork of the guest would take. Both make system calls only,
//! allocate nothing and take no lock; what they need was made ready before ([`Ground`]).

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

use super::running::code_of;
use super::streams::Streams;
use crate::bare::{self, Mask};
use crate::open_files;
use crate::policy::Restriction;

/// More than a warden or a command that has not started its program needs; a multiple of 16.
const STACK_BYTES: usize = 32 << 10;
/// A warden's end is seen by its file. A signal for each would wake another thread of the guest.
const UNANNOUNCED: libc::c_int = 0;
/// The children of a process that has one thread.
const CHILDREN: &std::ffi::CStr = c"/proc/thread-self/children";
/// How long a warden that hunts waits for the end of a child before it looks for others.
const LOOK_AGAIN: Timespec = Timespec { tv_sec: 0, tv_nsec: 5_000_000 };
/// Waits for none, and leaves out none.
const ANY_AT_ONCE: WaitOptions =
    WaitOptions::NOHANG.union(WaitOptions::from_bits_retain(libc::__WALL.cast_unsigned()));
/// The exit code of a command of which no other is known.
const KILLED: i32 = 137;

/// A program for the kernel.
pub(crate) struct Program {
    /// Where it may be; the first that can be executed is.
    pub(crate) paths: Vec<CString>,
    pub(crate) arguments: Vec<CString>,
    pub(crate) env: Vec<CString>,
    pub(crate) working_dir: CString,
    /// Files besides the standard ones that the program gets under the numbers they have.
    pub(crate) inherited: Vec<OwnedFd>,
    /// What holds it.
    pub(crate) restriction: Arc<Restriction>,
}

/// What could not be done for a command that never ran.
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

/// What a warden and its command stand on.
pub(super) struct Ground {
    program: Program,
    arguments: Vec<*const libc::c_char>,
    env: Vec<*const libc::c_char>,
    stdio: [RawFd; 3],
    terminal: bool,
    /// One for each of the two.
    stacks: Vec<MaybeUninit<u8>>,
    /// Not 0 until the command has left this memory: the kernel clears it.
    inside: AtomicU32,
    step: AtomicU32,
    errno: AtomicI32,
    condemned: AtomicBool,
}

// SAFETY: the pointers are to strings that `program` owns and nobody changes.
#[expect(unsafe_code, reason = "pointers for the kernel are not Send by themselves")]
unsafe impl Send for Ground {}
// SAFETY: as above; what changes is atomic.
#[expect(unsafe_code, reason = "pointers for the kernel are not Sync by themselves")]
unsafe impl Sync for Ground {}

impl Ground {
    fn new(program: Program, streams: &Streams) -> Self {
        Self {
            arguments: pointers(&program.arguments),
            env: pointers(&program.env),
            program,
            stdio: [&streams.stdin, &streams.stdout, &streams.stderr].map(AsRawFd::as_raw_fd),
            terminal: streams.terminal,
            stacks: Vec::with_capacity(2 * STACK_BYTES),
            inside: AtomicU32::new(1),
            step: AtomicU32::new(0),
            errno: AtomicI32::new(0),
            condemned: AtomicBool::new(false),
        }
    }

    /// Makes the warden kill all that is below it from the next end of a child on, and stay until nothing is left.
    pub(super) fn condemn(&self) {
        self.condemned.store(true, Ordering::Release);
    }

    /// Why the command never ran, if it did not; known when its warden has ended.
    pub(super) fn failure(&self) -> Option<NotStarted> {
        let errno = self.errno.load(Ordering::Acquire);
        let step = STEPS.get(self.step.load(Ordering::Acquire) as usize).copied().unwrap_or(Step::Fork);
        (errno != 0).then(|| NotStarted::new(step, io::Error::from_raw_os_error(errno)))
    }

    /// Whether the command does not stand on it any more: its program took over, or it ended.
    pub(super) fn is_left(&self) -> bool {
        self.inside.load(Ordering::Acquire) == 0
    }

    fn note(&self, step: Step, errno: Errno) {
        self.step.store(step as u32, Ordering::Release);
        self.errno.store(errno.raw_os_error(), Ordering::Release);
    }

    /// The end of a stack, which is where it begins.
    fn top(&self, stack: usize) -> *mut u8 {
        let end = self.stacks.as_ptr().addr() + (stack + 1) * STACK_BYTES;
        self.stacks.as_ptr().with_addr(end & !15).cast_mut().cast()
    }
}

fn pointers(strings: &[CString]) -> Vec<*const libc::c_char> {
    strings.iter().map(|string| string.as_ptr()).chain([std::ptr::null()]).collect()
}

/// Starts a warden that starts a program. Whether the program took over is known when the warden ends.
#[expect(unsafe_code, reason = "the warden stands on memory of the guest")]
pub(super) fn start(program: Program, streams: Streams) -> Result<(Pid, Box<Ground>), NotStarted> {
    let ground = Box::new(Ground::new(program, &streams));
    // No handler of the guest may run in a process that shares its memory.
    let before = Mask::ALL.set();
    // SAFETY: who gets the ground keeps it until the warden has ended and the command has left.
    let warden = unsafe { bare::clone(UNANNOUNCED, ground.top(0), warden, &raw const *ground) };
    before.set();
    let warden = warden.and_then(|pid| Pid::from_raw(pid).ok_or(Errno::SRCH));
    // Our own ends of the files close here: the two have theirs.
    drop(streams);
    warden.map(|pid| (pid, ground)).map_err(|errno| NotStarted::new(Step::Fork, errno))
}

/// The warden's life.
#[expect(unsafe_code, reason = "it is given the ground as a pointer")]
extern "C" fn warden(ground: *const Ground) -> ! {
    // SAFETY: see `start`.
    let ground = unsafe { &*ground };
    // It stays in the guest's session: no signal but those that none can refuse reaches it anyway, and many
    // kernels make a scheduling group for each session.
    let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
    bare::reset_signals();
    // SAFETY: see `start`; the command has a stack of its own.
    match unsafe { bare::clone(libc::SIGCHLD, ground.top(1), command, ground) } {
        Ok(command) => watch(command, &ground.condemned),
        Err(errno) => {
            ground.inside.store(0, Ordering::Release);
            ground.note(Step::Fork, errno);
            bare::exit(255)
        }
    }
}

/// Waits for the command, and for whatever falls to the warden meanwhile.
fn watch(command: i32, condemned: &AtomicBool) -> ! {
    close_files();
    loop {
        let code = match rustix::process::wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if pid.as_raw_nonzero().get() == command => code_of(status),
            Ok(_) | Err(Errno::INTR) => None,
            Err(_) => bare::exit(255),
        };
        if condemned.load(Ordering::Acquire) {
            hunt(command, code);
        }
        if let Some(code) = code {
            bare::exit(code);
        }
    }
}

/// Kills children until there are none. What is deeper falls to the warden when its parents are gone.
fn hunt(command: i32, mut code: Option<i32>) -> ! {
    loop {
        match rustix::process::wait(ANY_AT_ONCE) {
            Ok(Some((pid, status))) if pid.as_raw_nonzero().get() == command => code = code_of(status),
            Ok(Some(_)) | Err(Errno::INTR) => {}
            Ok(None) => {
                kill_children();
                wait_for_child();
            }
            // The kernel looks at all children in one step: there are none, also no zombies.
            Err(_) => bare::exit(code.unwrap_or(KILLED)),
        }
    }
}

/// Kills each child and its process group. Nobody else can have their numbers before the warden has waited for them.
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

/// Kills a process with all of its group: they die at once, also those that are just being forked.
fn kill_group(pid: Pid) {
    // The warden's own group is the guest's, which is none in here if the guest was started into a new namespace.
    let group = group_of(pid.as_raw_nonzero().get());
    if let Some(group) = group.filter(|_| group != group_of(0)) {
        let _ = rustix::process::kill_process_group(group, Signal::KILL);
    }
    let _ = rustix::process::kill_process(pid, Signal::KILL);
}

#[expect(unsafe_code, reason = "the safe interface takes it that every process has a group in here")]
fn group_of(pid: i32) -> Option<Pid> {
    // SAFETY: it takes no memory.
    let group = unsafe { bare::call(libc::SYS_getpgid, [pid.cast_unsigned() as usize, 0, 0, 0]) };
    Pid::from_raw(i32::try_from(group.ok()?).ok()?)
}

/// Waits for the signal of a child's end, which is held back, and not for long.
#[expect(unsafe_code, reason = "waiting for a signal has no safe interface")]
fn wait_for_child() {
    let (ended, limit) = (Mask::of(libc::SIGCHLD), LOOK_AGAIN);
    let (set, limit) = (&raw const ended as usize, &raw const limit as usize);
    // SAFETY: the kernel reads a set of the size that is named, and a time.
    let _ = unsafe { bare::call(libc::SYS_rt_sigtimedwait, [set, 0, limit, size_of::<Mask>()]) };
}

/// A warden that held the command's output, or the guest's streams, would keep them open.
#[expect(unsafe_code, reason = "files that somebody else owns are closed")]
fn close_files() {
    /// For kernels that cannot close a range.
    const FILES: usize = 65_536;
    // SAFETY: this process uses none of its files again.
    unsafe {
        if bare::close_from(0, 0).is_err() {
            for file in 0..FILES {
                let _ = bare::call(libc::SYS_close, [file, 0, 0, 0]);
            }
        }
    }
}

/// The command, until its program takes over.
#[expect(unsafe_code, reason = "it is given the ground as a pointer")]
extern "C" fn command(ground: *const Ground) -> ! {
    // SAFETY: see `start`.
    let ground = unsafe { &*ground };
    // SAFETY: the kernel writes a zero there when this process leaves the memory, and the ground is kept
    // until then.
    let _ = unsafe { bare::call(libc::SYS_set_tid_address, [ground.inside.as_ptr() as usize, 0, 0, 0]) };
    let (step, errno) = ground.become_program();
    ground.note(step, errno);
    bare::exit(255)
}

impl Ground {
    /// Returns only if something fails.
    #[expect(unsafe_code, reason = "the guest's files are known by their numbers here")]
    fn become_program(&self) -> (Step, Errno) {
        // SAFETY: this process has a copy of the guest's files as they were when it was started.
        let [stdin, stdout, stderr] = self.stdio.map(|file| unsafe { BorrowedFd::borrow_raw(file) });
        let files = || {
            rustix::stdio::dup2_stdin(stdin)?;
            rustix::stdio::dup2_stdout(stdout)?;
            rustix::stdio::dup2_stderr(stderr)?;
            // The guest opens all its files so that no command gets them, but it may itself have been given
            // some. A kernel that can't mark a range leaves them as they are.
            // SAFETY: no file is closed before the program takes over.
            let _ = unsafe { bare::close_from(3, libc::CLOSE_RANGE_CLOEXEC) };
            let mut inherited = self.program.inherited.iter();
            inherited.try_for_each(|file| rustix::io::fcntl_setfd(file, FdFlags::empty()))?;
            open_files::lower()
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

    /// Tries each place where the program may be.
    #[expect(unsafe_code, reason = "no safe way to start a program without libc exists")]
    fn execute(&self) -> Errno {
        Mask::NONE.set();
        let mut why = Errno::NOENT;
        for path in &self.program.paths {
            let (arguments, env) = (self.arguments.as_ptr() as usize, self.env.as_ptr() as usize);
            // SAFETY: all are strings that end with a NUL, in lists that end with a null.
            match unsafe { bare::call(libc::SYS_execve, [path.as_ptr() as usize, arguments, env, 0]) } {
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
        Streams { stdin: streams::nothing().unwrap(), stdout, stderr, terminal: false }
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
    async fn the_first_of_several_places_that_has_the_program_is_used() {
        let echo = program(&["/no/such/echo", "/etc/passwd/echo", "/bin/echo"], &["echo", "hello"]);
        assert_eq!(run(echo).await.unwrap(), (0, "hello\n".to_owned()));
    }

    #[tokio::test]
    async fn a_program_that_may_not_be_executed_is_told_from_one_that_is_missing() {
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
    async fn signals_do_in_a_command_what_they_do_by_default() {
        // SIGPIPE is ignored in every Rust program, and a runtime that waits for children handles SIGCHLD.
        let _handled = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::child()).unwrap();
        let (_, status) = run(program(&["/bin/cat"], &["cat", "/proc/self/status"])).await.unwrap();
        let sets = ["SigBlk", "SigIgn", "SigCgt"].map(|name| format!("{name}:\t{:016x}\n", 0));
        assert!(sets.iter().all(|set| status.contains(set)), "{status}");
    }

    #[test]
    fn the_guests_memory_is_left_by_a_program_that_took_over_and_by_one_that_could_not() {
        for path in ["/bin/true", "/no/such/program"] {
            let (_reader, writer) = io::pipe().unwrap();
            let (pid, ground) = start(program(&[path], &["x"]), streams(&writer)).unwrap();
            rustix::process::waitpid(Some(pid), WaitOptions::from_bits_retain(EVERY_CHILD)).unwrap();
            assert!(ground.is_left(), "{path}");
        }
    }
}
