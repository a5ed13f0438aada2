//! agent-sandbox's own runtime APIs, for its clients: the HTTP API of its first runtime ([`legacy`]), and the gRPC
//! ([`grpc`]) and REST ([`rest`]) APIs of sandboxd.
//!
//! They translate to the guest's own services ([`guest_calls`]), with paths confined to a directory ([`root`]). Neither API
//! authenticates its callers: anyone who can reach the port has access, so they are open only where they are
//! asked for.

mod body;
mod format;
mod grpc;
mod guest_calls;
pub(crate) mod http_error;
mod legacy;
mod multipart;
mod rest;
mod root;
pub(crate) mod server;
mod shlex;

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use crate::Guest;
use crate::network::Listener;

use guest_calls::GuestCalls;
use root::Root;

/// Default timeout for commands of the first runtime's API.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(300);

/// Options of the APIs.
#[derive(Clone, Debug)]
pub struct StockApis {
    /// Addresses to listen on.
    pub addresses: StockAddresses,
    /// Directory of the first runtime's commands and files.
    pub base_dir: PathBuf,
    /// Directory of sandboxd's commands and files.
    pub root_dir: PathBuf,
    /// Timeout of the first runtime's commands without one of their own.
    pub command_timeout: Duration,
}

impl StockApis {
    /// Reads the same environment variables as the runtimes. sandboxd's root is a flag there, and
    /// `SANDPOD_STOCK_ROOT_DIR` here.
    #[must_use]
    pub fn from_env() -> Self {
        let text = |name| std::env::var(name).ok().filter(|text| !text.trim().is_empty());
        let seconds = text("SANDBOX_EXEC_TIMEOUT_SECONDS").and_then(|text| text.trim().parse().ok());
        Self {
            addresses: StockAddresses::default(),
            base_dir: text("SANDBOX_BASE_DIR").unwrap_or_else(|| "/app".to_owned()).into(),
            root_dir: text("SANDPOD_STOCK_ROOT_DIR").unwrap_or_else(|| "/workspace".to_owned()).into(),
            command_timeout: seconds.and_then(positive).unwrap_or(COMMAND_TIMEOUT),
        }
    }

    /// Binds the ports, and serves their connections until the runtime ends.
    pub(crate) async fn open(self, guest: &Guest) -> io::Result<StockAddresses> {
        let (legacy, grpc, rest) = (
            Listener::bind(self.addresses.legacy).await?,
            Listener::bind(self.addresses.grpc).await?,
            Listener::bind(self.addresses.rest).await?,
        );
        let bound =
            StockAddresses { legacy: legacy.address()?, grpc: grpc.address()?, rest: rest.address()? };
        let calls = GuestCalls::new(guest.clone())?;
        let api =
            Arc::new(legacy::Legacy::new(calls.clone(), Root::new(&self.base_dir), self.command_timeout));
        legacy.answer(move |stream| server::serve(stream, api.clone()));
        let root = Root::new(&self.root_dir).accepts_own_prefix();
        let api = Arc::new(rest::Rest::new(calls.clone(), root.clone()));
        rest.answer(move |stream| server::serve(stream, api.clone()));
        let api = grpc::Grpc::new(calls, root);
        grpc.answer(move |stream| api.clone().serve(stream));
        Ok(bound)
    }
}

/// Serves HTTP on a stream, as the first runtime's API or as sandboxd's.
#[cfg(fuzzing)]
pub async fn serve_http<S>(guest: &Guest, dir: &std::path::Path, sandboxd: bool, stream: S) -> io::Result<()>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + 'static,
{
    let (calls, root) = (GuestCalls::new(guest.clone())?, Root::new(dir));
    if sandboxd {
        server::serve(stream, Arc::new(rest::Rest::new(calls, root.accepts_own_prefix()))).await;
    } else {
        server::serve(stream, Arc::new(legacy::Legacy::new(calls, root, COMMAND_TIMEOUT))).await;
    }
    Ok(())
}

/// Serves gRPC on a stream, as sandboxd's API.
#[cfg(fuzzing)]
pub async fn serve_grpc<S>(guest: &Guest, dir: &std::path::Path, stream: S) -> io::Result<()>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin + 'static,
{
    let root = Root::new(dir).accepts_own_prefix();
    grpc::Grpc::new(GuestCalls::new(guest.clone())?, root).serve(stream).await;
    Ok(())
}

/// Addresses of the APIs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct StockAddresses {
    /// The first runtime's HTTP API.
    pub legacy: SocketAddr,
    /// sandboxd's commands.
    pub grpc: SocketAddr,
    /// sandboxd's files.
    pub rest: SocketAddr,
}

/// The ports at which agent-sandbox's clients expect the APIs.
impl Default for StockAddresses {
    fn default() -> Self {
        let everywhere = |port| SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
        Self { legacy: everywhere(8888), grpc: everywhere(9090), rest: everywhere(8080) }
    }
}

/// Parses three addresses with commas between them: `127.0.0.1:8888,127.0.0.1:9090,127.0.0.1:8080`.
impl FromStr for StockAddresses {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let addresses: Option<Vec<SocketAddr>> = text.split(',').map(|text| text.parse().ok()).collect();
        match addresses.as_deref() {
            Some([legacy, grpc, rest]) => Ok(Self { legacy: *legacy, grpc: *grpc, rest: *rest }),
            _ => Err("three addresses are needed, with a comma between them"),
        }
    }
}

/// Converts seconds from a caller, if they are a positive time.
fn positive(seconds: f64) -> Option<Duration> {
    Duration::try_from_secs_f64(seconds).ok().filter(|time| !time.is_zero())
}
