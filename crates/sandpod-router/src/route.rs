//! The decision where a request goes: pure functions of its target and the registry.
//!
//! [`resolve`] finds the sandbox that a request names, which is then authorized, and [`route`] the address of its Pod.

use std::net::SocketAddr;

use tokio_util::sync::CancellationToken;

use crate::refusal::{Reason, Refusal};
use crate::registry::{Lookup, Registry};
use crate::target::{Name, SandboxRef, Target};

/// Where a request goes.
#[derive(Clone, Debug)]
pub struct Route {
    /// The address and port of the Pod.
    pub upstream: SocketAddr,
    /// Cancelled when the Pod is gone.
    pub gone: CancellationToken,
}

/// Finds the sandbox that a request names. None: its claim or its UID is not known.
#[must_use]
pub fn resolve(target: &Target, registry: &Registry) -> Option<SandboxRef> {
    let in_namespace = |name: &str| Some(SandboxRef::new(target.namespace.as_deref()?, name));
    match &target.name {
        Name::Sandbox(name) => in_namespace(name),
        Name::Claim(claim) => registry.of_claim(&in_namespace(claim)?),
        Name::Uid(uid) => {
            let sandbox = registry.of_uid(uid)?;
            let is_named = target.namespace.as_ref().is_none_or(|namespace| *namespace == sandbox.namespace);
            is_named.then_some(sandbox)
        }
    }
}

/// Finds the Pod of a sandbox that the target was resolved to.
///
/// ```
/// use sandpod_router::{Registry, Target, resolve, route};
///
/// let mut headers = http::HeaderMap::new();
/// headers.insert("x-sandbox-id", http::HeaderValue::from_static("box"));
/// let target = Target::of(&headers).unwrap();
///
/// let registry = Registry::default();
/// let sandbox = resolve(&target, &registry);
/// assert_eq!(route(&target, sandbox.as_ref(), &registry).unwrap_err().status, 503); // nothing was listed yet
/// registry.replace_pods(&[]);
/// registry.replace_sandboxes(Vec::new());
/// assert_eq!(route(&target, sandbox.as_ref(), &registry).unwrap_err().status, 502);
/// ```
pub fn route(target: &Target, sandbox: Option<&SandboxRef>, registry: &Registry) -> Result<Route, Refusal> {
    // The name was authorized; a UID can only narrow it.
    let is_of_uid = target.uid.as_ref().is_none_or(|uid| registry.of_uid(uid).as_ref() == sandbox);
    let found = match sandbox.filter(|_| is_of_uid) {
        Some(sandbox) => registry.find(sandbox),
        None if registry.is_current() => Lookup::Missing,
        None => Lookup::Unknown,
    };
    let id = target.name.to_string();
    let endpoint = match found {
        // The name may have been given to another sandbox since the first look.
        Lookup::Found(endpoint) if target.uid.as_ref().is_some_and(|uid| *uid != endpoint.uid) => {
            return Err(Refusal::backend(&id, Reason::SandboxNotFound));
        }
        Lookup::Found(endpoint) => endpoint,
        Lookup::Suspended => return Err(Refusal::suspended(&id)),
        Lookup::Starting => return Err(Refusal::starting(&id)),
        Lookup::Missing => return Err(Refusal::backend(&id, Reason::SandboxNotFound)),
        Lookup::Unknown => return Err(unknown(&id)),
    };
    Ok(Route { upstream: SocketAddr::new(endpoint.address, target.port), gone: endpoint.gone })
}

/// The refusal of a request for a sandbox that is not in the registry.
pub(crate) fn missing(id: &str, registry: &Registry) -> Refusal {
    if registry.is_current() { Refusal::backend(id, Reason::SandboxNotFound) } else { unknown(id) }
}

/// The refusal of a request while it is not known which sandboxes there are.
pub(crate) fn unknown(id: &str) -> Refusal {
    Refusal::unavailable(format!("The API server cannot be asked for sandbox {id} at the moment."))
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, HeaderValue};

    use super::*;
    use crate::observe::read::tests::{pod_state, sandbox};

    fn upstream(headers: &[(&'static str, &'static str)]) -> Result<String, u16> {
        let registry = Registry::default();
        registry.replace_sandboxes(vec![sandbox("u1")]);
        registry.replace_pods(&[pod_state(|_| ())]);
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.insert(*name, HeaderValue::from_static(value));
        }
        let target = Target::of(&map).unwrap();
        let found = route(&target, resolve(&target, &registry).as_ref(), &registry);
        found.map(|route| route.upstream.to_string()).map_err(|refusal| refusal.status.as_u16())
    }

    #[test]
    fn headers_cannot_lead_away_from_the_pod_of_the_named_sandbox() {
        let with = |extra: &[(&'static str, &'static str)]| {
            let own = [("x-sandbox-id", "box"), ("x-sandbox-namespace", "agents")];
            upstream(&own.iter().chain(extra).copied().collect::<Vec<_>>())
        };
        assert_eq!(with(&[]).unwrap(), "10.0.0.7:8888");
        assert_eq!(with(&[("x-sandbox-pod-ip", "10.0.0.99")]).unwrap(), "10.0.0.7:8888");
        assert_eq!(with(&[("x-sandbox-uid", "u1")]).unwrap(), "10.0.0.7:8888");
        assert_eq!(with(&[("x-sandbox-uid", "u2")]), Err(502));
    }

    #[test]
    fn a_claim_and_a_uid_lead_to_their_sandbox() {
        let agents = ("x-sandbox-namespace", "agents");
        assert_eq!(upstream(&[("x-sandbox-claim", "thread-1"), agents]).unwrap(), "10.0.0.7:8888");
        assert_eq!(upstream(&[("x-sandbox-claim", "thread-1")]), Err(502), "of another namespace");
        assert_eq!(upstream(&[("x-sandbox-uid", "u1")]).unwrap(), "10.0.0.7:8888");
        assert_eq!(upstream(&[("x-sandbox-uid", "u1"), ("x-sandbox-namespace", "others")]), Err(502));
    }
}
