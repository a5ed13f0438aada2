//! The audit: events before and after every operation.
//!
//! An [`Audit`] receives [`AuditEvent`]s from all sandboxes of a provider and passes them to an [`AuditSink`] on a
//! thread of its own, in order and in batches, so that a slow sink does not block the runtime. [`AuditFile`] writes
//! them to a file whose lines form a hash chain, [`Otlp`] sends them to a collector, and any function can be a sink.

mod config;
mod event;
mod file;
mod otlp;

use std::borrow::Cow;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use data_encoding::HEXLOWER;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tokio::sync::{mpsc, oneshot};

pub use self::config::AuditConfig;
pub use self::event::{AuditEvent, Decision, Phase};
pub use self::file::{AuditFile, AuditHead, verify};
pub use self::otlp::Otlp;
use crate::{Error, Result};

/// The number of events that can wait for a sink.
const QUEUE: usize = 1024;
/// The number of events in one batch.
const BATCH: usize = 256;
/// The length to which command text is cut.
const MAX_COMMAND_BYTES: usize = 16 * 1024;

/// Stores or forwards events. It runs on a thread of its own and may block there.
///
/// ```
/// use sandpod::{Audit, AuditEvent, AuditOptions};
///
/// let audit = Audit::new(|events: &[AuditEvent]| { /* forward them */ Ok(()) }, AuditOptions::default())?;
/// # Ok::<(), sandpod::Error>(())
/// ```
pub trait AuditSink: Send + 'static {
    /// Records events in order. An error means that they are not stored.
    fn record(&mut self, events: &[AuditEvent]) -> std::result::Result<(), String>;
}

impl<F> AuditSink for F
where
    F: FnMut(&[AuditEvent]) -> std::result::Result<(), String> + Send + 'static,
{
    fn record(&mut self, events: &[AuditEvent]) -> std::result::Result<(), String> {
        self(events)
    }
}

/// Passes all events to several sinks. An error of one sink is an error of all.
impl AuditSink for Vec<Box<dyn AuditSink>> {
    fn record(&mut self, events: &[AuditEvent]) -> std::result::Result<(), String> {
        let results: Vec<_> = self.iter_mut().map(|sink| sink.record(events)).collect();
        results.into_iter().collect()
    }
}

/// Changes an event before it is recorded.
pub type Redaction = Arc<dyn Fn(&mut AuditEvent) + Send + Sync>;

/// The options of an audit.
#[derive(Clone, Default)]
pub struct AuditOptions {
    /// Reject operations whose event cannot be recorded. Otherwise the failure is logged.
    pub strict: bool,
    /// Command text in events.
    pub commands: CommandRedaction,
    /// Changes each event before it is recorded, for example to remove secrets.
    pub redact: Option<Redaction>,
}

impl fmt::Debug for AuditOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { strict, commands, redact } = self;
        write!(f, "AuditOptions {{ strict: {strict}, commands: {commands:?}, redact: {} }}", redact.is_some())
    }
}

/// Command text in events.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CommandRedaction {
    /// The text, cut if it is very long.
    #[default]
    Full,
    /// Its SHA-256, which only shows whether two commands are equal.
    Hash,
}

/// Receives events and passes them to a sink. Clones share one audit; it ends when the last one is dropped and all
/// events are passed on.
#[derive(Clone, Debug)]
pub struct Audit {
    options: AuditOptions,
    queue: mpsc::Sender<Message>,
    lost: Arc<AtomicU64>,
}

enum Message {
    Event(Box<AuditEvent>, Option<Receipt>),
    Flush(oneshot::Sender<()>),
}

/// Reports to a waiting caller whether an event is stored.
type Receipt = oneshot::Sender<std::result::Result<(), String>>;

impl Audit {
    /// Starts an audit with this sink.
    pub fn new(sink: impl AuditSink, options: AuditOptions) -> Result<Self> {
        let (queue, messages) = mpsc::channel(QUEUE);
        let lost = Arc::new(AtomicU64::new(0));
        let strict = options.strict;
        let run = move || hand_on(sink, messages, strict);
        thread::Builder::new()
            .name("sandpod-audit".to_owned())
            .spawn(run)
            .map_err(|error| no_thread(&error))?;
        Ok(Self { options, queue, lost })
    }

    /// Waits until the sink has received all events so far.
    pub async fn flush(&self) {
        let (sender, done) = oneshot::channel();
        if self.queue.send(Message::Flush(sender)).await.is_ok() {
            let _ = done.await;
        }
    }

    /// Returns the number of events lost since the last stored one.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Records an intent. After an error the operation must not be performed.
    pub(crate) async fn intent(&self, event: AuditEvent) -> std::result::Result<(), String> {
        if !self.options.strict {
            self.tell(event);
            return Ok(());
        }
        let (receipt, kept) = oneshot::channel();
        let message = Message::Event(Box::new(self.told(event)), Some(receipt));
        self.queue.send(message).await.map_err(|_| ENDED.to_owned())?;
        kept.await.unwrap_or_else(|_| Err(ENDED.to_owned()))
    }

    /// Records an outcome without waiting.
    pub(crate) fn tell(&self, event: AuditEvent) {
        let event = Box::new(self.told(event));
        let lost = event.lost_before + 1;
        if self.queue.try_send(Message::Event(event, None)).is_err() {
            self.lost.fetch_add(lost, Ordering::Relaxed);
            tracing::warn!(
                "Audit log callback failed (continuing): it does not keep up, and an event is lost"
            );
        }
    }

    fn told(&self, mut event: AuditEvent) -> AuditEvent {
        if event.operation.is_command() {
            event.targets.iter_mut().for_each(|command| *command = self.options.commands.of(command));
        }
        if let Some(redact) = &self.options.redact {
            redact(&mut event);
        }
        event.lost_before = self.lost.swap(0, Ordering::Relaxed);
        event
    }
}

/// The error once the thread has ended.
const ENDED: &str = "the audit thread has ended";

/// Passes events to the sink until no sender is left.
fn hand_on(mut sink: impl AuditSink, mut messages: mpsc::Receiver<Message>, strict: bool) {
    while let Some(first) = messages.blocking_recv() {
        let (mut events, mut receipts, mut flushed) = (Vec::new(), Vec::new(), None);
        let mut next = Some(first);
        while let Some(message) = next.take() {
            match message {
                Message::Event(event, receipt) => {
                    events.push(*event);
                    receipts.extend(receipt);
                }
                Message::Flush(sender) => flushed = Some(sender),
            }
            if events.len() < BATCH && flushed.is_none() {
                next = messages.try_recv().ok();
            }
        }
        if !events.is_empty() {
            let kept = sink.record(&events);
            if let Err(error) = &kept {
                let then = if strict { "stopping" } else { "continuing" };
                tracing::warn!("Audit log callback failed ({then}): {error}");
            }
            // The waiting caller may have been dropped.
            for receipt in receipts {
                let _ = receipt.send(kept.clone());
            }
        }
        if let Some(flushed) = flushed {
            let _ = flushed.send(());
        }
    }
}

impl CommandRedaction {
    fn of(self, command: &str) -> String {
        if self == Self::Full && command.len() <= MAX_COMMAND_BYTES {
            return command.to_owned();
        }
        let hash = format!("sha256:{}", HEXLOWER.encode(&Sha256::digest(command)));
        match self {
            Self::Hash => hash,
            Self::Full => {
                let end = (0..=MAX_COMMAND_BYTES).rev().find(|end| command.is_char_boundary(*end));
                let shown = &command[..end.unwrap_or_default()];
                format!("{shown}… ({} bytes, {hash})", command.len())
            }
        }
    }
}

/// Returns the text of a command.
pub(crate) fn command_text(command: &sandpod_client::Command) -> Cow<'_, str> {
    match command {
        sandpod_client::Command::Line(line) => line.into(),
        sandpod_client::Command::Argv(words) => words.join(" ").into(),
    }
}

fn no_thread(error: &io::Error) -> Error {
    Error::new(
        crate::ErrorKind::Internal,
        format!("Cannot start the thread of the audit: {error}."),
        "See how many this process may have.",
    )
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, mpsc as std_mpsc};

    use super::*;
    use crate::guard::Operation;

    fn event(target: &str) -> AuditEvent {
        AuditEvent::intent(Operation::Execute, "sp-1", vec![target.to_owned()])
    }

    type Kept = Arc<Mutex<Vec<AuditEvent>>>;

    /// Creates an audit whose sink keeps all events.
    fn keeping(options: AuditOptions) -> (Audit, Kept) {
        let kept = Kept::default();
        let sink = {
            let kept = kept.clone();
            move |events: &[AuditEvent]| {
                kept.lock().unwrap().extend_from_slice(events);
                Ok(())
            }
        };
        (Audit::new(sink, options).unwrap(), kept)
    }

    #[tokio::test]
    async fn events_reach_the_sink_in_order() {
        let (audit, kept) = keeping(AuditOptions::default());
        for number in 0..500 {
            audit.intent(event(&number.to_string())).await.unwrap();
        }
        audit.flush().await;
        let targets: Vec<_> = kept.lock().unwrap().iter().map(|event| event.targets[0].clone()).collect();
        assert_eq!(targets, (0..500).map(|number| number.to_string()).collect::<Vec<_>>());
    }

    #[tokio::test]
    async fn g7_failing_sink_stops_operations_only_in_a_strict_audit() {
        let failing = |_: &[AuditEvent]| Err("disk full".to_owned());
        let lenient = Audit::new(failing, AuditOptions::default()).unwrap();
        assert_eq!(lenient.intent(event("x")).await, Ok(()));
        let strict = Audit::new(failing, AuditOptions { strict: true, ..AuditOptions::default() }).unwrap();
        assert_eq!(strict.intent(event("x")).await, Err("disk full".to_owned()));
    }

    #[tokio::test]
    async fn panicking_sink_stops_the_operations_of_a_strict_audit() {
        let panicking =
            |_: &[AuditEvent]| -> std::result::Result<(), String> { panic!("a test panics here") };
        let strict = Audit::new(panicking, AuditOptions { strict: true, ..AuditOptions::default() }).unwrap();
        assert!(strict.intent(event("x")).await.is_err());
        assert!(strict.intent(event("x")).await.is_err());
    }

    #[tokio::test]
    async fn hanging_sink_blocks_no_operation_and_lost_events_are_counted() {
        let (release, released) = std_mpsc::channel::<()>();
        let kept = Kept::default();
        let sink = {
            let kept = kept.clone();
            move |events: &[AuditEvent]| {
                let _ = released.recv();
                kept.lock().unwrap().extend_from_slice(events);
                Ok(())
            }
        };
        let audit = Audit::new(sink, AuditOptions::default()).unwrap();
        let told = 3 * QUEUE;
        (0..told).for_each(|_| audit.tell(event("x")));
        drop(release);
        audit.flush().await;
        audit.tell(event("last"));
        audit.flush().await;
        let kept = kept.lock().unwrap();
        let lost: u64 = kept.iter().map(|event| event.lost_before).sum();
        assert!(lost > 0, "more than the queue holds");
        assert_eq!(kept.len() as u64 + lost, told as u64 + 1, "each is kept or counted");
    }

    #[tokio::test]
    async fn commands_are_redacted_as_configured_and_the_hook_runs_last() {
        let options = AuditOptions { commands: CommandRedaction::Hash, ..AuditOptions::default() };
        let (audit, kept) = keeping(options);
        audit.tell(event("echo secret"));
        audit.flush().await;
        let told = kept.lock().unwrap()[0].targets[0].clone();
        assert!(told.starts_with("sha256:") && told.len() == 71, "{told}");

        let redact = |event: &mut AuditEvent| event.targets = vec!["redacted".to_owned()];
        let (audit, kept) =
            keeping(AuditOptions { redact: Some(Arc::new(redact)), ..AuditOptions::default() });
        audit.tell(event("echo secret"));
        audit.flush().await;
        assert_eq!(kept.lock().unwrap()[0].targets, ["redacted"]);
    }

    #[test]
    fn long_command_is_cut_at_a_character_boundary() {
        let told = CommandRedaction::Full.of(&"é".repeat(MAX_COMMAND_BYTES));
        assert!(told.len() < MAX_COMMAND_BYTES + 200 && told.contains("sha256:"), "{}", told.len());
    }
}
