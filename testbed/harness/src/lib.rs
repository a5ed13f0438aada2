//! The shared parts of the tests on a real cluster: a namespace for each test, clients with the roles that we ship, and waits
//! whose failures show the last state.
//!
//! `SANDPOD_TEST_KUBECONFIG` names the cluster. `cargo xtask test` sets it.

pub mod agent_sandbox;
pub mod authority;
pub mod calls;
pub mod connect_proxy;
pub mod front_door;
pub mod kubeconfig;
pub mod lost_answer;
pub mod proxy;
pub mod socks_proxy;
pub mod stock_runtime;

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::net::SocketAddr;
use std::time::Duration;

use futures::StreamExt;
use sandpod_kube::agent_sandbox::{Sandbox, SandboxClaim, SandboxTemplate, SandboxWarmPool};
use sandpod_kube::k8s_openapi::api::authentication::v1::TokenRequest;
use sandpod_kube::k8s_openapi::api::authorization::v1::SelfSubjectAccessReview;
use sandpod_kube::k8s_openapi::api::coordination::v1::Lease;
use sandpod_kube::k8s_openapi::api::core::v1::{
    ConfigMap, Namespace as KubeNamespace, PersistentVolumeClaim, Pod, Service, ServiceAccount,
};
use sandpod_kube::k8s_openapi::api::networking::v1::NetworkPolicy;
use sandpod_kube::k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use sandpod_kube::k8s_openapi::{ClusterResourceScope, NamespaceResourceScope};
use sandpod_kube::kube::api::{DeleteParams, ListParams, PostParams};
use sandpod_kube::kube::runtime::watcher::{self, Event, watch_object};
use sandpod_kube::kube::runtime::{WatchStreamExt, watcher as watch};
use sandpod_kube::kube::{Api, Client, Config, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use crate::kubeconfig::Kubeconfig;

/// The limit of every wait of a test.
pub const PATIENCE: Duration = Duration::from_secs(60);

const RAW_ROLE: &str = include_str!("../../../deploy/rbac/raw.yaml");
const NAMESPACES_ROLE: &str = include_str!("../../../deploy/rbac/raw-namespaces.yaml");
const NAMESPACES_ACCOUNT: &str = "sandpod-raw-namespaces";
const AGENT_SANDBOX_ROLE: &str = include_str!("../../../deploy/rbac/agent-sandbox.yaml");
const ROUTER_ROLE: &str = include_str!("../../../deploy/rbac/router.yaml");
const ROUTER_WAKE_ROLE: &str = include_str!("../../../deploy/rbac/router-wake.yaml");
const ROUTER_ACCOUNT: &str = "sandpod-router";

/// A namespaced object with the properties that the waits need.
pub trait Object:
    Resource<Scope = NamespaceResourceScope, DynamicType = ()>
    + Clone
    + Debug
    + Serialize
    + DeserializeOwned
    + Send
    + Sync
    + 'static
{
}

impl<K> Object for K where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>
        + Clone
        + Debug
        + Serialize
        + DeserializeOwned
        + Send
        + Sync
        + 'static
{
}

/// A namespace that enforces the `restricted` Pod Security Standard and has our roles in it.
///
/// End a test with [`Namespace::finish`]. When a test panics before, dropping this requests the deletion of the namespace and
/// does not wait for it.
pub struct Namespace {
    /// The name of the namespace.
    pub name: String,
    /// A client with all permissions.
    pub admin: Client,
    config: Config,
    finished: bool,
}

impl Namespace {
    /// Creates a namespace.
    ///
    /// # Panics
    ///
    /// When there is no cluster, or it cannot be used.
    pub async fn create() -> Self {
        let config = admin_config().await;
        let admin = sandpod_kube::client::client(&config).expect("the admin's client can be built");
        let namespace: KubeNamespace = from_json(json!({
            "metadata": {
                "generateName": "sandpod-test-",
                "labels": {
                    "pod-security.kubernetes.io/enforce": "restricted",
                    "pod-security.kubernetes.io/enforce-version": "latest",
                },
            },
        }));
        let created = Api::all(admin.clone())
            .create(&PostParams::default(), &namespace)
            .await
            .expect("the admin can create a namespace");
        let namespace = Self { name: created.name_any(), admin, config, finished: false };
        for role in [RAW_ROLE, AGENT_SANDBOX_ROLE] {
            namespace.apply(role).await;
        }
        // A Pod is admitted only when its ServiceAccount exists.
        wait_for::<ServiceAccount>(&namespace.api(), "default", "exist", |account| account.is_some()).await;
        namespace
    }

    /// The admin's API for one kind of object.
    pub fn api<K: Object>(&self) -> Api<K> {
        Api::namespaced(self.admin.clone(), &self.name)
    }

    /// A client with the permissions of deploy/rbac/raw.yaml.
    pub async fn raw(&self) -> Client {
        self.client_as("sandpod-raw", "", "pods").await
    }

    /// The configuration of [`raw`](Self::raw), for tests that change it.
    pub async fn raw_config(&self) -> Config {
        self.token_config("sandpod-raw").await
    }

    /// A client with the permissions of deploy/rbac/raw-namespaces.yaml.
    pub async fn raw_namespaces(&self) -> Client {
        self.apply(NAMESPACES_ROLE).await;
        let client = self.token_client(NAMESPACES_ACCOUNT).await;
        await_permission(&client, NAMESPACES_ACCOUNT, json!({ "verb": "create", "resource": "namespaces" }))
            .await;
        client
    }

    /// [`raw`](Self::raw) through a proxy that listens at `proxy`.
    ///
    /// # Panics
    ///
    /// When the cluster cannot be used.
    pub async fn raw_through(&self, proxy: SocketAddr) -> Client {
        through(proxy, self.token_config("sandpod-raw").await)
    }

    /// [`agent_sandbox`](Self::agent_sandbox) through a proxy that listens at `proxy`.
    ///
    /// # Panics
    ///
    /// When the cluster cannot be used.
    pub async fn agent_sandbox_through(&self, proxy: SocketAddr) -> Client {
        through(proxy, self.token_config("sandpod-agent-sandbox").await)
    }

    /// The admin's client through a proxy that listens at `proxy`.
    ///
    /// # Panics
    ///
    /// When the cluster cannot be used.
    #[must_use]
    pub fn admin_through(&self, proxy: SocketAddr) -> Client {
        through(proxy, self.config.clone())
    }

    /// The address of the API server.
    ///
    /// # Panics
    ///
    /// When the kubeconfig has a host name instead of an address.
    pub fn api_address(&self) -> SocketAddr {
        let url = &self.config.cluster_url;
        let host = url.host().unwrap_or_default();
        let address = host.parse().unwrap_or_else(|_| panic!("{host} is no address"));
        SocketAddr::new(address, url.port_u16().unwrap_or(443))
    }

    /// The CA certificates of the API server as PEM, from the `ConfigMap` that every namespace has.
    ///
    /// # Panics
    ///
    /// When the cluster does not publish them.
    pub async fn ca_pem(&self) -> String {
        let name = "kube-root-ca.crt";
        let map = wait_for::<ConfigMap>(&self.api(), name, "be published", |map| map.is_some()).await;
        let pem = map.and_then(|map| map.data?.remove("ca.crt"));
        pem.expect("the cluster publishes its certificates")
    }

    /// A client with the permissions of deploy/rbac/agent-sandbox.yaml.
    pub async fn agent_sandbox(&self) -> Client {
        self.client_as("sandpod-agent-sandbox", "extensions.agents.x-k8s.io", "sandboxclaims").await
    }

    /// A kubeconfig with the permissions of deploy/rbac/router.yaml and router-wake.yaml.
    pub async fn router(&self) -> Kubeconfig {
        self.apply(ROUTER_ROLE).await;
        self.apply(ROUTER_WAKE_ROLE).await;
        let reviews =
            json!({ "verb": "create", "group": "authentication.k8s.io", "resource": "tokenreviews" });
        let client = self.token_client(ROUTER_ACCOUNT).await;
        await_permission(&client, ROUTER_ACCOUNT, reviews).await;
        Kubeconfig::of(json!({ "token": self.token(ROUTER_ACCOUNT, None).await }))
    }

    /// A client without any permission.
    pub async fn without_permissions(&self) -> Client {
        self.token_client("default").await
    }

    /// Deletes the namespace, and fails if the test left objects behind. Does not wait until the namespace is gone.
    ///
    /// Objects that belong to the namespace and not to a sandbox may stay: the `ConfigMaps` of the guest and of known images,
    /// and the deny-all policy.
    ///
    /// # Panics
    ///
    /// When other objects are left.
    pub async fn finish(mut self) {
        let left = self.leftovers().await;
        assert!(left.is_empty(), "the test left behind in {}: {}", self.name, left.join(", "));

        delete_cluster_role(&self.admin, &self.name).await;
        let namespaces: Api<KubeNamespace> = Api::all(self.admin.clone());
        namespaces
            .delete(&self.name, &DeleteParams::default())
            .await
            .expect("the admin can delete the namespace");
        self.finished = true;
    }

    async fn leftovers(&self) -> Vec<String> {
        [
            self.names::<Pod>().await,
            self.names::<Sandbox>().await,
            self.names::<SandboxClaim>().await,
            self.names::<SandboxWarmPool>().await,
            self.names::<SandboxTemplate>().await,
            self.names::<PersistentVolumeClaim>().await,
            self.names::<Service>().await,
            self.names::<NetworkPolicy>().await,
            self.names::<Lease>().await,
            self.names::<ConfigMap>().await,
            self.sandbox_namespaces().await,
        ]
        .concat()
    }

    /// The namespaces of sandboxes that were created from this one.
    async fn sandbox_namespaces(&self) -> Vec<String> {
        let ours = ListParams::default().labels(&format!("sandpod.dev/parent={}", self.name));
        let found = Api::<KubeNamespace>::all(self.admin.clone()).list(&ours).await;
        let found = found.unwrap_or_else(|error| panic!("the admin cannot list namespaces: {error}"));
        found.iter().map(|namespace| format!("Namespace {}", namespace.name_any())).collect()
    }

    async fn names<K: Object>(&self) -> Vec<String> {
        let kind = K::kind(&());
        match self.api::<K>().list(&ListParams::default()).await {
            Ok(found) => found
                .iter()
                .map(|object| format!("{kind} {}", object.name_any()))
                .filter(|name| !belongs_to_namespace(name))
                .collect(),
            // The cluster has no agent-sandbox.
            Err(sandpod_kube::kube::Error::Api(status)) if status.code == 404 => Vec::new(),
            Err(error) => panic!("the admin cannot list {kind} in {}: {error}", self.name),
        }
    }

    /// Creates the objects of `manifest`, as `kubectl apply` would after the substitution that its first lines describe.
    async fn apply(&self, manifest: &str) {
        let manifest = manifest.replace("NAMESPACE", &self.name);
        let objects: Vec<Value> = serde_saphyr::from_multiple(&manifest).expect("a role's manifest is YAML");
        for object in objects {
            match object["kind"].as_str() {
                Some("ServiceAccount") => self.create_from::<ServiceAccount>(object).await,
                Some("Role") => self.create_from::<Role>(object).await,
                Some("RoleBinding") => self.create_from::<RoleBinding>(object).await,
                Some("ClusterRole") => self.create_for_cluster::<ClusterRole>(object).await,
                Some("ClusterRoleBinding") => self.create_for_cluster::<ClusterRoleBinding>(object).await,
                other => panic!("a role's manifest holds a {other:?}"),
            }
        }
    }

    async fn create_from<K: Object>(&self, object: Value) {
        let shown = object.to_string();
        let created = self.api::<K>().create(&PostParams::default(), &from_json(object)).await;
        created.unwrap_or_else(|error| panic!("the admin cannot create {shown}: {error}"));
    }

    /// Creates an object of the cluster under a name for this namespace, because tests run side by side.
    async fn create_for_cluster<K>(&self, mut object: Value)
    where
        K: Resource<Scope = ClusterResourceScope, DynamicType = ()>
            + Clone
            + Debug
            + Serialize
            + DeserializeOwned,
    {
        let own_name = |name: &Value| json!(cluster_role_name(name.as_str().unwrap_or_default(), &self.name));
        object["metadata"]["name"] = own_name(&object["metadata"]["name"]);
        // A role of Kubernetes itself keeps its name.
        if object["roleRef"]["name"].as_str().is_some_and(|role| !role.starts_with("system:")) {
            object["roleRef"]["name"] = own_name(&object["roleRef"]["name"]);
        }
        let created =
            Api::<K>::all(self.admin.clone()).create(&PostParams::default(), &from_json(object)).await;
        created.unwrap_or_else(|error| panic!("the admin cannot create a {}: {error}", K::kind(&())));
    }

    /// A client with the token of the service account `account`. Waits until its role permits to create the resource `creates`.
    async fn client_as(&self, account: &str, group: &str, creates: &str) -> Client {
        let client = self.token_client(account).await;
        let may = json!({ "verb": "create", "group": group, "resource": creates, "namespace": self.name });
        await_permission(&client, account, may).await;
        client
    }

    async fn token_client(&self, account: &str) -> Client {
        let config = self.token_config(account).await;
        sandpod_kube::client::client(&config).expect("a client with a token can be built")
    }

    async fn token_config(&self, account: &str) -> Config {
        let mut config = self.config.clone();
        config.auth_info = from_json(json!({ "token": self.token(account, None).await }));
        config
    }

    /// A token of the service account `account`. One that is bound to a Secret becomes invalid when the Secret is deleted.
    ///
    /// # Panics
    ///
    /// When the cluster returns no token.
    pub async fn token(&self, account: &str, bound_to: Option<&str>) -> String {
        let secret = bound_to.map(|name| json!({ "apiVersion": "v1", "kind": "Secret", "name": name }));
        let request: TokenRequest = from_json(json!({
            "spec": { "audiences": [], "expirationSeconds": 3600, "boundObjectRef": secret },
        }));
        let answer = self
            .api::<ServiceAccount>()
            .create_token_request(account, &PostParams::default(), &request)
            .await
            .unwrap_or_else(|error| panic!("the admin cannot get a token for {account}: {error}"));
        answer.status.and_then(|status| status.token).expect("the response to a token request has a token")
    }
}

fn through(proxy: SocketAddr, mut config: Config) -> Client {
    config.cluster_url = format!("https://{proxy}").parse().expect("an address makes a URL");
    sandpod_kube::client::client(&config).expect("a client can be built")
}

/// Deletes the objects that [`Namespace::raw_namespaces`] or [`Namespace::router`] created outside of the namespace.
async fn delete_cluster_role(admin: &Client, namespace: &str) {
    for role in [NAMESPACES_ACCOUNT, ROUTER_ACCOUNT, "sandpod-router-reviews", "sandpod-router-wake"] {
        let (name, how) = (cluster_role_name(role, namespace), DeleteParams::default());
        // Most tests have none. One that stays grants nothing after its ServiceAccount is gone.
        let _ = Api::<ClusterRoleBinding>::all(admin.clone()).delete(&name, &how).await;
        let _ = Api::<ClusterRole>::all(admin.clone()).delete(&name, &how).await;
    }
}

fn cluster_role_name(role: &str, namespace: &str) -> String {
    format!("{role}-{namespace}")
}

fn belongs_to_namespace(object: &str) -> bool {
    ["ConfigMap kube-root-ca.crt", "NetworkPolicy sandpod-deny-all"].contains(&object)
        || object.starts_with("ConfigMap sandpod-guest-")
        || object.starts_with("ConfigMap sandpod-image-")
}

impl Drop for Namespace {
    fn drop(&mut self) {
        if self.finished {
            return;
        }
        let (name, config) = (self.name.clone(), self.config.clone());
        // The runtime of the test does not run while a panic unwinds, so its clients cannot be used here.
        let deletion = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(delete_namespace(&config, &name))
        });
        let _ = deletion.join(); // Best effort: the panic is the failure to report.
    }
}

async fn delete_namespace(config: &Config, name: &str) -> std::io::Result<()> {
    let client = sandpod_kube::client::client(config).map_err(std::io::Error::other)?;
    delete_cluster_role(&client, name).await;
    let namespaces: Api<KubeNamespace> = Api::all(client);
    let parameters = DeleteParams::default();
    let of_sandboxes = ListParams::default().labels(&format!("sandpod.dev/parent={name}"));
    for left in namespaces.list(&of_sandboxes).await.map_err(std::io::Error::other)? {
        let _ = namespaces.delete(&left.name_any(), &parameters).await; // It may be deleted already.
    }
    let deletion = namespaces.delete(name, &parameters);
    timeout(Duration::from_secs(10), deletion).await?.map_err(std::io::Error::other)?;
    Ok(())
}

async fn admin_config() -> Config {
    let Some(kubeconfig) = std::env::var_os("SANDPOD_TEST_KUBECONFIG") else {
        panic!(
            "this test needs a cluster: run `cargo xtask test`, or `eval \"$(cargo xtask cluster env)\"` first"
        );
    };
    sandpod_kube::client::config(Some(kubeconfig.as_ref()), None)
        .await
        .expect("SANDPOD_TEST_KUBECONFIG is a kubeconfig")
}

/// Polls until the API server applies a new role binding, which cannot be watched.
async fn await_permission(client: &Client, account: &str, may: Value) {
    let review: SelfSubjectAccessReview = from_json(json!({ "spec": { "resourceAttributes": may } }));
    let reviews: Api<SelfSubjectAccessReview> = Api::all(client.clone());
    let allowed = timeout(PATIENCE, async {
        loop {
            let answer = reviews.create(&PostParams::default(), &review).await;
            if answer.is_ok_and(|review| review.status.is_some_and(|status| status.allowed)) {
                return;
            }
            sleep(Duration::from_millis(50)).await;
        }
    });
    allowed
        .await
        .unwrap_or_else(|_| panic!("{account} did not get the permission of its role {:?}", review.spec));
}

/// Watches the object `name` until `done`.
///
/// # Panics
///
/// When it takes longer than [`PATIENCE`], with the last state.
pub async fn wait_for<K>(api: &Api<K>, name: &str, what: &str, done: impl Fn(Option<&K>) -> bool) -> Option<K>
where
    K: Resource<DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned + Send + 'static,
{
    let mut last_seen = "nothing".to_owned();
    let watched = timeout(PATIENCE, async {
        let mut states = watch_object(api.clone(), name).default_backoff().boxed();
        loop {
            match states.next().await.expect("a watch never ends") {
                Ok(object) if done(object.as_ref()) => return object,
                Ok(object) => last_seen = describe(object.as_ref()),
                Err(error) => last_seen = error.to_string(),
            }
        }
    });
    let outcome = watched.await;
    outcome.unwrap_or_else(|_| {
        panic!("{} {name} did not {what} within {PATIENCE:?}; last seen: {last_seen}", K::kind(&()))
    })
}

/// Watches until there is no object of this kind in the namespace.
///
/// # Panics
///
/// When it takes longer than [`PATIENCE`].
pub async fn wait_until_none<K: Object>(api: &Api<K>) {
    let mut left = BTreeSet::new();
    let watched = timeout(PATIENCE, async {
        let mut events = watch(api.clone(), watcher::Config::default()).default_backoff().boxed();
        loop {
            let settled = match events.next().await.expect("a watch never ends") {
                Ok(event) => track(&mut left, event),
                Err(_) => false, // The watch restarts by itself.
            };
            if settled && left.is_empty() {
                return;
            }
        }
    });
    let outcome = watched.await;
    assert!(outcome.is_ok(), "there still is {} {left:?} after {PATIENCE:?}", K::kind(&()));
}

/// Applies one event to `names`; returns false while the first list is incomplete.
fn track<K: Object>(names: &mut BTreeSet<String>, event: Event<K>) -> bool {
    match event {
        Event::Init => {
            names.clear();
            false
        }
        Event::InitApply(object) => {
            names.insert(object.name_any());
            false
        }
        Event::InitDone => true,
        Event::Apply(object) => {
            names.insert(object.name_any());
            true
        }
        Event::Delete(object) => {
            names.remove(&object.name_any());
            true
        }
    }
}

/// The status of an object, which has its conditions and the reasons why containers wait.
fn describe<K: Serialize>(object: Option<&K>) -> String {
    let Some(object) = object else {
        return "there is no such object".to_owned();
    };
    match serde_json::to_value(object) {
        Ok(json) if json["status"].is_null() => "no status yet".to_owned(),
        Ok(json) => format!("{:#}", json["status"]),
        Err(error) => error.to_string(),
    }
}

/// Parses an object from JSON in the form of the API.
///
/// # Panics
///
/// When the JSON does not match the type.
#[must_use]
pub fn from_json<T: DeserializeOwned>(json: Value) -> T {
    serde_json::from_value(json).expect("the JSON has the form of the API")
}
