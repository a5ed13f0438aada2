//! Connections to HTTP servers other than the API server, such as a gateway in front of a cluster.

use std::path::{Path, PathBuf};

use http::Uri;
use hyper_util::rt::TokioIo;
use kube::Config;
use kube::client::ConfigExt as _;
use tokio::io::{AsyncRead, AsyncWrite};
use tower::ServiceExt as _;

use crate::client::{need_no_roots_for_http, tcp};

/// The certificates for `https`.
///
/// ```
/// let tls = sandpod_kube::dial::Tls { ca_cert: Some("ca.pem".into()), ..Default::default() };
/// assert!(tls.client_cert.is_none());
/// ```
#[derive(Clone, Debug, Default)]
pub struct Tls {
    /// PEM file of the trusted certificates. None: the system's.
    pub ca_cert: Option<PathBuf>,
    /// PEM file of the client certificate, if any.
    pub client_cert: Option<PathBuf>,
    /// PEM file of its key.
    pub client_key: Option<PathBuf>,
}

/// Connects to the server of `url`, with TLS if it is `https`. An error is a readable reason.
///
/// ```no_run
/// # async fn example() -> Result<(), String> {
/// use sandpod_kube::dial::{Tls, open};
///
/// let stream = open("https://sandboxes.example.com", &Tls::default()).await?;
/// # Ok(())
/// # }
/// ```
pub async fn open(
    url: &str,
    tls: &Tls,
) -> Result<impl AsyncRead + AsyncWrite + Send + Unpin + use<>, String> {
    let uri: Uri = url.parse().map_err(|cause| format!("{url:?} is no URL: {cause}"))?;
    if !matches!(uri.scheme_str(), Some("http" | "https")) || uri.host().is_none() {
        return Err(format!("{url:?} is no http or https URL"));
    }
    // This fails if a provider is installed already, which is fine.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let config = config(uri.clone(), tls)?;
    let connector = config.rustls_https_connector_with_connector(tcp());
    let connector = connector.map_err(|cause| format!("TLS can't be set up: {cause}"))?;
    let stream = connector.oneshot(uri).await.map_err(|cause| format!("no connection to {url}: {cause}"))?;
    Ok(TokioIo::new(stream))
}

/// Builds a configuration for kube's TLS connector, which reads these files and has the same trust rules.
fn config(uri: Uri, tls: &Tls) -> Result<Config, String> {
    let mut config = Config::new(uri);
    if let Some(path) = &tls.ca_cert {
        let read = rustls::pki_types::pem::PemObject::pem_file_iter(path);
        let certificates: Result<Vec<rustls::pki_types::CertificateDer<'_>>, _> =
            read.and_then(Iterator::collect);
        let certificates = certificates.map_err(|cause| unreadable(path, &cause))?;
        config.root_cert = Some(certificates.iter().map(|one| one.to_vec()).collect());
    }
    need_no_roots_for_http(&mut config);
    let text = |path: &Option<PathBuf>| path.as_ref().map(|path| path.display().to_string());
    config.auth_info.client_certificate = text(&tls.client_cert);
    config.auth_info.client_key = text(&tls.client_key);
    Ok(config)
}

fn unreadable(path: &Path, cause: &dyn std::fmt::Display) -> String {
    format!("the certificates in {} can't be read: {cause}", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_invalid_url_is_refused_with_a_reason() {
        for url in ["", "sandboxes", "ftp://a", "https://"] {
            let error = open(url, &Tls::default()).await.err().unwrap();
            assert!(error.contains("URL"), "{error}");
        }
        let tls = Tls { ca_cert: Some("/nowhere".into()), ..Tls::default() };
        let error = open("https://127.0.0.1:1", &tls).await.err().unwrap();
        assert!(error.contains("/nowhere"), "{error}");
    }

    /// Runs itself again in a process without system certificates.
    #[tokio::test]
    async fn plain_http_needs_no_certificates_and_https_does() {
        const TEST: &str = "dial::tests::plain_http_needs_no_certificates_and_https_does";
        const NONE: [(&str, &str); 2] = [("SSL_CERT_FILE", "/nowhere"), ("SSL_CERT_DIR", "/nowhere")];
        if std::env::var_os(NONE[0].0).is_none_or(|file| file != NONE[0].1) {
            let mut again = std::process::Command::new(std::env::current_exe().unwrap());
            assert!(again.args(["--exact", TEST]).envs(NONE).status().unwrap().success());
            return;
        }
        let said = async |scheme: &str| {
            open(&format!("{scheme}://127.0.0.1:1"), &Tls::default()).await.err().unwrap()
        };
        assert!(said("http").await.starts_with("no connection to"), "{}", said("http").await);
        assert!(said("https").await.starts_with("TLS can't be set up"), "{}", said("https").await);
    }
}
