//! The request contract: the headers, or the host name, that name a sandbox, a port and a timeout.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use http::HeaderMap;

use crate::preview::Preview;
use crate::refusal::Refusal;

const ID: &str = "x-sandbox-id";
const CLAIM: &str = "x-sandbox-claim";
const UID: &str = "x-sandbox-uid";
const NAMESPACE: &str = "x-sandbox-namespace";
const PORT: &str = "x-sandbox-port";
const POD_IP: &str = "x-sandbox-pod-ip";
const TIMEOUT: &str = "x-sandbox-timeout";

/// The prefix of all headers of the contract. They are not forwarded.
pub(crate) const PREFIX: &str = "x-sandbox-";
const DEFAULT_NAMESPACE: &str = "default";
const DEFAULT_PORT: u16 = 8888;

/// A sandbox by its namespace and its name, which is the name of the `Sandbox` object.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct SandboxRef {
    /// The namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
}

impl SandboxRef {
    /// A reference from its parts.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }
}

impl fmt::Display for SandboxRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// How a request names its sandbox.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Name {
    /// By the name of the `Sandbox`.
    Sandbox(String),
    /// By the name of the `SandboxClaim` that owns it.
    Claim(String),
    /// By the UID of the `Sandbox`.
    Uid(String),
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Sandbox(name) | Self::Claim(name) | Self::Uid(name)) = self;
        f.write_str(name)
    }
}

/// The sandbox that a request names, and the port in its Pod.
#[derive(Clone, Debug, PartialEq)]
pub struct Target {
    /// How the request names the sandbox.
    pub name: Name,
    /// Its namespace. None: the request names a UID alone.
    pub namespace: Option<String>,
    /// The port in its Pod.
    pub port: u16,
    /// The UID that the sandbox must have, beside its name.
    pub uid: Option<String>,
    /// The time that the caller gives the request.
    pub timeout: Option<Duration>,
    /// Whether the request names an address or a UID, which a scoped token does not permit.
    pub names_a_pod: bool,
    /// Whether the host name of the request names the sandbox, as in a browser.
    pub is_preview: bool,
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
    /// assert_eq!((target.namespace.as_deref(), target.port), (Some("default"), 8888));
    ///
    /// headers.insert("x-sandbox-port", HeaderValue::from_static("ssh"));
    /// assert_eq!(Target::of(&headers).unwrap_err().detail, "Invalid port format.");
    /// ```
    pub fn of(headers: &HeaderMap) -> Result<Self, Refusal> {
        let (id, claim, uid) = (single(headers, ID)?, single(headers, CLAIM)?, single(headers, UID)?);
        let name = match (id, claim, uid) {
            (Some(_), Some(_), _) => {
                return Err(Refusal::invalid("Only one of X-Sandbox-ID and X-Sandbox-Claim may be set."));
            }
            (Some(id), None, _) if is_dns_label(id) => Name::Sandbox(id.to_owned()),
            (None, Some(claim), _) if is_dns_label(claim) => Name::Claim(claim.to_owned()),
            (None, None, Some(uid)) => Name::Uid(uid.to_owned()),
            (Some(_), ..) => return Err(Refusal::invalid("Invalid sandbox ID format.")),
            (_, Some(_), _) => return Err(Refusal::invalid("Invalid claim format.")),
            (None, None, None) => return Err(Refusal::invalid("X-Sandbox-ID header is required.")),
        };
        let namespace = match (single(headers, NAMESPACE)?, &name) {
            (None, Name::Uid(_)) => None,
            (namespace, _) => Some(namespace.unwrap_or(DEFAULT_NAMESPACE)),
        };
        if namespace.is_some_and(|namespace| !is_dns_label(namespace)) {
            return Err(Refusal::invalid("Invalid namespace format."));
        }
        let port = match single(headers, PORT)? {
            None => DEFAULT_PORT,
            Some(port) => parse_port(port).ok_or_else(|| Refusal::invalid("Invalid port format."))?,
        };
        let pod_ip = single(headers, POD_IP)?;
        if pod_ip.is_some_and(|ip| !ip.parse().is_ok_and(|ip| is_pod_address(&ip))) {
            return Err(Refusal::invalid("Invalid target IP address."));
        }
        Ok(Self {
            name,
            namespace: namespace.map(str::to_owned),
            port,
            uid: uid.map(str::to_owned),
            timeout: timeout(headers)?,
            names_a_pod: pod_ip.is_some() || uid.is_some(),
            is_preview: false,
        })
    }

    /// Reads the target from a host name below the domain of previews. The headers of the contract may not name another.
    pub(crate) fn of_preview(preview: &Preview, headers: &HeaderMap) -> Result<Self, Refusal> {
        if [ID, CLAIM, UID, NAMESPACE, PORT, POD_IP].iter().any(|name| headers.contains_key(*name)) {
            return Err(Refusal::invalid("The host name of the request names a sandbox already."));
        }
        Ok(Self {
            name: Name::Sandbox(preview.sandbox.name.clone()),
            namespace: Some(preview.sandbox.namespace.clone()),
            port: preview.port,
            uid: None,
            timeout: timeout(headers)?,
            names_a_pod: false,
            is_preview: true,
        })
    }
}

/// The only value of a header; an empty one counts as missing. Two programs could read two values as two sandboxes.
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

/// The port in a text. `u16::from_str` also accepts a plus sign.
pub(crate) fn parse_port(text: &str) -> Option<u16> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|port| is_number && *port != 0)
}

fn timeout(headers: &HeaderMap) -> Result<Option<Duration>, Refusal> {
    let Some(value) = single(headers, TIMEOUT)? else { return Ok(None) };
    let duration = value.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    match duration.filter(|duration| !duration.is_zero()) {
        Some(duration) => Ok(Some(duration)),
        None => Err(Refusal::invalid(
            "Invalid timeout format: X-Sandbox-Timeout is a positive number of seconds.",
        )),
    }
}

/// Whether this is a DNS label (RFC 1123).
pub(crate) fn is_dns_label(name: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=63).contains(&name.len())
        && name.bytes().all(is_inner)
        && !name.starts_with('-')
        && !name.ends_with('-')
}

/// Whether a Pod can have this address. Loopback, link-local (metadata servers) and multicast addresses lead elsewhere.
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
            (&[("x-sandbox-id", "a"), ("x-sandbox-port", "+80")], "Invalid port format."),
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
    fn a_sandbox_is_named_by_its_name_its_claim_or_its_uid() {
        let claim = target(&[("x-sandbox-claim", "thread-1")]).unwrap();
        assert_eq!(claim.name, Name::Claim("thread-1".to_owned()));
        assert_eq!(claim.namespace.as_deref(), Some("default"));
        let uid = target(&[("x-sandbox-uid", "u1")]).unwrap();
        assert_eq!((uid.name, uid.namespace), (Name::Uid("u1".to_owned()), None));
        let both = target(&[("x-sandbox-id", "a"), ("x-sandbox-uid", "u1")]).unwrap();
        assert_eq!((both.name, both.uid.as_deref()), (Name::Sandbox("a".to_owned()), Some("u1")));
        assert!(target(&[("x-sandbox-id", "a"), ("x-sandbox-claim", "b")]).is_err());
        assert_eq!(target(&[("x-sandbox-claim", "a/b")]).unwrap_err(), "Invalid claim format.");
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
