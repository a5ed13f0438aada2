//! Pods with a stock runtime of agent-sandbox that can't take our guest. A dialect answers in the guest's place.

use std::sync::Arc;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use sandpod_client::DialError;
use sandpod_dialect::{Connector, Dialect, HttpConnection, RuntimeKind};

use super::AgentSandbox;
use super::connect::{ConnectionMode, GuestLocation};
use super::router::RouteError;
use crate::backend::GuestDelivery;

/// The ports of one Pod, by one connection mode.
struct Ports {
    backend: AgentSandbox,
    location: GuestLocation,
    mode: ConnectionMode,
}

impl Connector for Ports {
    fn open(&self, port: u16) -> BoxFuture<'_, Result<HttpConnection, DialError>> {
        async move {
            self.backend.still_there(&self.location).await?;
            Ok(self.backend.in_time(self.mode, &self.location, self.connect(port)).await?)
        }
        .boxed()
    }
}

impl Ports {
    async fn connect(&self, port: u16) -> Result<HttpConnection, RouteError> {
        let (backend, location) = (&self.backend, &self.location);
        match self.mode {
            mode if port == backend.0.config.server_port => backend.http_connection(mode, location, port).await,
            // sandboxd may listen inside the Pod only.
            ConnectionMode::Tunnel => backend.forward(location, port).await,
            ConnectionMode::InCluster => backend.http_connection(self.mode, location, port).await,
            ConnectionMode::Exec | ConnectionMode::Gateway | ConnectionMode::Direct => Err(RouteError::from(DialError::Denied(
                "agent-sandbox's router passes no gRPC, which sandboxd needs for commands: use tunnel or in-cluster".to_owned(),
            ))),
        }
    }
}

impl AgentSandbox {
    /// Returns the stock runtime that answers by this mode.
    pub(super) async fn probe_runtime(
        &self,
        mode: ConnectionMode,
        location: &GuestLocation,
    ) -> Result<Dialect, DialError> {
        if mode == ConnectionMode::Exec {
            return Err(DialError::Denied("a stock runtime is reached over the network".to_owned()));
        }
        let ports = Ports { backend: self.clone(), location: location.clone(), mode };
        Dialect::find(Arc::new(ports), self.0.config.server_port).await
    }
}

/// Returns how a sandbox with this runtime is served.
pub(super) fn delivery(dialect: &Dialect) -> GuestDelivery {
    match dialect.kind() {
        RuntimeKind::Legacy => GuestDelivery::Legacy,
        RuntimeKind::Sandboxd => GuestDelivery::Sandboxd,
    }
}
