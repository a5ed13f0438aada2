//! Target `router`: an input is the head of a request, one header in each line. The router's decision must lead to the Pod
//! of the sandbox that the head names, or nowhere.

use std::net::{IpAddr, SocketAddr};

use http::{HeaderMap, HeaderName, HeaderValue};
use sandpod_router::{Domain, Endpoint, Registry, SandboxRef, Target, resolve, route};
use tokio_util::sync::CancellationToken;

/// The sandboxes: namespace, name, UID and address.
const SANDBOXES: [(&str, &str, &str, [u8; 4]); 3] = [
    ("default", "box", "u1", [10, 0, 0, 1]),
    ("agents", "box", "u2", [10, 0, 0, 2]),
    ("agents", "other", "u3", [10, 0, 0, 3]),
];

pub(crate) fn run(input: &[u8], planted: bool) {
    let headers = headers(input);
    let registry = registry();
    if let Ok(target) = Target::of(&headers) {
        let sandbox = resolve(&target, &registry);
        let mut upstream = route(&target, sandbox.as_ref(), &registry).map(|route| route.upstream);
        if planted {
            // The planted bug: the address comes from the request.
            let address = headers.get("x-sandbox-pod-ip").and_then(|ip| ip.to_str().ok()?.parse().ok());
            upstream = address.map(|ip: IpAddr| SocketAddr::new(ip, target.port)).ok_or(()).or(upstream);
        }
        if let Ok(upstream) = upstream {
            let sandbox = sandbox.expect("a route has a sandbox");
            let is_own = |(namespace, name, _, address): &(&str, &str, &str, [u8; 4])| {
                SandboxRef::new(*namespace, *name) == sandbox && IpAddr::from(*address) == upstream.ip()
            };
            assert!(SANDBOXES.iter().any(is_own), "{sandbox} leads to {upstream}");
            assert!(upstream.port() != 0 && upstream.port() == target.port, "{upstream}");
        }
    }
    let domain = Domain::new("p.test").expect("a domain");
    let host = headers.get("host").and_then(|host| host.to_str().ok()).unwrap_or_default();
    if let Some(Ok(preview)) = domain.read(host) {
        let sandbox = &preview.sandbox;
        let name = format!("{}--{}.{}.p.test", preview.port, sandbox.name, sandbox.namespace);
        assert!(domain.read(&name).and_then(Result::ok) == Some(preview.clone()), "{name}");
    }
}

fn headers(input: &[u8]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for line in input.split(|byte| *byte == b'\n').take(32) {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { continue };
        let name = HeaderName::from_bytes(&line[..colon]);
        let value = HeaderValue::from_bytes(line[colon + 1..].trim_ascii());
        if let (Ok(name), Ok(value)) = (name, value) {
            headers.append(name, value);
        }
    }
    headers
}

fn registry() -> Registry {
    let registry = Registry::default();
    registry.replace_pods(&[]);
    registry.replace_sandboxes(Vec::new());
    for (namespace, name, uid, address) in SANDBOXES {
        let (uid, gone) = (uid.to_owned(), CancellationToken::new());
        registry.insert(&SandboxRef::new(namespace, name), Endpoint { address: address.into(), uid, gone });
    }
    registry
}
