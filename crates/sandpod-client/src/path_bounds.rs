//! Path limits of one call, in addition to the policy that the sandbox is bound to.

use http::{HeaderMap, HeaderName, HeaderValue};
use prost::Message as _;
use sandpod_protocol::{BOUNDS_CAPABILITY, BOUNDS_METADATA, Failure, limits, v1};
use tonic::metadata::{Binary, MetadataValue};

use crate::connection::Greeting;
use crate::error::Error;

/// The paths that file calls may use. The sandbox's kernel resolves links before the check.
///
/// ```
/// use sandpod_client::PathBounds;
///
/// let bounds = PathBounds { within: vec!["/app".to_owned()], denied: vec!["/app/secrets".to_owned()] };
/// # let _ = bounds;
/// ```
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct PathBounds {
    /// Directories of which one must contain the path; empty: any path. An entry that is a symbolic link allows nothing.
    pub within: Vec<String>,
    /// Directories that no path may be in. Deleting or moving a parent of one fails, too.
    pub denied: Vec<String>,
}

/// Encoded bounds, as a metadata value.
#[derive(Clone, Debug)]
pub(crate) struct EncodedPathBounds(HeaderValue);

impl EncodedPathBounds {
    /// Encodes the bounds; `None` if there are none.
    pub(crate) fn new(bounds: PathBounds) -> Result<Option<Self>, Error> {
        let PathBounds { within, denied } = bounds;
        if within.is_empty() && denied.is_empty() {
            return Ok(None);
        }
        let bytes = v1::Bounds { within, denied }.encode_to_vec();
        let most = limits::MAX_BOUNDS_BYTES;
        if bytes.len() > most {
            return Err(Error::InvalidArgument(format!(
                "the paths of a policy have {} bytes together, and the limit for one call is {most}: use fewer paths",
                bytes.len()
            )));
        }
        let value = MetadataValue::<Binary>::from_bytes(&bytes);
        let value = HeaderValue::from_bytes(value.as_encoded_bytes());
        value.map(|value| Some(Self(value))).map_err(|error| Error::InvalidArgument(error.to_string()))
    }

    pub(crate) fn put_into(&self, headers: &mut HeaderMap) {
        headers.insert(HeaderName::from_static(BOUNDS_METADATA), self.0.clone());
    }

    /// Fails if the guest does not support bounds.
    pub(crate) fn check(greeting: &Greeting) -> Result<(), Error> {
        if greeting.capabilities.iter().any(|capability| capability == BOUNDS_CAPABILITY) {
            return Ok(());
        }
        let message =
            "this sandbox's guest is too old to enforce a policy on single calls: create a new sandbox";
        Err(Error::Failure(Failure::new(v1::ErrorCode::Unsupported, message)))
    }
}
