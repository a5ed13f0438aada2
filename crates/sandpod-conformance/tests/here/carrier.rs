//! What carries streams to a guest in this process.

use std::io;
use std::sync::{Arc, Mutex};

use futures::FutureExt as _;
use futures::future::BoxFuture;
use sandpod_client::{ByteStream, DialError, Dialer};
use sandpod_guest::Guest;
use tokio::net::unix::pipe;
use tokio::net::{UnixListener, UnixStream};
use tokio::task::AbortHandle;

/// What carries a stream.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Carrier {
    /// Two pipes, as a program's standard input and output are.
    Pipes,
    UnixSocket,
}

/// Both ends of a stream.
type Pair = (Box<dyn ByteStream>, Box<dyn ByteStream>);

impl Carrier {
    /// As the table names it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Pipes => "stdio",
            Self::UnixSocket => "Unix socket",
        }
    }

    async fn pair(self) -> io::Result<Pair> {
        match self {
            Self::Pipes => {
                let ((to_guest, guest_in), (guest_out, from_guest)) = (pipe::pipe()?, pipe::pipe()?);
                let ours = tokio::io::join(from_guest, to_guest);
                Ok((Box::new(ours), Box::new(tokio::io::join(guest_in, guest_out))))
            }
            Self::UnixSocket => {
                let directory = tempfile::tempdir()?;
                let listener = UnixListener::bind(directory.path().join("socket"))?;
                let (ours, accepted) = tokio::try_join!(
                    UnixStream::connect(directory.path().join("socket")),
                    listener.accept()
                )?;
                Ok((Box::new(ours), Box::new(accepted.0)))
            }
        }
    }
}

/// A guest in this process, and the streams that it serves.
#[derive(Clone)]
pub(crate) struct Served {
    guest: Guest,
    carrier: Carrier,
    streams: Arc<Mutex<Vec<AbortHandle>>>,
}

impl Served {
    pub(crate) fn new(guest: Guest, carrier: Carrier) -> Self {
        Self { guest, carrier, streams: Arc::default() }
    }

    pub(crate) fn lose_streams(&self) {
        self.streams.lock().unwrap().drain(..).for_each(|stream| stream.abort());
    }
}

impl Dialer for Served {
    fn dial(&self) -> BoxFuture<'_, Result<Box<dyn ByteStream>, DialError>> {
        async {
            let (ours, theirs) =
                self.carrier.pair().await.map_err(|error| DialError::Unreachable(error.to_string()))?;
            let guest = self.guest.clone();
            let serving = tokio::spawn(async move { guest.serve_stream(theirs).await });
            self.streams.lock().unwrap().push(serving.abort_handle());
            Ok(ours)
        }
        .boxed()
    }
}
