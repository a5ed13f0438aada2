//! Interrupts: SIGINT, SIGTERM and SIGHUP, and the creation of sandboxes that they can cancel.

use std::pin::pin;
use std::time::Duration;

use sandpod::{ErrorKind, Provider, SandboxHandle, SandboxId, SandboxInfo, SandboxRequest, Status};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::exit::{Failure, Result};
use crate::output::Output;
use crate::progress::Progress;
use crate::target::{find, print_notices};

/// The time between two deletes of a sandbox whose creation is being cancelled.
const DELETE_INTERVAL: Duration = Duration::from_millis(200);
/// The label by which the creator of a temporary sandbox with a chosen id recognises it.
const CREATION_LABEL: &str = "creation";

/// The signals after which we clean up and exit.
pub(crate) struct Interrupts([(i32, Signal); 3]);

impl Interrupts {
    /// Installs the handlers. A signal before this ends the process at once.
    pub(crate) fn listen() -> Result<Self> {
        let listen = |kind: SignalKind| {
            let stream = signal(kind).map_err(|cause| Failure::local("listen for signals", &cause))?;
            Ok::<_, Failure>((kind.as_raw_value(), stream))
        };
        let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
        let [interrupt, terminate, hangup] = kinds;
        Ok(Self([listen(interrupt)?, listen(terminate)?, listen(hangup)?]))
    }

    /// Waits for the next signal and returns its number. Cancel-safe.
    pub(crate) async fn next(&mut self) -> i32 {
        let [(first, one), (second, two), (third, three)] = &mut self.0;
        tokio::select! {
            _ = one.recv() => *first,
            _ = two.recv() => *second,
            _ = three.recv() => *third,
        }
    }

    /// Returns the result of `work`, or a failure if a signal arrives first.
    pub(crate) async fn unless_interrupted<T>(&mut self, work: impl Future<Output = Result<T>>) -> Result<T> {
        tokio::select! {
            done = work => done,
            signal = self.next() => Err(Failure::interrupted(signal)),
        }
    }
}

/// Returns a short id that no sandbox has.
async fn unused_id(provider: &Provider) -> Result<SandboxId> {
    loop {
        let id = SandboxId::short()?;
        if find(provider, id.as_str()).await?.is_none() {
            return Ok(id);
        }
    }
}

/// The treatment of a sandbox that has the chosen id already.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum OnExisting {
    /// Return it unchanged, with a note.
    Return,
    /// Fail, because it does not have the options of the new sandbox.
    RejectOptions,
    /// Fail, because the sandbox is deleted after its use.
    Reject,
}

impl OnExisting {
    /// Reports whether a sandbox counts as existing. One that has ended may be replaced by a new one, which only its creation
    /// shows.
    fn applies_to(self, found: &SandboxInfo) -> bool {
        match self {
            Self::Return => found.status != Status::Terminated,
            Self::RejectOptions => found.status != Status::Terminated || found.is_lost,
            Self::Reject => true,
        }
    }

    /// Prints the note, or fails.
    fn check(self, id: &SandboxId, output: &Output) -> Result<()> {
        let (message, next) = match self {
            Self::Return => {
                output.note(&format!("sandbox {id} exists already and is unchanged"));
                return Ok(());
            }
            Self::RejectOptions => (
                format!("Sandbox {id} exists already, and options of a new sandbox do not change it."),
                format!("Omit the options, or delete the sandbox first with `sandpod delete {id}`."),
            ),
            Self::Reject => (
                format!("Sandbox {id} exists already."),
                format!("Run the command in it with `sandpod exec {id}`, or choose another id."),
            ),
        };
        Err(Failure::new(ErrorKind::AlreadyExists, message, next))
    }
}

/// The id of a sandbox that is being created.
struct NewId {
    id: SandboxId,
    /// The id is not generated: another process may create a sandbox with it at the same time.
    is_chosen: bool,
    /// The value of [`CREATION_LABEL`], if the sandbox has that label.
    creation: Option<String>,
}

impl NewId {
    /// Reports whether the sandbox with the id has the label of the creation by this process.
    async fn is_ours(&self, provider: &Provider) -> Result<bool> {
        let Some(creation) = &self.creation else { return Ok(true) };
        let found = find(provider, self.id.as_str()).await?;
        Ok(found.is_some_and(|found| found.labels.get(CREATION_LABEL) == Some(creation)))
    }

    async fn delete_ours(&self, provider: &Provider) {
        if self.is_ours(provider).await.unwrap_or_default() {
            let _ = provider.delete(self.id.as_str(), true).await;
        }
    }
}

/// Creates a sandbox, or treats the existing one with its id as `on_existing`. A signal cancels the creation and deletes the
/// new sandbox; an existing one is kept.
pub(crate) async fn create(
    provider: &Provider,
    mut request: SandboxRequest,
    on_existing: OnExisting,
    interrupts: &mut Interrupts,
    output: &Output,
) -> Result<SandboxHandle> {
    let (id, found) = match &request.id {
        Some(id) => (id.parse()?, interrupts.unless_interrupted(find(provider, id)).await?),
        None => (interrupts.unless_interrupted(unused_id(provider)).await?, None),
    };
    let exists = found.as_ref().is_some_and(|found| on_existing.applies_to(found));
    if exists {
        on_existing.check(&id, output)?;
    }
    let is_chosen = request.id.is_some();
    let creation = (is_chosen && on_existing == OnExisting::Reject).then(SandboxId::short).transpose()?;
    let new = NewId { id, is_chosen, creation: creation.map(|creation| creation.to_string()) };
    request.labels.extend(new.creation.clone().map(|creation| (CREATION_LABEL.to_owned(), creation)));
    // With an explicit id, so that it can be deleted during its creation.
    let request = SandboxRequest { id: Some(new.id.to_string()), create: true, ..request };
    let mut creating = pin!(provider.get_or_create(request));
    let mut progress = Progress::new(output, "creating a sandbox", None);
    let signal = tokio::select! {
        created = &mut creating => {
            let handle = created?;
            // `is_new` is true for each caller that attaches before the first use of the sandbox.
            let is_new = if new.creation.is_some() { new.is_ours(provider).await? } else { handle.is_new };
            if is_chosen && !exists && !is_new {
                on_existing.check(&new.id, output)?;
            }
            print_notices(&handle);
            return Ok(handle);
        }
        signal = interrupts.next() => signal,
        never = progress.tick() => match never {},
    };
    drop(progress);
    if found.is_some() {
        return Err(Failure::interrupted(signal));
    }
    output.note("interrupted: deleting the new sandbox");
    tokio::select! {
        () = undo(provider, &new, creating) => {}
        _ = interrupts.next() => output.note(&format!("cleanup was interrupted: sandbox {} may still exist; check with `sandpod list`", new.id)),
    }
    Err(Failure::interrupted(signal))
}

/// Deletes the sandbox of an interrupted creation, but none of another process. Requests in flight cannot be cancelled, so the
/// creation runs until it fails because of the deletes.
async fn undo(
    provider: &Provider,
    new: &NewId,
    creating: impl Future<Output = sandpod::Result<SandboxHandle>>,
) {
    if new.is_chosen && new.creation.is_none() {
        // Only the created sandbox shows whether another process uses it.
        if creating.await.is_ok_and(|handle| handle.is_new) {
            new.delete_ours(provider).await;
        }
        return;
    }
    let deleting = async {
        loop {
            new.delete_ours(provider).await;
            tokio::time::sleep(DELETE_INTERVAL).await;
        }
    };
    tokio::select! {
        _ = creating => {}
        () = deleting => {}
    }
    new.delete_ours(provider).await;
}
