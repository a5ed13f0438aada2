//! The decision where a request goes: a pure function of its headers and the registry.

use std::net::SocketAddr;

use tokio_util::sync::CancellationToken;

use crate::refusal::Refusal;
use crate::registry::{Lookup, Registry};
use crate::target::Target;

/// Where a request goes.
#[derive(Clone, Debug)]
pub struct Route {
    /// The address and port of the Pod.
    pub upstream: SocketAddr,
    /// Cancelled when the Pod is gone.
    pub gone: CancellationToken,
}

/// Finds the Pod of a target.
///
/// ```
/// use sandpod_router::{Registry, Target, route};
///
/// let mut headers = http::HeaderMap::new();
/// headers.insert("x-sandbox-id", http::HeaderValue::from_static("box"));
/// let target = Target::of(&headers).unwrap();
///
/// let registry = Registry::default();
/// assert_eq!(route(&target, &registry).unwrap_err().status, 503); // nothing was listed yet
/// registry.replace(&[]);
/// assert_eq!(route(&target, &registry).unwrap_err().status, 502);
/// ```
pub fn route(target: &Target, registry: &Registry) -> Result<Route, Refusal> {
    let endpoint = match registry.find(&target.namespace, &target.id) {
        Lookup::Found(endpoint) => endpoint,
        Lookup::Missing => return Err(Refusal::not_found(&target.id)),
        Lookup::Unknown => {
            let detail = format!("The API server cannot be asked for sandbox {} at the moment.", target.id);
            return Err(Refusal::unavailable(detail));
        }
    };
    // The name was authorized; a UID can only narrow it.
    if target.uid.as_ref().is_some_and(|uid| *uid != endpoint.uid) {
        return Err(Refusal::not_found(&target.id));
    }
    Ok(Route { upstream: SocketAddr::new(endpoint.address, target.port), gone: endpoint.gone })
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, HeaderValue};

    use super::*;
    use crate::registry::tests::pod;

    #[test]
    fn headers_cannot_lead_away_from_the_pod_of_the_named_sandbox() {
        let registry = Registry::default();
        registry.replace(&[pod(|_| ())]);
        let upstream = |extra: &[(&'static str, &'static str)]| {
            let mut headers = HeaderMap::new();
            for (name, value) in
                [("x-sandbox-id", "box"), ("x-sandbox-namespace", "agents")].iter().chain(extra)
            {
                headers.insert(*name, HeaderValue::from_static(value));
            }
            route(&Target::of(&headers).unwrap(), &registry).map(|route| route.upstream.to_string())
        };

        assert_eq!(upstream(&[]).unwrap(), "10.0.0.7:8888");
        assert_eq!(upstream(&[("x-sandbox-pod-ip", "10.0.0.99")]).unwrap(), "10.0.0.7:8888");
        assert_eq!(upstream(&[("x-sandbox-uid", "u1")]).unwrap(), "10.0.0.7:8888");
        assert_eq!(upstream(&[("x-sandbox-uid", "u2")]).unwrap_err().status, 502);
    }
}
