//! Where sandboxes come from.

use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use sandpod::{Layer, RawConfig, SandboxRequest};
use tokio::sync::OnceCell;

use crate::bridge::{Call, NOTHING};
use crate::errors::{ProviderError, forked};
use crate::runtime::Resident;
use crate::sandbox::Sandbox;

/// Makes sandboxes as plain Pods and finds them again.
#[pyclass(frozen, module = "sandpod._native")]
pub(crate) struct Provider(Resident<Arc<Lazy>>);

/// A provider that reads its kubeconfig, which may run a program, with its first call.
struct Lazy {
    config: RawConfig,
    connected: OnceCell<sandpod::Provider>,
}

impl Lazy {
    async fn get(&self) -> sandpod::Result<&sandpod::Provider> {
        self.connected.get_or_try_init(|| sandpod::Provider::connect(self.config.clone())).await
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
    /// The configuration is JSON; what can't be used is refused by name. The guest is looked for in `package_dir`.
    #[new]
    fn new(config: &str, package_dir: PathBuf) -> PyResult<Self> {
        let mut config = RawConfig::from_layers([arguments(config)?]).map_err(unusable)?;
        config.package_dir = Some(package_dir);
        config.check().map_err(unusable)?;
        Ok(Self(Resident::new(Arc::new(Lazy { config, connected: OnceCell::new() }))))
    }

    fn get_or_create(&self, sandbox_id: Option<String>) -> PyResult<Call> {
        self.call(|provider| async move {
            let request = SandboxRequest { id: sandbox_id, ..SandboxRequest::default() };
            let handle = provider.get().await?.get_or_create(request).await?;
            Ok(Sandbox::from(handle))
        })
    }

    fn reconnect(&self, sandbox_id: String) -> PyResult<Call> {
        self.call(
            |provider| async move { provider.get().await?.reconnect(&sandbox_id).await.map(Sandbox::from) },
        )
    }

    /// Answers when all is gone.
    fn delete(&self, sandbox_id: String) -> PyResult<Call> {
        self.call(|provider| async move {
            provider.get().await?.delete(&sandbox_id, true).await.map(|()| NOTHING)
        })
    }
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
