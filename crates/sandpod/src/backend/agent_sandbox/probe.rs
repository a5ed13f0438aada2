//! Probes the way of each connection mode as far as the router, without a sandbox behind it.

use sandpod_client::DialError;
use sandpod_kube::forward;
use sandpod_kube::gateway::Gateway;
use sandpod_kube::kube::Api;

use super::AgentSandbox;
use super::connect::ConnectionMode;
use super::router::address;
use crate::Result;
use crate::backend::kubernetes::api::find;

impl AgentSandbox {
    /// Connects to what a mode leads through and returns its description.
    pub(crate) async fn probe_route(&self, mode: ConnectionMode) -> Result<String, DialError> {
        self.check_mode_options(mode)?;
        match mode {
            ConnectionMode::Exec | ConnectionMode::InCluster => Ok("nothing but the Pod itself".to_owned()),
            ConnectionMode::Tunnel => {
                let (pod, port) = self.router().await?;
                let opened = forward::open(&self.0.client, &pod, port).await;
                opened.map_err(|error| DialError::Unreachable(error.to_string()))?;
                Ok(format!("the router's Pod {pod}, port {port}"))
            }
            ConnectionMode::Gateway => {
                let url = self.gateway_url().await?;
                self.at_url(&url, String::new(), Vec::new()).await?;
                Ok(format!("a Gateway that answers at {url}"))
            }
            ConnectionMode::Direct => {
                let url = self.0.config.api_url.clone().unwrap_or_default();
                self.at_url(&url, String::new(), Vec::new()).await?;
                Ok(format!("a server that answers at {url}"))
            }
        }
    }

    /// Returns why the secret that opens guests over the network is missing, or none if it is there.
    pub(crate) async fn lacks_secret(&self) -> Result<Option<String>> {
        Ok(self.find_secret().await?.err())
    }

    /// Returns the URL that the Gateway has now.
    async fn gateway_url(&self) -> Result<String, DialError> {
        let config = &self.0.config;
        let (name, namespace) =
            (config.gateway_name.as_deref().unwrap_or_default(), &config.gateway_namespace);
        let gateways: Api<Gateway> = Api::namespaced(self.0.client.clone(), namespace);
        let gateway =
            find(&gateways, name).await.map_err(|error| DialError::from(self.gateway_refused(error)))?;
        let gateway = gateway.ok_or_else(|| {
            DialError::Denied(format!("Gateway '{name}' not found in namespace '{namespace}'"))
        })?;
        match address(&gateway)? {
            Some((url, _)) => Ok(url),
            None => Err(DialError::Unreachable(format!("Gateway '{name}' has no address yet"))),
        }
    }
}
