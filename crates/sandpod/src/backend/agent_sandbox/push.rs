//! Pushes our guest through exec into a Pod whose template lacks it, beside the program that runs there.
//!
//! [`AgentSandbox::push_guest`] starts it, and [`AgentSandbox::make_directories`] finds where commands can run.

use sandpod_client::DialError;
use sandpod_kube::exec;
use tokio::io::AsyncReadExt as _;
use tokio::sync::OnceCell;

use super::AgentSandbox;
use super::connect::{GuestLocation, not_opened};
use crate::Result;
use crate::backend::Dirs;
use crate::backend::kubernetes::guest::GuestMaps;
use crate::backend::kubernetes::push::PushTarget;
use crate::config::{HOME, WRITABLE_DIRS};

/// Candidates for its directory: a foreign container has no volume for it.
const DIRS: [&str; 4] =
    ["/run/sandpod/bin", "/tmp/.sandpod/bin", "/workspace/.sandpod/bin", "/app/.sandpod/bin"];

/// Makes directories where that is possible, and prints the working directory and the home of commands. The directory
/// in which exec starts a process is the container's own. It is used if the Pod's specification names it (`$1` is
/// `named`), or if it is writable and not the root, where an image without a directory of its own starts. `$2` is the
/// usual home.
const MAKE_DIRECTORIES: &str = r#"
named=$1 usual=$2 own=$(pwd)
shift 2
usable() {
    case $1 in '' | /) return 1 ;; esac
    mkdir -p "$1" 2> /dev/null
    mkdir "$1/.sandpod.$$" 2> /dev/null && rmdir "$1/.sandpod.$$"
}
first() {
    for dir do usable "$dir" && echo "$dir" && return; done
    echo "$own"
}
mkdir -p "$@" 2> /dev/null
if [ "$named" = named ]; then work=$own; else work=$(first "$own" "$@"); fi
printf '%s\n%s\n' "$work" "$(first "$HOME" "$usual" "$work" /tmp)"
"#;
/// The most bytes that are read from `uname`.
const MAX_MACHINE: u64 = 64;

/// The packed guests, by architecture.
#[derive(Default)]
pub(super) struct Guests {
    amd64: OnceCell<GuestMaps>,
    arm64: OnceCell<GuestMaps>,
}

impl AgentSandbox {
    fn target<'a>(&'a self, location: &'a GuestLocation) -> PushTarget<'a> {
        PushTarget {
            client: &self.0.client,
            pod: &location.pod,
            container: &location.container,
            dirs: &DIRS,
            is_ours: false,
        }
    }

    /// Makes the usual directories in a container whose template lacks our guest, as far as its user can, and returns
    /// the directories of commands.
    pub(super) async fn make_directories(&self, location: &GuestLocation) -> Result<Dirs, DialError> {
        let named = if location.names_working_dir { "named" } else { "" };
        let arguments: Vec<_> = [named, HOME].into_iter().chain(WRITABLE_DIRS).collect();
        let said = self
            .target(location)
            .run(MAKE_DIRECTORIES, &arguments, &[])
            .await
            .map_err(DialError::Unreachable)?;
        let said = String::from_utf8_lossy(&said);
        match said.lines().collect::<Vec<_>>()[..] {
            [working_dir, home] if working_dir.starts_with('/') && home.starts_with('/') => {
                Ok(Dirs { working_dir: working_dir.to_owned(), home: Some(home.to_owned()) })
            }
            _ => Err(DialError::Unreachable(format!(
                "its container does not report where commands run: {said:?}"
            ))),
        }
    }

    /// Starts our guest in a container whose template lacks it, unless it runs there. Returns its directory.
    pub(super) async fn push_guest(&self, location: &GuestLocation) -> Result<&'static str, DialError> {
        let target = self.target(location);
        // A missing right to exec shows up here.
        let machine =
            exec::stream(target.client, target.pod, target.container, ["uname", "-m"].map(str::to_owned));
        let machine = machine.await.map_err(|error| not_opened(location, error))?;
        if let Some(dir) = target.started().await {
            return Ok(dir);
        }
        let mut said = Vec::new();
        // Without uname the output is empty; amd64 is assumed then.
        let _ = machine.take(MAX_MACHINE).read_to_end(&mut said).await;
        let pushed = match self.packed_guest(&said).await {
            Ok(guest) => target.push(guest).await,
            Err(error) => Err(error),
        };
        pushed.map_err(|error| DialError::Denied(error.message().to_owned()))
    }

    async fn packed_guest(&self, machine: &[u8]) -> Result<&GuestMaps> {
        let guests = &self.0.guests;
        let (arch, packed) = match machine.trim_ascii() {
            b"aarch64" => ("arm64", &guests.arm64),
            _ => ("amd64", &guests.amd64),
        };
        packed.get_or_try_init(|| GuestMaps::load(arch, self.0.config.package_dir.as_deref())).await
    }
}
