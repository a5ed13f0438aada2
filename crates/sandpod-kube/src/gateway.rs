//! The Gateway of the [Gateway API](https://gateway-api.sigs.k8s.io), as of `v1`: the fields that tell its address.

use kube::CustomResource;
use serde::{Deserialize, Serialize};

/// The listeners of a [`Gateway`].
///
/// ```
/// use kube::Resource;
///
/// assert_eq!(sandpod_kube::gateway::Gateway::api_version(&()), "gateway.networking.k8s.io/v1");
/// ```
#[derive(CustomResource, Clone, Debug, Deserialize, Serialize)]
#[kube(
    group = "gateway.networking.k8s.io",
    version = "v1",
    kind = "Gateway",
    plural = "gateways",
    status = "GatewayStatus",
    schema = "disabled",
    namespaced
)]
#[serde(rename_all = "camelCase")]
pub struct GatewaySpec {
    /// The name of its class.
    pub gateway_class_name: String,
    /// Its ports.
    #[serde(default)]
    pub listeners: Vec<Listener>,
}

/// A listener of a [`Gateway`].
///
/// ```
/// let listener: sandpod_kube::gateway::Listener =
///     serde_json::from_str(r#"{"name": "web", "protocol": "HTTPS", "port": 443}"#).unwrap();
/// assert!(listener.hostname.is_none());
/// ```
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Listener {
    /// Its name.
    pub name: String,
    /// `HTTP` or `HTTPS`, or another.
    pub protocol: String,
    /// Its port.
    pub port: u16,
    /// The only host that it accepts, if it is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
}

/// The state of a [`Gateway`].
///
/// ```
/// let status: sandpod_kube::gateway::GatewayStatus =
///     serde_json::from_str(r#"{"addresses": [{"type": "IPAddress", "value": "10.0.0.7"}]}"#).unwrap();
/// assert_eq!(status.addresses[0].value, "10.0.0.7");
/// ```
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct GatewayStatus {
    /// Its addresses.
    #[serde(default)]
    pub addresses: Vec<Address>,
}

/// An address of a [`Gateway`].
///
/// ```
/// let address: sandpod_kube::gateway::Address = serde_json::from_str(r#"{"value": "gw.example.com"}"#).unwrap();
/// assert_eq!(address.value, "gw.example.com");
/// ```
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Address {
    /// An IP address or a hostname.
    pub value: String,
}
