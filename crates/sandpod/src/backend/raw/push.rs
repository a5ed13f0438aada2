//! The guest pushed through exec into a container that runs something else: for Pods that others made, and where the
//! namespace takes no `ConfigMaps`. The image needs `sh`, `mkdir`, `head`, `chmod` and `mv` for it.

use sandpod_kube::exec::{self, PodRef};
use sandpod_kube::kube::Client;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

use super::Raw;
use super::guest::{BOOT, GuestMaps};
use crate::config::CONTAINER;
use crate::{Error, ErrorKind, Result};

/// Where it lies in a Pod of ours: the guest's own volume, which everybody in the Pod can write to.
const DIR: &str = "/run/sandpod/bin";
/// Makes the directory, and finds out whether it can be written to.
const PREPARE: &str = "umask 077 && mkdir -p \"$1\" && : > \"$1/new.$$\" && rm \"$1/new.$$\"";
/// Takes one file of a known length, for not every cluster can tell a command that its input has ended.
const RECEIVE: &str = "umask 077 && head -c \"$3\" > \"$1/$2.$$\" && \
                       chmod 700 \"$1/$2.$$\" && mv \"$1/$2.$$\" \"$1/$2\"";
/// Starts the guest. Its state is beside it unless the Pod says where.
const START: &str = "SANDPOD_STATE_DIR=\"${SANDPOD_STATE_DIR:-${1%/*}/state}\" exec \"$1/$2\" start";
/// How long a file may take on its way.
const LIMIT: std::time::Duration = std::time::Duration::from_secs(60);

/// Sees to it that the guest runs in this Pod of ours, and says where it lies.
pub(super) async fn start(raw: &Raw, pod: &PodRef) -> Result<&'static str> {
    let target = Target { client: &raw.0.client, pod, container: CONTAINER, dirs: &[DIR] };
    match target.started().await {
        Some(dir) => Ok(dir),
        None => target.push(raw.guest().await?).await,
    }
}

/// A container that the guest is pushed into.
pub(in crate::backend) struct Target<'a> {
    pub(in crate::backend) client: &'a Client,
    pub(in crate::backend) pod: &'a PodRef,
    pub(in crate::backend) container: &'a str,
    /// Where it may lie: the first of these that takes it, and that programs can be run from.
    pub(in crate::backend) dirs: &'a [&'static str],
}

impl Target<'_> {
    /// Where the guest lies that runs in this container already, or that was pushed before and runs now.
    pub(in crate::backend) async fn started(&self) -> Option<&'static str> {
        for dir in self.dirs {
            if self.run(boot(dir), &[]).await.is_ok() {
                return Some(dir);
            }
        }
        None
    }

    /// Pushes the guest, starts it beside what runs there, and says where it lies.
    pub(in crate::backend) async fn push(&self, guest: &GuestMaps) -> Result<&'static str> {
        let mut said = Vec::new();
        for dir in self.dirs {
            match self.push_into(dir, guest).await {
                Ok(()) => return Ok(dir),
                Err(why) => said.push(format!("{dir}: {why}")),
            }
        }
        Err(unplaced(self.pod, &said.join("; ")))
    }

    async fn push_into(&self, dir: &str, guest: &GuestMaps) -> Result<(), String> {
        // A command that ends before it has taken its input is noticed late, so what it needs is there before.
        let prepare = ["sh", "-c", PREPARE, "sandpod", dir].map(str::to_owned);
        self.run(prepare.into(), &[]).await?;
        for (name, content) in guest.files() {
            let size = content.len().to_string();
            let command = ["sh", "-c", RECEIVE, "sandpod", dir, name, &size].map(str::to_owned);
            self.run(command.into(), content).await?;
        }
        self.run(boot(dir), &[]).await
    }

    /// Runs a command to its end with this input; what it says if it fails.
    async fn run(&self, command: Vec<String>, input: &[u8]) -> Result<(), String> {
        let running = async {
            let mut stream = exec::stream(self.client, self.pod, self.container, command)
                .await
                .map_err(|error| error.to_string())?;
            let told = async {
                stream.write_all(input).await?;
                stream.flush().await?;
                stream.read_to_end(&mut Vec::new()).await
            };
            told.await.map(drop).map_err(|error| error.to_string())
        };
        let slow = || Err(format!("it took longer than {}s", LIMIT.as_secs()));
        timeout(LIMIT, running).await.unwrap_or_else(|_| slow())
    }
}

fn boot(dir: &str) -> Vec<String> {
    ["sh", "-c", START, "sandpod", dir, BOOT].map(str::to_owned).to_vec()
}

fn unplaced(pod: &PodRef, why: &str) -> Error {
    Error::new(
        ErrorKind::StartFailed,
        format!("The guest can't be pushed into Pod '{}': {why}.", pod.name),
        "Use an image with sh, mkdir, head, chmod and mv, or allow ConfigMaps, or set guest_image.",
    )
}
