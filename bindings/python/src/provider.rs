//! Providers, which create, find and delete sandboxes.

use std::collections::BTreeMap;
use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use sandpod::agents::{LazyProvider, ThreadLife};
use sandpod::{AuditSink, Config, Layer, ListOptions, Mode, OnLost, SandboxId, SandboxRequest};

use crate::bridge::{Call, NOTHING};
use crate::errors::{ProviderError, forked};
use crate::guard;
use crate::info;
use crate::runtime::Resident;
use crate::sandbox::Sandbox;
use crate::threads::Threads;

/// Creates, finds and deletes sandboxes: claims of agent-sandbox, plain Pods, or sandboxes on this machine.
#[pyclass(frozen, weakref, module = "sandpod._native")]
pub(crate) struct Provider(Resident<Arc<LazyProvider>>);

impl Provider {
    /// Creates a call that runs `work` with the provider.
    fn call<T, F>(&self, work: impl FnOnce(Arc<LazyProvider>) -> F) -> PyResult<Call>
    where
        F: Future<Output = sandpod::Result<T>> + Send + 'static,
        T: for<'py> IntoPyObject<'py> + Send + 'static,
    {
        let work = work(self.get()?.clone());
        Ok(Call::new(async { work.await.map_err(ProviderError::from) }))
    }

    fn get(&self) -> PyResult<&Arc<LazyProvider>> {
        self.0.get().ok_or_else(|| forked("provider", "Make another one here."))
    }
}

#[pymethods]
impl Provider {
    /// Creates a provider without connecting. The configuration is JSON; unsupported options are rejected by name.
    /// `package_dir` contains the guest. The Python queue `audit` receives the events of the audit. A provider that
    /// only adopts claims needs no template.
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
        let sink = audit.map(|queue| Box::new(guard::Queue::new(queue)) as Box<dyn AuditSink>);
        let provider = LazyProvider::new(config, only_adopts, sink).map_err(unusable)?;
        Ok(Self(Resident::new(Arc::new(provider))))
    }

    /// Returns the registry of the scope's threads.
    #[pyo3(signature = (scope, labels, ttl_seconds, ttl_idle_seconds, *, recreate))]
    fn threads(
        &self,
        scope: String,
        labels: BTreeMap<String, String>,
        ttl_seconds: Option<u64>,
        ttl_idle_seconds: Option<u64>,
        recreate: bool,
    ) -> PyResult<Threads> {
        let life = ThreadLife {
            labels,
            ttl: ttl_seconds.map(Duration::from_secs),
            idle_ttl: ttl_idle_seconds.map(Duration::from_secs),
            on_lost: on_lost(recreate),
        };
        Ok(Threads::new(self.get()?.clone(), scope, life))
    }

    /// Finds or creates a sandbox. With `create`, a missing one is created with the given id. With `recreate`, a lost
    /// one is replaced.
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
            on_lost: on_lost(recreate),
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

    /// Connects to the sandbox of a claim that another program created and owns.
    fn adopt(&self, claim_name: String) -> PyResult<Call> {
        self.call(|provider| async move { provider.get().await?.adopt(&claim_name).await.map(Sandbox::from) })
    }

    /// Suspends the sandbox and waits until its Pod is deleted.
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

    /// Returns the details of the sandbox without connecting to it.
    fn info(&self, sandbox_id: String) -> PyResult<Call> {
        self.call(
            |provider| async move { provider.get().await?.info(&sandbox_id).await.map(info::Info::from) },
        )
    }

    /// Returns one page of sandboxes. Only the last page may be empty.
    fn list(
        &self,
        cursor: Option<String>,
        labels: BTreeMap<String, String>,
        status: Option<&str>,
    ) -> PyResult<Call> {
        let status = status.map(str::parse).transpose().map_err(unusable)?;
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

    /// Stops background work.
    fn close(&self) -> PyResult<Call> {
        self.call(|provider| async move {
            provider.close().await;
            Ok(NOTHING)
        })
    }

    /// Waits until the audit has recorded all events so far, or until a timeout.
    fn flush_audit(&self) -> PyResult<Call> {
        self.call(|provider| async move {
            provider.flush_audit().await;
            Ok(NOTHING)
        })
    }

    fn extend(&self, sandbox_id: String, ttl_seconds: u64) -> PyResult<Call> {
        let ttl = Duration::from_secs(ttl_seconds);
        self.call(
            |provider| async move { provider.get().await?.extend(&sandbox_id, ttl).await.map(|()| NOTHING) },
        )
    }

    /// Deletes the sandbox and waits until all its objects are deleted.
    fn delete(&self, sandbox_id: String) -> PyResult<Call> {
        self.call(|provider| async move {
            provider.get().await?.delete(&sandbox_id, true).await.map(|()| NOTHING)
        })
    }
}

/// Returns how to handle a lost sandbox.
fn on_lost(recreate: bool) -> OnLost {
    if recreate { OnLost::Recreate } else { OnLost::Error }
}

/// Parses sandbox ids.
pub(crate) fn ids(ids: Vec<String>) -> PyResult<Vec<SandboxId>> {
    ids.into_iter().map(|id| id.parse()).collect::<sandpod::Result<_>>().map_err(unusable)
}

/// Converts seconds to a duration. Out-of-range values become the longest duration.
pub(crate) fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
}

/// Returns the default scope of a thread manager, which is derived from the configuration and the labels.
#[pyfunction]
#[expect(clippy::needless_pass_by_value, reason = "Python hands it over")]
pub(crate) fn default_scope(mode: &str, config: &str, labels: BTreeMap<String, String>) -> PyResult<String> {
    let mode = mode.parse::<Mode>().map_err(unusable)?;
    let config = Config::from_arguments(mode, arguments(config)?).map_err(unusable)?;
    Ok(config.default_scope(&labels))
}

/// Rejects an unknown mode.
#[pyfunction]
pub(crate) fn check_mode(mode: &str) -> PyResult<()> {
    mode.parse::<Mode>().map(drop).map_err(unusable)
}

/// Resolves options from arguments, variables and the configuration file, and returns them as JSON.
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
pub(crate) fn unusable(error: sandpod::Error) -> PyErr {
    PyValueError::new_err(error.to_string())
}

fn unreadable(error: &serde_json::Error) -> PyErr {
    PyValueError::new_err(format!("The configuration can't be used: {error}."))
}
