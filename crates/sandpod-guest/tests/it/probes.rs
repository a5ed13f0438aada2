//! Network attempts of commands. The test program itself is the command, so it needs no program of the machine and makes
//! each system call exactly as intended.

use std::io::{self, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::net::{UnixDatagram, UnixStream};

use rustix::net::{AddressFamily, Protocol, SendAncillaryBuffer, SendFlags, SocketType};
use sandpod_protocol::v1::{Command, Policy};

use crate::harness::{Client, argv};

/// Variable with the attempt for the test program, as `WHAT ADDRESS`.
const VARIABLE: &str = "PROBE";
const MARK: &str = "probe: ";

/// Runs an attempt as a command, and returns `ok` or the kernel's error.
pub(crate) async fn try_it(client: &Client, what: &str, to: SocketAddr, policy: Option<&Policy>) -> String {
    let program = std::env::current_exe().unwrap();
    let words = [program.to_str().unwrap(), "--exact", "probes::the_command", "--nocapture"];
    let env = [(VARIABLE.to_owned(), format!("{what} {to}"))].into();
    let answer = client.execute(Command { env, policy: policy.cloned(), ..argv(&words) }).await.unwrap();
    let output = String::from_utf8(answer.output.to_vec()).unwrap();
    let said = output.lines().find_map(|line| line.split(MARK).nth(1));
    said.map_or_else(|| format!("exit {}: {output}", answer.exit_code), str::to_owned)
}

/// Does something only in the program that [`try_it`] starts.
#[test]
#[expect(clippy::print_stdout, reason = "the test that started this program reads it")]
fn the_command() {
    let Ok(variable) = std::env::var(VARIABLE) else { return };
    let (what, to) = variable.rsplit_once(' ').unwrap();
    let said = match attempt(what, to.parse().unwrap()) {
        Ok(()) => "ok".to_owned(),
        Err(error) => match error.raw_os_error() {
            Some(libc::EPERM) => "EPERM".to_owned(),
            Some(libc::EACCES) => "EACCES".to_owned(),
            _ => error.to_string(),
        },
    };
    println!("\n{MARK}{said}");
}

fn attempt(what: &str, to: SocketAddr) -> io::Result<()> {
    match what {
        "tcp" => TcpStream::connect(to).map(drop),
        "listen" => TcpListener::bind(to).map(drop),
        "udp" => UdpSocket::bind("127.0.0.1:0")?.send_to(b"x", to).map(drop),
        "mptcp" => {
            Ok(rustix::net::connect(&socket(libc::AF_INET, libc::SOCK_STREAM, libc::IPPROTO_MPTCP)?, &to)?)
        }
        "fast open by sendto" => Ok(rustix::net::sendto(&plain_tcp()?, b"x", fast_open(), &to).map(drop)?),
        "fast open by sendmsg" => {
            let (data, mut control) = ([io::IoSlice::new(b"x")], SendAncillaryBuffer::default());
            Ok(rustix::net::sendmsg_addr(&plain_tcp()?, &to, &data, &mut control, fast_open()).map(drop)?)
        }
        "fast open by sendmmsg" => sendmmsg(&plain_tcp()?, to),
        "fast open by option" => fast_open_option(to),
        "vsock" => socket(libc::AF_VSOCK, libc::SOCK_STREAM, 0).map(drop),
        "raw" => socket(libc::AF_INET, libc::SOCK_RAW, libc::IPPROTO_ICMP).map(drop),
        "packet" => socket(libc::AF_PACKET, libc::SOCK_DGRAM, 0).map(drop),
        "netlink" => socket(libc::AF_NETLINK, libc::SOCK_RAW, 0).map(drop),
        "sctp by flags" => socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 132).map(drop),
        "io_uring" => io_uring(),
        "unix" => {
            UnixStream::pair()?.0.write_all(b"x")?;
            UnixDatagram::unbound().map(drop)
        }
        "nonblocking tcp" => {
            socket(libc::AF_INET6, libc::SOCK_STREAM | libc::SOCK_NONBLOCK, libc::IPPROTO_TCP).map(drop)
        }
        #[cfg(target_arch = "x86_64")]
        "x32" => x32_socket(),
        #[cfg(target_arch = "x86_64")]
        "i386" => i386_getpid(),
        _ => Err(io::Error::other("there is no such probe")),
    }
}

fn socket(family: i32, kind: i32, protocol: i32) -> io::Result<OwnedFd> {
    let family = AddressFamily::from_raw(family.try_into().unwrap());
    let protocol = u32::try_from(protocol).unwrap();
    let protocol = std::num::NonZeroU32::new(protocol).map(Protocol::from_raw);
    Ok(rustix::net::socket(family, SocketType::from_raw(kind.unsigned_abs()), protocol)?)
}

fn plain_tcp() -> io::Result<OwnedFd> {
    socket(libc::AF_INET, libc::SOCK_STREAM, 0)
}

fn fast_open() -> SendFlags {
    SendFlags::from_bits_retain(libc::MSG_FASTOPEN.unsigned_abs())
}

fn result(returned: i64) -> io::Result<()> {
    if returned < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[expect(unsafe_code, reason = "the option has no safe interface")]
fn fast_open_option(to: SocketAddr) -> io::Result<()> {
    let (socket, on) = (plain_tcp()?, 1_i32);
    let (level, option) = (libc::IPPROTO_TCP, libc::TCP_FASTOPEN_CONNECT);
    // SAFETY: the value is an int, as the option requires.
    let set = unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const on).cast(), 4) };
    result(set.into())?;
    rustix::net::connect(&socket, &to)?;
    Ok(rustix::net::send(&socket, b"x", SendFlags::empty()).map(drop)?)
}

#[expect(unsafe_code, reason = "the call has no safe interface")]
fn sendmmsg(socket: &OwnedFd, to: SocketAddr) -> io::Result<()> {
    let SocketAddr::V4(to) = to else { return Err(io::Error::other("not an IPv4 address")) };
    let address = libc::sockaddr_in {
        sin_family: libc::AF_INET.try_into().unwrap(),
        sin_port: to.port().to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(to.ip().octets()) },
        sin_zero: [0; 8],
    };
    let mut data = libc::iovec { iov_base: (&raw const *b"x").cast_mut().cast(), iov_len: 1 };
    // SAFETY: a zeroed message is an empty one, and all that it points to lives until the call returns.
    let sent = unsafe {
        let mut message: libc::mmsghdr = std::mem::zeroed();
        message.msg_hdr.msg_name = (&raw const address).cast_mut().cast();
        message.msg_hdr.msg_namelen = size_of::<libc::sockaddr_in>().try_into().unwrap();
        message.msg_hdr.msg_iov = &raw mut data;
        message.msg_hdr.msg_iovlen = 1;
        libc::syscall(libc::SYS_sendmmsg, socket.as_raw_fd(), &raw mut message, 1, libc::MSG_FASTOPEN)
    };
    result(sent)
}

#[expect(unsafe_code, reason = "the call has no safe interface")]
fn io_uring() -> io::Result<()> {
    let mut parameters = [0_u64; 15];
    // SAFETY: the kernel fills in 120 bytes.
    result(unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, parameters.as_mut_ptr()) })
}

#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "the call has no safe interface")]
fn x32_socket() -> io::Result<()> {
    const X32: libc::c_long = 0x4000_0000;
    // SAFETY: the call takes no memory.
    result(unsafe { libc::syscall(X32 | libc::SYS_socket, libc::AF_INET, libc::SOCK_STREAM, 0) })
}

#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "no library makes system calls of another architecture")]
fn i386_getpid() -> io::Result<()> {
    const GETPID: i32 = 20;
    let mut returned = GETPID;
    // SAFETY: the call takes no memory and changes no register but those that are named.
    unsafe {
        std::arch::asm!("int 0x80", inout("eax") returned, out("r8") _, out("r9") _, out("r10") _, out("r11") _);
    }
    let me = rustix::process::getpid().as_raw_nonzero().get();
    if returned == me { Ok(()) } else { Err(io::Error::from_raw_os_error(-returned)) }
}

/// Returns whether the kernel has a Landlock version for files, without asking the guest.
#[expect(unsafe_code, reason = "the call has no safe interface")]
pub(crate) fn kernel_has_landlock() -> bool {
    let no_rules = std::ptr::null::<libc::c_void>();
    // SAFETY: with this flag the kernel reads no memory.
    (unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, no_rules, 0_usize, 1_u32) }) >= 3
}

/// Returns whether guests of these tests have Landlock, unless `SANDPOD_DISABLED_KERNEL_FEATURES` disables it.
pub(crate) fn has_landlock() -> bool {
    let is_forbidden =
        std::env::var("SANDPOD_DISABLED_KERNEL_FEATURES").is_ok_and(|without| without.contains("landlock"));
    !is_forbidden && kernel_has_landlock()
}
