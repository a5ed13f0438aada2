//! The end of an HTTP connection, heard by all who wait for an answer over it.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// How long an answer that came before the end may take to reach the one who waits.
const LAST_ANSWERS: Duration = Duration::from_secs(1);

/// Hears when a connection has ended.
///
/// hyper says so itself, but not to a request that is handed over at the very moment: it stays where nobody looks any
/// more (hyperium/hyper#4122), and who waits for its answer would wait forever.
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
    /// Drives `connection` in the background to its end.
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

    /// The answer, or nothing if the connection ends without it.
    pub async fn response_or_end<T>(&self, answer: impl Future<Output = T>) -> Option<T> {
        let mut answer = pin!(answer);
        tokio::select! {
            biased;
            answer = &mut answer => Some(answer),
            () = self.0.cancelled() => timeout(LAST_ANSWERS, answer).await.ok(),
        }
    }
}
