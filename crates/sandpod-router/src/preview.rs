//! Preview URLs: `https://PORT--SANDBOX.NAMESPACE.DOMAIN/` shows a port of a sandbox in a browser.
//!
//! A preview is private: the request needs a credential for the sandbox. A *shared link* is the same URL with a token that
//! opens this port until the token ends. The router moves the token from the query into a cookie, which it does not forward.

use std::time::{Duration, SystemTime};

use http::header::{CACHE_CONTROL, COOKIE, HOST, LOCATION, ORIGIN, REFERRER_POLICY, SET_COOKIE};
use http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, request, response};

use crate::headers::set_cookies;
use crate::refusal::Refusal;
use crate::scoped_token::{Keys, Share};
use crate::target::{SandboxRef, is_dns_label, parse_port};

/// The parameter of a shared link.
pub(crate) const PARAMETER: &str = "sandpod-share";
/// The cookie of a shared link. Browsers accept this prefix only from the host itself, and only over TLS or from localhost.
const SHARE_COOKIE: &str = "__Host-sandpod-share";
/// The path of a preview that signs a shared link.
pub(crate) const SHARE_PATH: &str = "/.sandpod/share";
/// The relation of the page that made a request to the host of the request. Browsers set it, and pages cannot.
const FETCH_SITE: &str = "sec-fetch-site";
const DEFAULT_LIFETIME: Duration = Duration::from_secs(3600);
const MAX_LIFETIME: Duration = Duration::from_secs(7 * 24 * 3600);

/// The sandbox and the port of a preview URL.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Preview {
    /// The sandbox.
    pub sandbox: SandboxRef,
    /// The port in its Pod.
    pub port: u16,
}

/// The domain below which host names are previews.
#[derive(Clone, Debug)]
pub struct Domain(String);

impl Domain {
    /// Takes a domain name, such as `preview.example.org`.
    pub fn new(name: &str) -> Result<Self, String> {
        let name = name.trim_matches('.').to_ascii_lowercase();
        if name.is_empty() || !name.split('.').all(is_dns_label) {
            return Err(format!("`{name}` is not a domain name"));
        }
        Ok(Self(format!(".{name}")))
    }

    /// Reads a host name, with or without a port. None: it is not below the domain.
    ///
    /// ```
    /// use sandpod_router::Domain;
    ///
    /// let domain = Domain::new("preview.example.org").unwrap();
    /// let preview = domain.read("8000--box.agents.preview.example.org:8443").unwrap().unwrap();
    /// assert_eq!((preview.sandbox.to_string().as_str(), preview.port), ("agents/box", 8000));
    /// assert!(domain.read("router.example.org").is_none());
    /// ```
    #[must_use]
    pub fn read(&self, host: &str) -> Option<Result<Preview, Refusal>> {
        let host = host.rsplit_once(':').map_or(host, |(name, _)| name).to_ascii_lowercase();
        let name = host.trim_end_matches('.').strip_suffix(&self.0)?;
        let parts = name.split_once('.').and_then(|(place, namespace)| {
            let (port, sandbox) = place.split_once("--")?;
            let are_labels = is_dns_label(namespace) && is_dns_label(sandbox);
            let sandbox = SandboxRef::new(namespace, sandbox);
            Some(Preview { sandbox, port: parse_port(port).filter(|_| are_labels)? })
        });
        Some(parts.ok_or_else(|| {
            Refusal::invalid(format!("The host name must be PORT--SANDBOX.NAMESPACE{}.", self.0))
        }))
    }
}

/// The host that a request is for.
pub(crate) fn host<'a>(uri: &'a Uri, headers: &'a HeaderMap) -> Option<&'a str> {
    // HTTP/2 has the host in the URI. Where both are there, they could name two sandboxes.
    let in_uri = uri.authority().map(http::uri::Authority::as_str);
    in_uri.or_else(|| headers.get(HOST)?.to_str().ok())
}

/// The token of a shared link, and where the request has it.
pub(crate) enum Shared {
    /// In the query: the browser gets a cookie, and the URL without the token.
    Link(Box<response::Parts>),
    /// In the cookie.
    Cookie(Share),
}

/// Finds a valid token for `preview` in a request that [`check_source`] admitted.
pub(crate) fn shared(
    head: &request::Parts,
    preview: &Preview,
    keys: &Keys,
) -> Result<Option<Shared>, Refusal> {
    if let Some((token, rest)) = take_parameter(&head.uri) {
        let share = keys.verify_share(&token).filter(|share| share.is_for(preview));
        let share = share.ok_or_else(Refusal::unauthenticated)?;
        return Ok(Some(Shared::Link(Box::new(redirect(&rest, &token, &share)?))));
    }
    let tokens = cookies(&head.headers).filter_map(share_token);
    let mut tokens = tokens.filter_map(|token| std::str::from_utf8(token).ok());
    let share = tokens.find_map(|token| keys.verify_share(token).filter(|share| share.is_for(preview)));
    Ok(share.map(Shared::Cookie))
}

/// Splits the token off a query; the rest stays as it was written.
fn take_parameter(uri: &Uri) -> Option<(String, String)> {
    let query = uri.query()?;
    let is_token = |part: &&str| part.split_once('=').is_some_and(|(name, _)| name == PARAMETER);
    let (_, token) = query.split('&').find(is_token)?.split_once('=')?;
    let rest: Vec<_> = query.split('&').filter(|part| !is_token(part)).collect();
    // Two slashes at the start of a location name another host.
    let path = format!("/{}", uri.path().trim_start_matches('/'));
    let rest = if rest.is_empty() { path } else { format!("{path}?{}", rest.join("&")) };
    Some((token.to_owned(), rest))
}

fn redirect(location: &str, token: &str, share: &Share) -> Result<response::Parts, Refusal> {
    let seconds = share.remaining().as_secs();
    let cookie = format!("{SHARE_COOKIE}={token}; Path=/; Max-Age={seconds}; Secure; HttpOnly; SameSite=Lax");
    let value = |text: &str| HeaderValue::from_str(text).map_err(|_| Refusal::unauthenticated());
    let (mut parts, ()) = http::Response::new(()).into_parts();
    parts.status = StatusCode::SEE_OTHER;
    parts.headers.insert(SET_COOKIE, value(&cookie)?);
    parts.headers.insert(LOCATION, value(location)?);
    parts.headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    parts.headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    Ok(parts)
}

/// The cookies of a request, as bytes: those of a sandbox need not be text.
fn cookies(headers: &HeaderMap) -> impl Iterator<Item = &[u8]> {
    let values = headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes);
    values.flat_map(|value| value.split(|byte| *byte == b';')).map(<[u8]>::trim_ascii)
}

/// The value of a cookie, if it is the router's own.
fn share_token(cookie: &[u8]) -> Option<&[u8]> {
    let mut parts = cookie.splitn(2, |byte| *byte == b'=');
    let is_own = parts.next()?.trim_ascii() == SHARE_COOKIE.as_bytes();
    is_own.then(|| parts.next().unwrap_or_default())
}

/// Removes the router's own cookie; those of the sandbox stay.
pub(crate) fn remove_cookie(headers: &mut HeaderMap) {
    let rest: Vec<_> = cookies(headers).filter(|cookie| share_token(cookie).is_none()).collect();
    if rest.len() < cookies(headers).count() {
        let rest = rest.join(&b"; "[..]);
        set_cookies(headers, &rest);
    }
}

/// Refuses a request that a page of another host made, whatever its credential is. No page may sign a shared link, because
/// the content of a sandbox could then extend its own link.
pub(crate) fn check_source(head: &request::Parts) -> Result<(), Refusal> {
    let is_of_page = head.headers.contains_key(ORIGIN) || head.headers.contains_key(FETCH_SITE);
    let is_refused = comes_from_elsewhere(head) || (is_of_page && head.uri.path() == SHARE_PATH);
    if is_refused { Err(Refusal::forbidden()) } else { Ok(()) }
}

/// Whether a page of another host made the request, for example the preview of another sandbox. Browsers send cookies and
/// client certificates then, too, because both hosts belong to one site. A link that a user follows is permitted.
fn comes_from_elsewhere(head: &request::Parts) -> bool {
    let own = host(&head.uri, &head.headers).unwrap_or_default();
    let is_own = |origin: &HeaderValue| {
        let host = origin.to_str().ok().and_then(|origin| origin.split_once("://"));
        host.is_some_and(|(_, host)| host.eq_ignore_ascii_case(own))
    };
    if !head.headers.get_all(ORIGIN).iter().all(is_own) {
        return true;
    }
    let is = |name: &str, expected: &str| head.headers.get(name).is_some_and(|value| value == expected);
    // A frame of another page is a navigation, too, but its destination is no document of its own.
    let is_followed =
        head.method == Method::GET && is("sec-fetch-mode", "navigate") && is("sec-fetch-dest", "document");
    let is_of_own_site = |site: &HeaderValue| site == "same-origin" || site == "none";
    !head.headers.get_all(FETCH_SITE).iter().all(is_of_own_site) && !is_followed
}

/// The lifetime that a request for a shared link asks for, in its query.
pub(crate) fn lifetime(uri: &Uri) -> Result<Duration, Refusal> {
    let mut parts = uri.query().unwrap_or_default().split('&');
    let Some(seconds) = parts.find_map(|part| part.strip_prefix("seconds=")) else {
        return Ok(DEFAULT_LIFETIME);
    };
    let lifetime = seconds.parse().ok().map(Duration::from_secs);
    lifetime.filter(|lifetime| !lifetime.is_zero() && *lifetime <= MAX_LIFETIME).ok_or_else(|| {
        Refusal::invalid(format!("`seconds` must be between 1 and {}.", MAX_LIFETIME.as_secs()))
    })
}

/// The time that is left until `second`.
pub(crate) fn remaining(second: u64) -> Duration {
    let end = SystemTime::UNIX_EPOCH + Duration::from_secs(second);
    end.duration_since(SystemTime::now()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(uri: &str, headers: &[(&'static str, &str)]) -> request::Parts {
        let mut request = http::Request::builder().uri(uri).header("host", "8000--box.agents.p.test");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).expect("a request").into_parts().0
    }

    fn preview() -> Preview {
        Preview { sandbox: SandboxRef::new("agents", "box"), port: 8000 }
    }

    fn keys() -> Keys {
        Keys::new(&[b"0123456789abcdef0123456789abcdef"]).unwrap()
    }

    #[test]
    fn a_host_name_below_the_domain_must_name_a_port_a_sandbox_and_a_namespace() {
        let domain = Domain::new("p.test").unwrap();
        assert_eq!(domain.read("8000--BOX.agents.P.test:443").unwrap().unwrap(), preview());
        for invalid in [
            "box.agents.p.test",
            "0--box.agents.p.test",
            "8000--box.p.test",
            "8000--.agents.p.test",
            "8000--box.a.b.p.test",
        ] {
            assert!(domain.read(invalid).unwrap().is_err(), "{invalid}");
        }
        for other in ["p.test", "xp.test", "8000--box.agents.p.test.evil.org", ""] {
            assert!(domain.read(other).is_none(), "{other}");
        }
        assert!(Domain::new("a b").is_err() && Domain::new("").is_err());
    }

    #[test]
    fn a_shared_link_becomes_a_cookie_of_its_host() {
        let token = keys().sign_share(&preview(), "u1", Duration::from_secs(60)).0;
        let head = head(&format!("//app?a=1&{PARAMETER}={token}&b=%20"), &[]);
        let Ok(Some(Shared::Link(parts))) = shared(&head, &preview(), &keys()) else { panic!("a link") };
        assert_eq!(parts.headers[LOCATION], "/app?a=1&b=%20");
        let cookie = parts.headers[SET_COOKIE].to_str().unwrap();
        assert!(cookie.starts_with(&format!("{SHARE_COOKIE}={token}; Path=/; Max-Age=")), "{cookie}");
        for attribute in ["Secure", "HttpOnly", "SameSite=Lax"] {
            assert!(cookie.contains(attribute), "{cookie}");
        }
    }

    #[test]
    fn a_shared_link_opens_one_port_of_one_sandbox() {
        let other = Preview { port: 8001, ..preview() };
        for (preview, lifetime) in [(other, 60), (preview(), 0)] {
            let token = keys().sign_share(&preview, "u1", Duration::from_secs(lifetime)).0;
            let head = head(&format!("/?{PARAMETER}={token}"), &[]);
            assert!(shared(&head, &self::preview(), &keys()).is_err(), "{preview:?}");
        }
        let scoped = keys().sign("agents", "box", Duration::from_secs(60));
        assert!(shared(&head(&format!("/?{PARAMETER}={scoped}"), &[]), &preview(), &keys()).is_err());
    }

    #[test]
    fn only_own_pages_and_followed_links_make_requests_to_a_preview() {
        let is_open = |headers: &[(&'static str, &str)]| check_source(&head("/", headers)).is_ok();
        let navigation = [("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate")];
        let with_dest = |dest| [navigation[0], navigation[1], ("sec-fetch-dest", dest)];
        assert!(is_open(&[]));
        assert!(is_open(&[("origin", "https://8000--box.agents.p.test")]));
        assert!(is_open(&[("sec-fetch-site", "same-origin"), ("sec-fetch-mode", "cors")]));
        assert!(is_open(&with_dest("document")));
        assert!(!is_open(&with_dest("iframe")));
        assert!(!is_open(&navigation));
        assert!(!is_open(&[("origin", "https://8000--evil.agents.p.test")]));
        assert!(!is_open(&[("origin", "null")]));
        assert!(!is_open(&[("sec-fetch-site", "same-site"), ("sec-fetch-mode", "no-cors")]));
    }

    #[test]
    fn no_page_signs_a_shared_link() {
        let is_open = |headers: &[(&'static str, &str)]| check_source(&head(SHARE_PATH, headers)).is_ok();
        assert!(is_open(&[]));
        assert!(!is_open(&[("origin", "https://8000--box.agents.p.test")]));
        assert!(!is_open(&[("sec-fetch-site", "same-origin")]));
        assert!(!is_open(&[("sec-fetch-site", "none")]));
    }

    #[test]
    fn a_cookie_opens_the_preview_of_its_link() {
        let token = keys().sign_share(&preview(), "u1", Duration::from_secs(60)).0;
        let head = head("/", &[("cookie", &format!("a=b; {SHARE_COOKIE}={token}"))]);
        assert!(matches!(shared(&head, &preview(), &keys()), Ok(Some(Shared::Cookie(_)))));
        let mut bytes = format!("{SHARE_COOKIE}={token}; b=").into_bytes();
        bytes.push(0xff);
        let mut other_cookie = head.clone();
        other_cookie.headers.insert(COOKIE, HeaderValue::from_bytes(&bytes).unwrap());
        assert!(matches!(shared(&other_cookie, &preview(), &keys()), Ok(Some(Shared::Cookie(_)))));
        let other = Preview { port: 8001, ..preview() };
        assert!(matches!(shared(&head, &other, &keys()), Ok(None)));
    }

    #[test]
    fn only_the_routers_cookie_is_removed() {
        let mut headers = HeaderMap::new();
        headers.insert(COOKIE, HeaderValue::from_static("a=b; __Host-sandpod-share=t; c=d"));
        remove_cookie(&mut headers);
        assert_eq!(headers[COOKIE], "a=b; c=d");
        headers.insert(COOKIE, HeaderValue::from_static("__Host-sandpod-share=t"));
        remove_cookie(&mut headers);
        assert!(headers.is_empty());
        headers.insert(COOKIE, HeaderValue::from_static("a"));
        headers.append(COOKIE, HeaderValue::from_bytes(b"__Host-sandpod-share=\xff").unwrap());
        headers.append(COOKIE, HeaderValue::from_bytes(b"b=\xfe; __Host-sandpod-share=t").unwrap());
        remove_cookie(&mut headers);
        assert_eq!(headers[COOKIE].as_bytes(), b"a; b=\xfe");
    }

    #[test]
    fn the_lifetime_of_a_shared_link_is_bounded() {
        let of = |query: &str| lifetime(&format!("{SHARE_PATH}{query}").parse().unwrap());
        assert_eq!(of("").unwrap(), DEFAULT_LIFETIME);
        assert_eq!(of("?seconds=60").unwrap(), Duration::from_secs(60));
        for invalid in ["?seconds=0", "?seconds=604801", "?seconds=-1", "?seconds=soon"] {
            assert!(of(invalid).is_err(), "{invalid}");
        }
    }
}
