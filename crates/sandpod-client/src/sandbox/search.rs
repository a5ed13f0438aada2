//! Looking for files, and for text in them.

use sandpod_protocol::v1::{self, GlobRequest, GrepRequest, TruncationReason};

use super::Sandbox;
use super::files::FileInfo;
use crate::connection::{Attempts, Channel};
use crate::error::Error;

/// The files that a pattern matches.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Found {
    /// Regular files only, sorted by path.
    pub matches: Vec<FileInfo>,
    /// Why there may be more.
    pub incomplete: Option<Incomplete>,
}

/// Why a search may have missed something.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Incomplete {
    /// Too many matches, or too long a search.
    Budget,
    /// Something below the root could not be read.
    Unreadable,
}

/// Where to look for text.
#[derive(Clone, Debug, Default)]
pub struct GrepOptions {
    /// A directory or file, if not the working directory.
    pub root: Option<String>,
    /// Which files: by name, or by path below the root if it has a slash.
    pub glob: Option<String>,
    /// How many matches in all, if not the default.
    pub max_count: Option<u64>,
}

/// The lines that hold a text.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Grepped {
    /// The lines.
    pub matches: Vec<GrepMatch>,
    /// There may be more.
    pub truncated: bool,
}

/// A line that holds a text.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct GrepMatch {
    /// Its file.
    pub path: String,
    /// Its number, counted from 1.
    pub line: u64,
    /// What is on it.
    pub text: String,
}

impl Sandbox {
    /// The files below `root` whose paths match a pattern such as `**/*.rs`.
    pub async fn glob(&self, pattern: &str, root: &str) -> Result<Found, Error> {
        let request = GlobRequest { pattern: pattern.to_owned(), root: root.to_owned() };
        let send = |channel: Channel, request| async move { channel.files().glob(request).await };
        let attempts = self.asks("a search for files below", root);
        let response = self.connection.ask(attempts, request, send).await?;
        let incomplete = match TruncationReason::try_from(response.truncated) {
            Ok(TruncationReason::Unspecified) => None,
            Ok(TruncationReason::Unreadable) => Some(Incomplete::Unreadable),
            // A reason of a later version is one, too.
            Ok(TruncationReason::Budget) | Err(_) => Some(Incomplete::Budget),
        };
        Ok(Found { matches: response.matches.into_iter().map(FileInfo::from).collect(), incomplete })
    }

    /// The lines that hold `pattern` as it is: no regular expression.
    pub async fn grep(&self, pattern: &str, options: GrepOptions) -> Result<Grepped, Error> {
        let attempts = Attempts::ask(&self.connection, "a search for text").within(self.bounds.clone());
        let request = GrepRequest {
            pattern: pattern.to_owned(),
            root: options.root.unwrap_or_default(),
            glob: options.glob.unwrap_or_default(),
            max_count: options.max_count.unwrap_or_default(),
        };
        let send = |channel: Channel, request| async move { channel.files().grep(request).await };
        let response = self.connection.ask(attempts, request, send).await?;
        let matches = response.matches.into_iter().map(GrepMatch::from).collect();
        Ok(Grepped { matches, truncated: response.truncated })
    }
}

impl From<v1::GrepMatch> for GrepMatch {
    fn from(found: v1::GrepMatch) -> Self {
        Self { path: found.path, line: found.line, text: found.text }
    }
}
