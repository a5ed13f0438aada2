//! Providers, which create, find and delete sandboxes.

use std::collections::HashMap;
use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use napi::Env;
use napi::bindgen_prelude::{Function, Object, ToNapiValue};
use napi_derive::napi;
use sandpod::agents::LazyProvider;
use sandpod::{AuditSink, ListOptions, OnLost, SandboxHandle, SandboxId, SandboxInfo, SandboxRequest};

use crate::bridge::{Resident, promise};
use crate::errors::Failed;
use crate::guard::{self, Receiver};
use crate::info::{self, Cleaned, Deletion, Info, Page, Pool, ProviderStats};
use crate::options::{self, ExecConfig};
use crate::sandbox::Sandbox;
use crate::tree::whole;

/// Creates, finds and deletes sandboxes: claims of agent-sandbox, plain Pods, or sandboxes on this machine.
#[napi]
pub struct Provider(Resident<Shared>);

/// A provider, and what its sandboxes have in common.
#[derive(Clone)]
pub(crate) struct Shared {
    pub(crate) provider: Arc<LazyProvider>,
    pub(crate) exec: ExecConfig,
}

impl Shared {
    /// Returns the provider, which the first call opens.
    async fn get(&self) -> sandpod::Result<&sandpod::Provider> {
        self.provider.get().await
    }

    pub(crate) fn sandbox(&self, handle: SandboxHandle) -> Sandbox {
        Sandbox::new(self.id(&handle.id), handle, self.exec.clone())
    }

    /// Returns an id as JavaScript gets it.
    pub(crate) fn id(&self, id: &SandboxId) -> String {
        self.provider.config().show_id(id)
    }

    pub(crate) fn ids(&self, ids: &[String]) -> napi::Result<Vec<SandboxId>> {
        let ids = ids.iter().map(|id| self.provider.config().parse_id(id));
        Ok(ids.collect::<sandpod::Result<_>>().map_err(Failed::from)?)
    }

    fn info(&self, info: SandboxInfo) -> Info {
        Info { id: self.id(&info.id), ..info.into() }
    }
}

/// The requested sandbox, and the properties of a new one.
#[napi(object, object_to_js = false)]
pub struct Request {
    pub sandbox_id: Option<String>,
    pub labels: Option<HashMap<String, String>>,
    pub ttl_seconds: Option<f64>,
    pub ttl_idle_seconds: Option<f64>,
    /// The policy, as JSON.
    pub policy: Option<String>,
}

impl Request {
    fn read(self) -> Result<SandboxRequest, Failed> {
        Ok(SandboxRequest {
            id: self.sandbox_id,
            on_lost: OnLost::Recreate,
            labels: self.labels.unwrap_or_default().into_iter().collect(),
            ttl: self.ttl_seconds.map(|ttl| Duration::from_secs(whole(ttl))),
            idle_ttl: self.ttl_idle_seconds.map(|ttl| Duration::from_secs(whole(ttl))),
            policy: self.policy.as_deref().map(guard::policy).transpose()?,
            ..SandboxRequest::default()
        })
    }
}

impl Provider {
    pub(crate) fn shared(&self) -> napi::Result<Shared> {
        self.0.get().cloned()
    }

    /// Returns a promise of `work` with the provider.
    fn call<'env, T, F>(
        &self,
        env: &'env Env,
        call: Option<u32>,
        work: impl FnOnce(Shared) -> F,
    ) -> napi::Result<Object<'env>>
    where
        F: Future<Output = sandpod::Result<T>> + Send + 'static,
        T: ToNapiValue + Send + 'static,
    {
        promise(env, call, work(self.0.get()?.clone()))
    }
}

#[napi]
impl Provider {
    /// Creates a provider without connecting. The options are JSON; unsupported ones are rejected by name.
    /// `package_dir` contains the guest, and `audit` receives audit events. A provider that only adopts claims needs no
    /// template.
    #[napi(constructor)]
    pub fn new(
        mode: String,
        options: String,
        package_dir: String,
        only_adopts: bool,
        audit: Option<Function<'_, String, Option<String>>>,
    ) -> napi::Result<Self> {
        let (config, exec) = options::read(&mode, &options, PathBuf::from(package_dir), only_adopts)?;
        let receiver = audit.map(|callback| Receiver::new(&callback)).transpose()?;
        let sink = receiver.map(|receiver| -> Box<dyn AuditSink> { Box::new(receiver) });
        let provider = LazyProvider::new(config, only_adopts, sink).map_err(Failed::from)?;
        Ok(Self(Resident::new(Shared { provider: Arc::new(provider), exec })))
    }

    /// Returns the default scope, which managers with the same configuration share.
    #[napi]
    pub fn default_scope(&self, labels: HashMap<String, String>) -> napi::Result<String> {
        Ok(self.0.get()?.provider.config().default_scope(&labels.into_iter().collect()))
    }

    #[napi]
    pub fn get_or_create<'env>(
        &self,
        env: &'env Env,
        call: Option<u32>,
        request: Request,
    ) -> napi::Result<Object<'env>> {
        let request = request.read()?;
        self.call(env, call, |provider| async move {
            provider.get().await?.get_or_create(request).await.map(|handle| provider.sandbox(handle))
        })
    }

    #[napi]
    pub fn reconnect<'env>(
        &self,
        env: &'env Env,
        call: Option<u32>,
        sandbox_id: String,
    ) -> napi::Result<Object<'env>> {
        self.call(env, call, |provider| async move {
            provider.get().await?.reconnect(&sandbox_id).await.map(|handle| provider.sandbox(handle))
        })
    }

    /// Connects to the sandbox of a claim that another program created and owns.
    #[napi]
    pub fn adopt<'env>(
        &self,
        env: &'env Env,
        call: Option<u32>,
        claim_name: String,
    ) -> napi::Result<Object<'env>> {
        self.call(env, call, |provider| async move {
            provider.get().await?.adopt(&claim_name).await.map(|handle| provider.sandbox(handle))
        })
    }

    #[napi]
    pub fn suspend<'env>(
        &self,
        env: &'env Env,
        sandbox_id: String,
        force: bool,
    ) -> napi::Result<Object<'env>> {
        self.call(env, None, move |provider| async move {
            provider.get().await?.suspend(&sandbox_id, force).await
        })
    }

    #[napi]
    pub fn resume<'env>(
        &self,
        env: &'env Env,
        call: Option<u32>,
        sandbox_id: String,
        policy: Option<String>,
    ) -> napi::Result<Object<'env>> {
        let policy = policy.as_deref().map(guard::policy).transpose()?;
        let request = SandboxRequest { policy, ..SandboxRequest::of(sandbox_id) };
        self.call(env, call, |provider| async move {
            provider.get().await?.resume(request).await.map(|handle| provider.sandbox(handle))
        })
    }

    #[napi]
    pub fn info<'env>(&self, env: &'env Env, sandbox_id: String) -> napi::Result<Object<'env>> {
        self.call(env, None, |provider| async move {
            provider.get().await?.info(&sandbox_id).await.map(|info| provider.info(info))
        })
    }

    /// Returns one page of sandboxes. Only the last page may be empty.
    #[napi]
    pub fn list<'env>(
        &self,
        env: &'env Env,
        cursor: Option<String>,
        labels: HashMap<String, String>,
        status: Option<String>,
    ) -> napi::Result<Object<'env>> {
        let status = status.map(|name| name.parse()).transpose().map_err(Failed::from)?;
        let options = ListOptions { labels: labels.into_iter().collect(), status, cursor };
        self.call(env, None, |provider| async move {
            let page = provider.get().await?.list(options).await?;
            let sandboxes = page.sandboxes.into_iter().map(|info| provider.info(info)).collect();
            Ok(Page { sandboxes, cursor: page.cursor })
        })
    }

    #[napi]
    pub fn cleanup<'env>(&self, env: &'env Env, max_idle_seconds: Option<f64>) -> napi::Result<Object<'env>> {
        let max_idle = max_idle_seconds.map(|seconds| Duration::from_secs(whole(seconds)));
        self.call(env, None, move |provider| async move {
            let cleaned = provider.get().await?.cleanup(max_idle).await?;
            let deleted = cleaned.deleted.iter().map(|id| provider.id(id)).collect();
            Ok(Cleaned { deleted, kept: info::count(cleaned.kept) })
        })
    }

    #[napi]
    pub fn stats<'env>(&self, env: &'env Env, idle_threshold_seconds: f64) -> napi::Result<Object<'env>> {
        let threshold = Duration::from_secs(whole(idle_threshold_seconds));
        self.call(env, None, move |provider| async move {
            provider.get().await?.stats(threshold).await.map(ProviderStats::from)
        })
    }

    #[napi]
    pub fn pool_status<'env>(&self, env: &'env Env) -> napi::Result<Object<'env>> {
        self.call(
            env,
            None,
            |provider| async move { provider.get().await?.pool_status().await.map(Pool::from) },
        )
    }

    #[napi]
    pub fn extend<'env>(
        &self,
        env: &'env Env,
        sandbox_id: String,
        ttl_seconds: f64,
    ) -> napi::Result<Object<'env>> {
        let ttl = Duration::from_secs(whole(ttl_seconds));
        self.call(
            env,
            None,
            move |provider| async move { provider.get().await?.extend(&sandbox_id, ttl).await },
        )
    }

    /// Deletes the sandbox and waits until all its objects are deleted.
    #[napi]
    pub fn delete<'env>(&self, env: &'env Env, sandbox_id: String) -> napi::Result<Object<'env>> {
        self.call(env, None, |provider| async move { provider.get().await?.delete(&sandbox_id, true).await })
    }

    /// Deletes all sandboxes with these labels. Gives up after `within` seconds.
    #[napi]
    pub fn delete_all<'env>(
        &self,
        env: &'env Env,
        labels: HashMap<String, String>,
        within: f64,
    ) -> napi::Result<Object<'env>> {
        let labels = labels.into_iter().collect();
        let within = Duration::try_from_secs_f64(within).unwrap_or(Duration::MAX);
        self.call(env, None, move |provider| async move {
            let result = provider.provider.delete_all(Vec::new(), Some(labels), within).await?;
            let error = result.error().map(|error| error.to_string());
            Ok(Deletion { deleted: result.deleted.iter().map(|id| provider.id(id)).collect(), error })
        })
    }

    /// Stops background work. An unused provider has none.
    #[napi]
    pub fn close<'env>(&self, env: &'env Env) -> napi::Result<Object<'env>> {
        self.call(env, None, |provider| async move {
            provider.provider.close().await;
            Ok(())
        })
    }

    /// Waits until the audit has recorded all events so far, or for five seconds.
    #[napi]
    pub fn flush_audit<'env>(&self, env: &'env Env) -> napi::Result<Object<'env>> {
        self.call(env, None, |provider| async move {
            provider.provider.flush_audit().await;
            Ok(())
        })
    }
}
