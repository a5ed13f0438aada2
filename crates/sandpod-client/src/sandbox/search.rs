//! Searches for files by name and by content.

use sandpod_protocol::v1::{self, GlobRequest, GrepRequest, TruncationReason};

use super::Sandbox;
use super::files::FileInfo;
use crate::connection::{Attempts, Channel};
use crate::error::Error;

/// Result of a glob search.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Found {
    /// Matching regular files, sorted by path.
    pub matches: Vec<FileInfo>,
    /// Why matches may be missing.
    pub incomplete: Option<Incomplete>,
}

/// Why a search may have missed matches.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Incomplete {
    /// The limit on matches or on time was reached.
    Budget,
    /// A directory below the root could not be read.
    Unreadable,
}

impl Incomplete {
    /// Its name: `budget` or `unreadable`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Budget => "budget",
            Self::Unreadable => "unreadable",
        }
    }
}

/// Options of a text search.
#[derive(Clone, Debug, Default)]
pub struct GrepOptions {
    /// Directory or file to search. Default: the working directory.
    pub root: Option<String>,
    /// Files to search: a pattern for names, or for paths below the root if it has a slash.
    pub glob: Option<String>,
    /// Maximum number of matches. Default: the guest's.
    pub max_count: Option<u64>,
}

/// Result of a text search.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Grepped {
    /// The matching lines.
    pub matches: Vec<GrepMatch>,
    /// There may be more matches.
    pub truncated: bool,
}

/// A matching line.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct GrepMatch {
    /// Path of the file.
    pub path: String,
    /// Line number, counted from 1.
    pub line: u64,
    /// The line.
    pub text: String,
}

impl Sandbox {
    /// Finds the files below `root` whose paths match a pattern such as `**/*.rs`.
    pub async fn glob(&self, pattern: &str, root: &str) -> Result<Found, Error> {
        let request = GlobRequest { pattern: pattern.to_owned(), root: root.to_owned() };
        let send = |channel: Channel, request| async move { channel.files().glob(request).await };
        let attempts = self.asks("a search for files below", root);
        let response = self.connection.ask(attempts, request, send).await?;
        let incomplete = match TruncationReason::try_from(response.truncated) {
            Ok(TruncationReason::Unspecified) => None,
            Ok(TruncationReason::Unreadable) => Some(Incomplete::Unreadable),
            // An unknown reason is treated as the budget.
            Ok(TruncationReason::Budget) | Err(_) => Some(Incomplete::Budget),
        };
        Ok(Found { matches: response.matches.into_iter().map(FileInfo::from).collect(), incomplete })
    }

    /// Finds the lines that contain the text `pattern`, which is no regular expression.
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
