//! The checksum of a transfer.

use prost::bytes::Bytes;
use twox_hash::xxhash3_128::Hasher;

/// XXH3 of 128 bits, which detects corrupted content. It does not protect against forgery: the end that could forge a content
/// also computes its checksum. It is several times as fast as a cryptographic hash.
///
/// ```
/// use sandpod_protocol::Checksum;
///
/// let mut parts = Checksum::default();
/// parts.update(b"hello ");
/// parts.update(b"world");
/// assert_eq!(parts.finish(), Checksum::of(b"hello world"));
/// ```
#[derive(Clone)]
pub struct Checksum(Hasher);

impl Default for Checksum {
    fn default() -> Self {
        Self(Hasher::new())
    }
}

impl Checksum {
    /// Returns the checksum of a complete content.
    #[must_use]
    pub fn of(content: &[u8]) -> Bytes {
        let mut checksum = Self::default();
        checksum.update(content);
        checksum.finish()
    }

    /// Adds the next part of the content.
    pub fn update(&mut self, part: &[u8]) {
        self.0.write(part);
    }

    /// Returns the checksum as bytes for a trailer.
    #[must_use]
    pub fn finish(self) -> Bytes {
        Bytes::copy_from_slice(&self.0.finish_128().to_be_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksum_equals_that_of_xxh128sum() {
        // `printf 'sandpod' | xxh128sum`
        assert_eq!(
            Checksum::of(b"sandpod"),
            0x61d7_f254_2457_402e_7285_5f69_4327_7818_u128.to_be_bytes()[..]
        );
    }
}
