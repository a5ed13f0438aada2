//! Target `frames`: an input is everything that a client sends to a guest, from the first byte on.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::wire::{finish, guest};

pub(crate) fn run(input: &[u8], planted: bool) {
    finish(async {
        let (mut answers, mut calls) = tokio::io::split(guest());
        let send = async {
            if planted {
                read_frames(input);
            }
            // A guest may close the stream early.
            let _ = calls.write_all(input).await;
            let _ = calls.shutdown().await;
        };
        let receive = async {
            let mut buffer = vec![0; 64 << 10];
            while let Ok(1..) = answers.read(&mut buffer).await {}
        };
        tokio::join!(send, receive);
    });
}

/// The planted bug: a reader of frames that trusts the length of the padding.
fn read_frames(mut input: &[u8]) {
    const PREFACE: usize = 24;
    const DATA: u8 = 0;
    const PADDED: u8 = 8;
    input = input.get(PREFACE..).unwrap_or_default();
    while let [a, b, c, kind, flags, _, _, _, _, rest @ ..] = input {
        let length = u32::from_be_bytes([0, *a, *b, *c]) as usize;
        let Some((payload, next)) = rest.split_at_checked(length) else { return };
        if *kind == DATA
            && flags & PADDED != 0
            && let Some((padding, content)) = payload.split_first()
        {
            let _ = &content[..content.len() - usize::from(*padding)];
        }
        input = next;
    }
}
