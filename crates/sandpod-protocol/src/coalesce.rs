//! Merges consecutive small writes into one.
//!
//! A call and its answer are a few small frames each, and HTTP/2 writes each frame at once. Every hop on the way handles each
//! write as a message of its own. It is cheaper to wait until all data that is ready now has been written.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Maximum size of the buffer. A larger write is passed on directly.
const MOST: usize = 16 << 10;

/// A stream that buffers small writes until it is flushed and no other task is ready.
///
/// ```
/// use sandpod_protocol::CoalescingStream;
/// use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> std::io::Result<()> {
/// let (ours, mut theirs) = tokio::io::duplex(64);
/// let mut stream = CoalescingStream::new(ours);
/// stream.write_all(b"headers, ").await?;
/// stream.write_all(b"data").await?;
/// stream.flush().await?;
/// let mut message = [0; 64];
/// assert_eq!(theirs.read(&mut message).await?, b"headers, data".len());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct CoalescingStream<S> {
    stream: S,
    waiting: Vec<u8>,
    sent: usize,
    /// Whether other tasks could run since the last write.
    yielded: bool,
}

impl<S> CoalescingStream<S> {
    /// Buffers writes to `stream`.
    pub fn new(stream: S) -> Self {
        Self { stream, waiting: Vec::new(), sent: 0, yielded: false }
    }
}

impl<S: AsyncWrite + Unpin> CoalescingStream<S> {
    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.sent < self.waiting.len() {
            let sent = ready!(Pin::new(&mut self.stream).poll_write(cx, &self.waiting[self.sent..]))?;
            if sent == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.sent += sent;
        }
        self.waiting.clear();
        self.sent = 0;
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for CoalescingStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for CoalescingStream<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(data)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let size = data.iter().map(|part| part.len()).sum::<usize>();
        if self.waiting.len() + size > MOST {
            ready!(self.poll_send(cx))?;
            if size > MOST {
                return Pin::new(&mut self.stream).poll_write_vectored(cx, data);
            }
        }
        for part in data {
            self.waiting.extend_from_slice(part);
        }
        self.yielded = false;
        Poll::Ready(Ok(size))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.waiting.is_empty() && !self.yielded {
            self.yielded = true;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        ready!(self.poll_send(cx))?;
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_send(cx))?;
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    /// Records each write.
    #[derive(Default)]
    struct Writes(Vec<Vec<u8>>);

    impl AsyncWrite for Writes {
        fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
            self.0.push(data.to_vec());
            Poll::Ready(Ok(data.len()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[tokio::test]
    async fn small_writes_are_sent_as_one_when_flushed() {
        let mut stream = CoalescingStream::new(Writes::default());
        stream.write_all(b"headers ").await.unwrap();
        stream.write_all(b"data").await.unwrap();
        assert!(stream.stream.0.is_empty());
        stream.flush().await.unwrap();
        assert_eq!(stream.stream.0, [b"headers data".to_vec()]);
    }

    #[tokio::test]
    async fn large_write_is_sent_at_once_and_in_order() {
        let mut stream = CoalescingStream::new(Writes::default());
        stream.write_all(b"first").await.unwrap();
        stream.write_all(&vec![0; MOST + 1]).await.unwrap();
        let lengths: Vec<_> = stream.stream.0.iter().map(Vec::len).collect();
        assert_eq!(lengths, [5, MOST + 1]);
    }

    #[tokio::test]
    async fn no_bytes_are_lost_on_a_slow_stream() {
        let (ours, mut theirs) = tokio::io::duplex(3);
        let sent: Vec<u8> = (0..=u8::MAX).cycle().take(5 * MOST).collect();
        let expected = sent.clone();
        let write = tokio::spawn(async move {
            let mut stream = CoalescingStream::new(ours);
            for (number, part) in sent.chunks(1000).enumerate() {
                stream.write_all(part).await.unwrap();
                if number % 3 == 0 {
                    stream.flush().await.unwrap();
                }
            }
            stream.shutdown().await.unwrap();
        });
        let mut received = Vec::new();
        theirs.read_to_end(&mut received).await.unwrap();
        write.await.unwrap();
        assert!(received == expected);
    }
}
