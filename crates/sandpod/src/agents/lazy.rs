//! A provider that is opened by its first call.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::sync::OnceCell;
use tokio::time::timeout;

use crate::{Audit, AuditSink, Config, DeletionResult, Provider, Result, SandboxId};

/// The time limit of [`LazyProvider::flush_audit`].
const FLUSH_LIMIT: Duration = Duration::from_secs(5);

/// A provider that reads its kubeconfig, which may run a program, with its first call.
pub struct LazyProvider {
    config: Config,
    /// Replaces the audit of the configuration.
    audit: Option<Audit>,
    provider: OnceCell<Provider>,
}

impl LazyProvider {
    /// Checks the configuration. A provider that `only_uses` existing sandboxes needs no template.
    ///
    /// Events of the audit go to `sink` and to the places that the configuration names.
    pub fn new(config: Config, only_uses: bool, sink: Option<Box<dyn AuditSink>>) -> Result<Self> {
        if only_uses { config.check_settings() } else { config.check() }?;
        let audit = sink.map(|sink| config.audit().with(Some(sink))).transpose()?.flatten();
        Ok(Self { config, audit, provider: OnceCell::new() })
    }

    /// Returns the configuration.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Returns the provider, which the first call opens. After an error the next call retries.
    pub async fn get(&self) -> Result<&Provider> {
        let open = || async {
            let provider = Provider::open(self.config.clone()).await?;
            Ok(match &self.audit {
                Some(audit) => provider.with_audit(audit.clone()),
                None => provider,
            })
        };
        Box::pin(self.provider.get_or_try_init(open)).await
    }

    /// Stops background tasks. A provider that was never used has none.
    pub async fn close(&self) {
        if let Some(provider) = self.provider.get() {
            provider.close().await;
        }
    }

    /// Waits until the audit has written all events so far, or for five seconds.
    pub async fn flush_audit(&self) {
        if let Some(audit) = self.provider.get().and_then(Provider::audit) {
            let _ = timeout(FLUSH_LIMIT, audit.flush()).await;
        }
    }

    /// As [`Provider::delete_all`]. Without ids and labels it opens no provider.
    pub async fn delete_all(
        &self,
        ids: Vec<SandboxId>,
        labels: Option<BTreeMap<String, String>>,
        within: Duration,
    ) -> Result<DeletionResult> {
        if ids.is_empty() && labels.is_none() {
            return Ok(DeletionResult::default());
        }
        Ok(self.get().await?.delete_all(ids, labels, within).await)
    }
}
