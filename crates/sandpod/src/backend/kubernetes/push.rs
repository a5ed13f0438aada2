//! Pushes the guest through exec into a container that runs another program. The image needs `sh`, `mkdir`, `head`,
//! `chmod` and `mv`.

use sandpod_kube::exec::{self, PodRef};
use sandpod_kube::kube::Client;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

use super::guest::{BOOT, GuestMaps};
use crate::{Error, ErrorKind, Result};

/// Prints the first of these directories that is writable and that programs can be run from.
const PREPARE: &str = "umask 077; for dir do mkdir -p \"$dir\" && echo '#!/bin/sh' > \"$dir/new.$$\" && \
                       chmod 700 \"$dir/new.$$\" && \"$dir/new.$$\" && rm \"$dir/new.$$\" && echo \"$dir\" && exit; \
                       done; exit 1";
/// Receives one file of a known length: not every cluster can signal the end of a command's input.
const RECEIVE: &str = "umask 077 && head -c \"$3\" > \"$1/$2.$$\" && \
                       chmod 700 \"$1/$2.$$\" && mv \"$1/$2.$$\" \"$1/$2\"";
/// The most output that is read from a script.
const MAX_SAID: u64 = 4096;
/// How long one script may take.
const LIMIT: std::time::Duration = std::time::Duration::from_secs(60);

/// A container that the guest is pushed into.
pub(in crate::backend) struct PushTarget<'a> {
    pub(in crate::backend) client: &'a Client,
    pub(in crate::backend) pod: &'a PodRef,
    pub(in crate::backend) container: &'a str,
    /// Candidates for the guest's directory, the best first.
    pub(in crate::backend) dirs: &'a [&'static str],
    /// Whether the container is ours: it then ends when the guest exits.
    pub(in crate::backend) is_ours: bool,
}

impl PushTarget<'_> {
    /// Starts the guest if it was pushed before, unless it runs, and returns its directory. None if it was not pushed.
    pub(in crate::backend) async fn started(&self) -> Option<&'static str> {
        self.choose(&self.starting()).await.ok()
    }

    /// Pushes the guest, starts it and returns its directory.
    pub(in crate::backend) async fn push(&self, guest: &GuestMaps) -> Result<&'static str> {
        let pushing = async {
            // The end of a command that has not read its input is noticed late, so its preconditions are checked first.
            let dir = self.choose(PREPARE).await?;
            for (name, content) in guest.files() {
                let size = content.len().to_string();
                self.run(RECEIVE, &[dir, name, &size], content).await?;
            }
            self.choose(&self.starting()).await
        };
        pushing.await.map_err(|why| unplaced(self.pod, &why))
    }

    /// Returns the script that starts a pushed guest and prints its directory. The state directory is beside it unless
    /// the Pod sets one.
    fn starting(&self) -> String {
        let ends = if self.is_ours { "--ends-container" } else { "" };
        format!(
            "for dir do [ -x \"$dir/{BOOT}\" ] || continue; \
             SANDPOD_STATE_DIR=\"${{SANDPOD_STATE_DIR:-${{dir%/*}}/state}}\" \"$dir/{BOOT}\" start {ends} || exit; \
             echo \"$dir\"; exit; done; exit 1"
        )
    }

    /// Runs a script and returns the directory that it prints.
    async fn choose(&self, script: &str) -> Result<&'static str, String> {
        let said = self.run(script, self.dirs, &[]).await?;
        let named = self.dirs.iter().find(|dir| dir.as_bytes() == said.trim_ascii());
        named.copied().ok_or_else(|| format!("it printed {:?}", String::from_utf8_lossy(&said)))
    }

    /// Runs a script with this input and returns its output.
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
