//! What makes sandboxes, finds them again and deletes them: all that is the same wherever they run.

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
use crate::setup::SetupScript;
use crate::{
    AgentSandboxConfig, Config, Error, ErrorKind, LocalConfig, Naming, RawConfig, Result, SandboxId, labels,
};

/// How often a sandbox that others give up or change is tried anew.
const MAX_TRIES: usize = 3;
/// How many sandboxes are read at once.
const PAGE: u32 = 100;
/// How long closing waits for what is still being written.
const CLOSING_LIMIT: Duration = Duration::from_secs(5);
/// Makes sandboxes, finds them again and deletes them. It keeps no list: all that it knows is in the cluster.
///
/// Every future may be dropped at any time; a sandbox that was being made then is taken back.
#[derive(Clone)]
pub struct Provider {
    backend: Arc<dyn Backend>,
    defaults: Arc<Defaults>,
    audit: Option<Audit>,
    /// What is written after a call has returned.
    tasks: TaskTracker,
}

/// What every sandbox of a provider has unless a request says otherwise.
#[derive(Clone, Debug, Default)]
pub(crate) struct Defaults {
    /// What new sandboxes are called.
    pub(crate) naming: Naming,
    /// What the names of users' labels begin with.
    pub(crate) label_prefix: String,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) env: BTreeMap<String, String>,
    /// Where commands start; none: where the place says, or else `/workspace`.
    pub(crate) working_dir: Option<String>,
    pub(crate) ttl: Option<Duration>,
    pub(crate) idle_ttl: Option<Duration>,
    /// None: as long as it takes.
    pub(crate) exec_timeout: Option<Duration>,
    /// Makes a new place ready before it is handed out.
    pub(crate) setup: Option<SetupScript>,
    /// What callers may do.
    pub(crate) policy: Option<SandboxPolicy>,
}

/// A sandbox that was handed out. It never recreates itself: once its place is gone, each call says so. Where an earlier
/// place was lost, the first call says that, in whichever process it is: [`Sandbox`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SandboxHandle {
    /// By this it is found again.
    pub id: SandboxId,
    /// Every operation.
    pub sandbox: Sandbox,
    /// Counts the places that the sandbox had: when it has grown, the files of the earlier one are gone.
    pub generation: u32,
    /// Names the present place: no other place of any sandbox is called so.
    pub place: String,
    /// Nobody has used the place before.
    pub is_new: bool,
    /// The Pod that it runs in, as `namespace/name`.
    pub pod: String,
    /// How long a command may take if a call doesn't say; none: as long as it takes.
    pub default_exec_timeout: Option<Duration>,
    /// What its kernel can hold commands to.
    pub enforced: Enforced,
}

impl Provider {
    /// A provider of the sandboxes that the configuration describes, in whichever mode. It sends no request to a cluster yet.
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

    /// A provider for the cluster that the configuration names. It reads the kubeconfig and asks the cluster nothing yet.
    pub async fn connect(config: RawConfig) -> Result<Self> {
        config.check()?;
        let insecure = Insecure::allowed_if(config.allow_insecure_api_server);
        let client =
            sandpod_kube::client::connect(config.kubeconfig.as_deref(), config.context.as_deref(), insecure)
                .await?;
        Self::with_client(client, config)
    }

    /// A provider that speaks to the cluster through `client`.
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

    /// A provider of sandboxes of agent-sandbox, in the cluster that the configuration names. It asks the cluster nothing
    /// yet.
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

    /// A provider of sandboxes of agent-sandbox that speaks to the cluster through `client`.
    pub fn agent_sandbox_with_client(client: Client, config: AgentSandboxConfig) -> Result<Self> {
        config.check_settings()?;
        let (defaults, audit) = (config.defaults(), config.audit_config().with(None)?);
        Ok(Self { audit, ..Self::new(AgentSandbox::new(client, config), defaults) })
    }

    /// A provider of sandboxes on this machine.
    pub fn local(config: &LocalConfig) -> Result<Self> {
        config.check()?;
        let audit = config.audit.with(None)?;
        Ok(Self { audit, ..Self::new(Local::new(config)?, config.defaults()) })
    }

    pub(crate) fn new(backend: impl Backend, defaults: Defaults) -> Self {
        let (backend, defaults) = (Arc::new(backend), Arc::new(defaults));
        Self { backend, defaults, audit: None, tasks: TaskTracker::new() }
    }

    /// The same provider, all of whose operations `audit` hears, and those of its sandboxes. It takes the place of an
    /// audit that the configuration names.
    #[must_use]
    pub fn with_audit(self, audit: Audit) -> Self {
        Self { audit: Some(audit), ..self }
    }

    /// What this process has done with sandboxes since it began, by whichever provider.
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        Metrics::now()
    }

    /// The audit that hears of all, if there is one.
    #[must_use]
    pub fn audit(&self) -> Option<&Audit> {
        self.audit.as_ref()
    }

    /// Does something with the sandbox `id`, and tells the audit.
    async fn watched<T>(
        &self,
        operation: Operation,
        id: &str,
        work: impl Future<Output = Result<T>>,
        describe: impl FnOnce(&T, &mut AuditEvent),
    ) -> Result<T> {
        watch(self.audit.as_ref(), Intent::new(operation, id, Vec::new()), None, work, describe).await
    }

    /// The sandbox that is asked for, wherever it is now, or a new one.
    ///
    /// A sandbox whose place is lost gets a new one under the same id, with the next generation, unless
    /// [`SandboxRequest::on_lost`] says otherwise. The answer says which sandbox it is.
    pub async fn get_or_create(&self, request: SandboxRequest) -> Result<SandboxHandle> {
        let id = request.id.clone().unwrap_or_default();
        let named = |handle: &SandboxHandle, event: &mut AuditEvent| event.sandbox = handle.id.to_string();
        self.watched(Operation::Create, &id, Box::pin(self.obtain(request)), named).await
    }

    /// The sandbox `id`; an error of kind [`ErrorKind::NotFound`] if it or its place is gone.
    pub async fn reconnect(&self, id: &str) -> Result<SandboxHandle> {
        let found = Box::pin(async {
            let id: SandboxId = id.parse()?;
            let found = self.backend.attach(&id, OnLost::Error).await?;
            let made = found.ok_or_else(|| not_found(&id))?;
            Box::pin(self.hand_out(made, &SandboxRequest::default())).await
        });
        self.watched(Operation::Reconnect, id, found, |_, _| ()).await
    }

    /// The sandbox of a `SandboxClaim` that somebody else made, in the configuration's namespace, reached as the
    /// configuration says. Only in agent-sandbox mode; a template is not needed.
    ///
    /// Whoever made the claim keeps its life: nothing is written on it, no cleanup takes it, and [`delete`](Self::delete)
    /// refuses it. A claim that sandpod made is reconnected to.
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

    /// What is known of the sandbox `id` without asking its guest.
    pub async fn info(&self, id: &str) -> Result<SandboxInfo> {
        let found = Box::pin(async {
            let id: SandboxId = id.parse()?;
            let record = self.backend.find(&id).await?.ok_or_else(|| not_found(&id))?;
            Ok(SandboxInfo::new(record, SystemTime::now()))
        });
        self.watched(Operation::Info, id, found, |_, _| ()).await
    }

    /// One page of the sandboxes that are asked for; a page before the last one is never empty.
    /// Those that wait in pools of the namespace come last, as [`Status::Warm`], with the names of their Pods as ids.
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

    /// Deletes the sandbox `id` with all that it has; that there is none is no error. It returns when all is gone, or
    /// without `wait` when the cluster has taken the order.
    pub async fn delete(&self, id: &str, wait: bool) -> Result<()> {
        let deleted = async { self.backend.delete(&id.parse()?, wait).await };
        self.watched(Operation::Remove, id, deleted, |(), _| ()).await
    }

    /// Deletes the sandboxes whose time is up, what is left of creations that nobody finished, and warm pools that nobody
    /// has kept for ten minutes.
    ///
    /// `max_idle` takes the place of each sandbox's own idle time to live. The record of the last use is written at most
    /// once a minute for a sandbox without one, so where it does not decide, the sandbox's guest is asked: a sandbox that
    /// was used within `max_idle`, or runs a command, stays. Where the guest can't be asked, the sandbox stays for as much
    /// longer as its record may be late. With a `max_idle` of zero none is asked, and all go that do not change meanwhile.
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

    /// Removes what sandboxes share and leave behind: in a cluster the guest's `ConfigMaps`, what was learned of images
    /// and the deny-all policy. It says what that was, as `kind/name`. While there is a sandbox it is an error.
    pub async fn clear(&self) -> Result<Vec<String>> {
        self.watched(Operation::Clear, "", self.backend.delete_shared_objects(), |_, _| ()).await
    }

    /// Lets the sandbox `id` end after `ttl` from now, whatever time to live it had.
    pub async fn extend(&self, id: &str, ttl: Duration) -> Result<()> {
        self.watched(Operation::Extend, id, Box::pin(self.give_time(id, ttl)), |(), _| ()).await
    }

    /// Ends the Pod of the sandbox `id`; what lies on its volumes stays ([`SandboxInfo::durable_dirs`]), and so does its
    /// id. It returns when the Pod is gone. Only in agent-sandbox mode; one that is suspended already is no error.
    ///
    /// A sandbox whose workspace is not on a volume would lose it: that is refused with the directories' names, unless
    /// `force` is set.
    ///
    /// While it is suspended every call on it says so, no idle time to live runs, and its `ttl` goes on.
    pub async fn suspend(&self, id: &str, force: bool) -> Result<()> {
        let suspended = Box::pin(async { self.backend.suspend(&id.parse()?, force).await });
        self.watched(Operation::Suspend, id, suspended, |(), _| ()).await
    }

    /// Gives the suspended sandbox that is asked for by its id a Pod again and hands it out, with the next generation:
    /// processes and files outside of its volumes are gone, a setup script runs again, and its times to live begin anew.
    /// One that is not suspended is handed out as it is.
    ///
    /// The request's environment and policy are bound anew, for no object of the cluster has kept them; a sandbox that had
    /// a policy of its own is resumed with one only. Its labels and times stay what they were.
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
            let made = self.backend.resume(&id.parse()?, request.policy.is_some()).await?;
            Box::pin(self.hand_out(made, &request)).await
        });
        self.watched(Operation::Resume, id, resumed, |_, _| ()).await
    }

    async fn give_time(&self, id: &str, ttl: Duration) -> Result<()> {
        check_time("ttl", Some(ttl))?;
        let id: SandboxId = id.parse()?;
        let made = self.backend.attach(&id, OnLost::Error).await?.ok_or_else(|| not_found(&id))?;
        // First the record: a guest that ends later than its record says would be cleaned away before.
        self.record_ttl(&made.place, ttl).await?;
        let sandbox = ClientSandbox::new(Connection::new(made.dialer, Options::default()));
        let extended = sandbox.extend(&made.place.claim, ttl).await;
        extended.map_err(|cause| unusable(&made.place, &cause))
    }

    async fn record_ttl(&self, place: &Place, ttl: Duration) -> Result<()> {
        for _ in 0..MAX_TRIES {
            let record = self.backend.find(&place.id).await?.filter(|record| record.claim == place.claim);
            let record = record.ok_or_else(|| not_found(&place.id))?;
            let age = record.created_at.and_then(|created| SystemTime::now().duration_since(created).ok());
            if self.backend.set_ttl(&record, age.unwrap_or_default().saturating_add(ttl)).await? {
                return Ok(());
            }
        }
        Err(Error::new(
            ErrorKind::Unavailable,
            format!("Sandbox '{}' is changed by others again and again.", place.id),
            "Try again.",
        ))
    }

    /// How many sandboxes there are; those that were not used for `idle_threshold` count as idle.
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

    /// How the warm pool of the configuration is filled; without one, there is nothing in it.
    pub async fn pool_status(&self) -> Result<PoolStatus> {
        self.watched(Operation::PoolStatus, "", self.backend.pool_status(), |_, _| ()).await
    }

    /// Stops what is done in the background for this provider and its clones: filling its warm pool, which another process
    /// may do from now on. Sandboxes stay, and so do Pods that wait in the pool, until a cleanup finds that nobody has kept
    /// it for ten minutes. Dropping the last clone, and the sandboxes that it gave, does the same a little later.
    pub async fn close(&self) {
        self.tasks.close();
        // An API server that is away must not hold up who ends.
        let _ = timeout(CLOSING_LIMIT, self.tasks.wait()).await;
        self.backend.close().await;
    }
}

pub(crate) fn not_found(id: &SandboxId) -> Error {
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

    /// What each backend must have, and no more.
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
    async fn a_time_to_live_that_no_calendar_has_is_refused_before_anything_is_done() {
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
            let error = error.expect("it is refused");
            assert_eq!((error.kind(), error.message()), (ErrorKind::InvalidInput, said));
        }
    }

    #[tokio::test]
    async fn who_has_let_go_of_a_sandbox_does_not_keep_its_backend() {
        let backend: Arc<dyn Backend> = Arc::new(Least);
        let activity = Activity::new(backend.clone(), "a".parse().unwrap(), String::new(), None);
        activity.start(true);
        tokio::task::yield_now().await;
        drop(activity);
        assert_eq!(Arc::strong_count(&backend), 1);
    }

    #[tokio::test]
    async fn only_agent_sandbox_mode_adopts_suspends_and_resumes_and_the_others_say_so() {
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
    async fn many_sandboxes_are_deleted_side_by_side_and_the_deadline_names_what_is_left() {
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
