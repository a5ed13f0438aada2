//! Validates users' labels and converts them to Kubernetes labels.

use std::collections::BTreeMap;

use data_encoding::HEXLOWER;
use sha2::{Digest, Sha256};

use crate::config::OWN_DOMAIN;
use crate::{Error, Result};

/// Keys that sandpod reserves for itself.
const RESERVED: [&str; 5] = ["id", "network", "parent", "pool", "pool-status"];
/// Maximum size of a value. Kubernetes limits all annotations of an object to 256 KiB.
const MAX_VALUE_BYTES: usize = 4096;

/// Rejects invalid or reserved keys, and values that do not fit into an annotation.
pub(crate) fn check(prefix: &str, labels: &BTreeMap<String, String>) -> Result<()> {
    for (key, value) in labels {
        let shown: String = key.chars().take(80).collect();
        // With an empty `label_prefix`, a key may have its own prefix.
        let name = if prefix.is_empty() { plain_name(key) } else { key };
        if name.is_empty() || !is_label(name) || RESERVED.contains(&key.as_str()) {
            return Err(Error::invalid(
                format!("The label {shown:?} can't be used."),
                format!(
                    "Use up to 63 letters, digits, '-', '_' and '.', and none of {}.",
                    RESERVED.join(", ")
                ),
            ));
        }
        if value.len() > MAX_VALUE_BYTES || value.contains('\0') {
            return Err(Error::invalid(
                format!("The value of the label {shown:?} has {} bytes.", value.len()),
                format!("Use at most {MAX_VALUE_BYTES}, and keep larger things in the sandbox."),
            ));
        }
    }
    Ok(())
}

/// Returns the name in a key with an optional domain. Returns an empty name if the domain is invalid or reserved.
fn plain_name(key: &str) -> &str {
    match key.split_once('/') {
        None => key,
        Some((domain, name)) if is_free(domain) && format!("{domain}/") != OWN_DOMAIN => name,
        Some(_) => "",
    }
}

/// Whether this is a valid domain that Kubernetes does not reserve.
fn is_free(domain: &str) -> bool {
    let is_part = |part: &str| {
        let plain =
            part.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
        plain && !part.is_empty() && is_label(part)
    };
    let kubernetes = ["kubernetes.io", "k8s.io"].iter().any(|own| domain.ends_with(own));
    domain.len() <= 253 && domain.split('.').all(is_part) && !kubernetes
}

/// Rejects an invalid label prefix. An empty prefix is valid: labels then keep the names that users give them.
pub(crate) fn check_prefix(prefix: &str) -> Result<()> {
    match prefix.strip_suffix('/') {
        _ if prefix.is_empty() => Ok(()),
        Some(domain) if is_free(domain) => Ok(()),
        _ => Err(Error::invalid(
            format!("The label_prefix {:?} can't be used.", prefix.chars().take(80).collect::<String>()),
            "Use a domain of yours and a slash, such as 'agents.example.com/'.",
        )),
    }
}

/// Returns the value if it is a valid label value, or else its hash.
pub(crate) fn label_value(value: &str) -> String {
    if is_label(value) { value.to_owned() } else { HEXLOWER.encode(&Sha256::digest(value))[..12].to_owned() }
}

/// Whether Kubernetes accepts this text as a label value, or as the name in a label key.
pub(crate) fn is_label(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let outer = |byte: Option<&u8>| byte.is_none_or(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    bytes.len() <= 63 && bytes.iter().all(|&byte| inner(byte)) && outer(bytes.first()) && outer(bytes.last())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_invalid_label_values_are_hashed() {
        assert_eq!(label_value("alice-1"), "alice-1");
        assert_eq!(label_value("alice@example.com"), "ff8d9819fc0e");
        assert_eq!(label_value(&"x".repeat(64)).len(), 12);
        assert_ne!(label_value("a b"), label_value("a c"));
    }

    #[test]
    fn prefix_is_empty_or_an_unreserved_domain_with_a_slash() {
        for prefix in ["sandpod.dev/", "agents.example.com/", "x/", ""] {
            check_prefix(prefix).unwrap();
        }
        for prefix in
            ["/", "a", "a b/", "A.example/", "a..b/", "-a/", "a/b/", "apps.kubernetes.io/", "k8s.io/"]
        {
            check_prefix(prefix).unwrap_err();
        }
    }

    #[test]
    fn invalid_and_reserved_keys_are_rejected() {
        for key in ["", "a b", "-a", "id", "network", "parent", "pool", "pool-status", &"k".repeat(64)] {
            check(OWN_DOMAIN, &[(key.to_owned(), "x".to_owned())].into()).unwrap_err();
        }
        check(OWN_DOMAIN, &[("team".to_owned(), "any thing".to_owned())].into()).unwrap();
        check(OWN_DOMAIN, &[("team".to_owned(), "x".repeat(5000))].into()).unwrap_err();
    }

    #[test]
    fn h6_unprefixed_labels_may_have_a_domain_of_the_user() {
        let plain = |key: &str| check("", &[(key.to_owned(), "x".to_owned())].into());
        for key in ["team", "example.com/team"] {
            plain(key).unwrap();
        }
        for key in
            ["", "/team", "example.com/", "a/b/c", "sandpod.dev/id", "app.kubernetes.io/managed-by", "id"]
        {
            plain(key).unwrap_err();
        }
        check(OWN_DOMAIN, &[("example.com/team".to_owned(), "x".to_owned())].into()).unwrap_err();
    }
}
