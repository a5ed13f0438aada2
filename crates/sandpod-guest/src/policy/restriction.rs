//! What a process enters before it becomes a command.

use std::io;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use seccompiler::BpfProgram;

use super::kernel::Kernel;
use super::rules::{Network, Rules};
use super::{landlock, sockets};
use crate::seccomp;

/// Everything that holds one command, made ready so that entering it takes system calls only.
#[derive(Debug, Default)]
pub(crate) struct Restriction(Vec<Layer>);

/// What holds because of one policy. The kernel adds each to those before.
#[derive(Debug)]
struct Layer {
    ruleset: Option<OwnedFd>,
    filter: Option<BpfProgram>,
}

impl Restriction {
    /// All rules together, as far as the kernel can hold them.
    pub(crate) fn new(kernel: Kernel, rules: &[&Rules]) -> io::Result<Self> {
        rules.iter().map(|rules| Layer::new(kernel, rules)).collect::<io::Result<_>>().map(Self)
    }

    /// Whether there is a policy at all.
    pub(crate) fn is_any(&self) -> bool {
        !self.0.is_empty()
    }

    /// Holds the calling thread, and all that it starts, for good. It is meant for the time between fork and
    /// exec: it makes system calls and nothing else.
    pub(crate) fn enter(&self) -> Result<(), Errno> {
        for layer in &self.0 {
            layer.enter()?;
        }
        Ok(())
    }
}

impl Layer {
    fn new(kernel: Kernel, rules: &Rules) -> io::Result<Self> {
        let filter = match &rules.network {
            Some(network @ (Network::None | Network::Ports { .. })) if kernel.seccomp => {
                Some(sockets::filter(network)?)
            }
            _ => None,
        };
        Ok(Self { ruleset: landlock::ruleset(kernel.landlock, rules)?, filter })
    }

    fn enter(&self) -> Result<(), Errno> {
        if let Some(ruleset) = &self.ruleset {
            // Without it only root may restrict itself: programs that change the user would escape.
            rustix::thread::set_no_new_privs(true)?;
            landlock::restrict_self(ruleset)?;
        }
        match &self.filter {
            Some(filter) => seccomp::apply(filter),
            None => Ok(()),
        }
    }
}
