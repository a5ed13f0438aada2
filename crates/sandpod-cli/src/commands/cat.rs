//! `sandpod cat`: the content of files.

use std::io;
use std::pin::Pin;
use std::task::{Context as TaskContext, Poll};

use clap::Args;
use data_encoding::BASE64;
use sandpod::Sandbox;
use serde_json::{Value, json};
use tokio::io::AsyncWrite;

use super::Context;
use crate::exit::{Failure, Result};
use crate::files::absolute;
use crate::output::write_all;

/// The most that fits into a JSON value.
const MOST_AS_JSON: u64 = 16 << 20;

const EXAMPLES: &str = "\
A file is printed byte by byte, as it is. If it can't be read to its end the exit code says so.

Examples:
  sandpod cat ID /workspace/report.md
  sandpod cat ID one.txt two.txt > both.txt";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// The sandbox
    id: String,
    /// The files
    #[arg(required = true)]
    paths: Vec<String>,
}

/// Prints them.
pub(crate) async fn run(arguments: Arguments, context: &Context) -> Result<()> {
    let target = context.target()?;
    let paths: Vec<_> = arguments.paths.iter().map(|path| absolute(&target, path)).collect::<Result<_>>()?;
    let sandbox = target.sandbox(&arguments.id).await?.sandbox;
    if context.output.is_json() {
        let mut all = Vec::new();
        for path in &paths {
            all.push(value(&sandbox, path).await?);
        }
        return context.output.json(&all);
    }
    for path in &paths {
        let mut stdout = Stdout { refused: None };
        let downloaded = sandbox.download_to(path, &mut stdout).await;
        if let Some(cause) = stdout.refused {
            return Err(Failure::local("write to stdout", &cause.into()));
        }
        downloaded?;
    }
    Ok(())
}

async fn value(sandbox: &Sandbox, path: &str) -> Result<Value> {
    let content = sandbox.download(path, MOST_AS_JSON).await?;
    let (encoding, text) = match String::from_utf8(content.to_vec()) {
        Ok(text) => ("utf-8", text),
        Err(_) => ("base64", BASE64.encode(&content)),
    };
    Ok(json!({ "path": path, "size": content.len(), "encoding": encoding, "content": text }))
}

/// Our stdout, which remembers why it took no more.
struct Stdout {
    refused: Option<io::ErrorKind>,
}

impl AsyncWrite for Stdout {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut TaskContext<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        let written = write_all(io::stdout(), data);
        self.refused = written.as_ref().err().map(io::Error::kind);
        Poll::Ready(written.map(|()| data.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut TaskContext<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut TaskContext<'_>) -> Poll<io::Result<()>> {
        self.poll_flush(context)
    }
}
