//! A client that counts its calls, and how many of each were open at once.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use http::Request;
use sandpod_kube::kube::Client;
use sandpod_kube::kube::client::Body;
use tower::service_fn;

/// The calls of a client to the API server. The name of a call is its method and its resource: `POST pods`, `GET pods/exec`.
#[derive(Clone, Debug, Default)]
pub struct Calls(Arc<Mutex<BTreeMap<String, Count>>>);

#[derive(Clone, Copy, Debug, Default)]
struct Count {
    all: usize,
    open: usize,
    most: usize,
}

impl Calls {
    /// Wraps `client` into one that counts its calls.
    #[must_use]
    pub fn of(client: Client) -> (Client, Self) {
        let (calls, namespace) = (Self::default(), client.default_namespace().to_owned());
        let counted = calls.clone();
        let service = service_fn(move |request: Request<Body>| {
            let (client, open) = (client.clone(), counted.begin(&request));
            async move {
                let answer = client.send(request).await;
                drop(open);
                answer
            }
        });
        (Client::new(service, namespace), calls)
    }

    /// The number of these calls so far.
    #[must_use]
    pub fn count(&self, call: &str) -> usize {
        self.lock().get(call).map_or(0, |count| count.all)
    }

    /// The largest number of these calls that were open at the same time.
    #[must_use]
    pub fn most_at_once(&self, call: &str) -> usize {
        self.lock().get(call).map_or(0, |count| count.most)
    }

    /// The number of calls so far, by name.
    #[must_use]
    pub fn all(&self) -> BTreeMap<String, usize> {
        self.lock().iter().map(|(call, count)| (call.clone(), count.all)).collect()
    }

    fn begin(&self, request: &Request<Body>) -> Open {
        let name = name(request.method().as_str(), request.uri().path());
        let mut counts = self.lock();
        let count = counts.entry(name.clone()).or_default();
        count.all += 1;
        count.open += 1;
        count.most = count.most.max(count.open);
        Open { calls: self.clone(), name }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Count>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An open call. Dropping it ends the call, also one that is cancelled.
struct Open {
    calls: Calls,
    name: String,
}

impl Drop for Open {
    fn drop(&mut self) {
        if let Some(count) = self.calls.lock().get_mut(&self.name) {
            count.open -= 1;
        }
    }
}

/// The name of a call: `/api/v1/namespaces/agents/pods/box/exec` has the resource `pods/exec`.
fn name(method: &str, path: &str) -> String {
    let after = path.split_once("/namespaces/").and_then(|(_, rest)| rest.split_once('/'));
    let mut parts = after.map_or(path.trim_start_matches('/'), |(_, rest)| rest).split('/');
    let kind = parts.next().unwrap_or_default();
    match parts.nth(1) {
        Some(part) => format!("{method} {kind}/{part}"),
        None => format!("{method} {kind}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_named_by_its_resource() {
        assert_eq!(name("POST", "/api/v1/namespaces/a/pods"), "POST pods");
        assert_eq!(name("GET", "/api/v1/namespaces/a/pods/box"), "GET pods");
        assert_eq!(name("GET", "/api/v1/namespaces/a/pods/box/exec"), "GET pods/exec");
        assert_eq!(name("POST", "/apis/coordination.k8s.io/v1/namespaces/a/leases"), "POST leases");
    }
}
