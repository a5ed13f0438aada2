//! Pods that run one of agent-sandbox's own runtimes and can't take our guest: they are spoken to in its words.

use std::sync::Arc;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use sandpod_client::DialError;
use sandpod_dialect::{Connector, Dialect, HttpConnection, RuntimeKind};

use super::AgentSandbox;
use super::reach::{Spot, Way};
use crate::backend::GuestDelivery;

/// The ports of one Pod, by one way.
struct Ports {
    backend: AgentSandbox,
    spot: Spot,
    way: Way,
}

impl Connector for Ports {
    fn open(&self, port: u16) -> BoxFuture<'_, Result<HttpConnection, DialError>> {
        async move {
            self.backend.still_there(&self.spot).await?;
            self.backend.in_time(self.way, &self.spot, self.connect(port)).await
        }
        .boxed()
    }
}

impl Ports {
    async fn connect(&self, port: u16) -> Result<HttpConnection, DialError> {
        let (backend, spot) = (&self.backend, &self.spot);
        match self.way {
            way if port == backend.0.config.server_port => backend.http_connection(way, spot, port).await,
            // sandboxd's: it may listen inside of the Pod only.
            Way::Tunnel => backend.forward(spot, port).await,
            Way::InCluster => backend.http_connection(self.way, spot, port).await,
            Way::Exec | Way::Gateway | Way::Direct => Err(DialError::Denied(
                "agent-sandbox's router passes no gRPC, which sandboxd needs for commands: use tunnel or in-cluster".to_owned(),
            )),
        }
    }
}

impl AgentSandbox {
    /// The stock runtime that answers by this way.
    pub(super) async fn find_runtime(&self, way: Way, spot: &Spot) -> Result<Dialect, DialError> {
        if way == Way::Exec {
            return Err(DialError::Denied("a stock runtime is reached over the network".to_owned()));
        }
        let ports = Ports { backend: self.clone(), spot: spot.clone(), way };
        Dialect::find(Arc::new(ports), self.0.config.server_port).await
    }
}

/// How a sandbox is served whose runtime is spoken to.
pub(super) fn delivery(dialect: &Dialect) -> GuestDelivery {
    match dialect.kind() {
        RuntimeKind::Legacy => GuestDelivery::Legacy,
        RuntimeKind::Sandboxd => GuestDelivery::Sandboxd,
    }
}
