//! Every way of reaching a cluster that kubectl supports, for calls and streams, through a kubeconfig.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

use data_encoding::BASE64;
use sandpod::{Error, ErrorKind, ExecuteOptions, Provider, RawConfig, SandboxRequest};
use sandpod_kube::client::Insecure;
use sandpod_kube::k8s_openapi::api::authentication::v1::SelfSubjectReview;
use sandpod_kube::k8s_openapi::api::core::v1::Secret;
use sandpod_kube::kube::api::{DeleteParams, ListParams, PostParams};
use sandpod_kube::kube::{self, Api};
use sandpod_testbed::connect_proxy::ConnectProxy;
use sandpod_testbed::kubeconfig::Kubeconfig;
use sandpod_testbed::socks_proxy::SocksProxy;
use sandpod_testbed::{Namespace, PATIENCE, from_json};
use serde_json::json;
use tokio::time::{sleep, timeout};

use crate::setup::{BUSYBOX, config, execute, soon};

/// An authority that signed nothing of the testbed.
const OTHER_CA: &str = include_str!("other_ca.pem");

fn config_of(namespace: &Namespace, kubeconfig: &Path) -> RawConfig {
    RawConfig { kubeconfig: Some(kubeconfig.to_owned()), ..config(namespace, BUSYBOX) }
}

async fn connected(namespace: &Namespace, kubeconfig: &Kubeconfig) -> Provider {
    Provider::connect(config_of(namespace, &kubeconfig.save())).await.expect("the kubeconfig is usable")
}

/// The first error of a provider with this kubeconfig.
async fn refused(namespace: &Namespace, kubeconfig: &Kubeconfig) -> Error {
    match Provider::connect(config_of(namespace, &kubeconfig.save())).await {
        Ok(provider) => soon("creating", provider.get_or_create(SandboxRequest::default()))
            .await
            .expect_err("it is refused"),
        Err(error) => error,
    }
}

/// Creates a sandbox, uses it over its stream, and deletes it.
async fn works(provider: &Provider) {
    let handle =
        soon("creating", provider.get_or_create(SandboxRequest::default())).await.expect("a sandbox is made");
    assert_eq!(execute(&handle, "echo hello").await, "hello\n");
    soon("deleting", provider.delete(handle.id.as_str(), true)).await.expect("it is deleted");
}

/// A token of the raw role that is valid as long as the Secret `login` exists.
async fn token(namespace: &Namespace, login: &str) -> String {
    namespace.raw().await; // Until the role is in force.
    let secret: Secret = from_json(json!({ "metadata": { "name": login } }));
    namespace.api().create(&PostParams::default(), &secret).await.expect("a Secret is made");
    namespace.token("sandpod-raw", Some(login)).await
}

/// Revokes the token, and returns when the API server rejects it.
async fn revoke(namespace: &Namespace, login: &str, token: &str) {
    namespace.api::<Secret>().delete(login, &DeleteParams::default()).await.expect("it is deleted");
    let old = Kubeconfig::of(json!({ "token": token }));
    let client = sandpod_kube::client::connect(Some(&old.save()), None, Insecure::Refused)
        .await
        .expect("a client is made");
    let reviews: Api<SelfSubjectReview> = Api::all(client);
    let ending = async {
        // The API server caches valid tokens for some seconds, and offers nothing to watch for it.
        while !matches!(
            reviews.create(&PostParams::default(), &SelfSubjectReview::default()).await,
            Err(kube::Error::Api(status)) if status.code == 401
        ) {
            sleep(Duration::from_millis(200)).await;
        }
    };
    timeout(PATIENCE, ending).await.expect("the token ends");
}

/// The lifetime that a plugin reports for its token: two seconds.
const TWO_SECONDS: &str = r#", "expirationTimestamp": "$until""#;

/// A kubeconfig whose user is a program that prints the token in the file `token`, and `expiry` with it.
fn with_plugin(script_end: &str, expiry: &str) -> Kubeconfig {
    let mut kubeconfig = Kubeconfig::admin();
    let script = format!(
        r#"#!/bin/sh
cd "$(dirname "$0")"
echo >> runs
until=$(date -u -d "@$(($(date +%s) + 2))" +%Y-%m-%dT%H:%M:%SZ)
{script_end}
cat <<END
{{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential",
 "status": {{"token": "$(cat token)"{expiry}}}}}
END
"#
    );
    let program = kubeconfig.write("plugin", script);
    fs::set_permissions(&program, Permissions::from_mode(0o755)).expect("a program can be run");
    *kubeconfig.user() = json!({ "exec": {
        "apiVersion": "client.authentication.k8s.io/v1", "command": program, "interactiveMode": "Never",
    }});
    kubeconfig
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expired_token_of_a_plugin_is_renewed_for_calls_and_streams() {
    let namespace = Namespace::create().await;
    let kubeconfig = with_plugin("", TWO_SECONDS);
    let first = token(&namespace, "first").await;
    kubeconfig.write("token", &first);
    let provider = connected(&namespace, &kubeconfig).await;
    let handle = soon("creating", provider.get_or_create(SandboxRequest::default())).await.unwrap();
    assert_eq!(execute(&handle, "echo before").await, "before\n");

    kubeconfig.write("token", token(&namespace, "second").await);
    let running = {
        let sandbox = handle.sandbox.clone();
        tokio::spawn(async move { sandbox.execute("sleep 15; echo during", ExecuteOptions::default()).await })
    };
    revoke(&namespace, "first", &first).await;

    let again = soon("reconnecting", provider.reconnect(handle.id.as_str())).await.unwrap();
    assert_eq!(execute(&again, "echo after").await, "after\n");
    let during = soon("the command", running).await.unwrap().unwrap();
    assert_eq!(during.output, "during\n");
    provider.delete(handle.id.as_str(), true).await.unwrap();
    let runs = fs::read_to_string(kubeconfig.dir().join("runs")).unwrap();
    assert!(runs.lines().count() > 1, "the plugin was asked once");
    namespace.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn exec_plugin_without_expiry_runs_again_when_its_token_is_refused() {
    let namespace = Namespace::create().await;
    let kubeconfig = with_plugin("", "");
    let first = token(&namespace, "first").await;
    kubeconfig.write("token", &first);
    let provider = connected(&namespace, &kubeconfig).await;
    let runs = || fs::read_to_string(kubeconfig.dir().join("runs")).unwrap().lines().count();
    let before = runs();
    works(&provider).await;
    assert_eq!(runs(), before, "it was asked again while its token was good");

    kubeconfig.write("token", token(&namespace, "second").await);
    revoke(&namespace, "first", &first).await;

    works(&provider).await;
    assert_eq!(runs(), before + 1);
    namespace.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn socks_proxy_passes_calls_and_streams() {
    let namespace = Namespace::create().await;
    let proxy = SocksProxy::start("me", "p@ss").await.unwrap();
    let mut kubeconfig = Kubeconfig::of(json!({ "token": token(&namespace, "login").await }));

    kubeconfig.cluster()["proxy-url"] = json!(format!("socks5://me:wrong@{}", proxy.address()));
    let error = refused(&namespace, &kubeconfig).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("Check the proxy"), "{error}");
    assert!(!error.to_string().contains("wrong"), "the password is shown: {error}");
    assert_eq!(proxy.connections(), 0);

    for scheme in ["socks5", "socks5h"] {
        let before = proxy.connections();
        kubeconfig.cluster()["proxy-url"] = json!(format!("{scheme}://me:p%40ss@{}", proxy.address()));
        works(&connected(&namespace, &kubeconfig).await).await;
        assert!(proxy.connections() > before + 1, "there was no connection for the stream");
    }
    namespace.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn error_quotes_a_failed_exec_plugin() {
    let namespace = Namespace::create().await;
    let error = refused(&namespace, &with_plugin("echo your login has expired >&2; exit 1", "")).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("your login has expired"), "{error}");
    namespace.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rotated_token_file_is_used_at_once() {
    let namespace = Namespace::create().await;
    let mut kubeconfig = Kubeconfig::admin();
    let first = token(&namespace, "first").await;
    let path = kubeconfig.write("token", format!("{first}\n"));
    *kubeconfig.user() = json!({ "tokenFile": path });
    let provider = connected(&namespace, &kubeconfig).await;
    works(&provider).await;

    kubeconfig.write("token", format!("{}\n", token(&namespace, "second").await));
    revoke(&namespace, "first", &first).await;

    works(&provider).await;
    namespace.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn proxy_with_a_password_passes_calls_and_streams() {
    let namespace = Namespace::create().await;
    let proxy = ConnectProxy::start(&format!("Basic {}", BASE64.encode(b"me:p@ss"))).await.unwrap();
    let mut kubeconfig = Kubeconfig::of(json!({ "token": token(&namespace, "login").await }));

    kubeconfig.cluster()["proxy-url"] = json!(format!("http://me:wrong@{}", proxy.address()));
    let error = refused(&namespace, &kubeconfig).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("proxy"), "{error}");
    assert!(!error.to_string().contains("wrong"), "the password is shown: {error}");
    assert!(proxy.refused() > 0 && proxy.tunnels() == 0);

    kubeconfig.cluster()["proxy-url"] = json!(format!("http://me:p%40ss@{}", proxy.address()));
    works(&connected(&namespace, &kubeconfig).await).await;
    assert!(proxy.tunnels() > 1, "there was no tunnel for the stream");
    namespace.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_authority_is_rejected_unless_the_right_one_is_in_the_same_file() {
    let namespace = Namespace::create().await;
    let mut kubeconfig = Kubeconfig::of(json!({ "token": token(&namespace, "login").await }));
    let right = kubeconfig.cluster()["certificate-authority-data"].as_str().unwrap().to_owned();
    let right = String::from_utf8(BASE64.decode(right.as_bytes()).unwrap()).unwrap();

    kubeconfig.cluster()["certificate-authority-data"] = json!(BASE64.encode(OTHER_CA.as_bytes()));
    let error = refused(&namespace, &kubeconfig).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("certificate-authority"), "{error}");

    // As during the rotation of an authority: both are in the file.
    let both = kubeconfig.write("ca.pem", format!("{OTHER_CA}{right}"));
    let cluster = kubeconfig.cluster().as_object_mut().unwrap();
    cluster.remove("certificate-authority-data");
    cluster.insert("certificate-authority".to_owned(), json!(both));
    works(&connected(&namespace, &kubeconfig).await).await;
    namespace.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn client_certificate_authenticates_with_files_relative_to_the_kubeconfig() {
    let namespace = Namespace::create().await;
    let mut kubeconfig = Kubeconfig::admin();
    let user = kubeconfig.user().clone();
    for (field, file) in [("client-certificate-data", "me.crt"), ("client-key-data", "me.key")] {
        let data = user[field].as_str().expect("the testbed's admin has a certificate");
        kubeconfig.write(file, BASE64.decode(data.as_bytes()).unwrap());
    }
    *kubeconfig.user() = json!({ "client-certificate": "me.crt", "client-key": "me.key" });
    works(&connected(&namespace, &kubeconfig).await).await;
    namespace.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn impersonated_raw_role_has_its_rights_and_no_others() {
    let namespace = Namespace::create().await;
    namespace.raw().await; // Until the role is in force.
    let mut kubeconfig = Kubeconfig::admin();
    kubeconfig.user()["as"] = json!(format!("system:serviceaccount:{}:sandpod-raw", namespace.name));

    works(&connected(&namespace, &kubeconfig).await).await;

    let client =
        sandpod_kube::client::connect(Some(&kubeconfig.save()), None, Insecure::Refused).await.unwrap();
    let secrets: Api<Secret> = Api::namespaced(client, &namespace.name);
    let error = secrets.list(&ListParams::default()).await.unwrap_err();
    assert!(matches!(&error, kube::Error::Api(status) if status.code == 403), "{error}");
    namespace.finish().await;
}
