//! Drives an HTTP connection, and tells every waiting request that it has ended.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// How long a response that arrived before the end may take to reach its caller.
const LAST_ANSWERS: Duration = Duration::from_secs(1);

/// Task of an HTTP connection whose end cancels all pending requests.
///
/// hyper reports the end itself, but not to a request that is submitted at the same moment: hyper leaves it in a queue
/// (hyperium/hyper#4122), and its caller would wait forever.
///
/// ```
/// use sandpod_client::ConnectionDriver;
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() {
/// let (close, closed) = tokio::sync::oneshot::channel::<()>();
/// let driver = ConnectionDriver::spawn(closed);
/// assert_eq!(driver.response_or_end(async { "answer" }).await, Some("answer"));
/// drop(close);
/// assert_eq!(driver.response_or_end(std::future::pending::<&str>()).await, None);
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct ConnectionDriver(CancellationToken);

impl ConnectionDriver {
    /// Drives `connection` to its end in a background task.
    pub fn spawn<C>(connection: C) -> Self
    where
        C: Future<Output: Send> + Send + 'static,
    {
        let ended = CancellationToken::new();
        let tell = ended.clone().drop_guard();
        tokio::spawn(async move {
            let _tell = tell;
            connection.await;
        });
        Self(ended)
    }

    /// Returns the response, or `None` if the connection ends first.
    pub async fn response_or_end<T>(&self, answer: impl Future<Output = T>) -> Option<T> {
        let mut answer = pin!(answer);
        tokio::select! {
            biased;
            answer = &mut answer => Some(answer),
            () = self.0.cancelled() => timeout(LAST_ANSWERS, answer).await.ok(),
        }
    }
}
