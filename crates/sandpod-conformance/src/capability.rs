//! Capabilities that some targets do not have.

use sandpod_client::{Change, Error, ErrorCode, FileChange, Sandbox, StartOptions};

/// A capability that a target may lack by design.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Capability {
    /// Started commands.
    Spawn,
    /// Sets of changes, made completely or not at all.
    ApplyEdits,
    /// Uploads of directories.
    UploadTree,
    /// Resource usage.
    Stats,
}

impl Capability {
    /// Its name in an error message.
    fn name(self) -> &'static str {
        match self {
            Self::Spawn => "spawn",
            Self::ApplyEdits => "apply_edits",
            Self::UploadTree => "upload_tree",
            Self::Stats => "stats",
        }
    }

    /// Tests that a target without the capability refuses it by name.
    pub(crate) async fn is_refused(self, sandbox: &Sandbox, dir: &str) {
        let refused = match self.ask(sandbox, dir).await.unwrap_err() {
            Error::Failure(failure) => failure,
            error => panic!("expected an error of the guest: {error}"),
        };
        assert_eq!(refused.code(), ErrorCode::Unsupported, "{refused}");
        let named = format!("{}: ", self.name());
        assert!(
            refused.message().starts_with(&named),
            "expected a message that begins with {named}{refused}"
        );
    }

    async fn ask(self, sandbox: &Sandbox, dir: &str) -> Result<(), Error> {
        match self {
            Self::Spawn => sandbox.start("true", StartOptions::default()).await.map(drop),
            Self::ApplyEdits => {
                let path = format!("{dir}/file");
                let change = FileChange { path, expected: None, change: Change::Content("x".into()) };
                sandbox.apply_edits(vec![change]).await.map(drop)
            }
            Self::UploadTree => {
                let here = tempfile::tempdir().unwrap();
                sandbox.upload_tree(here.path(), &format!("{dir}/tree"), |_| ()).await.map(drop)
            }
            Self::Stats => sandbox.stats().await.map(drop),
        }
    }
}
