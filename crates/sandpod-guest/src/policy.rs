//! What binds commands.
//!
//! [`Rules`] are a policy that was checked, and [`Kernel`] is what this kernel can hold a command to,
//! as a [`Probe`] finds out.
//! From both comes a [`Restriction`], which a process enters before it becomes the command; neither it nor
//! what it starts ever gets out. Files are held by Landlock ([`landlock`]), sockets by a seccomp filter
//! ([`sockets`]) and TCP ports by both.
//!
//! A command's own policy only narrows what the sandbox is bound to. That is checked for the sake of a clear
//! answer; what holds is that the kernel stacks restrictions, so that the command is in both.

mod kernel;
mod landlock;
mod restriction;
mod rules;
mod sockets;

pub(crate) use kernel::{Kernel, Probe};
pub(crate) use landlock::enter_domain;
pub(crate) use restriction::Restriction;
pub(crate) use rules::{Rules, paths, real_path, resolve};
