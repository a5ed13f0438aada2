//! Adopts claims that sandpod did not create. Nothing is written on them, and they are not deleted.

use super::AgentSandbox;
use crate::backend::{OnLost, Provisioned, Rollback};
use crate::{Error, ErrorKind, Result, SandboxId};

impl AgentSandbox {
    /// Attaches to the claim `name` once it is ready. A claim of ours is used as its annotations say.
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
