//! Accepts connections, up to a maximum number at the same time.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::Semaphore;

/// Serves each connection in a task of its own. Connections for which `serve` returns `None`, and those beyond `most`,
/// are closed at once.
pub(crate) async fn accept_each<S, F>(
    poll_accept: impl Fn(&mut Context<'_>) -> Poll<io::Result<S>>,
    most: usize,
    serve: impl Fn(S) -> Option<F>,
) -> Infallible
where
    F: Future<Output = ()> + Send + 'static,
{
    let slots = Arc::new(Semaphore::new(most));
    loop {
        let Ok(stream) = poll_fn(&poll_accept).await else {
            // Most likely out of file descriptors, which other connections free when they end.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        if let (Some(served), Ok(slot)) = (serve(stream), slots.clone().try_acquire_owned()) {
            tokio::spawn(async move {
                served.await;
                drop(slot);
            });
        }
    }
}
