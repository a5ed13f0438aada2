//! TLS of the router: client certificates as callers, and certificates that change.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose, SanType,
};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use sandpod_router::access::Access;
use sandpod_router::access::reviews::Reviews;
use sandpod_router::tls::{Files, Tls};
use sandpod_router::{Listener, Options};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_util::sync::CancellationToken;

use crate::api::FakeApi;
use crate::stage::{SOON, Stage};

struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn create() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// The certificate of `name` and its key, as PEM.
    fn sign(&self, name: &str, purpose: ExtendedKeyUsagePurpose) -> (String, String) {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages = vec![purpose];
        params.use_authority_key_identifier_extension = true;
        params.subject_alt_names = vec![SanType::IpAddress(Ipv4Addr::LOCALHOST.into())];
        let key = KeyPair::generate().unwrap();
        (params.signed_by(&key, &self.0).unwrap().pem(), key.serialize_pem())
    }

    fn write_server(&self, dir: &Path) {
        let (certificate, key) = self.sign("router", ExtendedKeyUsagePurpose::ServerAuth);
        fs::write(dir.join("tls.crt"), certificate).unwrap();
        fs::write(dir.join("tls.key"), key).unwrap();
    }
}

/// Starts a second listener of the stage's router, with TLS.
async fn serve(stage: &Stage, dir: &Path, is_client_certificate_required: bool) -> SocketAddr {
    let files = Files {
        certificate: dir.join("tls.crt"),
        key: dir.join("tls.key"),
        client_ca: Some(dir.join("ca.crt")),
        is_client_certificate_required,
    };
    let tls = Arc::new(Tls::load(files).unwrap());
    let listener = Listener::bind(stage.router.clone(), ([127, 0, 0, 1], 0).into(), Some(tls.clone()), 100)
        .await
        .unwrap();
    let address = listener.address().unwrap();
    tokio::spawn(listener.serve(CancellationToken::new()));
    let metrics = stage.router.metrics().clone();
    tokio::spawn(async move { tls.reload(&metrics).await });
    address
}

/// Sends a request for the sandbox; returns the first line of the answer. None: the connection failed.
async fn get(
    stage: &Stage,
    address: SocketAddr,
    server: &Authority,
    client: Option<(&Authority, &str)>,
) -> Option<String> {
    let mut roots = RootCertStore::empty();
    roots.add(server.0.der().clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = config.with_root_certificates(roots);
    let config = match client {
        None => config.with_no_client_auth(),
        Some((authority, name)) => {
            let (certificate, key) = authority.sign(name, ExtendedKeyUsagePurpose::ClientAuth);
            let certificate = CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap();
            let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
            config.with_client_auth_cert(vec![certificate], key).unwrap()
        }
    };
    let stream = TcpStream::connect(address).await.unwrap();
    let name = ServerName::from(address.ip());
    let mut stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await.ok()?;
    let request = format!(
        "GET /any HTTP/1.1\r\nHost: front\r\nX-Sandbox-ID: box\r\nX-Sandbox-Namespace: agents\r\n\
         X-Sandbox-Port: {}\r\nConnection: close\r\n\r\n",
        stage.sandbox.port()
    );
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut answer = Vec::new();
    let read = timeout(SOON, stream.read_to_end(&mut answer)).await.expect("an answer or an end");
    if answer.is_empty() {
        read.ok()?;
    }
    String::from_utf8_lossy(&answer).lines().next().map(str::to_owned)
}

#[tokio::test]
async fn a_client_certificate_is_a_user_whose_right_is_reviewed() {
    let (api, dir) = (FakeApi::new(), tempfile::tempdir().unwrap());
    api.permit("owner", "sandboxes", "agents", "box");
    api.permit("system:admin", "sandboxes", "agents", "box");
    let reviews = Reviews::new(api.client(), Vec::new(), Arc::default());
    let stage = Stage::new(Access { reviews: Some(reviews), ..Access::default() }, Options::default()).await;
    let (server, clients, others) = (Authority::create(), Authority::create(), Authority::create());
    server.write_server(dir.path());
    fs::write(dir.path().join("ca.crt"), clients.0.pem()).unwrap();
    let optional = serve(&stage, dir.path(), false).await;
    let required = serve(&stage, dir.path(), true).await;

    for (client, expected) in [
        (Some((&clients, "owner")), Some("HTTP/1.1 200 OK")),
        (Some((&clients, "stranger")), Some("HTTP/1.1 403 Forbidden")),
        (Some((&clients, "system:admin")), Some("HTTP/1.1 401 Unauthorized")),
        (Some((&others, "owner")), None),
        (None, Some("HTTP/1.1 401 Unauthorized")),
    ] {
        let name = client.map(|(_, name)| name);
        assert_eq!(get(&stage, optional, &server, client).await.as_deref(), expected, "{name:?}");
    }
    assert_eq!(get(&stage, required, &server, None).await, None);
    assert!(get(&stage, required, &server, Some((&clients, "owner"))).await.is_some());
}

#[tokio::test]
async fn changed_certificates_and_authorities_are_read_again() {
    let (api, dir) = (FakeApi::new(), tempfile::tempdir().unwrap());
    api.permit("owner", "sandboxes", "agents", "box");
    let reviews = Reviews::new(api.client(), Vec::new(), Arc::default());
    let stage = Stage::new(Access { reviews: Some(reviews), ..Access::default() }, Options::default()).await;
    let (old, new) = (Authority::create(), Authority::create());
    old.write_server(dir.path());
    fs::write(dir.path().join("ca.crt"), old.0.pem()).unwrap();
    let address = serve(&stage, dir.path(), false).await;
    assert!(get(&stage, address, &old, Some((&old, "owner"))).await.is_some());

    new.write_server(dir.path());
    fs::write(dir.path().join("ca.crt"), new.0.pem()).unwrap();
    let changed = async {
        while get(&stage, address, &new, Some((&new, "owner"))).await.as_deref() != Some("HTTP/1.1 200 OK") {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    timeout(SOON, changed).await.expect("the files are read again");
    assert_eq!(get(&stage, address, &new, Some((&old, "owner"))).await, None, "the old authority is gone");
}
