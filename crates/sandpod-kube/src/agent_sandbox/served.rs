//! Finds out once which version of agent-sandbox's resources a cluster serves.

use std::sync::Arc;

use http::Request;
use http::uri::{PathAndQuery, Uri};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::APIGroup;
use kube::Client;
use kube::client::Body;
use serde_json::Value;
use tokio::sync::OnceCell;
use tower::BoxError;

/// The group whose versions are requested: both groups of agent-sandbox have the same.
const GROUP: &str = "/apis/extensions.agents.x-k8s.io";
/// The paths of this module's resources, and those of the older version.
const PATHS: [(&str, &str); 2] = [
    ("/apis/extensions.agents.x-k8s.io/v1beta1/", "/apis/extensions.agents.x-k8s.io/v1alpha1/"),
    ("/apis/agents.x-k8s.io/v1beta1/", "/apis/agents.x-k8s.io/v1alpha1/"),
];

/// A version of agent-sandbox's resources.
///
/// ```
/// assert_eq!(sandpod_kube::agent_sandbox::Version::V1Alpha1.as_str(), "v1alpha1");
/// ```
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Version {
    /// The version of this module's types.
    V1Beta1,
    /// Claims name a template, not a pool.
    V1Alpha1,
}

impl Version {
    /// Its name.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::V1Beta1 => "v1beta1",
            Self::V1Alpha1 => "v1alpha1",
        }
    }
}

/// The version of agent-sandbox that a cluster serves. Clones share it.
#[derive(Clone)]
pub struct Served {
    plain: Client,
    version: Arc<OnceCell<Version>>,
}

impl Served {
    /// Returns a handle for `client`'s cluster. The first call asks it.
    #[must_use]
    pub fn new(client: Client) -> Self {
        Self { plain: client, version: Arc::default() }
    }

    /// Returns `v1alpha1` if nothing newer is served. Without an answer the newest version is assumed.
    pub async fn version(&self) -> kube::Result<Version> {
        if let Some(version) = self.version.get() {
            return Ok(*version);
        }
        let request = Request::get(GROUP).body(Vec::new()).map_err(kube::Error::HttpError)?;
        let version = match self.plain.request::<APIGroup>(request).await {
            Ok(group) => newest(&group),
            // agent-sandbox may be installed later.
            Err(kube::Error::Api(status)) if status.code == 404 => return Ok(Version::V1Beta1),
            Err(kube::Error::Api(status)) if status.code == 403 => Version::V1Beta1,
            Err(error) => return Err(error),
        };
        Ok(*self.version.get_or_init(|| async { version }).await)
    }

    /// Returns a client whose requests for this module's resources use the served version. Call it inside a tokio runtime.
    #[must_use]
    pub fn client(&self) -> Client {
        let (served, namespace) = (self.clone(), self.plain.default_namespace().to_owned());
        let service = tower::service_fn(move |request: Request<Body>| {
            let served = served.clone();
            async move {
                let request = served.translate(request).await?;
                served.plain.send(request).await.map_err(BoxError::from)
            }
        });
        Client::new(service, namespace)
    }

    async fn translate(&self, request: Request<Body>) -> Result<Request<Body>, BoxError> {
        let Some(path) = older(request.uri()) else { return Ok(request) };
        if self.version().await? == Version::V1Beta1 {
            return Ok(request);
        }
        let (mut head, body) = request.into_parts();
        head.uri = path;
        let body = body.collect_bytes().await?;
        Ok(Request::from_parts(head, Body::from(relabelled(&body).unwrap_or_else(|| body.to_vec()))))
    }
}

fn newest(group: &APIGroup) -> Version {
    let serves = |version: Version| group.versions.iter().any(|one| one.version == version.as_str());
    if serves(Version::V1Alpha1) && !serves(Version::V1Beta1) { Version::V1Alpha1 } else { Version::V1Beta1 }
}

/// Returns the path of a resource in the older version. None if it is another resource.
fn older(uri: &Uri) -> Option<Uri> {
    let path = uri.path_and_query()?.as_str();
    let (rest, older) = PATHS.iter().find_map(|(new, old)| Some((path.strip_prefix(new)?, old)))?;
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(format!("{older}{rest}").parse::<PathAndQuery>().ok()?);
    Uri::from_parts(parts).ok()
}

/// Rewrites the version in an object's body; none if the body is not an object.
fn relabelled(body: &[u8]) -> Option<Vec<u8>> {
    let mut object: Value = serde_json::from_slice(body).ok()?;
    let version = object.get("apiVersion")?.as_str()?;
    let older = version.strip_suffix(Version::V1Beta1.as_str())?.to_owned() + Version::V1Alpha1.as_str();
    object["apiVersion"] = older.into();
    serde_json::to_vec(&object).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_where_nothing_newer_is_served_the_older_version_is_spoken() {
        let group = |versions: &[&str]| -> APIGroup {
            let versions: Vec<_> = versions
                .iter()
                .map(|name| json!({ "groupVersion": format!("g/{name}"), "version": name }))
                .collect();
            serde_json::from_value(json!({ "name": "g", "versions": versions })).unwrap()
        };
        assert_eq!(newest(&group(&["v1alpha1"])), Version::V1Alpha1);
        for served in [&["v1beta1"][..], &["v1alpha1", "v1beta1"], &["v2"], &[]] {
            assert_eq!(newest(&group(served)), Version::V1Beta1, "{served:?}");
        }
    }

    #[test]
    fn only_agent_sandboxes_resources_have_an_older_place() {
        let older = |uri: &'static str| older(&Uri::from_static(uri)).map(|uri| uri.to_string());
        assert_eq!(
            older("/apis/extensions.agents.x-k8s.io/v1beta1/namespaces/n/sandboxclaims?watch=true").unwrap(),
            "/apis/extensions.agents.x-k8s.io/v1alpha1/namespaces/n/sandboxclaims?watch=true"
        );
        assert!(
            older("/apis/agents.x-k8s.io/v1beta1/namespaces/n/sandboxes").unwrap().contains("/v1alpha1/")
        );
        assert_eq!(older("/api/v1/namespaces/n/pods"), None);
        assert_eq!(older("/apis/extensions.agents.x-k8s.io"), None);
    }

    #[test]
    fn a_sent_object_has_the_older_version_and_a_patch_has_none() {
        let claim = br#"{"apiVersion":"extensions.agents.x-k8s.io/v1beta1","kind":"SandboxClaim"}"#;
        let sent: Value = serde_json::from_slice(&relabelled(claim).unwrap()).unwrap();
        assert_eq!(sent["apiVersion"], "extensions.agents.x-k8s.io/v1alpha1");
        assert_eq!(relabelled(br#"{"metadata":{}}"#), None);
        assert_eq!(relabelled(b""), None);
    }
}
