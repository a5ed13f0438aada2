//! Where sandboxes come from.

use std::collections::BTreeMap;
use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use sandpod::{Audit, Config, Layer, ListOptions, Mode, OnLost, SandboxId, SandboxRequest};
use tokio::sync::OnceCell;
use tokio::time::timeout;

use crate::bridge::{Call, NOTHING};
use crate::errors::{ProviderError, forked};
use crate::guard;
use crate::info;
use crate::runtime::Resident;
use crate::sandbox::Sandbox;

/// How long the end of a process waits for its audit.
const FLUSH_LIMIT: Duration = Duration::from_secs(5);

/// Makes sandboxes, of agent-sandbox, as plain Pods or on this machine, and finds them again.
#[pyclass(frozen, weakref, module = "sandpod._native")]
pub(crate) struct Provider(Resident<Arc<Lazy>>);

/// A provider that reads its kubeconfig, which may run a program, with its first call.
struct Lazy {
    config: Config,
    /// Hears of all that is done, besides whom the configuration names.
    audit: Option<Audit>,
    connected: OnceCell<sandpod::Provider>,
}

impl Lazy {
    async fn get(&self) -> sandpod::Result<&sandpod::Provider> {
        let connect = async {
            let provider = sandpod::Provider::open(self.config.clone()).await?;
            Ok(match &self.audit {
                Some(audit) => provider.with_audit(audit.clone()),
                None => provider,
            })
        };
        self.connected.get_or_try_init(|| connect).await
    }
}

impl Provider {
    /// A call that does `work` with the provider.
    fn call<T, F>(&self, work: impl FnOnce(Arc<Lazy>) -> F) -> PyResult<Call>
    where
        F: Future<Output = sandpod::Result<T>> + Send + 'static,
        T: for<'py> IntoPyObject<'py> + Send + 'static,
    {
        let provider = self.0.get().ok_or_else(|| forked("provider", "Make another one here."))?;
        let work = work(provider.clone());
        Ok(Call::new(async { work.await.map_err(ProviderError::from) }))
    }
}

#[pymethods]
impl Provider {
    /// The configuration is JSON; what can't be used is refused by name. The guest is looked for in `package_dir`. Events of
    /// the audit go into `audit`, a queue of Python's. A provider that only adopts claims needs no template.
    #[new]
    #[pyo3(signature = (mode, config, package_dir, audit, *, only_adopts = false))]
    fn new(
        mode: &str,
        config: &str,
        package_dir: PathBuf,
        audit: Option<Py<PyAny>>,
        only_adopts: bool,
    ) -> PyResult<Self> {
        let mode = mode.parse::<Mode>().map_err(unusable)?;
        let config =
            Config::from_arguments(mode, arguments(config)?).map_err(unusable)?.in_package(package_dir);
        let checked = if only_adopts { config.check_settings() } else { config.check() };
        checked.map_err(unusable)?;
        let audit =
            audit.map(|queue| config.audit().with(Some(Box::new(guard::Queue::new(queue))))).transpose();
        let audit = audit.map_err(unusable)?.flatten();
        Ok(Self(Resident::new(Arc::new(Lazy { config, audit, connected: OnceCell::new() }))))
    }

    /// `create` makes the sandbox of that very id if there is none; `recreate` gives it a new place if it lost its own.
    #[pyo3(signature = (sandbox_id, labels, ttl_seconds, ttl_idle_seconds, policy = None, *, create = false, recreate = true))]
    #[expect(clippy::too_many_arguments, reason = "most are keywords in Python")]
    fn get_or_create(
        &self,
        sandbox_id: Option<String>,
        labels: BTreeMap<String, String>,
        ttl_seconds: Option<u64>,
        ttl_idle_seconds: Option<u64>,
        policy: Option<&str>,
        create: bool,
        recreate: bool,
    ) -> PyResult<Call> {
        let request = SandboxRequest {
            id: sandbox_id,
            create,
            on_lost: if recreate { OnLost::Recreate } else { OnLost::Error },
            labels,
            ttl: ttl_seconds.map(Duration::from_secs),
            idle_ttl: ttl_idle_seconds.map(Duration::from_secs),
            policy: policy.map(guard::policy).transpose()?,
            ..SandboxRequest::default()
        };
        self.call(|provider| async move {
            let handle = provider.get().await?.get_or_create(request).await?;
            Ok(Sandbox::from(handle))
        })
    }

    fn reconnect(&self, sandbox_id: String) -> PyResult<Call> {
        self.call(
            |provider| async move { provider.get().await?.reconnect(&sandbox_id).await.map(Sandbox::from) },
        )
    }

    /// The sandbox of a claim that somebody else made and keeps.
    fn adopt(&self, claim_name: String) -> PyResult<Call> {
        self.call(|provider| async move { provider.get().await?.adopt(&claim_name).await.map(Sandbox::from) })
    }

    /// Answers when its Pod is gone.
    #[pyo3(signature = (sandbox_id, *, force = false))]
    fn suspend(&self, sandbox_id: String, force: bool) -> PyResult<Call> {
        self.call(move |provider| async move {
            provider.get().await?.suspend(&sandbox_id, force).await.map(|()| NOTHING)
        })
    }

    #[pyo3(signature = (sandbox_id, policy = None))]
    fn resume(&self, sandbox_id: String, policy: Option<&str>) -> PyResult<Call> {
        let policy = policy.map(guard::policy).transpose()?;
        let request = SandboxRequest { policy, ..SandboxRequest::of(sandbox_id) };
        self.call(|provider| async move { provider.get().await?.resume(request).await.map(Sandbox::from) })
    }

    /// What is known of it without asking it.
    fn info(&self, sandbox_id: String) -> PyResult<Call> {
        self.call(
            |provider| async move { provider.get().await?.info(&sandbox_id).await.map(info::Info::from) },
        )
    }

    /// One page; a page before the last one is never empty.
    fn list(
        &self,
        cursor: Option<String>,
        labels: BTreeMap<String, String>,
        status: Option<&str>,
    ) -> PyResult<Call> {
        let status = status.map(|name| info::status(name).ok_or_else(|| no_status(name))).transpose()?;
        let options = ListOptions { labels, status, cursor };
        self.call(|provider| async move { provider.get().await?.list(options).await.map(info::Page::from) })
    }

    fn cleanup(&self, max_idle_seconds: Option<u64>) -> PyResult<Call> {
        let max_idle = max_idle_seconds.map(Duration::from_secs);
        self.call(
            |provider| async move { provider.get().await?.cleanup(max_idle).await.map(info::Cleaned::from) },
        )
    }

    fn stats(&self, idle_threshold_seconds: u64) -> PyResult<Call> {
        let threshold = Duration::from_secs(idle_threshold_seconds);
        self.call(
            |provider| async move { provider.get().await?.stats(threshold).await.map(info::Stats::from) },
        )
    }

    fn pool_status(&self) -> PyResult<Call> {
        self.call(|provider| async move { provider.get().await?.pool_status().await.map(info::Pool::from) })
    }

    /// Stops what is done in the background.
    fn close(&self) -> PyResult<Call> {
        self.call(|provider| async move {
            // One that was never used has nothing to stop.
            if let Some(provider) = provider.connected.get() {
                provider.close().await;
            }
            Ok(NOTHING)
        })
    }

    /// Answers when all that was told to the audit so far is taken, or that takes too long.
    fn flush_audit(&self) -> PyResult<Call> {
        self.call(|provider| async move {
            if let Some(audit) = provider.connected.get().and_then(sandpod::Provider::audit) {
                let _ = timeout(FLUSH_LIMIT, audit.flush()).await;
            }
            Ok(NOTHING)
        })
    }

    fn extend(&self, sandbox_id: String, ttl_seconds: u64) -> PyResult<Call> {
        let ttl = Duration::from_secs(ttl_seconds);
        self.call(
            |provider| async move { provider.get().await?.extend(&sandbox_id, ttl).await.map(|()| NOTHING) },
        )
    }

    /// Answers when all is gone.
    fn delete(&self, sandbox_id: String) -> PyResult<Call> {
        self.call(|provider| async move {
            provider.get().await?.delete(&sandbox_id, true).await.map(|()| NOTHING)
        })
    }

    /// Deletes those sandboxes side by side, and with labels all that have these, within so many seconds.
    fn delete_all(
        &self,
        sandbox_ids: Vec<String>,
        labels: Option<BTreeMap<String, String>>,
        within: f64,
    ) -> PyResult<Call> {
        let ids = sandbox_ids.into_iter().map(|id| id.parse()).collect::<sandpod::Result<Vec<SandboxId>>>();
        let ids = ids.map_err(unusable)?;
        let within = Duration::try_from_secs_f64(within).unwrap_or(Duration::MAX);
        self.call(|provider| async move {
            // One that was never used has made nothing.
            if ids.is_empty() && labels.is_none() {
                return Ok(info::Deletion::default());
            }
            Ok(provider.get().await?.delete_all(ids, labels, within).await.into())
        })
    }
}

fn no_status(name: &str) -> PyErr {
    let message = format!(
        "There is no status {name:?}. Use 'running', 'warm', 'suspended', 'pending' or 'terminated'."
    );
    PyValueError::new_err(message)
}

/// The id of a thread's sandbox.
#[pyfunction]
pub(crate) fn thread_sandbox_id(scope: &str, thread: &str) -> String {
    SandboxId::of_thread(scope, thread).to_string()
}

/// The options, as JSON, that `arguments` or else the variables and the file of this process say.
#[pyfunction]
#[expect(clippy::needless_pass_by_value, reason = "Python hands it over")]
pub(crate) fn load_options(path: Option<PathBuf>, arguments: &str) -> PyResult<String> {
    let process = Layer::of_process(path.as_deref()).map_err(unusable)?;
    let options = self::arguments(arguments)?.over(process);
    serde_json::to_string(options.options()).map_err(|error| unreadable(&error))
}

fn arguments(options: &str) -> PyResult<Layer> {
    let options = serde_json::from_str(options).map_err(|error| unreadable(&error))?;
    Layer::arguments(options).map_err(unusable)
}

#[expect(clippy::needless_pass_by_value, reason = "it is made for map_err")]
fn unusable(error: sandpod::Error) -> PyErr {
    PyValueError::new_err(error.to_string())
}

fn unreadable(error: &serde_json::Error) -> PyErr {
    PyValueError::new_err(format!("The configuration can't be used: {error}."))
}
