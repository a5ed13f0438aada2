//! The resources of [agent-sandbox](https://agent-sandbox.sigs.k8s.io) in `v1beta1`, and their equivalents in
//! `v1alpha1` for a cluster that serves nothing newer ([`Served`]).
//!
//! A [`SandboxWarmPool`] keeps [`Sandbox`]es of a [`SandboxTemplate`] ready, and a [`SandboxClaim`] takes one of them.
//! Only the fields that sandpod reads or writes are defined, so change an object with a patch: a replace would drop the
//! others.

mod served;

use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use served::{Served, Version};

/// A [`Sandbox`]: one Pod with a stable identity and the sandbox's name.
///
/// ```
/// use kube::Resource;
/// use sandpod_kube::agent_sandbox::Sandbox;
///
/// assert_eq!(Sandbox::api_version(&()), "agents.x-k8s.io/v1beta1");
/// ```
#[derive(CustomResource, Clone, Debug, Deserialize, Serialize)]
#[kube(
    group = "agents.x-k8s.io",
    version = "v1beta1",
    kind = "Sandbox",
    plural = "sandboxes",
    status = "SandboxStatus",
    schema = "disabled",
    namespaced
)]
#[serde(rename_all = "camelCase")]
pub struct SandboxSpec {
    /// The Pod to run. Of its metadata only labels and annotations are used.
    pub pod_template: PodTemplateSpec,
}

/// The state of a [`Sandbox`].
///
/// ```
/// let status: sandpod_kube::agent_sandbox::SandboxStatus =
///     serde_json::from_str(r#"{"podIPs": ["10.0.0.7"]}"#).unwrap();
/// assert_eq!(status.pod_ips, ["10.0.0.7"]);
/// ```
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct SandboxStatus {
    /// Conditions, such as `Ready`.
    #[serde(default)]
    pub conditions: Vec<Condition>,
    /// The Pod's addresses, if any.
    #[serde(default, rename = "podIPs")]
    pub pod_ips: Vec<String>,
}

/// A template that sandboxes are made from.
///
/// ```
/// use sandpod_kube::agent_sandbox::{NetworkPolicyManagement, SandboxTemplate, SandboxTemplateSpec};
///
/// let template = SandboxTemplate::new("python", SandboxTemplateSpec {
///     pod_template: Default::default(),
///     network_policy_management: NetworkPolicyManagement::Unmanaged,
/// });
/// let json = serde_json::to_value(&template).unwrap();
/// assert_eq!(json["apiVersion"], "extensions.agents.x-k8s.io/v1beta1");
/// assert_eq!(json["spec"]["networkPolicyManagement"], "Unmanaged");
/// ```
#[derive(CustomResource, Clone, Debug, Deserialize, Serialize)]
#[kube(
    group = "extensions.agents.x-k8s.io",
    version = "v1beta1",
    kind = "SandboxTemplate",
    plural = "sandboxtemplates",
    schema = "disabled",
    namespaced
)]
#[serde(rename_all = "camelCase")]
pub struct SandboxTemplateSpec {
    /// The Pod of each sandbox.
    pub pod_template: PodTemplateSpec,
    /// What manages the `NetworkPolicy` of the template's Pods.
    #[serde(default)]
    pub network_policy_management: NetworkPolicyManagement,
}

/// What manages the `NetworkPolicy` of a template's Pods.
///
/// ```
/// use sandpod_kube::agent_sandbox::NetworkPolicyManagement;
///
/// assert_eq!(NetworkPolicyManagement::default(), NetworkPolicyManagement::Managed);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub enum NetworkPolicyManagement {
    /// The controller: ingress from the router only, egress to the public internet only.
    #[default]
    Managed,
    /// The owner of the namespace.
    Unmanaged,
}

/// A number of ready sandboxes of a template.
///
/// ```
/// use sandpod_kube::agent_sandbox::{NameRef, SandboxWarmPool, SandboxWarmPoolSpec};
///
/// let pool = SandboxWarmPool::new("python", SandboxWarmPoolSpec {
///     replicas: 2,
///     sandbox_template_ref: NameRef::new("python"),
/// });
/// assert_eq!(serde_json::to_value(&pool).unwrap()["spec"]["sandboxTemplateRef"]["name"], "python");
/// ```
#[derive(CustomResource, Clone, Debug, Deserialize, Serialize)]
#[kube(
    group = "extensions.agents.x-k8s.io",
    version = "v1beta1",
    kind = "SandboxWarmPool",
    plural = "sandboxwarmpools",
    status = "SandboxWarmPoolStatus",
    schema = "disabled",
    namespaced
)]
#[serde(rename_all = "camelCase")]
pub struct SandboxWarmPoolSpec {
    /// The number of unclaimed sandboxes to keep. 0 makes every claim a cold start.
    pub replicas: i32,
    /// Their template.
    pub sandbox_template_ref: NameRef,
}

/// The state of a [`SandboxWarmPool`].
///
/// ```
/// let status: sandpod_kube::agent_sandbox::SandboxWarmPoolStatus =
///     serde_json::from_str(r#"{"replicas": 2}"#).unwrap();
/// assert_eq!((status.replicas, status.ready_replicas), (2, 0));
/// ```
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SandboxWarmPoolStatus {
    /// The number of unclaimed sandboxes.
    #[serde(default)]
    pub replicas: i32,
    /// The number of those that can be claimed.
    #[serde(default)]
    pub ready_replicas: i32,
    /// The label selector of their Pods.
    #[serde(default)]
    pub selector: String,
}

/// A request for one sandbox from a pool. It owns the sandbox that it gets.
///
/// ```
/// use sandpod_kube::agent_sandbox::{NameRef, SandboxClaim, SandboxClaimSpec};
///
/// let spec = SandboxClaimSpec { warm_pool_ref: Some(NameRef::new("python")), ..SandboxClaimSpec::default() };
/// let claim = SandboxClaim::new("thread-1", spec);
/// assert_eq!(serde_json::to_value(&claim).unwrap()["spec"]["warmPoolRef"]["name"], "python");
/// ```
#[derive(CustomResource, Clone, Debug, Default, Deserialize, Serialize)]
#[kube(
    group = "extensions.agents.x-k8s.io",
    version = "v1beta1",
    kind = "SandboxClaim",
    plural = "sandboxclaims",
    status = "SandboxClaimStatus",
    schema = "disabled",
    namespaced
)]
#[serde(rename_all = "camelCase")]
pub struct SandboxClaimSpec {
    /// The pool to take from. Set in every claim of `v1beta1`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warm_pool_ref: Option<NameRef>,
    /// The template of the sandbox, in `v1alpha1`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox_template_ref: Option<NameRef>,
    /// The pool of that template to take from, in `v1alpha1`. None: any of them.
    #[serde(default, rename = "warmpool", skip_serializing_if = "Option::is_none")]
    pub warm_pool: Option<String>,
    /// When the sandbox ends by itself. None: it does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lifecycle: Option<ClaimLifecycle>,
    /// Labels and annotations of its Pod, in addition to the template's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub additional_pod_metadata: Option<Value>,
    /// Its volumes, which replace those of the template with the same name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volume_claim_templates: Vec<Value>,
}

/// When a [`SandboxClaim`] ends by itself.
///
/// ```
/// let lifecycle: sandpod_kube::agent_sandbox::ClaimLifecycle =
///     serde_json::from_str(r#"{"shutdownTime": "2026-01-01T00:00:00Z", "shutdownPolicy": "Retain"}"#).unwrap();
/// assert_eq!(lifecycle.shutdown_policy.as_deref(), Some("Retain"));
/// ```
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ClaimLifecycle {
    /// The time at which it ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shutdown_time: Option<Time>,
    /// Seconds after the end of its Pod at which it ends, if that is sooner.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl_seconds_after_finished: Option<i32>,
    /// What is deleted then: with `Retain` all but the claim, with `Delete` the claim too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shutdown_policy: Option<String>,
}

/// The state of a [`SandboxClaim`].
///
/// ```
/// let status: sandpod_kube::agent_sandbox::SandboxClaimStatus = serde_json::from_str(
///     r#"{"sandbox": {"name": "python-x7k2p", "podIPs": ["10.0.0.7"]}}"#,
/// ).unwrap();
/// assert_eq!(status.sandbox.unwrap().name, "python-x7k2p");
/// ```
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct SandboxClaimStatus {
    /// `Ready` is the sandbox's condition, once there is one.
    #[serde(default)]
    pub conditions: Vec<Condition>,
    /// The claimed sandbox.
    pub sandbox: Option<ClaimedSandbox>,
}

/// The sandbox of a claim.
///
/// ```
/// let sandbox: sandpod_kube::agent_sandbox::ClaimedSandbox =
///     serde_json::from_str(r#"{"name": "python-x7k2p"}"#).unwrap();
/// assert!(sandbox.pod_ips.is_empty(), "its Pod is not running yet");
/// ```
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct ClaimedSandbox {
    /// Its name: `<pool>-<random>` for a warm one, the claim's name for a cold one.
    #[serde(default, alias = "Name")] // as early versions of `v1alpha1` have it
    pub name: String,
    /// The addresses of its Pod.
    #[serde(default, rename = "podIPs")]
    pub pod_ips: Vec<String>,
}

/// An object of the same namespace, by name.
///
/// ```
/// assert_eq!(sandpod_kube::agent_sandbox::NameRef::new("python").name, "python");
/// ```
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct NameRef {
    /// Its name.
    pub name: String,
}

impl NameRef {
    /// Refers to the object `name`.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into() }
    }
}
