//! Creates, finds and deletes sandboxes: the code that all modes share.

mod activity;
mod deletion;
mod idle;
mod info;
mod life;
mod making;
mod request;
mod sweep;

#[cfg(test)]
mod model;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use sandpod_client::{Connection, Enforced, Options, Sandbox as ClientSandbox};
use sandpod_kube::client::Insecure;
use sandpod_kube::kube::Client;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

pub use self::deletion::DeletionResult;
use self::idle::Asked;
pub use self::info::{CleanupResult, ListOptions, PoolStatus, SandboxInfo, SandboxPage, Stats};
pub use self::life::Status;
use self::making::{check_time, unusable};
pub use self::request::SandboxRequest;
use self::sweep::Sweep;
use crate::audit::{Audit, AuditEvent};
use crate::backend::agent_sandbox::AgentSandbox;
use crate::backend::local::Local;
use crate::backend::raw::{NamespacePerSandbox, Raw};
use crate::backend::{Backend, OnLost, Place, Query};
use crate::guard::{Intent, Operation, Sandbox, SandboxPolicy, watch};
use crate::metrics::Metrics;
use crate::naming::IdFormat;
use crate::setup::SetupScript;
use crate::{
    AgentSandboxConfig, Config, Error, ErrorKind, LocalConfig, RawConfig, Result, SandboxId, labels,
};

/// The number of attempts on a sandbox that other processes delete or change meanwhile.
const MAX_TRIES: usize = 3;
/// The number of sandboxes of one page.
const PAGE: u32 = 100;
/// The time that `close` waits for background writes.
const CLOSING_LIMIT: Duration = Duration::from_secs(5);

/// Creates sandboxes, finds them again and deletes them. It has no list of its own: all state is in the cluster.
///
/// Every future may be dropped at any time; the creation of a sandbox is rolled back then.
#[derive(Clone)]
pub struct Provider {
    backend: Arc<dyn Backend>,
    defaults: Arc<Defaults>,
    audit: Option<Audit>,
    /// Writes that continue after a call has returned.
    tasks: TaskTracker,
}

/// The properties of every sandbox of a provider, unless a request has others.
#[derive(Clone, Debug, Default)]
pub(crate) struct Defaults {
    /// Format of sandboxes' ids, and naming scheme of new ones.
    pub(crate) ids: IdFormat,
    /// Prefix of users' labels.
    pub(crate) label_prefix: String,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) env: BTreeMap<String, String>,
    /// Working directory of commands; none: that of the place, or else `/workspace`.
    pub(crate) working_dir: Option<String>,
    pub(crate) ttl: Option<Duration>,
    pub(crate) idle_ttl: Option<Duration>,
    /// Timeout of commands; none: no timeout.
    pub(crate) exec_timeout: Option<Duration>,
    /// Script that runs in a new place before it is handed out.
    pub(crate) setup: Option<SetupScript>,
    /// Policy of the sandboxes.
    pub(crate) policy: Option<SandboxPolicy>,
}

/// A sandbox that was handed out. It never recreates itself: once its place is gone, each call fails. If an earlier
/// place was lost, the first call reports that, in any process: [`Sandbox`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SandboxHandle {
    /// The id by which it is found again.
    pub id: SandboxId,
    /// All operations in the sandbox.
    pub sandbox: Sandbox,
    /// The number of places that the sandbox has had. When it grows, the files of the earlier place are gone.
    pub generation: u32,
    /// The name of the present place, which no other place of any sandbox has.
    pub place: String,
    /// Whether this is the first use of the place.
    pub is_new: bool,
    /// The Pod as `namespace/name`.
    pub pod: String,
    /// Timeout of commands for calls without one; none: no timeout.
    pub default_exec_timeout: Option<Duration>,
    /// The restrictions that the kernel of the sandbox can enforce.
    pub enforced: Enforced,
}

impl Provider {
    /// Opens the provider of a configuration of any mode. It sends no request to a cluster yet.
    ///
    /// ```no_run
    /// # async fn example() -> sandpod::Result<()> {
    /// use sandpod::{Provider, RawConfig, SandboxRequest};
    ///
    /// let provider = Provider::open(RawConfig::default()).await?;
    /// let handle = provider.get_or_create(SandboxRequest::default()).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn open(config: impl Into<Config>) -> Result<Self> {
        config.into().open().await
    }

    /// Opens a provider of raw mode. It reads the kubeconfig and sends no request to the cluster yet.
    pub async fn connect(config: RawConfig) -> Result<Self> {
        config.check()?;
        let insecure = Insecure::allowed_if(config.allow_insecure_api_server);
        let client =
            sandpod_kube::client::connect(config.kubeconfig.as_deref(), config.context.as_deref(), insecure)
                .await?;
        Self::with_client(client, config)
    }

    /// As [`connect`](Self::connect), with a client for the cluster.
    pub fn with_client(client: Client, config: RawConfig) -> Result<Self> {
        config.check()?;
        let (defaults, audit) = (config.defaults(), config.audit_config().with(None)?);
        let provider = if config.namespace_per_sandbox {
            Self::new(NamespacePerSandbox::new(client, config), defaults)
        } else {
            Self::new(Raw::new(client, config), defaults)
        };
        Ok(Self { audit, ..provider })
    }

    /// Opens a provider of agent-sandbox mode. It reads the kubeconfig and sends no request to the cluster yet.
    ///
    /// ```no_run
    /// # async fn example() -> sandpod::Result<()> {
    /// use sandpod::{AgentSandboxConfig, Provider, SandboxRequest};
    ///
    /// let provider = Provider::agent_sandbox(AgentSandboxConfig::of_template("python")).await?;
    /// let handle = provider.get_or_create(SandboxRequest::default()).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn agent_sandbox(config: AgentSandboxConfig) -> Result<Self> {
        config.check_settings()?;
        let (kubeconfig, context) = (config.kubeconfig.as_deref(), config.context.as_deref());
        let insecure = Insecure::allowed_if(config.allow_insecure_api_server);
        let client = match &config.kube_api_url {
            Some(url) => sandpod_kube::client::at(url, config.kube_token.as_deref(), insecure)?,
            None => sandpod_kube::client::connect(kubeconfig, context, insecure).await?,
        };
        Self::agent_sandbox_with_client(client, config)
    }

    /// As [`agent_sandbox`](Self::agent_sandbox), with a client for the cluster.
    pub fn agent_sandbox_with_client(client: Client, config: AgentSandboxConfig) -> Result<Self> {
        config.check_settings()?;
        let (defaults, audit) = (config.defaults(), config.audit_config().with(None)?);
        Ok(Self { audit, ..Self::new(AgentSandbox::new(client, config), defaults) })
    }

    /// Opens a provider of local mode.
    pub fn local(config: &LocalConfig) -> Result<Self> {
        config.check()?;
        let audit = config.audit.with(None)?;
        Ok(Self { audit, ..Self::new(Local::new(config)?, config.defaults()) })
    }

    pub(crate) fn new(backend: impl Backend, defaults: Defaults) -> Self {
        let (backend, defaults) = (Arc::new(backend), Arc::new(defaults));
        Self { backend, defaults, audit: None, tasks: TaskTracker::new() }
    }

    /// Returns the same provider with another audit, which replaces the audit of the configuration. It records all
    /// operations of the provider and of its sandboxes.
    #[must_use]
    pub fn with_audit(self, audit: Audit) -> Self {
        Self { audit: Some(audit), ..self }
    }

    /// Returns the counters of this process for the operations of all providers.
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        Metrics::now()
    }

    /// Returns the audit that records all operations, if any.
    #[must_use]
    pub fn audit(&self) -> Option<&Audit> {
        self.audit.as_ref()
    }

    /// Performs an operation on the sandbox `id` with a span, audit events and counters.
    async fn watched<T>(
        &self,
        operation: Operation,
        id: &str,
        work: impl Future<Output = Result<T>>,
        describe: impl FnOnce(&T, &mut AuditEvent),
    ) -> Result<T> {
        watch(self.audit.as_ref(), Intent::new(operation, id, Vec::new()), None, work, describe).await
    }

    /// Finds the requested sandbox, or creates one.
    ///
    /// A sandbox whose place is lost gets a new one under the same id, with the next generation, unless
    /// [`SandboxRequest::on_lost`] says otherwise. The returned id differs from the requested one if no such sandbox
    /// existed.
    pub async fn get_or_create(&self, request: SandboxRequest) -> Result<SandboxHandle> {
        let id = request.id.clone().unwrap_or_default();
        let named = |handle: &SandboxHandle, event: &mut AuditEvent| event.sandbox = handle.id.to_string();
        self.watched(Operation::Create, &id, Box::pin(self.obtain(request)), named).await
    }

    /// Finds the sandbox `id`. An error of kind [`ErrorKind::NotFound`] means that it or its place is gone.
    pub async fn reconnect(&self, id: &str) -> Result<SandboxHandle> {
        let found = Box::pin(async {
            let id = self.defaults.ids.parse(id)?;
            let found = self.backend.attach(&id, OnLost::Error).await?;
            let made = found.ok_or_else(|| not_found(&id))?;
            Box::pin(self.hand_out(made, &SandboxRequest::default())).await
        });
        self.watched(Operation::Reconnect, id, found, |_, _| ()).await
    }

    /// Uses the sandbox of an existing `SandboxClaim` in the configuration's namespace. Only in agent-sandbox mode; a
    /// template is not needed.
    ///
    /// The creator of the claim keeps its ownership: sandpod writes nothing on it, no cleanup deletes it, and
    /// [`delete`](Self::delete) is an error. A claim that sandpod created is reconnected to.
    ///
    /// ```no_run
    /// # async fn example() -> sandpod::Result<()> {
    /// use sandpod::{AgentSandboxConfig, Provider};
    ///
    /// let config = AgentSandboxConfig { namespace: "agents".to_owned(), ..AgentSandboxConfig::default() };
    /// let handle = Provider::agent_sandbox(config).await?.adopt("sandbox-claim-7f3a").await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn adopt(&self, claim_name: &str) -> Result<SandboxHandle> {
        let adopted = Box::pin(async {
            let made = self.backend.adopt(&claim_name.parse()?).await?;
            Box::pin(self.hand_out(made, &SandboxRequest::default())).await
        });
        self.watched(Operation::Reconnect, claim_name, adopted, |_, _| ()).await
    }

    /// Reads the properties of the sandbox `id` without a call to its guest.
    pub async fn info(&self, id: &str) -> Result<SandboxInfo> {
        let found = Box::pin(async {
            let id = self.defaults.ids.parse(id)?;
            let record = self.backend.find(&id).await?.ok_or_else(|| not_found(&id))?;
            Ok(SandboxInfo::new(record, SystemTime::now()))
        });
        self.watched(Operation::Info, id, found, |_, _| ()).await
    }

    /// Returns one page of sandboxes; a page before the last one is never empty. Pods that wait in warm pools of the
    /// namespace come last, as [`Status::Warm`], with their names as ids.
    pub async fn list(&self, options: ListOptions) -> Result<SandboxPage> {
        self.watched(Operation::ListSandboxes, "", Box::pin(self.page(options)), |_, _| ()).await
    }

    async fn page(&self, options: ListOptions) -> Result<SandboxPage> {
        labels::check(&self.defaults.label_prefix, &options.labels)?;
        let mut query = Query { labels: options.labels, limit: PAGE, cursor: options.cursor };
        loop {
            let page = self.backend.list(&query).await?;
            let now = SystemTime::now();
            let all = page.records.into_iter().map(|record| SandboxInfo::new(record, now));
            let sandboxes: Vec<_> =
                all.filter(|info| options.status.is_none_or(|status| info.status == status)).collect();
            if !sandboxes.is_empty() || page.cursor.is_none() {
                return Ok(SandboxPage { sandboxes, cursor: page.cursor });
            }
            query.cursor = page.cursor;
        }
    }

    /// Deletes the sandbox `id` with all of its objects. Deleting a sandbox that does not exist succeeds. It returns
    /// when all objects are gone, or without `wait` when the cluster has accepted the deletion.
    pub async fn delete(&self, id: &str, wait: bool) -> Result<()> {
        let deleted = async {
            match self.defaults.ids.parse(id) {
                Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
                id => self.backend.delete(&id?, wait).await,
            }
        };
        self.watched(Operation::Remove, id, deleted, |(), _| ()).await
    }

    /// Deletes expired sandboxes, the objects of abandoned creations, and warm pools that no process has maintained
    /// for ten minutes.
    ///
    /// `max_idle` replaces each sandbox's own idle time to live. The record of the last use is written at most once a
    /// minute for a sandbox without such a time, so where the record is not decisive, the guest is asked: a sandbox
    /// that was used within `max_idle`, or runs a command, stays. If the guest cannot be asked, the possible delay of
    /// the record is added to `max_idle`. With a `max_idle` of zero no guest is asked, and every sandbox that does not
    /// change meanwhile is deleted.
    pub async fn cleanup(&self, max_idle: Option<Duration>) -> Result<CleanupResult> {
        self.watched(Operation::Cleanup, "", Box::pin(self.clean(max_idle)), |_, _| ()).await
    }

    async fn clean(&self, max_idle: Option<Duration>) -> Result<CleanupResult> {
        let deleted = self.backend.remove_abandoned_pools(max_idle).await?;
        let (backend, audit) = (&*self.backend, self.audit.as_ref());
        let mut result =
            Sweep { backend, guests: &Asked(backend), audit, max_idle }.run(SystemTime::now).await?;
        result.deleted.extend(deleted);
        Ok(result)
    }

    /// Removes the objects that sandboxes share: in a cluster the guest's `ConfigMaps`, the cache of image properties
    /// and the deny-all policy. Returns their names as `kind/name`. It is an error while a sandbox exists.
    pub async fn clear(&self) -> Result<Vec<String>> {
        self.watched(Operation::Clear, "", self.backend.delete_shared_objects(), |_, _| ()).await
    }

    /// Sets the time to live of the sandbox `id` to `ttl` from now.
    pub async fn extend(&self, id: &str, ttl: Duration) -> Result<()> {
        self.watched(Operation::Extend, id, Box::pin(self.give_time(id, ttl)), |(), _| ()).await
    }

    /// Deletes the Pod of the sandbox `id` and keeps its volumes ([`SandboxInfo::durable_dirs`]) and its id. It
    /// returns when the Pod is gone. Only in agent-sandbox mode; suspending a suspended sandbox succeeds.
    ///
    /// If the workspace is not on a volume, the call fails with the names of the directories that would be lost,
    /// unless `force` is set.
    ///
    /// While the sandbox is suspended, every call on it fails with that reason, its idle time to live does not run,
    /// and its `ttl` continues.
    pub async fn suspend(&self, id: &str, force: bool) -> Result<()> {
        let suspended = Box::pin(async { self.backend.suspend(&self.defaults.ids.parse(id)?, force).await });
        self.watched(Operation::Suspend, id, suspended, |(), _| ()).await
    }

    /// Gives the suspended sandbox of the request's id a Pod and hands it out, with the next generation. Processes and
    /// files outside of its volumes are gone, a setup script runs again, and its times to live start again. A sandbox
    /// that is not suspended is handed out as it is.
    ///
    /// The request's environment and policy are bound again, because no object of the cluster holds them; a sandbox
    /// that had a policy of its own is resumed only with one. Its labels and times do not change.
    ///
    /// ```no_run
    /// # async fn example(provider: sandpod::Provider) -> sandpod::Result<()> {
    /// use sandpod::SandboxRequest;
    ///
    /// provider.suspend("thread-1", false).await?;
    /// let env = [("TOKEN".to_owned(), "secret".to_owned())].into();
    /// let handle = provider.resume(SandboxRequest { env, ..SandboxRequest::of("thread-1") }).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn resume(&self, request: SandboxRequest) -> Result<SandboxHandle> {
        let id = request.id.as_deref().unwrap_or_default();
        let resumed = Box::pin(async {
            request.policy.as_ref().map_or(Ok(()), SandboxPolicy::check)?;
            let made = self.backend.resume(&self.defaults.ids.parse(id)?, request.policy.is_some()).await?;
            Box::pin(self.hand_out(made, &request)).await
        });
        self.watched(Operation::Resume, id, resumed, |_, _| ()).await
    }

    async fn give_time(&self, id: &str, ttl: Duration) -> Result<()> {
        check_time("ttl", Some(ttl))?;
        let id = self.defaults.ids.parse(id)?;
        let made = self.backend.attach(&id, OnLost::Error).await?.ok_or_else(|| not_found(&id))?;
        // The record is written first: a cleanup deletes a sandbox by its record, even if its guest would end later.
        self.record_ttl(&made.place, ttl).await?;
        let sandbox = ClientSandbox::new(Connection::new(made.dialer, Options::default()));
        let extended = sandbox.extend(&made.place.uid, ttl).await;
        extended.map_err(|cause| unusable(&made.place, &cause))
    }

    async fn record_ttl(&self, place: &Place, ttl: Duration) -> Result<()> {
        for _ in 0..MAX_TRIES {
            let record = self.backend.find(&place.id).await?.filter(|record| record.uid == place.uid);
            let record = record.ok_or_else(|| not_found(&place.id))?;
            let age = record.created_at.and_then(|created| SystemTime::now().duration_since(created).ok());
            if self.backend.set_ttl(&record, age.unwrap_or_default().saturating_add(ttl)).await? {
                return Ok(());
            }
        }
        Err(Error::new(
            ErrorKind::Unavailable,
            format!("Sandbox '{}' keeps being changed by other clients.", place.id),
            "Try again.",
        ))
    }

    /// Counts the sandboxes. Those without a call for `idle_threshold` are idle.
    pub async fn stats(&self, idle_threshold: Duration) -> Result<Stats> {
        self.watched(Operation::CountSandboxes, "", Box::pin(self.count(idle_threshold)), |_, _| ()).await
    }

    async fn count(&self, idle_threshold: Duration) -> Result<Stats> {
        let mut stats = Stats::default();
        let mut query = Query { labels: BTreeMap::new(), limit: PAGE, cursor: None };
        loop {
            let page = self.backend.list(&query).await?;
            stats.count(page.records, idle_threshold, SystemTime::now());
            match page.cursor {
                None => return Ok(stats),
                cursor => query.cursor = cursor,
            }
        }
    }

    /// Reads how many Pods the configuration's warm pool has; all numbers are 0 without one.
    pub async fn pool_status(&self) -> Result<PoolStatus> {
        self.watched(Operation::PoolStatus, "", self.backend.pool_status(), |_, _| ()).await
    }

    /// Stops the background tasks of this provider and its clones: filling the warm pool, which another process may
    /// take over. Sandboxes stay, and so do the pool's Pods, until a cleanup deletes a pool that no process has
    /// maintained for ten minutes. Dropping the last clone and the sandboxes that it handed out has the same effect a
    /// little later.
    pub async fn close(&self) {
        self.tasks.close();
        // An unreachable API server must not delay the end of the process.
        let _ = timeout(CLOSING_LIMIT, self.tasks.wait()).await;
        self.backend.close().await;
    }
}

pub(crate) fn not_found(id: impl fmt::Display) -> Error {
    Error::new(
        ErrorKind::NotFound,
        format!("Sandbox not found: {id}."),
        "Check the id and the namespace, or create it.",
    )
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use futures::FutureExt as _;
    use futures::future::BoxFuture;
    use tokio::time::{Instant, sleep};

    use super::activity::Activity;
    use super::*;
    use crate::backend::{CreateSpec, Page, Provisioned, Record, Setup};

    /// A backend with the required methods only.
    #[derive(Clone)]
    struct Least;

    impl Backend for Least {
        fn create<'a>(&'a self, _: &'a SandboxId, _: &'a CreateSpec) -> BoxFuture<'a, Result<Provisioned>> {
            unreachable!()
        }
        fn attach<'a>(&'a self, _: &'a SandboxId, _: OnLost) -> BoxFuture<'a, Result<Option<Provisioned>>> {
            unreachable!()
        }
        fn record_bound<'a>(&'a self, _: &'a Place) -> BoxFuture<'a, Result<()>> {
            unreachable!()
        }
        fn record_reported<'a>(&'a self, _: &'a Place) -> BoxFuture<'a, Result<()>> {
            unreachable!()
        }
        fn begin_setup<'a>(&'a self, _: &'a Place, _: Duration) -> BoxFuture<'a, Result<Setup>> {
            unreachable!()
        }
        fn record_activity<'a>(&'a self, _: &'a SandboxId, _: &'a str) -> BoxFuture<'a, Result<()>> {
            unreachable!()
        }
        fn find<'a>(&'a self, _: &'a SandboxId) -> BoxFuture<'a, Result<Option<Record>>> {
            unreachable!()
        }
        fn list<'a>(&'a self, _: &'a Query) -> BoxFuture<'a, Result<Page>> {
            unreachable!()
        }
        fn delete<'a>(&'a self, id: &'a SandboxId, _: bool) -> BoxFuture<'a, Result<()>> {
            async move {
                match id.as_str() {
                    "denied" => Err(Error::new(ErrorKind::Denied, "It may not be deleted.", "Ask.")),
                    "endless" => pending().await,
                    _ => {
                        sleep(Duration::from_secs(1)).await;
                        Ok(())
                    }
                }
            }
            .boxed()
        }
        fn delete_unchanged<'a>(&'a self, _: &'a Record) -> BoxFuture<'a, Result<bool>> {
            unreachable!()
        }
        fn set_ttl<'a>(&'a self, _: &'a Record, _: Duration) -> BoxFuture<'a, Result<bool>> {
            unreachable!()
        }
    }

    #[tokio::test]
    async fn invalid_time_to_live_is_rejected_before_any_request() {
        let provider = Provider::new(Least, Defaults::default());
        let request = SandboxRequest::default();
        let (none, endless) = (Some(Duration::ZERO), Some(Duration::MAX));
        for (error, said) in [
            (provider.extend("a", Duration::MAX).await.err(), "ttl is more than 100 years."),
            (provider.extend("a", Duration::ZERO).await.err(), "ttl is 0."),
            (
                provider.get_or_create(SandboxRequest { ttl: endless, ..request.clone() }).await.err(),
                "ttl is more than 100 years.",
            ),
            (
                provider.get_or_create(SandboxRequest { idle_ttl: endless, ..request.clone() }).await.err(),
                "idle_ttl is more than 100 years.",
            ),
            (
                provider.get_or_create(SandboxRequest { idle_ttl: none, ..request }).await.err(),
                "idle_ttl is 0.",
            ),
        ] {
            let error = error.expect("it is rejected");
            assert_eq!((error.kind(), error.message()), (ErrorKind::InvalidInput, said));
        }
    }

    #[tokio::test]
    async fn dropped_activity_releases_its_backend() {
        let backend: Arc<dyn Backend> = Arc::new(Least);
        let activity = Activity::new(backend.clone(), "a".parse().unwrap(), String::new(), None);
        activity.start(true);
        tokio::task::yield_now().await;
        drop(activity);
        assert_eq!(Arc::strong_count(&backend), 1);
    }

    #[tokio::test]
    async fn other_modes_reject_adopt_suspend_and_resume() {
        let provider = Provider::new(Least, Defaults::default());
        let refused = [
            provider.adopt("a").await.unwrap_err(),
            provider.suspend("a", false).await.unwrap_err(),
            provider.resume(SandboxRequest::of("a")).await.unwrap_err(),
        ];
        for error in refused {
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert!(error.to_string().contains("mode='agent-sandbox'"), "{error}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn sandboxes_are_deleted_concurrently_and_the_deadline_names_the_rest() {
        let provider = Provider::new(Least, Defaults::default());
        let names = (0..60).map(|n| format!("a{n}")).chain(["denied".to_owned(), "endless".to_owned()]);
        let ids: Vec<SandboxId> = names.map(|name| name.parse().unwrap()).collect();
        let begun = Instant::now();
        let result = provider.delete_all(ids, None, Duration::from_secs(9)).await;
        assert_eq!((begun.elapsed(), result.deleted.len()), (Duration::from_secs(9), 60));
        let left = result.left.iter().map(|(id, error)| (id.as_str(), error.kind()));
        let expected = [("denied", ErrorKind::Denied), ("endless", ErrorKind::Timeout)];
        assert_eq!(left.collect::<Vec<_>>(), expected);
    }
}
