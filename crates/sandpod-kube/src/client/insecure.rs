//! Connections to an API server that do not verify it, or that send credentials unencrypted.

use std::net::IpAddr;

use http::Uri;
use kube::Config;
use kube::config::AuthInfo;

use crate::{Error, Result};

/// Whether an unverified connection to the API server, or unencrypted credentials, are permitted.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Insecure {
    /// An insecure connection is an error.
    #[default]
    Refused,
    /// An insecure connection is a warning in the log for each client.
    Allowed,
}

impl Insecure {
    /// [`Self::Allowed`] if `allowed`.
    #[must_use]
    pub fn allowed_if(allowed: bool) -> Self {
        if allowed { Self::Allowed } else { Self::Refused }
    }

    pub(super) fn check(self, config: &Config) -> Result<()> {
        let Some(why) = insecurity(config) else { return Ok(()) };
        let cluster = config.cluster_url.to_string();
        if self == Self::Refused {
            return Err(Error::Insecure { cluster, why });
        }
        tracing::warn!(%cluster, "the connection to the API server is not secure, as the configuration allows: {why}");
        Ok(())
    }
}

/// The reason why a connection by `config` is not secure.
fn insecurity(config: &Config) -> Option<&'static str> {
    let url = &config.cluster_url;
    if url.scheme_str() != Some("http") {
        let unverified = "insecure-skip-tls-verify turns the verification of its certificate off";
        return config.accept_invalid_certs.then_some(unverified);
    }
    if has_credentials(&config.auth_info) {
        return Some("plain HTTP would send the credentials unencrypted");
    }
    (!is_loopback(url)).then_some("plain HTTP does not verify the server")
}

/// Whether the server is on this machine, such as `kubectl proxy`.
pub(super) fn is_loopback(url: &Uri) -> bool {
    let host = url.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
    host.eq_ignore_ascii_case("localhost") || host.parse().is_ok_and(|address: IpAddr| address.is_loopback())
}

/// Whether requests carry credentials. Client certificates are not sent over plain HTTP.
fn has_credentials(who: &AuthInfo) -> bool {
    let AuthInfo { username, password, token, token_file, exec, auth_provider, .. } = who;
    let named = [username.is_some(), password.is_some(), token.is_some(), token_file.is_some()];
    named.contains(&true) || exec.is_some() || auth_provider.is_some()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn config(url: &'static str, skips: bool, user: &serde_json::Value) -> Config {
        let mut config = Config::new(Uri::from_static(url));
        config.accept_invalid_certs = skips;
        config.auth_info = serde_json::from_value(user.clone()).unwrap();
        config
    }

    #[test]
    fn insecure_api_servers_are_refused_unless_allowed() {
        let (anonymous, token) = (json!({}), json!({ "token": "s3cret" }));
        let plugin = json!({ "exec": { "apiVersion": "client.authentication.k8s.io/v1", "command": "who" } });
        for (url, skips, user) in [
            ("https://kube:6443", true, &token),
            ("https://kube:6443", true, &anonymous),
            ("http://kube:8080", false, &anonymous),
            ("http://kube:8080", false, &token),
            ("http://127.0.0.1:8001", false, &token),
            ("http://127.0.0.1:8001", false, &plugin),
            ("http://[::1]:8001", false, &json!({ "tokenFile": "/token" })),
            ("http://localhost:8001", false, &json!({ "username": "u", "password": "p" })),
            ("http://127.0.0.1.example.com", false, &anonymous),
        ] {
            let config = config(url, skips, user);
            let refused = Insecure::Refused.check(&config).unwrap_err().to_string();
            assert!(refused.contains(url.trim_end_matches('/')), "{refused}");
            Insecure::Allowed.check(&config).unwrap();
        }
        for (url, user) in [
            ("https://kube:6443", &token),
            ("http://localhost:8001", &anonymous),
            ("http://127.0.0.1:8001", &anonymous),
            ("http://[::1]:8001", &anonymous),
        ] {
            Insecure::Refused.check(&config(url, false, user)).unwrap();
        }
    }
}
