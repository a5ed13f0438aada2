//! A connection to a port of a Pod: the stream of `pods/portforward`.
//!
//! One WebSocket carries one connection on two channels, one for data and one for the error. Neither direction waits
//! for the other, and dropping the stream closes the connection.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use futures::{SinkExt as _, Stream, StreamExt as _, future};
use k8s_openapi::api::core::v1::Pod;
use kube::core::Request;
use kube::{Client, Resource};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_tungstenite::tungstenite::{Error as WebSocketError, Message};
use tokio_util::io::{CopyToBytes, SinkWriter, StreamReader};

use crate::exec::PodRef;
use crate::{Error, Result};

/// The most bytes of one message.
const MAX_FRAME: usize = 64 * 1024;
/// The channels of the only port.
const DATA: u8 = 0;
const ERROR: u8 = 1;

/// Connects to `port` of `pod`. If no process listens there, the first read fails.
///
/// ```no_run
/// # async fn example(client: &kube::Client) -> Result<(), Box<dyn std::error::Error>> {
/// use sandpod_kube::{exec::PodRef, forward};
/// use tokio::io::{AsyncReadExt, AsyncWriteExt};
///
/// let mut stream = forward::open(client, &PodRef::new("agents", "router"), 8080).await?;
/// stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: router\r\nConnection: close\r\n\r\n").await?;
/// let mut answer = String::new();
/// stream.read_to_string(&mut answer).await?;
/// # Ok(())
/// # }
/// ```
pub async fn open(
    client: &Client,
    pod: &PodRef,
    port: u16,
) -> Result<impl AsyncRead + AsyncWrite + Send + Unpin + use<>> {
    let refused = |cause| Error::Forward { pod: pod.clone(), port, cause: Box::new(cause) };
    let request = Request::new(Pod::url_path(&(), Some(&pod.namespace)))
        .portforward(&pod.name, &[port])
        .map_err(|cause| refused(kube::Error::BuildRequest(cause)))?;
    let connection = client.connect(request).await.map_err(refused)?;
    let (sink, messages) = connection.into_stream().split();
    let sink = sink
        .sink_map_err(io::Error::other)
        .with(|data: Bytes| future::ready(Ok::<_, io::Error>(frame(&data))));
    let writer = Capped(SinkWriter::new(CopyToBytes::new(sink)));
    Ok(tokio::io::join(StreamReader::new(content(messages)), writer))
}

fn frame(data: &[u8]) -> Message {
    let mut frame = BytesMut::with_capacity(data.len() + 1);
    frame.put_u8(DATA);
    frame.put_slice(data);
    Message::Binary(frame.freeze())
}

/// The data that the port sends.
fn content(
    messages: impl Stream<Item = Result<Message, WebSocketError>> + Send + Unpin,
) -> impl Stream<Item = io::Result<Bytes>> + Send + Unpin {
    let mut introduced = [false; 2];
    messages.filter_map(move |message| {
        future::ready(match message {
            Ok(Message::Binary(bytes)) => received(&mut introduced, bytes),
            Ok(_) => None,
            Err(error) => Some(Err(io::Error::other(error))),
        })
    })
}

/// Returns the content of one message. The first message of each channel only repeats the port.
fn received(introduced: &mut [bool; 2], mut bytes: Bytes) -> Option<io::Result<Bytes>> {
    let channel = *bytes.first()?;
    bytes.advance(1);
    if !std::mem::replace(introduced.get_mut(usize::from(channel))?, true) {
        return None;
    }
    if channel == ERROR {
        let said = String::from_utf8_lossy(&bytes).trim().to_owned();
        return Some(Err(io::Error::new(io::ErrorKind::ConnectionRefused, said)));
    }
    (!bytes.is_empty()).then_some(Ok(bytes))
}

/// Limits data to what one message may carry.
struct Capped<W>(W);

impl<W: AsyncWrite + Unpin> AsyncWrite for Capped<W> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, &data[..data.len().min(MAX_FRAME)])
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_message_of_each_channel_is_no_content_and_an_error_ends_it() {
        let mut introduced = [false; 2];
        let mut receive = |bytes: &'static [u8]| received(&mut introduced, Bytes::from_static(bytes));
        assert!(receive(&[DATA, 80, 0]).is_none());
        assert!(receive(&[ERROR, 80, 0]).is_none());
        assert_eq!(receive(b"\0hello").unwrap().unwrap(), "hello");
        assert!(receive(&[DATA]).is_none(), "nothing is not the end");
        assert!(receive(&[7, 1, 2]).is_none(), "there is no such channel");
        let error = receive(b"\x01no process listens\n").unwrap().unwrap_err();
        assert_eq!(
            (error.kind(), error.to_string().as_str()),
            (io::ErrorKind::ConnectionRefused, "no process listens")
        );
    }

    #[tokio::test]
    async fn long_writes_are_cut_into_messages_that_the_server_takes() {
        use tokio::io::AsyncWriteExt as _;
        let mut all = Vec::new();
        let written = Capped(&mut all).write(&vec![7; 3 * MAX_FRAME]).await.unwrap();
        assert_eq!((written, all.len()), (MAX_FRAME, MAX_FRAME));
    }
}
