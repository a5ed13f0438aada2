//! Target `http`: an input is a client's request to one of the stock APIs, which its first byte selects.

use std::path::Path;

use sandpod_guest::fuzzing::serve_http;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::cell;
use crate::outside::Outside;
use crate::wire::{finish, new_guest};

pub(crate) fn run(input: &[u8], planted: bool) {
    let Some((choice, request)) = input.split_first() else { return };
    if planted {
        content_length(request);
    }
    finish(async {
        let guest = new_guest();
        let (outside, inside) = Outside::prepare();
        let (ours, theirs) = tokio::io::duplex(64 << 10);
        let sandboxd = choice % 2 == 1;
        tokio::spawn(async move { serve_http(&guest, Path::new(&inside), sandboxd, theirs).await });
        let (mut answers, mut requests) = tokio::io::split(ours);
        let send = async {
            // A server may close the connection early.
            let _ = requests.write_all(request).await;
            let _ = requests.shutdown().await;
        };
        let receive = async {
            let mut buffer = vec![0; 64 << 10];
            while let Ok(1..) = answers.read(&mut buffer).await {}
        };
        tokio::join!(send, receive);
        outside.assert_untouched();
    });
    cell::clean();
}

/// The planted bug: the length of a body is parsed without a check that it is a number.
fn content_length(request: &[u8]) {
    let text = String::from_utf8_lossy(request);
    let length = text.lines().find_map(|line| line.strip_prefix("Content-Length: "));
    let _ = length.map(|length| length.parse::<u64>().expect("a length is a number"));
}
