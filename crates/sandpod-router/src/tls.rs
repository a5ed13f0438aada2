//! TLS of the front door: certificates that are read again when they change, and users of client certificates.

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result, anyhow, ensure};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use x509_parser::prelude::{FromDer as _, X509Certificate};

use crate::access::reviews::User;
use crate::metrics::Metrics;

/// The time between two checks of the files. A mounted Secret is replaced as a whole, by a link that changes.
const PERIOD: Duration = Duration::from_secs(10);
/// The prefix of users and groups that Kubernetes defines.
const KUBERNETES: &str = "system:";

/// The files of a TLS server.
#[derive(Clone, Debug)]
pub struct Files {
    /// PEM file of the certificate chain.
    pub certificate: PathBuf,
    /// PEM file of its key.
    pub key: PathBuf,
    /// PEM file of the authorities of client certificates. None: a client certificate is not requested.
    pub client_ca: Option<PathBuf>,
    /// Whether a connection without a client certificate is refused.
    pub is_client_certificate_required: bool,
}

/// The present TLS configuration.
pub struct Tls {
    files: Files,
    config: RwLock<Arc<ServerConfig>>,
}

impl Tls {
    /// Reads the files.
    pub fn load(files: Files) -> Result<Self> {
        let config = RwLock::new(Arc::new(read(&files)?));
        Ok(Self { files, config })
    }

    pub(crate) fn config(&self) -> Arc<ServerConfig> {
        self.config.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Reads the files again whenever they change, and never returns. Unusable files leave the configuration as it is.
    pub async fn reload(&self, metrics: &Metrics) {
        let mut seen = changed(&self.files);
        loop {
            tokio::time::sleep(PERIOD).await;
            let now = changed(&self.files);
            if now == seen {
                continue;
            }
            seen = now;
            let loaded = read(&self.files);
            metrics.note_reload(loaded.is_ok());
            match loaded {
                Ok(config) => {
                    *self.config.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(config);
                    tracing::info!("the certificate was read again");
                }
                Err(error) => {
                    tracing::error!(%error, "the changed certificate cannot be used, the old one stays");
                }
            }
        }
    }
}

fn changed(files: &Files) -> Vec<Option<SystemTime>> {
    let paths = [Some(&files.certificate), Some(&files.key), files.client_ca.as_ref()];
    let modified = |path: &PathBuf| std::fs::metadata(path).and_then(|metadata| metadata.modified()).ok();
    paths.into_iter().flatten().map(modified).collect()
}

fn read(files: &Files) -> Result<ServerConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder =
        ServerConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions()?;
    let builder = match &files.client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates(path)? {
                roots
                    .add(certificate)
                    .with_context(|| format!("{} holds no usable authority", path.display()))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            let is_required = files.is_client_certificate_required;
            let verifier = if is_required { verifier } else { verifier.allow_unauthenticated() };
            builder.with_client_cert_verifier(verifier.build()?)
        }
    };
    let key = PrivateKeyDer::from_pem_file(&files.key)
        .map_err(|error| anyhow!("{} holds no usable key: {error}", files.key.display()))?;
    let mut config = builder
        .with_single_cert(certificates(&files.certificate)?, key)
        .context("certificate and key cannot be used together")?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let certificates =
        read.map_err(|error| anyhow!("{} holds no usable certificate: {error}", path.display()))?;
    ensure!(!certificates.is_empty(), "{} holds no certificate", path.display());
    Ok(certificates)
}

/// The user of a client certificate: the common name, and the organizations as groups, as the API server reads it.
///
/// Names and groups of Kubernetes itself (`system:`) do not count, because the authority need not be the cluster's.
pub(crate) fn user_of(certificate: &CertificateDer<'_>) -> Option<User> {
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    let subject = certificate.subject();
    let is_own = |name: &String| !name.starts_with(KUBERNETES);
    let name = texts(subject.iter_common_name()).next().filter(is_own)?;
    let groups = texts(subject.iter_organization()).filter(is_own);
    let groups = groups.chain([format!("{KUBERNETES}authenticated")]).collect();
    Some(User { name, groups, ..User::default() })
}

fn texts<'a>(
    attributes: impl Iterator<Item = &'a x509_parser::x509::AttributeTypeAndValue<'a>>,
) -> impl Iterator<Item = String> {
    attributes.filter_map(|attribute| attribute.as_str().ok().map(str::to_owned))
}
