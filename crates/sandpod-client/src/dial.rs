//! Where streams come from: somebody else's knowledge, but for the plain network ([`network`]).

mod network;
mod token;
mod websocket;

use futures::future::BoxFuture;
use tokio::io::{AsyncRead, AsyncWrite};

pub use network::NetworkDialer;
pub use token::Token;
pub use websocket::websocket;

/// A stream of bytes to and from a guest, whatever carries it.
pub trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}

/// Opens streams to one guest.
///
/// ```
/// use futures::FutureExt as _;
/// use futures::future::BoxFuture;
/// use sandpod_client::{ByteStream, DialError, Dialer};
///
/// struct Nowhere;
///
/// impl Dialer for Nowhere {
///     fn dial(&self) -> BoxFuture<'_, Result<Box<dyn ByteStream>, DialError>> {
///         async { Err(DialError::Gone("it was deleted".to_owned())) }.boxed()
///     }
/// }
/// ```
pub trait Dialer: Send + Sync + 'static {
    /// Opens a stream on which the guest speaks first. The future may be dropped at any time.
    fn dial(&self) -> BoxFuture<'_, Result<Box<dyn ByteStream>, DialError>>;

    /// What opens a stream that came over the network, the likeliest first: a guest changes its token when it is bound, and
    /// somebody else may just have done that. Other streams need nothing.
    fn tokens(&self) -> Vec<Token> {
        Vec::new()
    }
}

impl<D: Dialer + ?Sized> Dialer for Box<D> {
    fn dial(&self) -> BoxFuture<'_, Result<Box<dyn ByteStream>, DialError>> {
        (**self).dial()
    }

    fn tokens(&self) -> Vec<Token> {
        (**self).tokens()
    }
}

/// Why there is no stream.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum DialError {
    /// It may work later.
    #[error("{0}")]
    Unreachable(String),
    /// The guest's place is gone for good, and why.
    #[error("{0}")]
    Gone(String),
    /// Somebody refused, and asking again will not change that.
    #[error("{0}")]
    Denied(String),
}
