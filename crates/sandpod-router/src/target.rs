//! The request contract: the headers that name a sandbox, a port and a timeout.

use std::net::IpAddr;
use std::time::Duration;

use http::HeaderMap;

use crate::refusal::Refusal;

const ID: &str = "x-sandbox-id";
const NAMESPACE: &str = "x-sandbox-namespace";
const PORT: &str = "x-sandbox-port";
const POD_IP: &str = "x-sandbox-pod-ip";
const UID: &str = "x-sandbox-uid";
const TIMEOUT: &str = "x-sandbox-timeout";

/// The prefix of all headers of the contract. They are not forwarded.
pub(crate) const PREFIX: &str = "x-sandbox-";
const DEFAULT_NAMESPACE: &str = "default";
const DEFAULT_PORT: u16 = 8888;

/// The sandbox that a request names, and how.
#[derive(Clone, Debug, PartialEq)]
pub struct Target {
    /// The name of the `Sandbox`.
    pub id: String,
    /// Its namespace.
    pub namespace: String,
    /// The port in its Pod.
    pub port: u16,
    /// The UID that the sandbox must have, if the caller named one.
    pub uid: Option<String>,
    /// How long the caller waits for an answer, if it said so.
    pub timeout: Option<Duration>,
    /// Whether the caller named an address or a UID, which a scoped token does not permit.
    pub names_a_pod: bool,
}

impl Target {
    /// Reads the target from a request's headers.
    ///
    /// `X-Sandbox-Pod-IP` is validated as in the original router, and otherwise ignored: an address comes only from the
    /// router's own watch.
    ///
    /// ```
    /// use http::{HeaderMap, HeaderValue};
    /// use sandpod_router::Target;
    ///
    /// let mut headers = HeaderMap::new();
    /// headers.insert("x-sandbox-id", HeaderValue::from_static("python-x7k2p"));
    /// let target = Target::of(&headers).unwrap();
    /// assert_eq!((target.namespace.as_str(), target.port), ("default", 8888));
    ///
    /// headers.insert("x-sandbox-port", HeaderValue::from_static("ssh"));
    /// assert_eq!(Target::of(&headers).unwrap_err().detail, "Invalid port format.");
    /// ```
    pub fn of(headers: &HeaderMap) -> Result<Self, Refusal> {
        let id = single(headers, ID)?.ok_or_else(|| Refusal::invalid("X-Sandbox-ID header is required."))?;
        if !is_dns_label(id) {
            return Err(Refusal::invalid("Invalid sandbox ID format."));
        }
        let namespace = single(headers, NAMESPACE)?.unwrap_or(DEFAULT_NAMESPACE);
        if !is_dns_label(namespace) {
            return Err(Refusal::invalid("Invalid namespace format."));
        }
        let port = match single(headers, PORT)? {
            None => DEFAULT_PORT,
            Some(port) => port
                .parse()
                .ok()
                .filter(|port| *port != 0)
                .ok_or_else(|| Refusal::invalid("Invalid port format."))?,
        };
        let pod_ip = single(headers, POD_IP)?;
        if pod_ip.is_some_and(|ip| !ip.parse().is_ok_and(|ip| is_pod_address(&ip))) {
            return Err(Refusal::invalid("Invalid target IP address."));
        }
        let uid = single(headers, UID)?;
        Ok(Self {
            id: id.to_owned(),
            namespace: namespace.to_owned(),
            port,
            uid: uid.map(str::to_owned),
            timeout: single(headers, TIMEOUT)?.map(seconds).transpose()?,
            names_a_pod: pod_ip.is_some() || uid.is_some(),
        })
    }
}

/// The only value of a header; an empty one counts as missing. Two values could mean two sandboxes to two programs.
fn single<'a>(headers: &'a HeaderMap, name: &str) -> Result<Option<&'a str>, Refusal> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else { return Ok(None) };
    match (value.to_str(), values.next()) {
        (Ok(value), None) => Ok(Some(value).filter(|value| !value.is_empty())),
        _ => Err(Refusal::invalid(format!(
            "The header {name} must have one value of visible ASCII characters."
        ))),
    }
}

fn seconds(value: &str) -> Result<Duration, Refusal> {
    let duration = value.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    duration.filter(|duration| !duration.is_zero()).ok_or_else(|| {
        Refusal::invalid("Invalid timeout format: X-Sandbox-Timeout is a positive number of seconds.")
    })
}

/// Whether this is a DNS label (RFC 1123).
fn is_dns_label(name: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=63).contains(&name.len())
        && name.bytes().all(is_inner)
        && !name.starts_with('-')
        && !name.ends_with('-')
}

/// Whether a Pod can have this address: not the router's own host, not a metadata server, not a group.
pub(crate) fn is_pod_address(ip: &IpAddr) -> bool {
    let ip = ip.to_canonical();
    let is_link_local = match ip {
        IpAddr::V4(ip) => ip.is_link_local() || ip.is_broadcast(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    !(ip.is_loopback() || ip.is_multicast() || ip.is_unspecified() || is_link_local)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn target(headers: &[(&'static str, &str)]) -> Result<Target, String> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, HeaderValue::from_str(value).expect("a header value"));
        }
        Target::of(&map).map_err(|refusal| refusal.detail)
    }

    #[test]
    fn malformed_headers_are_refused_with_the_original_sentences() {
        let long = "a".repeat(64);
        for (headers, detail) in [
            (&[][..], "X-Sandbox-ID header is required."),
            (&[("x-sandbox-id", "")], "X-Sandbox-ID header is required."),
            (&[("x-sandbox-id", "A")], "Invalid sandbox ID format."),
            (&[("x-sandbox-id", "a.b")], "Invalid sandbox ID format."),
            (&[("x-sandbox-id", "a-")], "Invalid sandbox ID format."),
            (&[("x-sandbox-id", &long)], "Invalid sandbox ID format."),
            (&[("x-sandbox-id", "a"), ("x-sandbox-namespace", "../b")], "Invalid namespace format."),
            (&[("x-sandbox-id", "a"), ("x-sandbox-port", "0")], "Invalid port format."),
            (&[("x-sandbox-id", "a"), ("x-sandbox-port", "65536")], "Invalid port format."),
            (&[("x-sandbox-id", "a"), ("x-sandbox-pod-ip", "169.254.169.254")], "Invalid target IP address."),
            (&[("x-sandbox-id", "a"), ("x-sandbox-pod-ip", "127.0.0.1")], "Invalid target IP address."),
            (
                &[("x-sandbox-id", "a"), ("x-sandbox-pod-ip", "::ffff:127.0.0.1")],
                "Invalid target IP address.",
            ),
            (&[("x-sandbox-id", "a"), ("x-sandbox-pod-ip", "fe80::1")], "Invalid target IP address."),
            (&[("x-sandbox-id", "a"), ("x-sandbox-pod-ip", "router")], "Invalid target IP address."),
        ] {
            assert_eq!(target(headers).unwrap_err(), detail, "{headers:?}");
        }
    }

    #[test]
    fn a_header_with_two_values_is_refused() {
        let refused = target(&[("x-sandbox-id", "a"), ("x-sandbox-id", "b")]).unwrap_err();
        assert!(refused.contains("must have one value"), "{refused}");
    }

    #[test]
    fn timeouts_are_positive_numbers_of_seconds() {
        let of = |value| target(&[("x-sandbox-id", "a"), ("x-sandbox-timeout", value)]);
        assert_eq!(of("1.5").unwrap().timeout, Some(Duration::from_millis(1500)));
        for invalid in ["-1", "0", "NaN", "inf", "soon"] {
            assert!(of(invalid).is_err(), "{invalid}");
        }
    }
}
