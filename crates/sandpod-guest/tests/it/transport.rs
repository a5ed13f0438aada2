//! Transport of calls.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};

use crate::harness::{Client, guest};

/// A stream that counts writes.
struct Counting(DuplexStream, Arc<AtomicUsize>);

impl AsyncRead for Counting {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Counting {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        self.1.fetch_add(1, Ordering::SeqCst);
        Pin::new(&mut self.0).poll_write(cx, data)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

#[tokio::test]
async fn a_response_is_sent_in_one_write() {
    let (guest, _dir) = guest();
    let (ours, theirs) = tokio::io::duplex(64 << 10);
    let writes = Arc::new(AtomicUsize::new(0));
    let counting = Counting(theirs, writes.clone());
    tokio::spawn(async move { guest.serve_stream(counting).await });
    let client = Client::on(ours).await;
    client.hello(1, 1).await.unwrap();
    tokio::task::yield_now().await;
    let before = writes.load(Ordering::SeqCst);
    for _ in 0..100 {
        client.hello(1, 1).await.unwrap();
    }
    let writes = writes.load(Ordering::SeqCst) - before;
    assert!(writes <= 105, "100 answers left in {writes} writes");
}
