//! Connecting to a cluster, the way kubectl does, but without Nagle's algorithm.
//!
//! [`config`] finds the cluster and the credentials, [`client`] makes a [`kube::Client`] of them, and [`connect`] does
//! both. kube's own constructor leaves `TCP_NODELAY` off, so a small call over an exec stream takes 44 ms instead of 1
//! ms. The layers are therefore assembled here, with all that kubectl supports: exec plugins, OIDC, client
//! certificates, token files, impersonation, a custom CA, `tls-server-name` and proxies.

mod grace;
mod insecure;
mod login;
mod proxy;
mod token_file;

use std::env;
use std::path::Path;
use std::time::Duration;

use http::Uri;
use hyper::rt::{Read, Write};
use hyper_timeout::TimeoutConnector;
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::client::legacy::connect::proxy::{SocksV5, Tunnel};
use hyper_util::client::legacy::connect::{Connection, HttpConnector};
use hyper_util::client::proxy::matcher::Intercept;
use hyper_util::rt::TokioExecutor;
use kube::client::retry::RetryPolicy;
use kube::client::{Body, ConfigExt};
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};
use tower::retry::RetryLayer;
use tower::util::MapRequestLayer;
use tower::{BoxError, Service, ServiceBuilder};

use self::grace::Grace;
pub use self::insecure::Insecure;
use self::insecure::is_loopback;
use self::login::Login;
use self::token_file::TokenFile;
use crate::{Error, Result};

/// The interval of TCP keep-alive probes, as in kubectl. A dead connection is detected after the kernel's number of
/// probes.
const KEEP_ALIVE: Duration = Duration::from_secs(30);
/// Set in every Pod, including those without a token.
const IN_POD: &str = "KUBERNETES_SERVICE_HOST";
/// The pause before a call is repeated that the API server was too busy for, at least and at most, and the number of
/// retries.
const RETRY_DELAYS: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(5));
const MAX_RETRIES: u32 = 5;

/// Returns a client for the cluster that [`config`] finds.
///
/// ```no_run
/// # async fn example() -> sandpod_kube::Result<()> {
/// use sandpod_kube::client::{Insecure, connect};
///
/// let client = connect(None, None, Insecure::Refused).await?;
/// assert!(!client.default_namespace().is_empty());
/// # Ok(())
/// # }
/// ```
pub async fn connect(kubeconfig: Option<&Path>, context: Option<&str>, insecure: Insecure) -> Result<Client> {
    let config = config(kubeconfig, context).await?;
    insecure.check(&config)?;
    // Making the client may wait for a credential plugin, which would block the runtime.
    let made = tokio::task::spawn_blocking(move || client(&config)).await;
    made.map_err(|cause| Error::Interrupted { cause })?
}

/// Returns a client for the API server at `url`, with `token` or else the token of this process's Pod, if any. The
/// server's certificate is verified with the Pod's CA, or else with the system's. A server on this machine with plain
/// HTTP, such as `kubectl proxy`, gets only `token`.
///
/// ```
/// # #[tokio::main]
/// # async fn main() -> sandpod_kube::Result<()> {
/// use sandpod_kube::client::{Insecure, at};
///
/// let client = at("http://localhost:8001", None, Insecure::Refused)?; // as `kubectl proxy` has it
/// # Ok(())
/// # }
/// ```
pub fn at(url: &str, token: Option<&str>, insecure: Insecure) -> Result<Client> {
    let parsed: Uri = url.parse().map_err(|_| Error::Url { url: url.to_owned() })?;
    let inside = Config::incluster().ok();
    let mut config = Config::new(parsed);
    config.root_cert = inside.as_ref().and_then(|inside| inside.root_cert.clone());
    match token {
        Some(token) => config.auth_info.token = Some(token.to_owned().into()),
        None if config.cluster_url.scheme_str() == Some("http") && is_loopback(&config.cluster_url) => {}
        None => config.auth_info = inside.map(|inside| inside.auth_info).unwrap_or_default(),
    }
    insecure.check(&config)?;
    client(&config)
}

/// Finds the cluster and the credentials: from the file `kubeconfig`, else from `$KUBECONFIG` or `~/.kube/config`, else
/// from the Pod that this process runs in. `context` is the kubeconfig's current one if it is `None`.
///
/// ```no_run
/// # async fn example() -> sandpod_kube::Result<()> {
/// let mut config = sandpod_kube::client::config(Some("kubeconfig.yaml".as_ref()), None).await?;
/// config.default_namespace = "agents".to_owned();
/// let client = sandpod_kube::client::client(&config)?;
/// # Ok(())
/// # }
/// ```
pub async fn config(kubeconfig: Option<&Path>, context: Option<&str>) -> Result<Config> {
    let (mut config, proxy_url) = match read(kubeconfig, context).await {
        Ok(found) => found,
        Err(cause) if kubeconfig.is_none() && context.is_none() => (in_cluster(cause)?, None),
        Err(cause) => return Err(unreadable(kubeconfig, cause)),
    };
    config.proxy_url =
        proxy::choose(&config.cluster_url, proxy_url.as_deref(), &proxy::Variables::from_env())?;
    Ok(config)
}

/// Returns the configuration, and the proxy that the kubeconfig names.
async fn read(
    path: Option<&Path>,
    context: Option<&str>,
) -> Result<(Config, Option<String>), KubeconfigError> {
    let mut kubeconfig = path.map_or_else(Kubeconfig::read, Kubeconfig::read_from)?;
    kubeconfig.current_context = context.map(str::to_owned).or(kubeconfig.current_context);
    let proxy_url = proxy::proxy_url(&kubeconfig);
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    Ok((config, proxy_url))
}

/// Returns the Pod's configuration. Outside a Pod the error is `cause`, which the user can fix. In a Pod it is what the
/// Pod lacks.
fn in_cluster(cause: KubeconfigError) -> Result<Config> {
    Config::incluster().map_err(|lacking| match env::var_os(IN_POD) {
        Some(_) => Error::Pod { lacking: Box::new(lacking), cause: Box::new(cause) },
        None => unreadable(None, cause),
    })
}

fn unreadable(path: Option<&Path>, cause: KubeconfigError) -> Error {
    Error::Config { path: path.map(Path::to_owned), cause: Box::new(cause) }
}

/// Makes a client for `config`. Call it inside a tokio runtime, which the client uses.
///
/// ```
/// # #[tokio::main]
/// # async fn main() -> sandpod_kube::Result<()> {
/// let config = kube::Config::new(http::Uri::from_static("https://kube.example.com:6443"));
/// let client = sandpod_kube::client::client(&config)?; // connects with the first call
/// assert_eq!(client.default_namespace(), "default");
/// # Ok(())
/// # }
/// ```
pub fn client(config: &Config) -> Result<Client> {
    // This fails if a provider is installed already, which is fine.
    let _ = rustls::crypto::ring::default_provider().install_default();

    let Some(proxy_url) = &config.proxy_url else {
        return over(config, tcp());
    };
    let proxy = proxy::parse(proxy_url, &config.cluster_url)?;
    match proxy.uri().scheme_str() {
        Some("http") => over(config, tunnel(&proxy, tcp())),
        Some("https") => {
            let tls = config
                .rustls_https_connector_with_connector(tcp())
                .map_err(|cause| unusable(config, cause))?;
            over(config, tunnel(&proxy, tls))
        }
        Some("socks5" | "socks5h") => over(config, socks(&proxy)),
        _ => Err(proxy::unusable(&proxy_url.to_string())),
    }
}

pub(crate) fn tcp() -> HttpConnector {
    let mut connector = HttpConnector::new();
    connector.enforce_http(false);
    connector.set_nodelay(true);
    connector.set_keepalive(Some(KEEP_ALIVE));
    connector.set_keepalive_interval(Some(KEEP_ALIVE));
    connector
}

fn tunnel<C>(proxy: &Intercept, connector: C) -> Tunnel<C> {
    let tunnel = Tunnel::new(proxy.uri().clone(), connector);
    match proxy.basic_auth() {
        Some(credentials) => tunnel.with_auth(credentials.clone()),
        None => tunnel,
    }
}

fn socks(proxy: &Intercept) -> SocksV5<HttpConnector> {
    let socks = SocksV5::new(proxy.uri().clone(), tcp());
    match proxy.raw_auth() {
        Some((user, password)) => socks.with_auth(user.to_owned(), password.to_owned()),
        None => socks,
    }
}

fn over<C>(config: &Config, connector: C) -> Result<Client>
where
    C: Service<Uri> + Clone + Send + Sync + 'static,
    C::Response: Connection + Read + Write + Send + Unpin + 'static,
    C::Future: Send + 'static,
    C::Error: Into<BoxError>,
{
    let mut config = config.clone();
    need_no_roots_for_http(&mut config);
    let token_file = TokenFile::take(&mut config)?;
    compose(&config, token_file, connector).map_err(|cause| unusable(&config, cause))
}

/// Plain HTTP checks no certificate, but kube refuses to make a client on a system without root certificates.
pub(crate) fn need_no_roots_for_http(config: &mut Config) {
    if config.cluster_url.scheme_str() == Some("http") {
        config.root_cert.get_or_insert_default();
    }
}

/// Assembles the layers in kube's order. Each try of a call gets current credentials.
fn compose<C>(config: &Config, token_file: Option<TokenFile>, connector: C) -> Result<Client, kube::Error>
where
    C: Service<Uri> + Clone + Send + Sync + 'static,
    C::Response: Connection + Read + Write + Send + Unpin + 'static,
    C::Future: Send + 'static,
    C::Error: Into<BoxError>,
{
    let mut connector = TimeoutConnector::new(config.rustls_https_connector_with_connector(connector)?);
    // No timeout for reads and writes: a command may be silent for minutes. TCP keep-alive detects a dead connection.
    connector.set_connect_timeout(config.connect_timeout);
    let service = ServiceBuilder::new()
        .layer(Grace::default())
        .layer(config.base_uri_layer())
        .option_layer(config.default_retry.then(|| RetryLayer::new(retries())))
        .layer(Login::new(config)?)
        .option_layer(token_file.map(|file| MapRequestLayer::new(move |request| file.authorize(request))))
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(HttpClient::builder(TokioExecutor::new()).build::<_, Body>(connector));
    Ok(Client::new(service, config.default_namespace.clone()))
}

/// Returns kube's retry policy, with a `Retry-After` of the API server taken into account.
fn retries() -> RetryPolicy {
    RetryPolicy::new(RETRY_DELAYS.0, RETRY_DELAYS.1, MAX_RETRIES, true).unwrap_or_default()
}

fn unusable(config: &Config, cause: kube::Error) -> Error {
    Error::Client { cluster: config.cluster_url.to_string(), cause: Box::new(cause) }
}

#[cfg(test)]
mod tests;
