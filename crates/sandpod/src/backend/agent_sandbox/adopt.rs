//! Claims that somebody else made and keeps. We use their sandboxes, and neither write on them nor delete them.

use super::AgentSandbox;
use crate::backend::{OnLost, Provisioned, Rollback};
use crate::{Error, ErrorKind, Result, SandboxId};

impl AgentSandbox {
    /// The place of the claim `name`, whoever made it, once it is ready. One of ours is used as its anchor says.
    pub(super) async fn adopt_claim(&self, name: &SandboxId) -> Result<Provisioned> {
        let claim = self.0.claims.find_any(name).await?.ok_or_else(|| self.no_claim(name))?;
        self.finish(claim, Rollback::none(), OnLost::Error).await
    }

    fn no_claim(&self, name: &SandboxId) -> Error {
        Error::new(
            ErrorKind::NotFound,
            format!("SandboxClaim '{name}' not found in namespace '{}'.", self.0.config.namespace),
            "Check its name and namespace, or create a sandbox.",
        )
    }
}
