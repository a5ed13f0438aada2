//! A cluster that, to one client, serves only v1alpha1 of agent-sandbox.
//!
//! The testbed's own resources are v1beta1 and shared by all tests. The stand-in's resources are in a group of their own,
//! on the same API server and with real Pods, and the client's calls for agent-sandbox are rewritten to that group. A small
//! controller creates a Pod of the template for each claim.

use std::collections::HashSet;
use std::pin::pin;

use futures::StreamExt as _;
use http::Request;
use http::uri::{PathAndQuery, Uri};
use sandpod_kube::k8s_openapi::api::core::v1::Pod;
use sandpod_kube::k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use sandpod_kube::kube::api::{
    ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams,
};
use sandpod_kube::kube::client::Body;
use sandpod_kube::kube::runtime::WatchStreamExt as _;
use sandpod_kube::kube::runtime::watcher::{self, Event};
use sandpod_kube::kube::{Api, Client, ResourceExt as _};
use sandpod_testbed::{Namespace, from_json, wait_for};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

/// The group that the client requests.
const GROUP: &str = "extensions.agents.x-k8s.io";

pub(super) struct Alpha {
    admin: Client,
    namespace: String,
    controller: JoinHandle<()>,
}

impl Alpha {
    pub(super) async fn install(namespace: &Namespace) -> Self {
        let mut alpha = Self {
            admin: namespace.admin.clone(),
            namespace: namespace.name.clone(),
            controller: tokio::spawn(async {}),
        };
        let definitions: Api<CustomResourceDefinition> = Api::all(alpha.admin.clone());
        for (kind, spec) in specs() {
            let definition = alpha.definition(kind, &spec);
            let name = definition["metadata"]["name"].as_str().expect("it has a name").to_owned();
            let made = definitions.create(&PostParams::default(), &from_json(definition)).await;
            made.expect("the admin makes a definition");
            wait_for(&definitions, &name, "be served", |definition| {
                let conditions = definition.and_then(|one| one.status.as_ref()?.conditions.as_ref());
                conditions.into_iter().flatten().any(|one| one.type_ == "Established" && one.status == "True")
            })
            .await;
        }
        let (claims, templates) = (alpha.api("SandboxClaim"), alpha.api("SandboxTemplate"));
        alpha.controller = tokio::spawn(control(claims, templates, namespace.api()));
        alpha
    }

    /// The group of this test.
    fn group(&self) -> String {
        format!("extensions.{}.sandpod.test", self.namespace)
    }

    pub(super) fn api(&self, kind: &str) -> Api<DynamicObject> {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(&self.group(), "v1alpha1", kind));
        Api::namespaced_with(self.admin.clone(), &self.namespace, &resource)
    }

    pub(super) async fn create(&self, kind: &str, name: &str, spec: Value) {
        let object = json!({
            "apiVersion": format!("{}/v1alpha1", self.group()),
            "kind": kind,
            "metadata": { "name": name },
            "spec": spec,
        });
        let made = self.api(kind).create(&PostParams::default(), &from_json(object)).await;
        made.expect("the admin makes an object");
    }

    /// A client whose calls for agent-sandbox reach v1alpha1.
    pub(super) fn client(&self) -> Client {
        let (admin, group) = (self.admin.clone(), self.group());
        let service = tower::service_fn(move |request: Request<Body>| {
            let (admin, group) = (admin.clone(), group.clone());
            async move { admin.send(redirected(request, &group).await).await }
        });
        Client::new(service, &self.namespace)
    }

    /// Fails if a claim is left, and deletes everything.
    pub(super) async fn remove(self) {
        let left = self.api("SandboxClaim").list(&ListParams::default()).await.expect("claims are listed");
        assert!(left.items.is_empty(), "{:?}", left.items);
        self.controller.abort();
        let definitions: Api<CustomResourceDefinition> = Api::all(self.admin.clone());
        for (kind, _) in specs() {
            let name = format!("{}.{}", plural(kind), self.group());
            definitions
                .delete(&name, &DeleteParams::default())
                .await
                .expect("the admin deletes a definition");
        }
    }

    fn definition(&self, kind: &str, spec: &Value) -> Value {
        let (plural, group) = (plural(kind), self.group());
        json!({
            "metadata": { "name": format!("{plural}.{group}") },
            "spec": {
                "group": group,
                "scope": "Namespaced",
                "names": { "kind": kind, "plural": plural },
                "versions": [{
                    "name": "v1alpha1",
                    "served": true,
                    "storage": true,
                    "subresources": { "status": {} },
                    "schema": { "openAPIV3Schema": {
                        "type": "object",
                        "properties": {
                            "spec": spec,
                            "status": { "type": "object", "x-kubernetes-preserve-unknown-fields": true },
                        },
                    } },
                }],
            },
        })
    }
}

fn plural(kind: &str) -> String {
    format!("{}s", kind.to_lowercase())
}

/// The fields of v1alpha1 that sandpod uses; the API server drops all others.
fn specs() -> [(&'static str, Value); 3] {
    let named =
        json!({ "type": "object", "required": ["name"], "properties": { "name": { "type": "string" } } });
    let claim = json!({
        "type": "object",
        "required": ["sandboxTemplateRef"],
        "properties": {
            "sandboxTemplateRef": named,
            "warmpool": { "type": "string" },
            "lifecycle": {
                "type": "object",
                "properties": {
                    "shutdownTime": { "type": "string", "format": "date-time" },
                    "shutdownPolicy": { "type": "string", "enum": ["Delete", "Retain"] },
                },
            },
        },
    });
    let template = json!({
        "type": "object",
        "required": ["podTemplate"],
        "properties": { "podTemplate": { "type": "object", "x-kubernetes-preserve-unknown-fields": true } },
    });
    let pool = json!({
        "type": "object",
        "required": ["replicas", "sandboxTemplateRef"],
        "properties": { "replicas": { "type": "integer" }, "sandboxTemplateRef": named },
    });
    [("SandboxClaim", claim), ("SandboxTemplate", template), ("SandboxWarmPool", pool)]
}

/// Rewrites a call for agent-sandbox to the test's group.
async fn redirected(request: Request<Body>, group: &str) -> Request<Body> {
    let path = request.uri().path_and_query().map(PathAndQuery::as_str).unwrap_or_default();
    let Some(rest) = path.strip_prefix(&format!("/apis/{GROUP}")) else { return request };
    let uri: Uri = format!("/apis/{group}{rest}").parse().expect("it is a path");
    let (mut head, body) = request.into_parts();
    head.uri = uri;
    let body = body.collect_bytes().await.expect("a call has a body");
    let body = String::from_utf8(body.to_vec()).expect("objects are text");
    let body = body.replace(&format!(r#""apiVersion":"{GROUP}/"#), &format!(r#""apiVersion":"{group}/"#));
    Request::from_parts(head, Body::from(body.into_bytes()))
}

/// The controller: creates a Pod for each claim, owned by it.
async fn control(claims: Api<DynamicObject>, templates: Api<DynamicObject>, pods: Api<Pod>) {
    let mut served = HashSet::new();
    let events = watcher::watcher(claims.clone(), watcher::Config::default()).default_backoff();
    // A watch that the API server ends, for example because its resource version expired, is started again.
    let mut events = pin!(events.filter_map(async |event| event.ok()));
    while let Some(event) = events.next().await {
        match event {
            Event::Apply(claim) | Event::InitApply(claim) if served.insert(claim.uid()) => {
                tokio::spawn(serve(claims.clone(), templates.clone(), pods.clone(), claim));
            }
            Event::Delete(claim) => {
                let how = DeleteParams::default().grace_period(1);
                pods.delete(&claim.name_any(), &how).await.expect("the claim's Pod is deleted");
            }
            _ => {}
        }
    }
}

async fn serve(
    claims: Api<DynamicObject>,
    templates: Api<DynamicObject>,
    pods: Api<Pod>,
    claim: DynamicObject,
) {
    let name = claim.name_any();
    let template =
        claim.data["spec"]["sandboxTemplateRef"]["name"].as_str().expect("a claim names a template");
    let template = templates.get(template).await.expect("the template is there");
    let pod: Pod = from_json(json!({
        "metadata": {
            "name": name,
            "labels": {
                "agents.x-k8s.io/sandbox-name-hash": "12345678",
                "agents.x-k8s.io/claim-uid": claim.uid(),
            },
        },
        "spec": template.data["spec"]["podTemplate"]["spec"],
    }));
    pods.create(&PostParams::default(), &pod).await.expect("a Pod can be made");
    let pod = wait_for(&pods, &name, "be ready", |pod| {
        let conditions = pod.and_then(|pod| pod.status.as_ref()?.conditions.as_ref());
        conditions.into_iter().flatten().any(|one| one.type_ == "Ready" && one.status == "True")
    })
    .await;
    let ip = pod.and_then(|pod| pod.status?.pod_ip);
    let status = json!({ "status": {
        "conditions": [{
            "type": "Ready", "status": "True", "reason": "DependenciesReady", "message": "it runs",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }],
        "sandbox": { "name": name, "podIPs": [ip] },
    } });
    let said = claims.patch_status(&name, &PatchParams::default(), &Patch::Merge(&status)).await;
    said.expect("the claim has a status");
}
