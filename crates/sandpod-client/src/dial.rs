//! Interface of everything that opens streams, and an implementation for the plain network ([`network`]).

mod network;
mod token;
mod websocket;

use futures::future::BoxFuture;
use tokio::io::{AsyncRead, AsyncWrite};

pub use network::NetworkDialer;
pub use token::Token;
pub use websocket::websocket;

/// A byte stream to and from a guest.
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
    /// Opens a stream on which the guest sends first. Cancel-safe.
    fn dial(&self) -> BoxFuture<'_, Result<Box<dyn ByteStream>, DialError>>;

    /// Tokens that authenticate a network stream, most likely first. There may be several: a guest changes its token when it is
    /// bound, possibly by another client. Other streams need none.
    fn tokens(&self) -> Vec<Token> {
        Vec::new()
    }

    /// Called when the guest has answered Bind: from now on the token from before the Bind is invalid.
    fn bound(&self) {}
}

impl<D: Dialer + ?Sized> Dialer for Box<D> {
    fn dial(&self) -> BoxFuture<'_, Result<Box<dyn ByteStream>, DialError>> {
        (**self).dial()
    }

    fn tokens(&self) -> Vec<Token> {
        (**self).tokens()
    }

    fn bound(&self) {
        (**self).bound();
    }
}

/// Why there is no stream.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum DialError {
    /// A later dial may succeed.
    #[error("{0}")]
    Unreachable(String),
    /// The sandbox is gone for good, with the reason.
    #[error("{0}")]
    Gone(String),
    /// Access was refused, and another dial would be refused, too.
    #[error("{0}")]
    Denied(String),
}
