//! The steps from a request to a sandbox: find or create it, bind its guest, make it ready, and hand it out.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use sandpod_client::{
    Binding, Bound, Connection, Error as ClientError, ErrorCode, FileKind, Notice, Options, Policy,
    Sandbox as ClientSandbox,
};
use tokio::time::Instant;

use super::activity::{Activity, Calls, is_fresh};
use super::{MAX_TRIES, Provider, SandboxHandle, SandboxRequest};
use crate::backend::{CreateSpec, OnLost, Place, PolicyHash, Provisioned, outlast, slot};
use crate::config::{HOME, WORKING_DIR, wrong_time};
use crate::guard::{self, Loss, PolicyLayer, Sandbox, SandboxPolicy};
use crate::setup::set_up;
use crate::{Error, ErrorKind, Result, SandboxId, labels};

impl Provider {
    /// Finds the requested sandbox, or creates one.
    pub(super) async fn obtain(&self, request: SandboxRequest) -> Result<SandboxHandle> {
        let wanted = self.wanted(&request)?;
        request.policy.as_ref().map_or(Ok(()), SandboxPolicy::check)?;
        let id = match request.id.as_deref().map(|id| self.defaults.ids.parse(id)) {
            None => return self.create(&self.new_id().await?, &request, &wanted).await,
            Some(Err(error)) if error.kind() == ErrorKind::NotFound && !request.create => {
                return self.create_other(request.id.as_deref().unwrap_or_default(), &request, &wanted).await;
            }
            Some(id) => id?,
        };
        let mut tries = 0;
        loop {
            tries += 1;
            match self.find_or_create(&id, &request, &wanted).await {
                // Its creator gave up while this call waited for it: this call creates it.
                Err(error)
                    if error.kind() == ErrorKind::NotFound
                        && request.on_lost == OnLost::Recreate
                        && tries < MAX_TRIES => {}
                result => return result,
            }
        }
    }

    async fn find_or_create(
        &self,
        id: &SandboxId,
        request: &SandboxRequest,
        wanted: &CreateSpec,
    ) -> Result<SandboxHandle> {
        if request.create {
            return self.create(id, request, wanted).await;
        }
        if let Some(made) = self.backend.attach(id, wanted.on_lost).await? {
            return Box::pin(self.hand_out(made, request)).await;
        }
        self.create_other(id.as_str(), request, wanted).await
    }

    /// Creates a sandbox with another id than the requested one, of which there is none.
    async fn create_other(
        &self,
        id: &str,
        request: &SandboxRequest,
        wanted: &CreateSpec,
    ) -> Result<SandboxHandle> {
        let handle = self.create(&self.new_id().await?, request, wanted).await?;
        handle.sandbox.report(Notice::NotFound { id: id.to_owned() });
        Ok(handle)
    }

    /// Returns an unused id.
    async fn new_id(&self) -> Result<SandboxId> {
        let (naming, end) = (self.defaults.ids.naming, Instant::now() + self.backend.outage_limit());
        loop {
            let id = naming.random_id()?;
            if !naming.is_short() || outlast(end, || self.backend.find(&id)).await?.is_none() {
                return Ok(id);
            }
        }
    }

    async fn create(
        &self,
        id: &SandboxId,
        request: &SandboxRequest,
        wanted: &CreateSpec,
    ) -> Result<SandboxHandle> {
        let made = self.backend.create(id, wanted).await?;
        Box::pin(self.hand_out(made, request)).await
    }

    /// Binds the guest to this sandbox, makes the place ready and hands the sandbox out.
    pub(super) async fn hand_out(
        &self,
        made: Provisioned,
        request: &SandboxRequest,
    ) -> Result<SandboxHandle> {
        let Provisioned { mut place, dialer, rollback } = made;
        let activity = self.activity(&place);
        let observer = activity.clone().map(|activity| Arc::new(Calls(activity)) as _);
        let sandbox = ClientSandbox::new(Connection::new(dialer, Options { observer, ..Options::default() }));
        let policy = request.policy.as_ref().or(self.defaults.policy.as_ref());
        let working = slot().await?;
        let wanted = policy.map(SandboxPolicy::bound).transpose()?.flatten();
        let bound = self.bind(&sandbox, || self.binding(&place, &request.env, wanted.clone())).await;
        drop(working);
        let bound = match bound {
            Ok(bound) => bound,
            Err(cause) => {
                rollback.run().await;
                return Err(unusable(&place, &cause));
            }
        };
        place.policy_sha256 = bound.policy_sha256.map(PolicyHash);
        if let Err(error) = self.make_ready(&place, &sandbox).await {
            rollback.run().await;
            return Err(error);
        }
        rollback.disarm();
        if let Some((activity, used_at)) = activity.zip(place.used_at) {
            activity.start(!place.bound || is_fresh(used_at, place.idle_ttl));
        }
        let loss = self.loss(&place);
        let layers = layers(policy, &bound)?;
        Ok(SandboxHandle {
            sandbox: Sandbox::new(place.id.as_str(), sandbox, layers, self.audit.clone(), loss),
            id: place.id,
            generation: place.generation,
            place: format!("{}/{}", place.uid, place.generation),
            is_new: !place.bound,
            pod: place.name,
            default_exec_timeout: self.defaults.exec_timeout,
            enforced: bound.enforced,
        })
    }

    /// Binds the guest, with retries in an outage: binding it twice for one sandbox has no effect.
    async fn bind(
        &self,
        sandbox: &ClientSandbox,
        binding: impl Fn() -> Binding,
    ) -> Result<Bound, ClientError> {
        let end = Instant::now() + self.backend.outage_limit();
        loop {
            match sandbox.bind(binding()).await {
                Err(ClientError::Unreachable { .. } | ClientError::Lost { .. }) if Instant::now() < end => {}
                bound => return bound,
            }
        }
    }

    async fn make_ready(&self, place: &Place, sandbox: &ClientSandbox) -> Result<()> {
        if let Some(dir) = self.defaults.working_dir.as_ref().filter(|_| place.dirs.is_some() && !place.bound)
        {
            check_working_dir(place, dir, sandbox).await?;
        }
        if let Some(setup) = self.defaults.setup.as_ref().filter(|_| !place.bound) {
            set_up(&*self.backend, self.audit.as_ref(), setup, place, sandbox).await?;
        }
        self.backend.record_bound(place).await
    }

    /// Returns the loss of earlier places that was not reported to a caller.
    fn loss(&self, place: &Place) -> Loss {
        let reported = place.lost.clone().map(|lost| {
            let (backend, place) = (self.backend.clone(), place.clone());
            let record: guard::Record = Box::pin(async move {
                if let Err(error) = backend.record_reported(&place).await {
                    tracing::warn!(id = %place.id, %error, "that a loss was reported could not be recorded, so it is reported again");
                }
            });
            (Notice::Replaced { kept: lost.kept }, record)
        });
        Loss::new(reported, self.tasks.clone())
    }

    /// Returns the writer of the activity record, if the place has such a record.
    fn activity(&self, place: &Place) -> Option<Arc<Activity>> {
        place.used_at?;
        Some(Activity::new(self.backend.clone(), place.id.clone(), place.uid.clone(), place.idle_ttl))
    }

    fn wanted(&self, request: &SandboxRequest) -> Result<CreateSpec> {
        let mut labels = self.defaults.labels.clone();
        labels.extend(request.labels.clone());
        labels::check(&self.defaults.label_prefix, &labels)?;
        check_time("ttl", request.ttl)?;
        check_time("idle_ttl", request.idle_ttl)?;
        Ok(CreateSpec {
            labels,
            ttl: request.ttl.or(self.defaults.ttl),
            idle_ttl: request.idle_ttl.or(self.defaults.idle_ttl),
            own_policy: request.policy.is_some(),
            on_lost: request.on_lost,
        })
    }

    fn binding(&self, place: &Place, env: &BTreeMap<String, String>, policy: Option<Policy>) -> Binding {
        let of_place = place.dirs.as_ref();
        let home = of_place.and_then(|dirs| dirs.home.as_deref()).unwrap_or(HOME);
        let working_dir = self.defaults.working_dir.as_deref();
        let working_dir =
            working_dir.or(of_place.map(|dirs| dirs.working_dir.as_str())).unwrap_or(WORKING_DIR);
        let mut all = HashMap::from([("HOME".to_owned(), home.to_owned())]);
        all.extend(self.defaults.env.clone());
        all.extend(env.clone());
        Binding {
            claim: place.uid.clone(),
            env: all,
            working_dir: working_dir.to_owned(),
            ttl: place.ttl,
            idle_ttl: place.idle_ttl,
            token_sha256: place.token_sha256,
            policy,
            policy_sha256: place.policy_sha256.filter(|_| place.bound).map(|hash| hash.0),
            ..Binding::default()
        }
    }
}

/// Returns the layers of a handle: the rules that the sandbox is bound to and that only clients check, unless `policy` has
/// them too, and `policy`.
fn layers(policy: Option<&SandboxPolicy>, bound: &Bound) -> Result<Vec<PolicyLayer>> {
    let kept = SandboxPolicy::of_client_rules(&bound.client_rules)?;
    let kept = kept.filter(|rules| !policy.is_some_and(|policy| policy.has_client_rules(rules)));
    let own = policy.cloned().map(|policy| PolicyLayer::new(policy, !bound.other_policy));
    kept.map(|rules| PolicyLayer::new(rules, true)).into_iter().chain(own).collect()
}

/// Rejects a place without the requested working directory: every command would fail there.
async fn check_working_dir(place: &Place, dir: &str, sandbox: &ClientSandbox) -> Result<()> {
    let why = match sandbox.stat(dir, true).await {
        Ok(info) if info.kind == FileKind::Directory => return Ok(()),
        Ok(_) => "it is not a directory",
        Err(ClientError::Failure(failure)) if failure.code() == ErrorCode::NotFound => {
            "it does not exist, and the container's user cannot make it"
        }
        // A policy may hide it from file calls, and a command can still start there.
        Err(_) => return Ok(()),
    };
    Err(Error::new(
        ErrorKind::InvalidInput,
        format!("Sandbox '{}' cannot have the working directory '{dir}': {why}.", place.id),
        "Mount a volume there in the template, or leave workdir out: commands then start where the container starts.",
    ))
}

/// Rejects a time to live of zero, and one that is too long for a date.
pub(super) fn check_time(name: &str, time: Option<Duration>) -> Result<()> {
    match time.and_then(wrong_time) {
        Some((wrong, next)) => Err(Error::invalid(format!("{name} {wrong}."), next)),
        None => Ok(()),
    }
}

/// The error for a place whose guest cannot be used.
pub(super) fn unusable(place: &Place, cause: &ClientError) -> Error {
    let kind = match cause.kind() {
        kind @ (ErrorKind::Denied | ErrorKind::InvalidInput | ErrorKind::Unsupported) => kind,
        ErrorKind::NotFound if matches!(cause, ClientError::Gone { .. }) => ErrorKind::NotFound,
        _ => ErrorKind::Unavailable,
    };
    let message = format!("Sandbox '{}' runs in {}, but can't be used: {cause}.", place.id, place.name);
    Error::new(kind, message, place.hint.clone())
}
