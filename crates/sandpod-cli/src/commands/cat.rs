//! `sandpod cat`: prints files.

use std::io;
use std::pin::Pin;
use std::task::{Context as TaskContext, Poll};

use clap::Args;
use data_encoding::BASE64;
use sandpod::Sandbox;
use serde_json::{Value, json};
use tokio::io::AsyncWrite;

use super::Context;
use crate::complete::{remote_paths, sandboxes};
use crate::exit::{Failure, Result};
use crate::files::absolute;
use crate::output::write_all;

/// The largest file that is printed as JSON.
const MAX_JSON_CONTENT: u64 = 16 << 20;

const EXAMPLES: &str = "\
The content is printed unchanged. The exit code is not 0 if a file cannot be read to its end.

Examples:
  sandpod cat ID /workspace/report.md
  sandpod cat ID one.txt two.txt > both.txt";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Sandbox id
    #[arg(add = sandboxes())]
    id: String,
    /// Paths of the files
    #[arg(required = true, add = remote_paths())]
    paths: Vec<String>,
}

/// Prints the files.
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
        print_file(&sandbox, path).await?;
    }
    Ok(())
}

/// Writes the content of a file to stdout unchanged, and returns its size.
pub(super) async fn print_file(sandbox: &Sandbox, path: &str) -> Result<u64> {
    let mut stdout = Stdout { write_error: None };
    let downloaded = sandbox.download_to(path, &mut stdout).await;
    match stdout.write_error {
        Some(cause) => Err(Failure::local("write to stdout", &cause.into())),
        None => Ok(downloaded?),
    }
}

async fn value(sandbox: &Sandbox, path: &str) -> Result<Value> {
    let content = sandbox.download(path, MAX_JSON_CONTENT).await?;
    let (encoding, text) = match String::from_utf8(content.to_vec()) {
        Ok(text) => ("utf-8", text),
        Err(_) => ("base64", BASE64.encode(&content)),
    };
    Ok(json!({ "path": path, "size": content.len(), "encoding": encoding, "content": text }))
}

/// Our stdout, with the cause of a failed write.
struct Stdout {
    write_error: Option<io::ErrorKind>,
}

impl AsyncWrite for Stdout {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut TaskContext<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        let written = write_all(io::stdout(), data);
        self.write_error = written.as_ref().err().map(io::Error::kind);
        Poll::Ready(written.map(|()| data.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut TaskContext<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut TaskContext<'_>) -> Poll<io::Result<()>> {
        self.poll_flush(context)
    }
}
