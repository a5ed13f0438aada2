//! Restrictions of commands.
//!
//! [`Rules`] are a validated policy, and [`Kernel`] lists the restrictions that this kernel can enforce, as a [`Probe`]
//! found out. Both together give a [`Restriction`], which a process enters before it executes the command; neither it
//! nor its descendants can leave it. Landlock restricts files ([`landlock`]), a seccomp filter restricts sockets
//! ([`sockets`]), and both together restrict TCP ports.
//!
//! A command's own policy can only narrow that of the sandbox. The check exists for a clear error; the guarantee
//! comes from the kernel, which stacks restrictions so that a command is in both.

mod kernel;
mod landlock;
mod restriction;
mod rules;
mod sockets;

pub(crate) use kernel::{Kernel, Probe};
pub(crate) use landlock::enter_domain;
pub(crate) use restriction::Restriction;
pub(crate) use rules::{Rules, paths, real_path, resolve};
