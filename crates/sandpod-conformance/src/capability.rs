//! What not every place can do.

use sandpod_client::{Change, Error, ErrorCode, FileChange, Sandbox, StartOptions};

/// Something that a place may lack by design.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Capability {
    /// Commands that go on by themselves.
    Spawn,
    /// Sets of changes that are made as a whole.
    ApplyEdits,
    /// A directory sent as a whole.
    UploadTree,
    /// What the sandbox uses.
    Stats,
}

impl Capability {
    /// What a refusal calls it.
    fn name(self) -> &'static str {
        match self {
            Self::Spawn => "spawn",
            Self::ApplyEdits => "apply_edits",
            Self::UploadTree => "upload_tree",
            Self::Stats => "stats",
        }
    }

    /// Tries that a place without it refuses it by its name.
    pub(crate) async fn is_refused(self, sandbox: &Sandbox, dir: &str) {
        let refused = match self.ask(sandbox, dir).await.unwrap_err() {
            Error::Failure(failure) => failure,
            error => panic!("that is no refusal: {error}"),
        };
        assert_eq!(refused.code(), ErrorCode::Unsupported, "{refused}");
        let named = format!("{}: ", self.name());
        assert!(refused.message().starts_with(&named), "it is not called {named}{refused}");
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
