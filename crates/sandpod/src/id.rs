//! Sandbox ids.

use std::fmt;
use std::str::FromStr;

use data_encoding::BASE32_NOPAD;
use sha2::{Digest as _, Sha256};

use crate::{Error, ErrorKind, Result};

/// The id of a sandbox. It is a DNS label, because names of Kubernetes objects contain it.
///
/// ```
/// use sandpod::SandboxId;
///
/// let id = SandboxId::random()?;
/// assert!(id.as_str().starts_with("sp-"));
/// assert_eq!(id.as_str().len(), 29);
/// assert!("thread-1".parse::<SandboxId>().is_ok());
/// assert!("Thread 1".parse::<SandboxId>().is_err());
/// # Ok::<(), sandpod::Error>(())
/// ```
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct SandboxId(String);

impl SandboxId {
    /// Generates a random id.
    pub fn random() -> Result<Self> {
        Ok(Self::of_bytes(&Self::random_bytes::<16>()?))
    }

    /// Generates a random id of eight digits, for people who type it. It may be in use: check that it is not.
    ///
    /// ```
    /// use sandpod::SandboxId;
    ///
    /// assert_eq!(SandboxId::short()?.as_str().len(), 11);
    /// # Ok::<(), sandpod::Error>(())
    /// ```
    pub fn short() -> Result<Self> {
        Ok(Self::of_bytes(&Self::random_bytes::<5>()?))
    }

    pub(crate) fn random_bytes<const COUNT: usize>() -> Result<[u8; COUNT]> {
        let mut bytes = [0; COUNT];
        getrandom::fill(&mut bytes).map_err(|cause| {
            Error::new(
                ErrorKind::Internal,
                format!("The system has no source of random numbers: {cause}."),
                "Give the sandbox an id yourself.",
            )
        })?;
        Ok(bytes)
    }

    /// Derives the id of a thread's sandbox. It is the same in every process, and differs for every scope and thread.
    ///
    /// ```
    /// use sandpod::SandboxId;
    ///
    /// assert_eq!(SandboxId::of_thread("support", "1"), SandboxId::of_thread("support", "1"));
    /// assert_ne!(SandboxId::of_thread("support", "1"), SandboxId::of_thread("sales", "1"));
    /// ```
    #[must_use]
    pub fn of_thread(scope: &str, thread: &str) -> Self {
        // The length prefix separates scope and thread: ("a", "bc") and ("ab", "c") get different ids.
        let digest = Sha256::new().chain_update((scope.len() as u64).to_be_bytes()).chain_update(scope);
        Self::of_bytes(&digest.chain_update(thread).finalize()[..16])
    }

    fn of_bytes(bytes: &[u8]) -> Self {
        Self(format!("sp-{}", BASE32_NOPAD.encode(bytes).to_ascii_lowercase()))
    }

    /// The id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for SandboxId {
    type Err = Error;

    fn from_str(id: &str) -> Result<Self> {
        let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        let label = (1..=63).contains(&id.len())
            && id.bytes().all(allowed)
            && !id.starts_with('-')
            && !id.ends_with('-');
        if label {
            return Ok(Self(id.to_owned()));
        }
        // The input may be long, so the error shows only its start.
        let shown: String = id.chars().take(80).collect();
        Err(Error::invalid(
            format!("{shown:?} can't be the id of a sandbox."),
            "Use 1 to 63 lowercase letters, digits and '-', with a letter or digit at both ends.",
        ))
    }
}

impl fmt::Display for SandboxId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_ids_are_unique_and_have_26_base32_digits() {
        let (one, other) = (SandboxId::random().unwrap(), SandboxId::random().unwrap());
        assert_ne!(one, other);
        let digits = one.as_str().strip_prefix("sp-").unwrap();
        assert_eq!(digits.len(), 26);
        assert!(digits.bytes().all(|byte| byte.is_ascii_lowercase() || (b'2'..=b'7').contains(&byte)));
        assert_eq!(one.as_str().parse::<SandboxId>().unwrap(), one);
    }

    #[test]
    fn thread_id_is_stable_across_processes_and_versions() {
        assert_eq!(SandboxId::of_thread("scope", "thread").as_str(), "sp-y4ajmpwkke2m77ogcfjjxfempy");
        assert_ne!(SandboxId::of_thread("a", "bc"), SandboxId::of_thread("ab", "c"));
    }

    #[test]
    fn ids_that_are_not_dns_labels_are_rejected() {
        for bad in ["", "-a", "a-", "A", "a_b", "a.b", "a/b", "ä", &"a".repeat(64), "a\nb"] {
            let error = bad.parse::<SandboxId>().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{bad:?}");
        }
        for good in ["a", "0", "thread-1", &"a".repeat(63)] {
            assert!(good.parse::<SandboxId>().is_ok(), "{good:?}");
        }
    }
}
