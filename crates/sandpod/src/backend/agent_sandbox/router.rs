//! Connections to a Pod over the network: through agent-sandbox's router, or to the Pod's own address. The router finds
//! the sandbox by headers. A guest's stream is a WebSocket there, and the token that opens the guest travels inside it.

use sandpod_client::{ByteStream, DialError, websocket};
use sandpod_dialect::HttpConnection;
use sandpod_kube::dial::{self, Tls};
use sandpod_kube::exec::PodRef;
use sandpod_kube::forward;
use sandpod_kube::gateway::{Gateway, Listener};
use sandpod_kube::k8s_openapi::api::core::v1::{Pod, Service};
use sandpod_kube::k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use sandpod_kube::kube::api::ListParams;
use sandpod_kube::kube::{Api, ResourceExt};

use super::connect::{ConnectionMode, GuestLocation};
use super::readiness::is_ready;
use super::{AgentSandbox, ROLE, tokens};
use crate::backend::kubernetes::api::{Watch, find, within};
use crate::{Error, ErrorKind};

/// Where the router is unless the configuration names a namespace: the current default, and the one before.
const NAMESPACES: [&str; 2] = ["agent-sandbox-system", "default"];
/// The role that grants the rights of a tunnel in the router's namespace.
const ROUTER_ROLE: &str = "deploy/rbac/agent-sandbox-router.yaml";
/// The prefix of a router token that is valid for one sandbox. With it no address may be sent.
const SCOPED: &str = "v1.";

/// Why a Pod can't be reached over the network.
#[derive(Debug)]
pub(super) struct RouteError {
    dial: DialError,
    /// A right is missing, and the message names the role that grants it.
    pub(super) names_role: bool,
}

impl RouteError {
    /// Converts an error of the API server. `advice` is its next step if a right is missing.
    fn refused(error: Error, advice: impl FnOnce() -> String) -> Self {
        let names_role = error.lacks_right();
        Self { dial: denied(error.or_grant(advice)), names_role }
    }
}

impl From<DialError> for RouteError {
    fn from(dial: DialError) -> Self {
        Self { dial, names_role: false }
    }
}

impl From<RouteError> for DialError {
    fn from(error: RouteError) -> Self {
        error.dial
    }
}

impl AgentSandbox {
    /// Opens the guest's stream in a WebSocket.
    pub(super) async fn open_guest(
        &self,
        mode: ConnectionMode,
        location: &GuestLocation,
    ) -> Result<Box<dyn ByteStream>, DialError> {
        let connection = self.http_connection(mode, location, self.0.config.server_port).await?;
        let opened = websocket(connection.stream, &connection.host, &connection.headers).await;
        let config = &self.0.config;
        let no_token = mode != ConnectionMode::InCluster
            && config.router_token.is_none()
            && config.router_token_file.is_none();
        opened.map_err(|error| match error {
            DialError::Denied(why) if no_token => {
                DialError::Denied(format!("{why} (neither router_token nor router_token_file is set)"))
            }
            error => error,
        })
    }

    /// Checks that the options are set that a mode needs.
    pub(super) fn check_mode_options(&self, mode: ConnectionMode) -> Result<(), DialError> {
        let config = &self.0.config;
        match mode {
            ConnectionMode::Gateway if config.gateway_name.is_none() => Err(unset("gateway_name")),
            ConnectionMode::Direct if config.api_url.is_none() => Err(unset("api_url")),
            _ => Ok(()),
        }
    }

    /// Connects to a port of the Pod.
    pub(super) async fn http_connection(
        &self,
        mode: ConnectionMode,
        location: &GuestLocation,
        port: u16,
    ) -> Result<HttpConnection, RouteError> {
        match mode {
            ConnectionMode::Exec => Err(DialError::Denied("exec does not lead to a port".to_owned()).into()),
            ConnectionMode::Tunnel => self.tunnel(location, port).await,
            ConnectionMode::Gateway => self.gateway(location, port).await,
            ConnectionMode::Direct => self.direct(location, port).await,
            ConnectionMode::InCluster => pod_itself(location, port).await,
        }
    }

    /// Connects through the API server to a Pod of the router.
    async fn tunnel(&self, location: &GuestLocation, port: u16) -> Result<HttpConnection, RouteError> {
        let headers = self.headers(location, port)?;
        let (router, router_port) = self.router().await?;
        let connection = forward::open(&self.0.client, &router, router_port).await;
        let connection = connection.map_err(|error| unreachable(&error))?;
        Ok(HttpConnection {
            stream: Box::new(connection),
            host: self.0.config.router_service.clone(),
            headers,
        })
    }

    /// Connects through the API server to a port of the Pod itself, which may listen inside it only.
    pub(super) async fn forward(
        &self,
        location: &GuestLocation,
        port: u16,
    ) -> Result<HttpConnection, RouteError> {
        let connection = forward::open(&self.0.client, &location.pod, port).await;
        let stream = Box::new(connection.map_err(|error| unreachable(&error))?);
        Ok(HttpConnection { stream, host: format!("localhost:{port}"), headers: Vec::new() })
    }

    /// Waits until the Gateway has an address, and connects to it.
    async fn gateway(&self, location: &GuestLocation, port: u16) -> Result<HttpConnection, RouteError> {
        let Some(name) = &self.0.config.gateway_name else { return Err(unset("gateway_name").into()) };
        let headers = self.headers(location, port)?;
        let mut states = Watch::new(&self.0.gateway_watch, name);
        loop {
            let gateway = states.next().await.map_err(|error| self.gateway_refused(error))?;
            let gateway = gateway.ok_or_else(|| {
                let namespace = &self.0.config.gateway_namespace;
                DialError::Denied(format!("Gateway '{name}' not found in namespace '{namespace}'"))
            })?;
            if let Some((url, host)) = address(&gateway)? {
                return self.at_url(&url, host, headers).await;
            }
        }
    }

    /// Connects to the router's URL.
    async fn direct(&self, location: &GuestLocation, port: u16) -> Result<HttpConnection, RouteError> {
        let Some(url) = &self.0.config.api_url else { return Err(unset("api_url").into()) };
        let headers = self.headers(location, port)?;
        let host = url.split_once("://").map_or(url.as_str(), |(_, host)| host);
        self.at_url(url, host.to_owned(), headers).await
    }

    pub(super) async fn at_url(
        &self,
        url: &str,
        host: String,
        headers: Vec<(String, String)>,
    ) -> Result<HttpConnection, RouteError> {
        let config = &self.0.config;
        let tls = Tls {
            ca_cert: config.ca_cert.clone(),
            client_cert: config.client_cert.clone(),
            client_key: config.client_key.clone(),
        };
        let connection = dial::open(url, &tls).await.map_err(DialError::Unreachable)?;
        Ok(HttpConnection { stream: Box::new(connection), host, headers })
    }

    /// Finds a ready Pod of the router and its port.
    pub(super) async fn router(&self) -> Result<(PodRef, u16), RouteError> {
        let name = &self.0.config.router_service;
        let named = self.0.config.router_namespace.as_deref();
        let namespaces: Vec<_> = NAMESPACES.into_iter().filter(|_| named.is_none()).chain(named).collect();
        for namespace in &namespaces {
            let services: Api<Service> = Api::namespaced(self.0.client.clone(), namespace);
            let found = find(&services, name).await;
            if let Some(service) = found.map_err(|error| router_refused(error, namespace))? {
                return self.router_behind(&service, namespace).await;
            }
        }
        let searched = namespaces.join("', nor in '");
        Err(DialError::Denied(format!("Service '{name}' not found in namespace '{searched}'")).into())
    }

    async fn router_behind(&self, service: &Service, namespace: &str) -> Result<(PodRef, u16), RouteError> {
        let name = service.name_any();
        let unusable =
            |why: &str| DialError::Unreachable(format!("Service '{name}' in namespace '{namespace}' {why}"));
        let spec = service.spec.as_ref().ok_or_else(|| unusable("is empty"))?;
        let selector = spec.selector.iter().flatten().map(|(key, value)| format!("{key}={value}"));
        let selector = selector.collect::<Vec<_>>().join(",");
        let port = spec.ports.iter().flatten().next().ok_or_else(|| unusable("has no port"))?;
        let pods: Api<Pod> = Api::namespaced(self.0.client.clone(), namespace);
        let found = within(pods.list(&ListParams::default().labels(&selector))).await;
        let found =
            found.map_err(|cause| router_refused(Error::api("list the router's Pods", &cause), namespace))?;
        let pod =
            found.iter().find(|pod| is_ready(pod)).ok_or_else(|| unusable("has no Pod that is ready"))?;
        let number = match &port.target_port {
            Some(IntOrString::Int(number)) => Some(*number),
            Some(IntOrString::String(named)) => port_named(pod, named),
            None => Some(port.port),
        };
        let number = number
            .and_then(|number| u16::try_from(number).ok())
            .ok_or_else(|| unusable("has no usable port"))?;
        Ok((PodRef::new(namespace, pod.name_any()), number))
    }

    /// Converts an error of reading the Gateway, with advice for a missing right.
    pub(super) fn gateway_refused(&self, error: Error) -> RouteError {
        let config = &self.0.config;
        RouteError::refused(error, || {
            format!(
                "Allow get, list and watch of Gateways in namespace '{}' ({ROLE} does for '{}'), or use \
                 connection_mode='direct' with api_url.",
                config.gateway_namespace, config.namespace
            )
        })
    }

    /// Returns the headers by which the router finds the sandbox.
    fn headers(&self, location: &GuestLocation, port: u16) -> Result<Vec<(String, String)>, DialError> {
        let config = &self.0.config;
        let token = match (&config.router_token, &config.router_token_file) {
            (Some(token), _) => Some(token.clone()),
            (None, Some(file)) => {
                let text = tokens::read(file).map_err(denied)?;
                Some(String::from_utf8_lossy(&text).into_owned())
            }
            (None, None) => None,
        };
        let scoped = token.as_ref().is_some_and(|token| token.starts_with(SCOPED));
        let own = [
            ("X-Sandbox-ID", Some(location.pod.name.clone())),
            ("X-Sandbox-Namespace", Some(location.pod.namespace.clone())),
            ("X-Sandbox-Port", Some(port.to_string())),
            ("X-Sandbox-Pod-IP", location.pod_ip.clone().filter(|_| !scoped)),
            ("Authorization", token.map(|token| format!("Bearer {token}"))),
        ];
        let own = own.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
        let extra = config.extra_headers.iter().map(|(name, value)| (name.clone(), value.clone()));
        Ok(extra.chain(own).collect())
    }
}

/// Converts an error of finding the router, with advice for a missing right.
fn router_refused(error: Error, namespace: &str) -> RouteError {
    RouteError::refused(error, || {
        format!(
            "Apply {ROUTER_ROLE} for namespace '{namespace}' (sandpod manifests router prints it), or use another \
             connection_mode."
        )
    })
}

/// Connects to the Pod's own address.
async fn pod_itself(location: &GuestLocation, port: u16) -> Result<HttpConnection, RouteError> {
    let no_address = || DialError::Unreachable("its Pod has no address".to_owned());
    let ip = location.pod_ip.as_deref().ok_or_else(no_address)?;
    let host = format!("{}:{port}", bracketed(ip));
    let connection = dial::open(&format!("http://{host}"), &Tls::default()).await;
    let stream = Box::new(connection.map_err(DialError::Unreachable)?);
    Ok(HttpConnection { stream, host, headers: Vec::new() })
}

/// Returns the URL of a Gateway and its host name, with HTTPS if it has that. None while it has no address.
pub(super) fn address(gateway: &Gateway) -> Result<Option<(String, String)>, DialError> {
    let listeners = &gateway.spec.listeners;
    let speaks = |protocol: &str| listeners.iter().find(|listener| listener.protocol == protocol);
    let (scheme, listener) = match (speaks("HTTPS"), speaks("HTTP")) {
        (Some(https), _) => ("https", https),
        (None, Some(http)) => ("http", http),
        (None, None) => {
            return Err(DialError::Denied(format!(
                "Gateway '{}' speaks neither HTTP nor HTTPS",
                gateway.name_any()
            )));
        }
    };
    let addresses = gateway.status.as_ref().map(|status| status.addresses.as_slice()).unwrap_or_default();
    let Some(address) = addresses.first() else { return Ok(None) };
    let url = format!("{scheme}://{}:{}", bracketed(&address.value), listener.port);
    let host = host(listener).unwrap_or_else(|| format!("{}:{}", bracketed(&address.value), listener.port));
    Ok(Some((url, host)))
}

/// Returns the host name of a listener, unless it is a wildcard.
fn host(listener: &Listener) -> Option<String> {
    listener.hostname.clone().filter(|name| !name.starts_with('*'))
}

/// Returns an address as a URL has it.
fn bracketed(ip: &str) -> String {
    if ip.contains(':') { format!("[{ip}]") } else { ip.to_owned() }
}

fn port_named(pod: &Pod, name: &str) -> Option<i32> {
    let containers = pod.spec.as_ref().map(|spec| spec.containers.as_slice()).unwrap_or_default();
    let mut ports = containers.iter().flat_map(|container| container.ports.iter().flatten());
    ports.find(|port| port.name.as_deref() == Some(name)).map(|port| port.container_port)
}

fn unset(option: &str) -> DialError {
    DialError::Denied(format!("{option} is not set"))
}

fn unreachable(error: &sandpod_kube::Error) -> DialError {
    DialError::Unreachable(error.to_string())
}

#[expect(clippy::needless_pass_by_value, reason = "the signature that map_err needs")]
fn denied(error: Error) -> DialError {
    match error.kind() {
        ErrorKind::Denied | ErrorKind::InvalidInput => DialError::Denied(error.to_string()),
        _ => DialError::Unreachable(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use sandpod_kube::kube::{self, core::Status};
    use serde_json::{Value, json};

    use super::*;

    fn gateway(listeners: &Value, addresses: &Value) -> Gateway {
        serde_json::from_value(json!({
            "apiVersion": "gateway.networking.k8s.io/v1",
            "kind": "Gateway",
            "metadata": { "name": "g" },
            "spec": { "gatewayClassName": "c", "listeners": listeners },
            "status": { "addresses": addresses },
        }))
        .unwrap()
    }

    #[expect(clippy::unnecessary_wraps, reason = "the type of the value that it is compared with")]
    fn at(url: &str, host: &str) -> Result<Option<(String, String)>, DialError> {
        Ok(Some((url.to_owned(), host.to_owned())))
    }

    #[test]
    fn a_missing_right_for_the_router_names_the_routers_role() {
        let refused = |code, said| {
            let status = Status::failure(said, "Forbidden").with_code(code);
            Error::api("read Service 'router'", &kube::Error::Api(status.boxed()))
        };
        let missing =
            refused(403, "services \"router\" is forbidden: User \"u\" cannot get resource \"services\"");
        let error = router_refused(missing.clone(), "doors");
        assert!(error.names_role);
        let DialError::Denied(text) = error.into() else { panic!("a missing right is a denial") };
        assert!(text.contains("deploy/rbac/agent-sandbox-router.yaml for namespace 'doors'"), "{text}");
        let other = super::super::with_role_advice(missing);
        assert!(other.next_step().contains("deploy/rbac/agent-sandbox.yaml"), "{other}");
        let busy = router_refused(refused(500, "later"), "doors");
        assert!(!busy.names_role && matches!(busy.dial, DialError::Unreachable(_)));
    }

    #[test]
    fn a_gateway_is_where_its_status_says_and_https_comes_first() {
        let http = json!([{ "name": "a", "protocol": "HTTP", "port": 80 }]);
        let both = json!([
            { "name": "a", "protocol": "HTTP", "port": 80 },
            { "name": "b", "protocol": "HTTPS", "port": 8443, "hostname": "sandboxes.example.com" },
        ]);
        let (ip, name) = (json!([{ "value": "10.0.0.7" }]), json!([{ "value": "gw.example.com" }]));
        assert_eq!(address(&gateway(&http, &ip)), at("http://10.0.0.7:80", "10.0.0.7:80"));
        assert_eq!(
            address(&gateway(&http, &json!([{ "value": "fd00::7" }]))),
            at("http://[fd00::7]:80", "[fd00::7]:80")
        );
        assert_eq!(
            address(&gateway(&both, &name)),
            at("https://gw.example.com:8443", "sandboxes.example.com")
        );
        assert_eq!(address(&gateway(&http, &json!([]))), Ok(None));
        let tcp = json!([{ "name": "a", "protocol": "TCP", "port": 80 }]);
        address(&gateway(&tcp, &ip)).unwrap_err();
    }
}
