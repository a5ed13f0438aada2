//! Adapters for agent-sandbox's stock runtimes that behave as a guest.
//!
//! [`Dialect::find`] probes the runtime behind a [`Connector`]. A dialect serves our protocol on streams inside this process, so
//! that the client needs no code for runtimes. Each call is a script job (`script_job`): a fixed script whose words are sent in
//! a file. A runtime only has to run commands, and to store and return files; `legacy` and `sandboxd` implement that for
//! the two runtimes. Capabilities that neither has are refused by name.

mod command;
mod error;
mod files;
mod http;
mod incoming;
mod info;
mod legacy;
mod policy;
mod process;
mod runtime;
mod sandboxd;
mod script_job;
mod search;
mod serve;
mod session;

use std::sync::Arc;

use futures::future::BoxFuture;
use sandpod_client::{ByteStream, DialError};
use tokio_util::sync::CancellationToken;

use self::http::HttpClient;
use self::legacy::Legacy;
use self::runtime::Runtime;
use self::sandboxd::Sandboxd;
use self::script_job::ScriptJobs;
use self::serve::Services;

/// The ports of sandboxd for commands and for files.
const GRPC_PORT: u16 = 9090;
const REST_PORT: u16 = 8080;

/// Opens connections to the ports of one sandbox.
pub trait Connector: Send + Sync + 'static {
    /// Opens a connection to `port`. Returns [`DialError::Gone`] if the sandbox is gone. Cancel-safe.
    fn open(&self, port: u16) -> BoxFuture<'_, Result<HttpConnection, DialError>>;
}

/// A connection for HTTP.
pub struct HttpConnection {
    /// The byte stream.
    pub stream: Box<dyn ByteStream>,
    /// The value of the Host header, optionally followed by a path prefix.
    pub host: String,
    /// Headers of every request.
    pub headers: Vec<(String, String)>,
}

/// A stock runtime.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum RuntimeKind {
    /// agent-sandbox's first runtime: HTTP on one port.
    Legacy,
    /// sandboxd: gRPC for commands, REST for files.
    Sandboxd,
}

impl RuntimeKind {
    /// Returns its name: `legacy` or `sandboxd`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Legacy => "legacy",
            Self::Sandboxd => "sandboxd",
        }
    }
}

/// A stock runtime, accessed as if it were a guest. Clones share it.
///
/// ```no_run
/// # async fn example(connector: std::sync::Arc<dyn sandpod_dialect::Connector>) -> Result<(), sandpod_client::DialError> {
/// let dialect = sandpod_dialect::Dialect::find(connector, 8888).await?;
/// // A `Dialer` returns this stream to its `Connection`:
/// let stream = dialect.stream();
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Dialect {
    kind: RuntimeKind,
    services: Services,
    gone: CancellationToken,
}

impl Dialect {
    /// Returns the runtime that answers: the first runtime at `port`, or else sandboxd.
    pub async fn find(connector: Arc<dyn Connector>, port: u16) -> Result<Self, DialError> {
        let gone = CancellationToken::new();
        let at = |port| HttpClient::new(connector.clone(), port, gone.clone());
        let legacy = Legacy::new(at(port));
        let no_legacy = match legacy.probe().await {
            Ok(()) => return Ok(Self::new(RuntimeKind::Legacy, legacy, gone)),
            Err(gone @ DialError::Gone(_)) => return Err(gone),
            Err(error) => error,
        };
        let sandboxd = Sandboxd::new(at(REST_PORT), connector.clone(), GRPC_PORT, gone.clone());
        match sandboxd.probe().await {
            Ok(()) => Ok(Self::new(RuntimeKind::Sandboxd, sandboxd, gone)),
            Err(gone @ DialError::Gone(_)) => Err(gone),
            Err(error) => Err(neither(&no_legacy, &error)),
        }
    }

    fn new(kind: RuntimeKind, runtime: impl Runtime, gone: CancellationToken) -> Self {
        let jobs = Arc::new(ScriptJobs::new(kind, runtime));
        Self { kind, services: Services::new(jobs), gone }
    }

    /// The kind of the runtime.
    #[must_use]
    pub fn kind(&self) -> RuntimeKind {
        self.kind
    }

    /// Opens a stream on which the runtime answers as a guest does. It ends when the sandbox is gone.
    #[must_use]
    pub fn stream(&self) -> Box<dyn ByteStream> {
        self.services.stream(&self.gone)
    }
}

impl std::fmt::Debug for Dialect {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Dialect").field(&self.kind).finish()
    }
}

/// The error if neither runtime answers. A later probe may succeed unless both were denied.
fn neither(legacy: &DialError, sandboxd: &DialError) -> DialError {
    let why = format!("no stock runtime answers (legacy: {legacy}; sandboxd: {sandboxd})");
    match (legacy, sandboxd) {
        (DialError::Denied(_), DialError::Denied(_)) => DialError::Denied(why),
        _ => DialError::Unreachable(why),
    }
}
