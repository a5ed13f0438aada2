//! Speaks to agent-sandbox's stock runtimes in their own words, and to sandpod's client as a guest does.
//!
//! A [`Dialect`] is found by asking the runtime behind [`Connector`]. It answers our protocol on streams inside this process,
//! so that all above is the same for a guest and for a runtime. What a call means there is an job (`job`): its
//! words go as a file, a fixed script does it, and its answer comes back. A runtime has to run a command and take and give a
//! file for that, which `legacy` and `sandboxd` say in the words of each. What neither can do is refused by its name.

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

/// Where sandboxd has its commands and its files.
const GRPC_PORT: u16 = 9090;
const REST_PORT: u16 = 8080;

/// Opens connections to the ports of one sandbox.
pub trait Connector: Send + Sync + 'static {
    /// A connection to `port`. That the sandbox is gone is said by [`DialError::Gone`]. The future may be dropped at any
    /// time.
    fn open(&self, port: u16) -> BoxFuture<'_, Result<HttpConnection, DialError>>;
}

/// A connection that speaks HTTP.
pub struct HttpConnection {
    /// What carries it.
    pub stream: Box<dyn ByteStream>,
    /// What the other end is called; there may be a path after it.
    pub host: String,
    /// Of every request.
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
    /// Its name: `legacy` or `sandboxd`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Legacy => "legacy",
            Self::Sandboxd => "sandboxd",
        }
    }
}

/// A stock runtime that is spoken to as if it were a guest. Clones are the same.
///
/// ```no_run
/// # async fn example(connector: std::sync::Arc<dyn sandpod_dialect::Connector>) -> Result<(), sandpod_client::DialError> {
/// let dialect = sandpod_dialect::Dialect::find(connector, 8888).await?;
/// // What a `Dialer` gives to its `Connection`:
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
    /// The runtime that answers: the first one at `port`, or else sandboxd.
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

    /// Which runtime it is.
    #[must_use]
    pub fn kind(&self) -> RuntimeKind {
        self.kind
    }

    /// A stream on which the runtime answers as a guest does. It ends when the sandbox is gone.
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

/// Both runtimes are missing: later it may work unless both say that it won't.
fn neither(legacy: &DialError, sandboxd: &DialError) -> DialError {
    let why = format!("no stock runtime answers (legacy: {legacy}; sandboxd: {sandboxd})");
    match (legacy, sandboxd) {
        (DialError::Denied(_), DialError::Denied(_)) => DialError::Denied(why),
        _ => DialError::Unreachable(why),
    }
}
