//! Many files, all or none.

use bytes::Bytes;
use prost::Message as _;
use sandpod_protocol::v1::{self, ApplyEditsRequest, file_change};
use sandpod_protocol::{Failure, limits};

use super::Sandbox;
use crate::connection::{Attempts, Channel};
use crate::error::Error;

/// What other fields of the message may take.
const ROOM: usize = 4096;

/// One file's change in a set.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct FileChange {
    /// No other change of the set has it.
    pub path: String,
    /// What must be there now, if that matters.
    pub expected: Option<Expected>,
    /// What is to be done.
    pub change: Change,
}

/// What a file must be for its change to be made.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Expected {
    /// It holds what has this SHA-256.
    Sha256([u8; 32]),
    /// There is none.
    Missing,
}

/// What is done to a file.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Change {
    /// It is created or replaced.
    Content(Bytes),
    /// It is removed.
    Delete,
    /// Text in it is replaced, one replacement after the other.
    Replace(Vec<Replacement>),
}

/// Text that takes another's place, as in [`Sandbox::edit`].
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Replacement {
    /// What is there.
    pub old_text: String,
    /// What will be.
    pub new_text: String,
    /// All of its occurrences, not the only one.
    pub replace_all: bool,
}

/// A change that was made.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct AppliedChange {
    /// As in the set.
    pub path: String,
    /// Of what the file holds now; none if it was removed.
    pub sha256: Option<[u8; 32]>,
    /// How often text was replaced.
    pub occurrences: u64,
    /// False where the file could only be written in place.
    pub atomic: bool,
}

impl Sandbox {
    /// Changes many files, all or none, also if the guest is killed on the way.
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
                format!("the changes have {bytes} bytes together, and {most} is the most: use more calls");
            return Err(Error::Failure(Failure::new(v1::ErrorCode::TooLarge, message)));
        }
        let send = |channel: Channel, request| async move { channel.files().apply_edits(request).await };
        let attempts = Attempts::change(&self.connection, "a set of changes").within(self.bounds.clone());
        let operation = self.connection.begin_operation();
        let (response, _) = self.connection.change(attempts, &operation, request, send).await?;
        if response.applied.len() != count {
            return Err(Error::Protocol("it answered for other changes than it was asked for".to_owned()));
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
        let sha256 = sha256.map_err(|_| Error::Protocol("it sent a SHA-256 of another length".to_owned()))?;
        let (occurrences, atomic) = (applied.occurrences, applied.atomic);
        Ok(Self { path: applied.path, sha256, occurrences, atomic })
    }
}
