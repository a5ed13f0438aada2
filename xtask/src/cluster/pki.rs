//! The certificates of the cluster, and the kubeconfigs of its users and components.

use std::fs;
use std::io::Write as _;
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use anyhow::{Context, Result};
use base64::Engine as _;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose, SanType,
};
use serde_json::json;

use super::layout::{self, API_SERVICE_ADDRESS, NODE, NODE_ADDRESS};

/// The subject of a certificate.
struct Identity<'a> {
    file: &'a str,
    name: &'a str,
    group: Option<&'a str>,
}

/// The users and components that have a kubeconfig with a client certificate.
const USERS: &[Identity<'_>] = &[
    Identity { file: "admin", name: "admin", group: Some("system:masters") },
    Identity { file: "kube-controller-manager", name: "system:kube-controller-manager", group: None },
    Identity { file: "kube-scheduler", name: "system:kube-scheduler", group: None },
    Identity { file: "kube-proxy", name: "system:kube-proxy", group: None },
    Identity { file: "kubelet", name: "system:node:testbed", group: Some("system:nodes") },
    // The name of its ServiceAccount, so that the controller has only the permissions of its project's manifests.
    Identity {
        file: "agent-sandbox-controller",
        name: "system:serviceaccount:agent-sandbox-system:agent-sandbox-controller",
        group: None,
    },
];

/// Creates a new CA, and all certificates and kubeconfigs, below the state directory.
pub(super) fn create() -> Result<()> {
    fs::create_dir_all(layout::state("pki")).context("cannot make the directory for certificates")?;
    let ca = certificate_authority()?;
    write(&layout::state("pki/ca.crt"), &ca.pem())?;
    let tokens = KeyPair::generate()?;
    write(&layout::state("pki/service-accounts.key"), &tokens.serialize_pem())?;
    write(&layout::state("pki/service-accounts.pub"), &tokens.public_key_pem())?;

    let api_names = ["kubernetes", "kubernetes.default", "kubernetes.default.svc", "localhost"];
    serving_certificate(&ca, "apiserver", &api_names, &[NODE_ADDRESS, API_SERVICE_ADDRESS, "127.0.0.1"])?;
    serving_certificate(&ca, "kubelet-serving", &[NODE], &[NODE_ADDRESS])?;
    let kubelet_client =
        Identity { file: "apiserver-to-kubelet", name: "kube-apiserver", group: Some("system:masters") };
    let (certificate, key) = client_certificate(&ca, &kubelet_client)?;
    write(&layout::state("pki/apiserver-to-kubelet.crt"), &certificate)?;
    write(&layout::state("pki/apiserver-to-kubelet.key"), &key)?;

    for user in USERS {
        let (certificate, key) = client_certificate(&ca, user)?;
        let credentials = json!({
            "client-certificate-data": base64(&certificate),
            "client-key-data": base64(&key),
        });
        write_kubeconfig(user.file, &credentials, "default")?;
    }
    Ok(())
}

/// Writes the kubeconfig of `user` with `credentials`, the `user` part of a kubeconfig.
pub(super) fn write_kubeconfig(user: &str, credentials: &serde_json::Value, namespace: &str) -> Result<()> {
    let ca = fs::read_to_string(layout::state("pki/ca.crt")).context("cannot read the testbed's CA")?;
    let kubeconfig = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{
            "name": "testbed",
            "cluster": {
                "server": format!("https://{NODE_ADDRESS}:6443"),
                "certificate-authority-data": base64(&ca),
            },
        }],
        "users": [{ "name": user, "user": credentials }],
        "contexts": [{
            "name": "testbed",
            "context": { "cluster": "testbed", "user": user, "namespace": namespace },
        }],
        "current-context": "testbed",
    });
    write(&layout::kubeconfig(user), &serde_json::to_string_pretty(&kubeconfig)?)
}

fn certificate_authority() -> Result<CertifiedIssuer<'static, KeyPair>> {
    let mut params = params("sandpod-testbed", None);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    Ok(CertifiedIssuer::self_signed(params, KeyPair::generate()?)?)
}

fn serving_certificate(
    ca: &CertifiedIssuer<'_, KeyPair>,
    file: &str,
    names: &[&str],
    addresses: &[&str],
) -> Result<()> {
    let mut params = params(file, None);
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    for name in names {
        params.subject_alt_names.push(SanType::DnsName((*name).try_into()?));
    }
    for address in addresses {
        params.subject_alt_names.push(SanType::IpAddress(address.parse::<IpAddr>()?));
    }
    let key = KeyPair::generate()?;
    write(&layout::state(&format!("pki/{file}.crt")), &params.signed_by(&key, ca)?.pem())?;
    write(&layout::state(&format!("pki/{file}.key")), &key.serialize_pem())
}

/// A client certificate and its key, both as PEM.
fn client_certificate(
    ca: &CertifiedIssuer<'_, KeyPair>,
    identity: &Identity<'_>,
) -> Result<(String, String)> {
    let mut params = params(identity.name, identity.group);
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    let key = KeyPair::generate()?;
    Ok((params.signed_by(&key, ca)?.pem(), key.serialize_pem()))
}

fn params(common_name: &str, organization: Option<&str>) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, common_name);
    if let Some(organization) = organization {
        params.distinguished_name.push(DnType::OrganizationName, organization);
    }
    params.use_authority_key_identifier_extension = true;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params
}

fn base64(text: &str) -> String {
    base64::engine::general_purpose::STANDARD.encode(text)
}

/// Writes a file that only its owner can read, because some hold keys.
fn write(path: &Path, content: &str) -> Result<()> {
    fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)
        .and_then(|mut file| file.write_all(content.as_bytes()))
        .with_context(|| format!("cannot write {}", path.display()))
}
