//! The guest pushed through exec into a container that runs something else: for Pods that others made, and where the
//! namespace takes no `ConfigMaps`. The image needs `sh`, `mkdir`, `head`, `chmod` and `mv` for it.

use sandpod_kube::exec::{self, PodRef};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

use super::Raw;
use super::guest::BOOT;
use crate::config::CONTAINER;
use crate::{Error, ErrorKind, Result};

/// Waits in place of `sleep infinity`, until the guest's time is up: the first process of a container can't be ended from
/// inside unless it listens.
pub(super) const WAIT: [&str; 3] = ["sh", "-c", "trap 'exit 0' TERM; sleep infinity & wait"];
/// Where it lies: the guest's own volume, which everybody in the Pod can write to.
const DIR: &str = "/run/sandpod/bin";
/// Takes one file of a known length, for not every cluster can tell a command that its input has ended.
const RECEIVE: &str = "umask 077 && mkdir -p \"$1\" && head -c \"$3\" > \"$1/$2.$$\" && \
                       chmod 700 \"$1/$2.$$\" && mv \"$1/$2.$$\" \"$1/$2\"";
/// How long a file may take on its way.
const LIMIT: std::time::Duration = std::time::Duration::from_secs(60);

/// Sees to it that the guest runs in this Pod, and says where it lies.
pub(super) async fn start(raw: &Raw, pod: &PodRef) -> Result<&'static str> {
    let boot = || vec![format!("{DIR}/{BOOT}"), "start".to_owned(), "--ends-container".to_owned()];
    if send(raw, pod, boot(), &[]).await.is_ok() {
        return Ok(DIR);
    }
    for (name, content) in raw.guest().await?.files() {
        let size = content.len().to_string();
        let command = ["sh", "-c", RECEIVE, "sandpod", DIR, name, &size].map(str::to_owned);
        send(raw, pod, command.into(), content).await.map_err(|why| unplaced(pod, &why))?;
    }
    send(raw, pod, boot(), &[]).await.map_err(|why| unplaced(pod, &why))?;
    Ok(DIR)
}

/// Runs a command to its end with this input; what it says if it fails.
async fn send(raw: &Raw, pod: &PodRef, command: Vec<String>, input: &[u8]) -> Result<(), String> {
    let running = async {
        let mut stream =
            exec::stream(&raw.0.client, pod, CONTAINER, command).await.map_err(|error| error.to_string())?;
        let told = async {
            stream.write_all(input).await?;
            stream.flush().await?;
            stream.read_to_end(&mut Vec::new()).await
        };
        told.await.map(drop).map_err(|error| error.to_string())
    };
    timeout(LIMIT, running).await.unwrap_or_else(|_| Err(format!("it took longer than {}s", LIMIT.as_secs())))
}

fn unplaced(pod: &PodRef, why: &str) -> Error {
    Error::new(
        ErrorKind::StartFailed,
        format!("The guest can't be pushed into Pod '{}': {why}.", pod.name),
        "Use an image with sh, mkdir, head, chmod and mv, or allow ConfigMaps, or set guest_image.",
    )
}
