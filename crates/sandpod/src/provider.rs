//! What makes sandboxes, finds them again and deletes them.

use std::collections::HashMap;
use std::time::Duration;

use sandpod_client::{Binding, Connection, Error as ClientError, ErrorCode, Options, Sandbox};
use sandpod_kube::kube::Client;

use crate::backend::raw::{OnLost, Place, Raw, Rollback};
use crate::setup::set_up;
use crate::{Error, ErrorKind, RawConfig, Result, SandboxId};

/// The home of whoever commands run as.
const HOME: &str = "/home/sandbox";
/// How often a sandbox that others give up is tried anew.
const MAX_TRIES: usize = 3;

/// Makes sandboxes, finds them again and deletes them. It keeps no list: all that it knows is in the cluster.
///
/// Every future may be dropped at any time; a sandbox that was being made then is taken back.
#[derive(Clone)]
pub struct Provider {
    raw: Raw,
}

/// A sandbox that was handed out. It never recreates itself: once its place is gone, each call says so.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SandboxHandle {
    /// By this it is found again.
    pub id: SandboxId,
    /// Every operation.
    pub sandbox: Sandbox,
    /// Counts the places that the sandbox had: when it has grown, the files of the earlier one are gone.
    pub generation: u32,
    /// The Pod that it runs in, as `namespace/name`.
    pub pod: String,
    /// How long a command may take if a call doesn't say; none: as long as it takes.
    pub default_exec_timeout: Option<Duration>,
}

impl Provider {
    /// A provider for the cluster that the configuration names. It reads the kubeconfig and asks the cluster nothing yet.
    pub async fn connect(config: RawConfig) -> Result<Self> {
        config.check()?;
        let client =
            sandpod_kube::client::connect(config.kubeconfig.as_deref(), config.context.as_deref()).await?;
        Self::with_client(client, config)
    }

    /// A provider that speaks to the cluster through `client`.
    pub fn with_client(client: Client, config: RawConfig) -> Result<Self> {
        config.check()?;
        Ok(Self { raw: Raw::new(client, config) })
    }

    /// The sandbox `id`, wherever it is now, or a new one.
    ///
    /// A sandbox whose Pod is lost gets a new Pod under the same id, with the next generation. Where there is no sandbox
    /// `id`, a new one has `id` if `create`, and an id of its own otherwise. The answer says which.
    pub async fn get_or_create(&self, id: Option<&str>, create: bool) -> Result<SandboxHandle> {
        let id = id.map(str::parse::<SandboxId>).transpose()?;
        let Some(id) = id else {
            return self.create(&SandboxId::random()?).await;
        };
        let mut tries = 0;
        loop {
            tries += 1;
            match self.find_or_create(&id, create).await {
                // Whoever made it has given it up while we waited for it: now it is ours to make.
                Err(error) if error.kind() == ErrorKind::NotFound && tries < MAX_TRIES => {}
                result => return result,
            }
        }
    }

    /// The sandbox `id`; an error of kind [`ErrorKind::NotFound`] if it or its Pod is gone.
    pub async fn reconnect(&self, id: &str) -> Result<SandboxHandle> {
        let id: SandboxId = id.parse()?;
        let found = Box::pin(self.raw.attach(&id, OnLost::Error)).await?;
        let (place, rollback) = found.ok_or_else(|| {
            Error::new(
                ErrorKind::NotFound,
                format!("Sandbox not found: {id}."),
                "Create it with get_or_create, or check the id and the namespace.",
            )
        })?;
        Box::pin(self.hand_out(place, rollback)).await
    }

    /// Deletes the sandbox `id` with all that it has; that there is none is no error. It returns when all is gone, or
    /// without `wait` when the cluster has taken the order.
    pub async fn delete(&self, id: &str, wait: bool) -> Result<()> {
        self.raw.delete(&id.parse()?, wait).await
    }

    async fn find_or_create(&self, id: &SandboxId, create: bool) -> Result<SandboxHandle> {
        if create {
            return self.create(id).await;
        }
        match Box::pin(self.raw.attach(id, OnLost::Recreate)).await? {
            Some((place, rollback)) => Box::pin(self.hand_out(place, rollback)).await,
            None => self.create(&SandboxId::random()?).await,
        }
    }

    async fn create(&self, id: &SandboxId) -> Result<SandboxHandle> {
        let (place, rollback) = Box::pin(self.raw.create(id)).await?;
        Box::pin(self.hand_out(place, rollback)).await
    }

    /// Binds the guest, so that nobody else can, and only then hands the sandbox out.
    async fn hand_out(&self, place: Place, rollback: Rollback) -> Result<SandboxHandle> {
        let sandbox = Sandbox::new(Connection::new(self.raw.dialer(&place), Options::default()));
        if let Err(cause) = sandbox.bind(self.binding(&place)).await {
            rollback.run().await;
            return Err(unbound(&place, &cause));
        }
        let ready = async {
            set_up(&self.raw, &place, &sandbox).await?;
            self.raw.keep(&place).await
        };
        if let Err(error) = ready.await {
            rollback.run().await;
            return Err(error);
        }
        rollback.disarm();
        let timeout = self.raw.config().default_exec_timeout;
        Ok(SandboxHandle {
            id: place.id,
            sandbox,
            generation: place.generation,
            pod: place.pod.to_string(),
            default_exec_timeout: (timeout > 0).then(|| Duration::from_secs(timeout)),
        })
    }

    fn binding(&self, place: &Place) -> Binding {
        let config = self.raw.config();
        let mut env = HashMap::from([("HOME".to_owned(), HOME.to_owned())]);
        env.extend(config.env.clone());
        Binding {
            claim: place.claim.clone(),
            env,
            working_dir: config.workdir.clone(),
            ttl: config.ttl().map(Duration::from_secs),
            idle_ttl: config.ttl_idle_seconds.map(Duration::from_secs),
            ..Binding::default()
        }
    }
}

fn unbound(place: &Place, cause: &ClientError) -> Error {
    let kind = match cause {
        ClientError::Denied(_) => ErrorKind::Denied,
        ClientError::Gone { .. } => ErrorKind::NotFound,
        ClientError::Failure(failure) if failure.code() == ErrorCode::NotYours => ErrorKind::Denied,
        ClientError::Failure(failure) if failure.code() == ErrorCode::InvalidArgument => {
            ErrorKind::InvalidInput
        }
        _ => ErrorKind::Unavailable,
    };
    Error::new(
        kind,
        format!("Sandbox '{}' runs in Pod {}, but can't be used: {cause}.", place.id, place.pod),
        format!("See what its guest says: kubectl logs -n {} {}", place.pod.namespace, place.pod.name),
    )
}
