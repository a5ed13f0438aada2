//! Interrupts: SIGINT, SIGTERM and SIGHUP, and the creation of sandboxes that they can cancel.

use std::pin::pin;
use std::time::Duration;

use sandpod::{Provider, SandboxHandle, SandboxId, SandboxRequest, Status};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::exit::{Failure, Result};
use crate::output::Output;
use crate::progress::Progress;
use crate::target::{find, print_notices};

/// The time between two deletes of a sandbox whose creation is being cancelled.
const DELETE_INTERVAL: Duration = Duration::from_millis(200);

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

/// Creates a sandbox, or returns the existing one with its id. A signal cancels the creation and deletes the new sandbox; an
/// existing one is kept.
pub(crate) async fn create(
    provider: &Provider,
    request: SandboxRequest,
    interrupts: &mut Interrupts,
    output: &Output,
) -> Result<SandboxHandle> {
    let (id, found) = match &request.id {
        Some(id) => (id.parse()?, interrupts.unless_interrupted(find(provider, id)).await?),
        None => (interrupts.unless_interrupted(unused_id(provider)).await?, None),
    };
    if found.as_ref().is_some_and(|found| found.status == Status::Running) {
        output.note(&format!("sandbox {id} exists already and is unchanged"));
    }
    // With an explicit id, so that it can be deleted during its creation.
    let request = SandboxRequest { id: Some(id.to_string()), create: true, ..request };
    let mut creating = pin!(provider.get_or_create(request));
    let mut progress = Progress::new(output, "creating a sandbox", None);
    let signal = tokio::select! {
        created = &mut creating => {
            let handle = created?;
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
    let undo = async {
        // Requests in flight cannot be cancelled, so the creation runs until it fails because of the deletes.
        let deleting = async {
            loop {
                let _ = provider.delete(id.as_str(), true).await;
                tokio::time::sleep(DELETE_INTERVAL).await;
            }
        };
        tokio::select! {
            _ = creating => {}
            () = deleting => {}
        }
        let _ = provider.delete(id.as_str(), true).await;
    };
    tokio::select! {
        () = undo => {}
        _ = interrupts.next() => output.note(&format!("cleanup was interrupted: sandbox {id} may still exist; check with `sandpod list`")),
    }
    Err(Failure::interrupted(signal))
}
