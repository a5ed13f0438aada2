//! The operations that a stock runtime must have.

use bytes::Bytes;
use futures::future::BoxFuture;

use crate::error::RuntimeError;

/// A runtime that takes files, returns them and runs commands. Paths are below the directory in which it starts commands.
pub(crate) trait Runtime: Send + Sync + 'static {
    /// Creates or replaces a file in [`FOLDER`](crate::script_job::FOLDER), which is created if it is missing. Idempotent.
    fn put(&self, path: String, content: Bytes) -> BoxFuture<'_, Result<(), RuntimeError>>;

    /// Returns the content of a file that is not larger than an answer may be.
    fn get(&self, path: String) -> BoxFuture<'_, Result<Bytes, RuntimeError>>;

    /// Runs a program to its end and returns its output.
    fn run(&self, words: Vec<String>) -> BoxFuture<'_, Result<Vec<u8>, RuntimeError>>;
}
