//! The restrictions that a process enters before it executes a command.

use std::io;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use seccompiler::BpfProgram;

use super::kernel::Kernel;
use super::rules::{Network, Rules};
use super::{landlock, sockets};
use crate::seccomp;

/// All restrictions of one command, prepared so that entering them takes system calls only.
#[derive(Debug, Default)]
pub(crate) struct Restriction(Vec<Layer>);

/// The restrictions of one policy. The kernel adds each to the previous ones.
#[derive(Debug)]
struct Layer {
    ruleset: Option<OwnedFd>,
    filter: Option<BpfProgram>,
}

impl Restriction {
    /// Builds the restrictions for all rules, as far as the kernel can enforce them.
    pub(crate) fn new(kernel: Kernel, rules: &[&Rules]) -> io::Result<Self> {
        rules.iter().map(|rules| Layer::new(kernel, rules)).collect::<io::Result<_>>().map(Self)
    }

    /// Returns whether Landlock restricts the command.
    pub(crate) fn has_ruleset(&self) -> bool {
        self.0.iter().any(|layer| layer.ruleset.is_some())
    }

    /// Restricts the calling thread, and all that it starts, permanently. It runs between fork and exec and makes system
    /// calls only.
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
            // Otherwise only root may restrict itself, and set-id programs would escape.
            rustix::thread::set_no_new_privs(true)?;
            landlock::restrict_self(ruleset)?;
        }
        match &self.filter {
            Some(filter) => seccomp::apply(filter),
            None => Ok(()),
        }
    }
}
