//! The guest pushed through exec into a container that runs something else: for Pods that others made, and where the
//! namespace takes no `ConfigMaps`. The image needs `sh`, `mkdir`, `head`, `chmod` and `mv` for it.

use sandpod_kube::exec::{self, PodRef};
use sandpod_kube::kube::Client;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

use super::guest::{BOOT, GuestMaps};
use crate::{Error, ErrorKind, Result};

/// Says which of these directories is the first that takes a program and lets it run.
const PREPARE: &str = "umask 077; for dir do mkdir -p \"$dir\" && echo '#!/bin/sh' > \"$dir/new.$$\" && \
                       chmod 700 \"$dir/new.$$\" && \"$dir/new.$$\" && rm \"$dir/new.$$\" && echo \"$dir\" && exit; \
                       done; exit 1";
/// Takes one file of a known length, for not every cluster can tell a command that its input has ended.
const RECEIVE: &str = "umask 077 && head -c \"$3\" > \"$1/$2.$$\" && \
                       chmod 700 \"$1/$2.$$\" && mv \"$1/$2.$$\" \"$1/$2\"";
/// The most that is heard of a script.
const MAX_SAID: u64 = 4096;
/// How long a file may take on its way.
const LIMIT: std::time::Duration = std::time::Duration::from_secs(60);

/// A container that the guest is pushed into.
pub(in crate::backend) struct PushTarget<'a> {
    pub(in crate::backend) client: &'a Client,
    pub(in crate::backend) pod: &'a PodRef,
    pub(in crate::backend) container: &'a str,
    /// Where it may lie: the first of these that takes it, and that programs can be run from.
    pub(in crate::backend) dirs: &'a [&'static str],
    /// What runs in it only waits for the guest to end.
    pub(in crate::backend) is_ours: bool,
}

impl PushTarget<'_> {
    /// Where the guest lies that runs in this container already, or that was pushed before and runs now.
    pub(in crate::backend) async fn started(&self) -> Option<&'static str> {
        self.choose(&self.starting()).await.ok()
    }

    /// Pushes the guest, starts it beside what runs there, and says where it lies.
    pub(in crate::backend) async fn push(&self, guest: &GuestMaps) -> Result<&'static str> {
        let pushing = async {
            // A command that ends before it has taken its input is noticed late, so all that it needs is there before.
            let dir = self.choose(PREPARE).await?;
            for (name, content) in guest.files() {
                let size = content.len().to_string();
                self.run(RECEIVE, &[dir, name, &size], content).await?;
            }
            self.choose(&self.starting()).await
        };
        pushing.await.map_err(|why| unplaced(self.pod, &why))
    }

    /// Starts the guest that lies in one of the directories, and says in which. Its state is beside it unless the Pod
    /// says where.
    fn starting(&self) -> String {
        let ends = if self.is_ours { "--ends-container" } else { "" };
        format!(
            "for dir do [ -x \"$dir/{BOOT}\" ] || continue; \
             SANDPOD_STATE_DIR=\"${{SANDPOD_STATE_DIR:-${{dir%/*}}/state}}\" \"$dir/{BOOT}\" start {ends} || exit; \
             echo \"$dir\"; exit; done; exit 1"
        )
    }

    /// The directory that a script names.
    async fn choose(&self, script: &str) -> Result<&'static str, String> {
        let said = self.run(script, self.dirs, &[]).await?;
        let named = self.dirs.iter().find(|dir| dir.as_bytes() == said.trim_ascii());
        named.copied().ok_or_else(|| format!("it said {:?}", String::from_utf8_lossy(&said)))
    }

    /// Runs a script to its end with this input: what it prints, or says if it fails.
    pub(in crate::backend) async fn run(
        &self,
        script: &str,
        arguments: &[&str],
        input: &[u8],
    ) -> Result<Vec<u8>, String> {
        let words = ["sh", "-c", script, "sandpod"].into_iter().chain(arguments.iter().copied());
        let words: Vec<_> = words.map(str::to_owned).collect();
        let running = async {
            let mut stream = exec::stream(self.client, self.pod, self.container, words)
                .await
                .map_err(|error| error.to_string())?;
            let told = async {
                stream.write_all(input).await?;
                stream.flush().await?;
                let mut said = Vec::new();
                stream.take(MAX_SAID).read_to_end(&mut said).await?;
                Ok::<_, std::io::Error>(said)
            };
            told.await.map_err(|error| error.to_string())
        };
        let slow = || Err(format!("it took longer than {}s", LIMIT.as_secs()));
        timeout(LIMIT, running).await.unwrap_or_else(|_| slow())
    }
}

fn unplaced(pod: &PodRef, why: &str) -> Error {
    Error::new(
        ErrorKind::StartFailed,
        format!("The guest can't be pushed into Pod '{}': {why}.", pod.name),
        "Use an image with sh, mkdir, head, chmod and mv, or allow ConfigMaps, or set guest_image.",
    )
}
