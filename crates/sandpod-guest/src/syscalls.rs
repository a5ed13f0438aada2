//! System calls without libc, for processes that share the guest's memory. They have no thread-local storage of their
//! own: libc would store `errno` in that of one of the guest's threads.
#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    reason = "arguments and results of system calls are register words"
)]

use std::arch::asm;

use rustix::io::Errno;

/// Makes a system call.
///
/// # Safety
/// As the system call itself.
#[expect(unsafe_code, reason = "a system call by its number has no safe interface")]
pub(crate) unsafe fn call(number: libc::c_long, arguments: [usize; 4]) -> Result<usize, Errno> {
    let [a, b, c, d] = arguments;
    let result: isize;
    // SAFETY: the kernel changes only the named registers, and memory as the call specifies.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d,
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    // SAFETY: as above.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        asm!(
            "svc #0",
            in("x8") number,
            inlateout("x0") a => result,
            in("x1") b, in("x2") c, in("x3") d,
            options(nostack),
        );
    }
    checked(result)
}

/// Starts a process that shares this one's memory, at `entry` on a stack that ends at `top`, and returns its number.
/// The low bits of `flags` are the signal that the kernel sends when it ends.
///
/// # Safety
/// The stack and everything that `entry` reads through `argument` must outlive the new process, and nothing else
/// may use the stack. `top` must be aligned to 16 bytes.
#[expect(unsafe_code, reason = "no safe way to start a process in the same memory exists")]
pub(crate) unsafe fn clone<T>(
    flags: libc::c_int,
    top: *mut u8,
    entry: extern "C" fn(*const T) -> !,
    argument: *const T,
) -> Result<i32, Errno> {
    let flags = (flags | libc::CLONE_VM) as usize;
    let result: isize;
    // SAFETY: the caller guarantees the stack. The new process leaves this code through the call and does not
    // return, so the registers of this process are as the kernel left them.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, r9",
            "call r8",
            "ud2",
            "2:",
            inlateout("rax") libc::SYS_clone as isize => result,
            in("rdi") flags, in("rsi") top, in("rdx") 0, in("r10") 0,
            in("r8") entry, in("r9") argument,
            lateout("rcx") _, lateout("r11") _,
        );
    }
    // SAFETY: as above.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        asm!(
            "svc #0",
            "cbnz x0, 2f",
            "mov x29, xzr",
            "mov x0, x6",
            "blr x5",
            "brk #1",
            "2:",
            in("x8") libc::SYS_clone,
            inlateout("x0") flags => result,
            in("x1") top, in("x2") 0, in("x3") 0, in("x4") 0,
            in("x5") entry, in("x6") argument,
            lateout("x30") _,
        );
    }
    checked(result).map(|pid| pid as i32)
}

fn checked(result: isize) -> Result<usize, Errno> {
    match result {
        -4095..0 => Err(Errno::from_raw_os_error(-result as i32)),
        _ => Ok(result as usize),
    }
}

/// A set of blocked signals.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Mask(u64);

impl Mask {
    pub(crate) const ALL: Self = Self(u64::MAX);
    pub(crate) const NONE: Self = Self(0);

    /// A set of one signal.
    pub(crate) const fn of(signal: libc::c_int) -> Self {
        Self(1 << (signal - 1))
    }

    /// Sets the calling thread's mask and returns the previous one.
    #[expect(unsafe_code, reason = "signal masks have no safe interface")]
    pub(crate) fn set(self) -> Self {
        let mut before = Self::NONE;
        let (new, old) = (&raw const self as usize, &raw mut before as usize);
        // SAFETY: both are sets of the given size. The call cannot fail with such arguments.
        let _ = unsafe {
            call(libc::SYS_rt_sigprocmask, [libc::SIG_SETMASK as usize, new, old, size_of::<Self>()])
        };
        before
    }
}

/// Resets all signal handlers of this process to their defaults.
#[expect(unsafe_code, reason = "signal handlers have no safe interface")]
pub(crate) fn reset_signals() {
    // The kernel's own struct: handler, flags, on some architectures a restorer, mask. SIG_DFL is 0.
    let default = [0_u64; 4];
    for signal in 1..=64 {
        let new = default.as_ptr() as usize;
        // SAFETY: the kernel reads a struct of at most four words. Handlers belong to this process; the call fails
        // for SIGKILL and SIGSTOP, which cannot be changed.
        let _ = unsafe { call(libc::SYS_rt_sigaction, [signal, new, 0, size_of::<Mask>()]) };
    }
}

/// Closes all descriptors from `first` on, or marks them close-on-exec (`libc::CLOSE_RANGE_CLOEXEC`).
///
/// # Safety
/// This process must not use any of them again.
#[expect(unsafe_code, reason = "closes descriptors that other code owns")]
pub(crate) unsafe fn close_from(first: libc::c_uint, flags: libc::c_uint) -> Result<(), Errno> {
    let arguments = [first as usize, libc::c_uint::MAX as usize, flags as usize, 0];
    // SAFETY: as the caller guarantees.
    unsafe { call(libc::SYS_close_range, arguments) }.map(drop)
}

/// Ends the process at once.
#[expect(unsafe_code, reason = "exit handlers must run only in the guest itself")]
pub(crate) fn exit(code: i32) -> ! {
    loop {
        // SAFETY: the call takes no memory and does not return.
        let _ = unsafe { call(libc::SYS_exit_group, [code as usize, 0, 0, 0]) };
    }
}
