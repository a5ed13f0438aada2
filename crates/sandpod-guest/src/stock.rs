//! agent-sandbox's own runtime APIs, so that its clients find what they know: the HTTP API of its first
//! runtime ([`legacy`]), and the gRPC ([`grpc`]) and REST ([`rest`]) APIs of sandboxd.
//!
//! They are other words for the same services: [`calls`] is what they ask of them, [`root`] the directory
//! that they confine paths to. Neither API knows who calls: whoever reaches the port is let in, so they
//! are there only where they are asked for.

mod body;
mod calls;
mod grpc;
mod legacy;
mod listing;
mod multipart;
pub(crate) mod refusal;
mod rest;
mod root;
pub(crate) mod server;
mod words;

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use crate::Guest;
use crate::network::Listener;

use calls::Calls;
use root::Root;

/// How long a command of the first runtime's API may run, unless it is told otherwise.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(300);

/// What the APIs are made with.
#[derive(Clone, Debug)]
pub struct Stock {
    /// Where they listen.
    pub addresses: Addresses,
    /// Where the first runtime's commands start, and where its files are.
    pub base_dir: PathBuf,
    /// The same for sandboxd.
    pub root_dir: PathBuf,
    /// How long a command of the first runtime may run if its caller does not say.
    pub command_timeout: Duration,
}

impl Stock {
    /// As the runtimes themselves read it from the environment; sandboxd has its root from a flag, and
    /// here from `SANDPOD_STOCK_ROOT_DIR`.
    #[must_use]
    pub fn from_env() -> Self {
        let text = |name| std::env::var(name).ok().filter(|text| !text.trim().is_empty());
        let seconds = text("SANDBOX_EXEC_TIMEOUT_SECONDS").and_then(|text| text.trim().parse().ok());
        Self {
            addresses: Addresses::default(),
            base_dir: text("SANDBOX_BASE_DIR").unwrap_or_else(|| "/app".to_owned()).into(),
            root_dir: text("SANDPOD_STOCK_ROOT_DIR").unwrap_or_else(|| "/workspace".to_owned()).into(),
            command_timeout: seconds.and_then(positive).unwrap_or(COMMAND_TIMEOUT),
        }
    }

    /// Listens, and answers until the runtime ends.
    pub(crate) async fn open(self, guest: &Guest) -> io::Result<Addresses> {
        let (legacy, grpc, rest) = (
            Listener::bind(self.addresses.legacy).await?,
            Listener::bind(self.addresses.grpc).await?,
            Listener::bind(self.addresses.rest).await?,
        );
        let bound = Addresses { legacy: legacy.address()?, grpc: grpc.address()?, rest: rest.address()? };
        let calls = Calls::new(guest.clone())?;
        let api =
            Arc::new(legacy::Legacy::new(calls.clone(), Root::new(&self.base_dir), self.command_timeout));
        legacy.answer(move |stream| server::serve(stream, api.clone()));
        let root = Root::new(&self.root_dir).known_by_its_name();
        let api = Arc::new(rest::Rest::new(calls.clone(), root.clone()));
        rest.answer(move |stream| server::serve(stream, api.clone()));
        let api = grpc::Grpc::new(calls, root);
        grpc.answer(move |stream| api.clone().serve(stream));
        Ok(bound)
    }
}

/// Answers HTTP on a stream as the first runtime's API does, or as sandboxd's.
#[cfg(fuzzing)]
pub async fn serve_http<S>(guest: &Guest, dir: &std::path::Path, sandboxd: bool, stream: S) -> io::Result<()>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + 'static,
{
    let (calls, root) = (Calls::new(guest.clone())?, Root::new(dir));
    if sandboxd {
        server::serve(stream, Arc::new(rest::Rest::new(calls, root.known_by_its_name()))).await;
    } else {
        server::serve(stream, Arc::new(legacy::Legacy::new(calls, root, COMMAND_TIMEOUT))).await;
    }
    Ok(())
}

/// Answers gRPC on a stream as sandboxd does.
#[cfg(fuzzing)]
pub async fn serve_grpc<S>(guest: &Guest, dir: &std::path::Path, stream: S) -> io::Result<()>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin + 'static,
{
    let root = Root::new(dir).known_by_its_name();
    grpc::Grpc::new(Calls::new(guest.clone())?, root).serve(stream).await;
    Ok(())
}

/// Where the APIs listen.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Addresses {
    /// The first runtime's HTTP API.
    pub legacy: SocketAddr,
    /// sandboxd's commands.
    pub grpc: SocketAddr,
    /// sandboxd's files.
    pub rest: SocketAddr,
}

/// Where agent-sandbox's clients look for them.
impl Default for Addresses {
    fn default() -> Self {
        let everywhere = |port| SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
        Self { legacy: everywhere(8888), grpc: everywhere(9090), rest: everywhere(8080) }
    }
}

/// Three addresses with commas between them: `127.0.0.1:8888,127.0.0.1:9090,127.0.0.1:8080`.
impl FromStr for Addresses {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let addresses: Option<Vec<SocketAddr>> = text.split(',').map(|text| text.parse().ok()).collect();
        match addresses.as_deref() {
            Some([legacy, grpc, rest]) => Ok(Self { legacy: *legacy, grpc: *grpc, rest: *rest }),
            _ => Err("three addresses are needed, with a comma between them"),
        }
    }
}

/// A time that a caller gave in seconds, if it is one.
fn positive(seconds: f64) -> Option<Duration> {
    Duration::try_from_secs_f64(seconds).ok().filter(|time| !time.is_zero())
}
