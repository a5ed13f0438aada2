//! Where one call may lead, besides what the sandbox is bound to.

use http::{HeaderMap, HeaderName, HeaderValue};
use prost::Message as _;
use sandpod_protocol::{BOUNDS_CAPABILITY, BOUNDS_METADATA, Failure, limits, v1};
use tonic::metadata::{Binary, MetadataValue};

use crate::connection::Greeting;
use crate::error::Error;

/// Where file calls may lead, as the sandbox's kernel resolves their paths.
///
/// ```
/// use sandpod_client::PathBounds;
///
/// let bounds = PathBounds { within: vec!["/app".to_owned()], denied: vec!["/app/secrets".to_owned()] };
/// # let _ = bounds;
/// ```
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct PathBounds {
    /// Real places, one of which a call must end below; none: anywhere. One that is a link allows nothing.
    pub within: Vec<String>,
    /// Below which no call ends; what is there doesn't go with what is above it.
    pub denied: Vec<String>,
}

/// Bounds as they travel.
#[derive(Clone, Debug)]
pub(crate) struct EncodedPathBounds(HeaderValue);

impl EncodedPathBounds {
    /// None: there are no bounds.
    pub(crate) fn new(bounds: PathBounds) -> Result<Option<Self>, Error> {
        let PathBounds { within, denied } = bounds;
        if within.is_empty() && denied.is_empty() {
            return Ok(None);
        }
        let bytes = v1::Bounds { within, denied }.encode_to_vec();
        let most = limits::MAX_BOUNDS_BYTES;
        if bytes.len() > most {
            return Err(Error::InvalidArgument(format!(
                "the paths of a policy have {} bytes together, and {most} is the most for one call: use fewer",
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

    /// Refuses a guest that does not know bounds.
    pub(crate) fn check(greeting: &Greeting) -> Result<(), Error> {
        if greeting.capabilities.iter().any(|capability| capability == BOUNDS_CAPABILITY) {
            return Ok(());
        }
        let message =
            "this sandbox's guest is too old to hold calls to a policy of their own: create a new sandbox";
        Err(Error::Failure(Failure::new(v1::ErrorCode::Unsupported, message)))
    }
}
