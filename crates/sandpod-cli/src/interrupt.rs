//! Being told to end: Ctrl-C, a closed terminal, a polite kill.

use std::pin::pin;
use std::time::Duration;

use sandpod::{Provider, SandboxHandle, SandboxId, SandboxRequest, Status};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::exit::{Failure, Result};
use crate::output::Output;
use crate::progress::Progress;
use crate::target::{find, say_notices};

/// How long what is being made may take to notice that it was deleted, until it is deleted again.
const PAUSE: Duration = Duration::from_millis(200);

/// The signals that end us in order.
pub(crate) struct Interrupts([(i32, Signal); 3]);

impl Interrupts {
    /// Listens from now on. What comes before this ends us at once.
    pub(crate) fn listen() -> Result<Self> {
        let listen = |kind: SignalKind| {
            let listening = signal(kind).map_err(|cause| Failure::local("listen for signals", &cause))?;
            Ok::<_, Failure>((kind.as_raw_value(), listening))
        };
        let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
        let [interrupt, terminate, hangup] = kinds;
        Ok(Self([listen(interrupt)?, listen(terminate)?, listen(hangup)?]))
    }

    /// The number of the next one. Cancel-safe.
    pub(crate) async fn next(&mut self) -> i32 {
        let [(first, one), (second, two), (third, three)] = &mut self.0;
        tokio::select! {
            _ = one.recv() => *first,
            _ = two.recv() => *second,
            _ = three.recv() => *third,
        }
    }

    /// What `work` comes to, unless one comes before.
    pub(crate) async fn or<T>(&mut self, work: impl Future<Output = Result<T>>) -> Result<T> {
        tokio::select! {
            done = work => done,
            signal = self.next() => Err(Failure::interrupted(signal)),
        }
    }
}

/// Makes a sandbox, or takes the one that has its id already. Whoever is told to end meanwhile leaves none behind that was
/// not there before.
pub(crate) async fn make(
    provider: &Provider,
    request: SandboxRequest,
    interrupts: &mut Interrupts,
    output: &Output,
) -> Result<SandboxHandle> {
    let (id, found) = match &request.id {
        Some(id) => (id.parse()?, interrupts.or(find(provider, id)).await?),
        None => (SandboxId::random()?, None),
    };
    if found.as_ref().is_some_and(|found| found.status == Status::Running) {
        output.note(&format!("there is a sandbox {id} already, which stays as it is"));
    }
    // Named, so that it can be deleted while it is made.
    let request = SandboxRequest { id: Some(id.to_string()), create: true, ..request };
    let mut making = pin!(provider.get_or_create(request));
    let mut progress = Progress::new(output, "making a sandbox", None);
    let signal = tokio::select! {
        made = &mut making => {
            let handle = made?;
            say_notices(&handle);
            return Ok(handle);
        }
        signal = interrupts.next() => signal,
        never = progress.tick() => match never {},
    };
    drop(progress);
    if found.is_some() {
        return Err(Failure::interrupted(signal));
    }
    output.note("interrupted: deleting what was being made");
    let taking_back = async {
        // What is on its way can't be called back, so the making goes on until it sees that it comes to nothing.
        let deleting = async {
            loop {
                let _ = provider.delete(id.as_str(), true).await;
                tokio::time::sleep(PAUSE).await;
            }
        };
        tokio::select! {
            _ = making => {}
            () = deleting => {}
        }
        let _ = provider.delete(id.as_str(), true).await;
    };
    tokio::select! {
        () = taking_back => {}
        _ = interrupts.next() => output.note(&format!("not waited for: look whether sandbox {id} is left")),
    }
    Err(Failure::interrupted(signal))
}
