//! The headers that pass through the router, and those that end at it.

use std::net::IpAddr;

use http::header::{
    AUTHORIZATION, CONNECTION, COOKIE, HOST, ORIGIN, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER,
    TRANSFER_ENCODING, UPGRADE,
};
use http::{HeaderMap, HeaderName, HeaderValue};

use crate::target;

/// Headers of one connection (RFC 9110, section 7.6.1), and old ones that programs still send.
const HOP_BY_HOP: [HeaderName; 9] = [
    CONNECTION,
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
];
const FORWARDED: HeaderName = HeaderName::from_static("forwarded");
/// The prefix of all headers about the client and its request that a proxy sets.
const FORWARDED_PREFIX: &str = "x-forwarded-";
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// The client of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Origin {
    pub(crate) address: IpAddr,
    pub(crate) is_tls: bool,
}

/// The protocol that a request asks to switch to, if it does.
pub(crate) fn upgrade(headers: &HeaderMap) -> Option<HeaderValue> {
    let is_named = connection_options(headers).any(|option| option.eq_ignore_ascii_case("upgrade"));
    headers.get(UPGRADE).filter(|value| is_named && !value.is_empty()).cloned()
}

/// Removes the headers of one connection, also those that `Connection` names.
pub(crate) fn remove_hop_by_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> =
        connection_options(headers).filter_map(|option| option.parse().ok()).collect();
    for name in named.iter().chain(&HOP_BY_HOP) {
        headers.remove(name);
    }
}

/// Reduces a request's headers to those that the sandbox may see: no credential of the caller, and no address that it
/// claims. `traceparent` passes, so that the sandbox continues the caller's trace.
pub(crate) fn prepare_request(headers: &mut HeaderMap, host: Option<HeaderValue>, origin: Origin) {
    let trailers = headers.get_all(TE).iter().any(|value| value == "trailers");
    let upgrade = upgrade(headers);
    remove_hop_by_hop(headers);
    for name in [AUTHORIZATION, FORWARDED, HOST] {
        headers.remove(name);
    }
    let is_ours = |name: &&HeaderName| {
        [target::PREFIX, FORWARDED_PREFIX].iter().any(|prefix| name.as_str().starts_with(prefix))
    };
    let ours: Vec<_> = headers.keys().filter(is_ours).cloned().collect();
    for name in ours {
        headers.remove(name);
    }
    join_cookies(headers);
    if trailers {
        headers.insert(TE, HeaderValue::from_static("trailers")); // gRPC requires it
    }
    if let Some(protocol) = upgrade {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, protocol);
        // A server in the sandbox compares it with its own address, which the caller cannot know.
        headers.remove(ORIGIN);
    }
    let address = origin.address.to_canonical().to_string();
    if let Ok(address) = HeaderValue::from_str(&address) {
        headers.insert(FORWARDED_FOR, address);
    }
    if let Some(host) = host {
        headers.insert(FORWARDED_HOST, host);
    }
    let protocol = if origin.is_tls { "https" } else { "http" };
    headers.insert(FORWARDED_PROTO, HeaderValue::from_static(protocol));
}

/// Joins several Cookie fields of an HTTP/2 request into one, as HTTP/1.1 requires (RFC 9113, section 8.2.3).
fn join_cookies(headers: &mut HeaderMap) {
    let fields: Vec<&[u8]> = headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes).collect();
    if fields.len() > 1 {
        let joined = fields.join(&b"; "[..]);
        set_cookies(headers, &joined);
    }
}

/// Replaces all cookies. Without any, the header goes.
pub(crate) fn set_cookies(headers: &mut HeaderMap, cookies: &[u8]) {
    match HeaderValue::from_bytes(cookies) {
        Ok(cookies) if !cookies.is_empty() => drop(headers.insert(COOKIE, cookies)),
        _ => drop(headers.remove(COOKIE)),
    }
}

/// The trace of a request, from a valid `traceparent` (W3C Trace Context).
pub(crate) fn trace_id(headers: &HeaderMap) -> Option<String> {
    let parent = headers.get("traceparent")?.to_str().ok()?;
    let (_, rest) = parent.split_once('-')?;
    let (id, _) = rest.split_once('-')?;
    let is_valid = id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_valid.then(|| id.to_owned())
}

fn connection_options(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let values = headers.get_all(CONNECTION).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(str::trim).filter(|option| !option.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prepared(headers: &[(&'static str, &'static str)]) -> Vec<(String, String)> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, HeaderValue::from_static(value));
        }
        let origin = Origin { address: "10.1.2.3".parse().expect("an address"), is_tls: true };
        prepare_request(&mut map, Some(HeaderValue::from_static("front.example.org")), origin);
        let text = |value: &HeaderValue| value.to_str().expect("text").to_owned();
        map.iter().map(|(name, value)| (name.to_string(), text(value))).collect()
    }

    const OURS: [(&str, &str); 3] = [
        ("x-forwarded-for", "10.1.2.3"),
        ("x-forwarded-host", "front.example.org"),
        ("x-forwarded-proto", "https"),
    ];

    fn assert_prepared(headers: &[(&'static str, &'static str)], rest: &[(&str, &str)]) {
        let mut expected: Vec<_> =
            rest.iter().chain(&OURS).map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let mut seen = prepared(headers);
        expected.sort();
        seen.sort();
        assert_eq!(seen, expected);
    }

    #[test]
    fn credentials_and_claimed_addresses_end_at_the_router() {
        assert_prepared(
            &[
                ("authorization", "Bearer secret"),
                ("proxy-authorization", "Basic secret"),
                ("x-forwarded-for", "1.2.3.4"),
                ("x-forwarded-host", "evil.example.org"),
                ("x-forwarded-user", "admin"),
                ("x-forwarded-port", "443"),
                ("forwarded", "for=1.2.3.4"),
                ("x-sandbox-id", "box"),
                ("x-sandbox-pod-ip", "10.0.0.1"),
                ("accept", "*/*"),
            ],
            &[("accept", "*/*")],
        );
    }

    #[test]
    fn cookies_in_several_fields_become_one() {
        assert_prepared(
            &[("cookie", "a=b"), ("cookie", "c=d; e=f"), ("cookie", "g")],
            &[("cookie", "a=b; c=d; e=f; g")],
        );
    }

    #[test]
    fn headers_that_connection_names_end_at_the_router() {
        assert_prepared(
            &[
                ("connection", "close, X-Private"),
                ("x-private", "1"),
                ("keep-alive", "timeout=5"),
                ("te", "gzip"),
            ],
            &[],
        );
    }

    #[test]
    fn an_upgrade_passes_without_its_origin() {
        assert_prepared(
            &[
                ("connection", "keep-alive, Upgrade"),
                ("upgrade", "websocket"),
                ("origin", "https://front.example.org"),
            ],
            &[("connection", "upgrade"), ("upgrade", "websocket")],
        );
        assert_prepared(&[("upgrade", "websocket"), ("origin", "o")], &[("origin", "o")]);
    }

    #[test]
    fn the_trace_of_the_caller_continues() {
        let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        assert_prepared(&[("traceparent", parent)], &[("traceparent", parent)]);
        let mut headers = HeaderMap::new();
        headers.insert("traceparent", HeaderValue::from_static(parent));
        assert_eq!(trace_id(&headers).unwrap(), "4bf92f3577b34da6a3ce929d0e0e4736");
        headers.insert("traceparent", HeaderValue::from_static("00-secret-1-01"));
        assert_eq!(trace_id(&headers), None);
    }

    #[test]
    fn grpc_keeps_its_trailers() {
        assert_prepared(&[("te", "trailers")], &[("te", "trailers")]);
    }
}
