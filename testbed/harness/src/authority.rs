//! Certificates for single tests.

use std::net::Ipv4Addr;
use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose, SanType,
};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};

/// A certificate authority that no client trusts by default.
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    /// Creates an authority with a new key.
    ///
    /// # Panics
    ///
    /// When no key can be generated.
    #[must_use]
    pub fn create() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let key = KeyPair::generate().expect("a key can be generated");
        Self(CertifiedIssuer::self_signed(params, key).expect("it signs itself"))
    }

    /// Its certificate as PEM, for clients that trust it.
    #[must_use]
    pub fn pem(&self) -> String {
        self.0.pem()
    }

    /// A client's certificate and its key, as PEM.
    #[must_use]
    pub fn client(&self) -> (String, String) {
        let (certificate, key) = self.sign(ExtendedKeyUsagePurpose::ClientAuth);
        (certificate.pem(), key.serialize_pem())
    }

    /// The TLS of a server on loopback, which may require a client certificate of this authority.
    ///
    /// # Panics
    ///
    /// When the certificates are invalid.
    #[must_use]
    pub fn acceptor(&self, requires_certificate: bool) -> TlsAcceptor {
        let (certificate, key) = self.sign(ExtendedKeyUsagePurpose::ServerAuth);
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let provider = Arc::new(default_provider());
        let config = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .expect("ring supports them");
        let config = if requires_certificate {
            let mut trusted = RootCertStore::empty();
            trusted.add(self.0.der().clone()).expect("it is a certificate");
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(trusted), provider).build();
            config.with_client_cert_verifier(verifier.expect("there is a trusted authority"))
        } else {
            config.with_no_client_auth()
        };
        let chain: Vec<CertificateDer<'static>> = vec![certificate.der().clone()];
        let config = config.with_single_cert(chain, key).expect("the key is the certificate's");
        TlsAcceptor::from(Arc::new(config))
    }

    fn sign(&self, purpose: ExtendedKeyUsagePurpose) -> (rcgen::Certificate, KeyPair) {
        let mut params = CertificateParams::default();
        params.extended_key_usages = vec![purpose];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.use_authority_key_identifier_extension = true;
        let loopback = "localhost".try_into().expect("it is a name");
        params.subject_alt_names =
            vec![SanType::DnsName(loopback), SanType::IpAddress(Ipv4Addr::LOCALHOST.into())];
        let key = KeyPair::generate().expect("a key can be generated");
        (params.signed_by(&key, &self.0).expect("it can be signed"), key)
    }
}
