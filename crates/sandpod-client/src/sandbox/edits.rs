//! Changes of several files, all or none.

use bytes::Bytes;
use prost::Message as _;
use sandpod_protocol::v1::{self, ApplyEditsRequest, file_change};
use sandpod_protocol::{Failure, limits};

use super::Sandbox;
use crate::connection::{Attempts, Channel};
use crate::error::Error;

/// Space for the other fields of the message.
const ROOM: usize = 4096;

/// The change of one file in a set.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct FileChange {
    /// Absolute path. It must be unique in the set.
    pub path: String,
    /// Required state of the file before the change.
    pub expected: Option<Expected>,
    /// What is to be done.
    pub change: Change,
}

/// State of a file that a change requires.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Expected {
    /// The file's content has this SHA-256.
    Sha256([u8; 32]),
    /// The file does not exist.
    Missing,
}

/// A change of a file.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Change {
    /// Create or replace the file.
    Content(Bytes),
    /// Delete the file.
    Delete,
    /// Replace texts in it, one after the other.
    Replace(Vec<Replacement>),
}

/// A replacement of text, as in [`Sandbox::edit`].
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Replacement {
    /// Text to replace.
    pub old_text: String,
    /// New text.
    pub new_text: String,
    /// Replace all occurrences. Otherwise the text must occur once.
    pub replace_all: bool,
}

/// A change that was made.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct AppliedChange {
    /// The path from the set.
    pub path: String,
    /// SHA-256 of the new content; `None` if the file was deleted.
    pub sha256: Option<[u8; 32]>,
    /// Number of replacements.
    pub occurrences: u64,
    /// False if the file could only be written in place.
    pub atomic: bool,
}

impl Sandbox {
    /// Changes several files, all or none, even if the guest is killed meanwhile.
    ///
    /// ```no_run
    /// # use sandpod_client::{Change, Error, Expected, FileChange, Sandbox};
    /// # async fn run(sandbox: Sandbox) -> Result<(), Error> {
    /// let change = |path: &str, change| FileChange { path: path.to_owned(), expected: None, change };
    /// let new = FileChange { expected: Some(Expected::Missing), ..change("/app/new.py", Change::Content("x = 1\n".into())) };
    /// sandbox.apply_edits(vec![new, change("/app/old.py", Change::Delete)]).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn apply_edits(&self, changes: Vec<FileChange>) -> Result<Vec<AppliedChange>, Error> {
        let count = changes.len();
        let changes: Vec<v1::FileChange> = changes.into_iter().map(v1::FileChange::from).collect();
        let request = |operation| ApplyEditsRequest { operation: Some(operation), changes: changes.clone() };
        let bytes: usize = changes.iter().map(|change| change.encoded_len() + 8).sum();
        if bytes + ROOM > limits::MAX_MESSAGE_BYTES {
            let most = limits::MAX_MESSAGE_BYTES - ROOM;
            let message =
                format!("the changes have {bytes} bytes together, and the limit is {most}: use more calls");
            return Err(Error::Failure(Failure::new(v1::ErrorCode::TooLarge, message)));
        }
        let send = |channel: Channel, request| async move { channel.files().apply_edits(request).await };
        let attempts = Attempts::change(&self.connection, "a set of changes").within(self.bounds.clone());
        let operation = self.connection.begin_operation();
        let (response, _) = self.connection.change(attempts, &operation, request, send).await?;
        if response.applied.len() != count {
            return Err(Error::Protocol("the answer has other changes than the request".to_owned()));
        }
        response.applied.into_iter().map(AppliedChange::try_from).collect()
    }
}

impl From<FileChange> for v1::FileChange {
    fn from(change: FileChange) -> Self {
        let expected = change.expected.map(|expected| match expected {
            Expected::Sha256(sha256) => file_change::Expected::Sha256(sha256.to_vec().into()),
            Expected::Missing => file_change::Expected::Missing(true),
        });
        let replacement = |replacement: Replacement| v1::Replacement {
            old_text: replacement.old_text,
            new_text: replacement.new_text,
            replace_all: replacement.replace_all,
        };
        let what = match change.change {
            Change::Content(content) => file_change::Change::Content(content),
            Change::Delete => file_change::Change::Delete(true),
            Change::Replace(all) => file_change::Change::Replacements(v1::Replacements {
                replacements: all.into_iter().map(replacement).collect(),
            }),
        };
        Self { path: change.path, expected, change: Some(what) }
    }
}

impl TryFrom<v1::AppliedChange> for AppliedChange {
    type Error = Error;

    fn try_from(applied: v1::AppliedChange) -> Result<Self, Error> {
        let sha256 = Some(&applied.sha256[..]).filter(|sha256| !sha256.is_empty());
        let sha256 = sha256.map(<[u8; 32]>::try_from).transpose();
        let sha256 = sha256.map_err(|_| Error::Protocol("a SHA-256 has another length".to_owned()))?;
        let (occurrences, atomic) = (applied.occurrences, applied.atomic);
        Ok(Self { path: applied.path, sha256, occurrences, atomic })
    }
}
