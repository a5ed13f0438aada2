//! Contents that are sent into the sandbox part by part, and then replace a file.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use sandpod_protocol::Failure;

use crate::files::absolute;
use crate::policy::{Purpose, Rules};
use crate::script_job::{PART_BYTES, ScriptJob, ScriptJobs, script};

/// Permission bits of a new file.
const NEW_MODE: u32 = 0o644;

/// A content, partly sent.
pub(crate) struct Incoming {
    job: ScriptJob,
    sent: u64,
    waiting: BytesMut,
}

impl Incoming {
    pub(crate) fn new(jobs: &Arc<ScriptJobs>) -> Self {
        Self { job: jobs.job(), sent: 0, waiting: BytesMut::new() }
    }

    /// Adds a chunk. At most two parts are kept in memory.
    pub(crate) async fn add(&mut self, chunk: &[u8]) -> Result<(), Failure> {
        for some in chunk.chunks(PART_BYTES) {
            self.waiting.extend_from_slice(some);
            if self.waiting.len() >= PART_BYTES {
                let part = self.waiting.split_to(PART_BYTES).freeze();
                self.send(part).await?;
            }
        }
        Ok(())
    }

    async fn send(&mut self, part: Bytes) -> Result<(), Failure> {
        let length = part.len() as u64;
        let before = self.sent.to_string();
        self.job.put_file(&format!("part-{before}"), part).await?;
        self.job.once(&format!("append-{before}"), script!("append"), &[&before]).await?;
        self.sent += length;
        Ok(())
    }

    /// Replaces a file by the content, if the file still has the expected SHA-256. Returns whether the replacement was atomic.
    pub(crate) async fn commit(
        mut self,
        rules: &Rules,
        (path, purpose): (&str, Purpose),
        mode: Option<u32>,
        expected: Option<&str>,
    ) -> Result<bool, Failure> {
        let path = absolute(path)?;
        let rest = self.waiting.split().freeze();
        if self.sent == 0 {
            self.job.put_file("body", rest).await?;
        } else if !rest.is_empty() {
            self.send(rest).await?;
        }
        let mode = format!("{:o}", mode.unwrap_or(NEW_MODE) & 0o7777);
        let expected = expected.unwrap_or_default().as_bytes();
        let words = [path.as_bytes(), mode.as_bytes(), expected];
        rules.admit(&self.job, &words, &[(path, purpose)]).await?;
        let written = self.job.once("write", script!("write"), &[]).await;
        Ok(&written.map_err(|failure| failure.at(path))?[..] == b"atomic")
    }
}

/// Creates or replaces a file.
pub(crate) async fn write(
    jobs: &Arc<ScriptJobs>,
    rules: Rules,
    path: &str,
    content: &[u8],
    mode: Option<u32>,
) -> Result<bool, Failure> {
    absolute(path)?;
    let mut incoming = Incoming::new(jobs);
    incoming.add(content).await?;
    incoming.commit(&rules, (path, Purpose::WRITE), mode, None).await
}
