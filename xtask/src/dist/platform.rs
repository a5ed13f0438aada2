//! The platforms that a release is built for.

use crate::guest::Arch;

/// A kind of Linux: its architecture and C library.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Platform {
    pub(super) arch: Arch,
    pub(super) libc: Libc,
}

/// A C library that Python and Node are built with.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Libc {
    Gnu,
    Musl,
}

/// The oldest glibc that the libraries run with: that of manylinux2014.
const GLIBC: &str = "2.17";

impl Platform {
    pub(super) const ALL: [Self; 4] = [
        Self { arch: Arch::Amd64, libc: Libc::Gnu },
        Self { arch: Arch::Arm64, libc: Libc::Gnu },
        Self { arch: Arch::Amd64, libc: Libc::Musl },
        Self { arch: Arch::Arm64, libc: Libc::Musl },
    ];

    /// The platform of this program.
    pub(super) fn own() -> Self {
        let libc = if cfg!(target_env = "musl") { Libc::Musl } else { Libc::Gnu };
        Self { arch: Arch::own(), libc }
    }

    /// Its target of Rust.
    pub(super) fn triple(self) -> String {
        let libc = match self.libc {
            Libc::Gnu => "gnu",
            Libc::Musl => "musl",
        };
        format!("{}-unknown-linux-{libc}", self.arch.rust())
    }

    /// Its target of zig, which has the oldest C library that is supported.
    pub(super) fn zig_triple(self) -> String {
        match self.libc {
            Libc::Gnu => format!("{}.{GLIBC}", self.triple()),
            Libc::Musl => self.triple(),
        }
    }

    /// Its tag in the name of a wheel.
    pub(super) fn wheel_tag(self) -> &'static str {
        match self.libc {
            Libc::Gnu => "manylinux2014",
            Libc::Musl => "musllinux_1_2",
        }
    }

    /// The tag that auditwheel prints for a wheel that fits.
    pub(super) fn audited_tag(self) -> String {
        match self.libc {
            Libc::Gnu => format!("manylinux_2_17_{}", self.arch.rust()),
            Libc::Musl => format!("musllinux_1_2_{}", self.arch.rust()),
        }
    }

    /// Its name in npm.
    pub(super) fn npm(self) -> String {
        let libc = match self.libc {
            Libc::Gnu => "gnu",
            Libc::Musl => "musl",
        };
        format!("linux-{}-{libc}", self.arch.node())
    }

    /// The name of its C library in npm.
    pub(super) fn npm_libc(self) -> &'static str {
        match self.libc {
            Libc::Gnu => "glibc",
            Libc::Musl => "musl",
        }
    }
}
