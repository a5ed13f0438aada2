//! What a stock runtime has to do for us.

use bytes::Bytes;
use futures::future::BoxFuture;

use crate::trouble::Trouble;

/// A runtime that takes files, gives them back and runs commands. Paths are below where it starts commands.
pub(crate) trait Runtime: Send + Sync + 'static {
    /// Makes or replaces a file, with the directories above it. It can be asked any number of times.
    fn put(&self, path: String, content: Bytes) -> BoxFuture<'_, Result<(), Trouble>>;

    /// What a file holds, if that is not more than one answer takes.
    fn get(&self, path: String) -> BoxFuture<'_, Result<Bytes, Trouble>>;

    /// Runs a program to its end: what it prints.
    fn run(&self, words: Vec<String>) -> BoxFuture<'_, Result<Vec<u8>, Trouble>>;
}
