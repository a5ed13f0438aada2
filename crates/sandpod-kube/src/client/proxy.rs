//! Selects the proxy for the API server by kubectl's rules.
//!
//! kube 5.0 compares `NO_PROXY` with the proxy's address instead of the API server's, lets it override the kubeconfig's
//! `proxy-url`, and ignores proxies inside a cluster.

use http::Uri;
use hyper_util::client::proxy::matcher::{Intercept, Matcher};
use kube::config::Kubeconfig;

use crate::{Error, Result};

/// Hosts that the proxy variables never apply to, as in Go's `net/http` and in kubectl.
const LOOPBACK: &str = "localhost,127.0.0.0/8,::1";

/// The proxy variables of a process.
#[derive(Default)]
pub(super) struct Variables {
    http: String,
    https: String,
    no: String,
}

impl Variables {
    pub(super) fn from_env() -> Self {
        Self {
            http: first_set(["HTTP_PROXY", "http_proxy"]),
            https: first_set(["HTTPS_PROXY", "https_proxy"]),
            no: first_set(["NO_PROXY", "no_proxy"]),
        }
    }

    fn proxy_to(&self, cluster: &Uri) -> Option<&str> {
        let proxy = if cluster.scheme_str() == Some("http") { &self.http } else { &self.https };
        let matcher = Matcher::builder().all(proxy.as_str()).no(format!("{LOOPBACK},{}", self.no)).build();
        matcher.intercept(cluster).map(|_| proxy.as_str())
    }
}

fn first_set(names: [&str; 2]) -> String {
    names
        .iter()
        .find_map(|name| std::env::var(name).ok().filter(|value| !value.is_empty()))
        .unwrap_or_default()
}

/// Returns the kubeconfig's `proxy-url` if it has one, regardless of `NO_PROXY`, or else the variables' proxy.
pub(super) fn choose(cluster: &Uri, proxy_url: Option<&str>, variables: &Variables) -> Result<Option<Uri>> {
    let chosen = proxy_url.filter(|url| !url.is_empty()).or_else(|| variables.proxy_to(cluster));
    chosen.map(|url| url.parse().map_err(|_| unusable(url))).transpose()
}

/// The `proxy-url` of the cluster that the current context names.
pub(super) fn proxy_url(kubeconfig: &Kubeconfig) -> Option<String> {
    let current = kubeconfig.current_context.as_ref()?;
    let context = kubeconfig.contexts.iter().find(|named| named.name == *current)?.context.as_ref()?;
    let cluster = kubeconfig.clusters.iter().find(|named| named.name == context.cluster)?;
    cluster.cluster.as_ref()?.proxy_url.clone()
}

/// Splits `proxy` into its address and its credentials.
pub(super) fn parse(proxy: &Uri, cluster: &Uri) -> Result<Intercept> {
    let url = proxy.to_string();
    let matcher = Matcher::builder().all(url.as_str()).build();
    matcher.intercept(cluster).ok_or_else(|| unusable(&url))
}

pub(super) fn unusable(url: &str) -> Error {
    let (scheme, rest) = url.split_once("://").unwrap_or(("http", url));
    let host = rest.rsplit_once('@').map_or(rest, |(_credentials, host)| host);
    Error::Proxy { proxy: format!("{scheme}://{host}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLUSTER: &str = "https://kube.example.com:6443";

    fn chosen(cluster: &str, proxy_url: Option<&str>, no_proxy: &str) -> Option<String> {
        let variables = Variables {
            https: "http://env.example.com:3128".to_owned(),
            no: no_proxy.to_owned(),
            ..Variables::default()
        };
        let proxy = choose(&cluster.parse().unwrap(), proxy_url, &variables).unwrap();
        proxy.map(|uri| uri.host().unwrap().to_owned())
    }

    #[test]
    fn the_variable_names_the_proxy_when_the_kubeconfig_does_not() {
        assert_eq!(chosen(CLUSTER, None, "").as_deref(), Some("env.example.com"));
    }

    #[test]
    fn no_proxy_speaks_of_the_api_server_and_not_of_the_proxy() {
        assert_eq!(chosen(CLUSTER, None, "other.example.com, kube.example.com"), None);
        assert_eq!(chosen(CLUSTER, None, "env.example.com").as_deref(), Some("env.example.com"));
        assert_eq!(chosen("https://10.1.2.3:6443", None, "10.0.0.0/8"), None);
    }

    #[test]
    fn the_kubeconfigs_own_proxy_wins_over_every_variable() {
        let proxy = Some("socks5://mine.example.com:1080");
        assert_eq!(chosen(CLUSTER, proxy, "*").as_deref(), Some("mine.example.com"));
    }

    #[test]
    fn a_loopback_cluster_is_reached_without_the_variables_proxy() {
        assert_eq!(chosen("https://127.0.0.1:6443", None, ""), None);
        assert_eq!(chosen("https://localhost:6443", None, ""), None);
        assert_eq!(chosen("https://[::1]:6443", None, ""), None);
    }

    #[test]
    fn credentials_in_a_proxy_url_are_decoded_and_never_shown() {
        let cluster = CLUSTER.parse().unwrap();
        let proxy = parse(&"http://me:p%40ss@proxy.example.com:3128".parse().unwrap(), &cluster).unwrap();
        assert_eq!(proxy.uri().host(), Some("proxy.example.com"));
        assert_eq!(proxy.basic_auth().unwrap(), "Basic bWU6cEBzcw==");

        let error =
            parse(&"ftp://me:secret@proxy.example.com".parse().unwrap(), &cluster).unwrap_err().to_string();
        assert!(error.contains("ftp://proxy.example.com"), "{error}");
        assert!(!error.contains("secret"), "{error}");
    }

    #[test]
    fn the_proxy_url_is_that_of_the_current_contexts_cluster() {
        let kubeconfig = Kubeconfig::from_yaml(
            r#"{"apiVersion": "v1", "kind": "Config", "current-context": "b",
                "contexts": [{"name": "a", "context": {"cluster": "one"}}, {"name": "b", "context": {"cluster": "two"}}],
                "clusters": [{"name": "one", "cluster": {"server": "https://one", "proxy-url": "http://wrong"}},
                             {"name": "two", "cluster": {"server": "https://two", "proxy-url": "http://right"}}]}"#,
        );
        assert_eq!(proxy_url(&kubeconfig.unwrap()).as_deref(), Some("http://right"));
    }
}
