//! The claim that the guest is bound to, and the environment of commands.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use prost::Message;
use sandpod_protocol::v1::{BindRequest, ErrorCode, Policy};
use sandpod_protocol::{Failure, limits};
use sha2::{Digest as _, Sha256};
use tokio::sync::watch;
use tokio::time::Instant;

use super::bound_files;
use crate::activity::Activity;
use crate::files::FileRules;
use crate::policy::{self, Kernel, Rules};
use crate::state_file;

/// Length of a SHA-256 digest.
const DIGEST_BYTES: usize = 32;
/// Maximum number of tokens that later Binds add; the oldest is removed for one more.
const MAX_ADDED_TOKENS: usize = 64;

/// The binding, in memory and in the state directory.
pub(crate) struct Binding {
    state_dir: PathBuf,
    bound: watch::Sender<Option<Arc<Bound>>>,
    /// Held while a Bind is written, so that only one is the first.
    bind_lock: Mutex<()>,
    /// Whether a Bind has come since the guest started, or none is needed. Until then the restored state does not count,
    /// because commands can change the state directory.
    ready: AtomicBool,
}

/// Result of a Bind.
pub(crate) struct BindOutcome {
    /// Whether the guest was bound before, to another policy than that of this Bind.
    pub(crate) other_policy: bool,
    pub(crate) policy_sha256: [u8; DIGEST_BYTES],
    /// The rules of the policy that clients check.
    pub(crate) client_rules: Bytes,
}

impl BindOutcome {
    /// The result where `policy` holds.
    fn new(policy: Option<&Policy>, other_policy: bool) -> Self {
        let client_rules = policy.map(|policy| policy.client_rules.clone()).unwrap_or_default();
        Self { other_policy, policy_sha256: policy_sha256(policy), client_rules }
    }
}

struct Bound {
    /// The request without its files, which were written.
    request: BindRequest,
    policy: Option<Arc<Policy>>,
    /// SHA-256 of the tokens that later Binds added, oldest first.
    added_tokens: Vec<Bytes>,
    /// Time of the binding, in seconds since the Unix epoch.
    since: u64,
    /// Time at which the guest ends, even if it is in use.
    deadline: Option<Instant>,
    /// Rules for file calls.
    file_rules: Arc<FileRules>,
}

/// State in the state directory.
#[derive(Clone, PartialEq, Message)]
struct State {
    #[prost(message, optional, tag = "1")]
    request: Option<BindRequest>,
    /// Seconds since the Unix epoch.
    #[prost(uint64, tag = "2")]
    bound_at: u64,
    /// SHA-256 of the tokens that later Binds added, oldest first.
    #[prost(bytes = "bytes", repeated, tag = "3")]
    added_tokens: Vec<Bytes>,
}

impl Binding {
    /// Restores the binding from the state directory, if there is one. With `needs_bind` it takes effect with the next
    /// Bind.
    pub(crate) fn restore(state_dir: PathBuf, needs_bind: bool) -> Self {
        let bound = load(&state_dir).and_then(|state| Bound::new(state, unix_now())).map(Arc::new);
        let ready = AtomicBool::new(!needs_bind);
        Self { state_dir, bound: watch::Sender::new(bound), bind_lock: Mutex::new(()), ready }
    }

    /// Returns an error while a Bind is needed.
    pub(crate) fn check_ready(&self) -> Result<(), Failure> {
        if self.ready.load(Ordering::Acquire) {
            return Ok(());
        }
        let message = "the sandbox's guest has started and is not bound yet, so it runs no command and opens no file: \
                       reconnect to the sandbox";
        Err(Failure::new(ErrorCode::NotYours, message))
    }

    /// Binds the guest, once. Further calls for the same claim change nothing, except that one on a stream of an admitted
    /// process adds its token; calls for another claim are refused. The first Bind after a start calls `prepare` before
    /// other calls are accepted.
    pub(crate) fn bind(
        &self,
        request: BindRequest,
        kernel: Kernel,
        is_admitted: bool,
        prepare: impl FnOnce(Arc<FileRules>),
    ) -> Result<BindOutcome, Failure> {
        check(&request)?;
        let _one_at_a_time = self.bind_lock.lock().unwrap_or_else(PoisonError::into_inner);
        let bound = self.bound.borrow().clone();
        if bound.as_ref().is_some_and(|bound| bound.request.claim != request.claim) {
            return Err(other_claim());
        }
        let is_ready = self.ready.load(Ordering::Acquire);
        if let Some(bound) = bound.as_ref().filter(|_| is_ready) {
            if is_admitted {
                self.add_token(bound, request.token_sha256)?;
            }
            return Ok(bound.outcome(request.policy.map(policy::resolve).transpose()?.as_ref()));
        }
        let outcome = self.begin(bound.as_deref(), request, kernel, is_admitted)?;
        if !is_ready {
            prepare(self.file_rules());
            self.ready.store(true, Ordering::Release);
        }
        Ok(outcome)
    }

    /// Handles the first Bind after a start. Commands may have changed the restored binding, so it is used only if it has
    /// the policy that the caller expects.
    fn begin(
        &self,
        restored: Option<&Bound>,
        mut request: BindRequest,
        kernel: Kernel,
        is_admitted: bool,
    ) -> Result<BindOutcome, Failure> {
        let known = std::mem::take(&mut request.policy_sha256);
        let is_known = |policy: Option<&Policy>| known.is_empty() || *known == policy_sha256(policy);
        request.policy = request.policy.map(policy::resolve).transpose()?;
        if let Some(restored) = restored.filter(|restored| is_known(restored.request.policy.as_ref())) {
            if is_admitted {
                self.add_token(restored, request.token_sha256)?;
            }
            return Ok(restored.outcome(request.policy.as_ref()));
        }
        if !is_known(request.policy.as_ref()) {
            return Err(lost_policy());
        }
        if !request.working_dir.is_empty() {
            // Best effort: if it cannot be created, the first command reports that it is missing.
            let _ = fs::create_dir_all(&request.working_dir);
        }
        if let Some(policy) = &request.policy {
            let unsupported = |why| Failure::new(ErrorCode::Unsupported, why);
            kernel.check(&Rules::new(policy)?).map_err(unsupported)?;
        }
        bound_files::write(&std::mem::take(&mut request.files))?;
        let (outcome, now) = (BindOutcome::new(request.policy.as_ref(), false), unix_now());
        self.store(State { request: Some(request), bound_at: now, added_tokens: Vec::new() }, now)?;
        Ok(outcome)
    }

    /// Adds a token for streams over the network. The caller is on an admitted stream, which needs no token itself.
    fn add_token(&self, bound: &Bound, token: Bytes) -> Result<(), Failure> {
        if token.is_empty() || bound.tokens().any(|known| *known == token) {
            return Ok(());
        }
        let mut state = bound.state();
        state.added_tokens.push(token);
        let surplus = state.added_tokens.len().saturating_sub(MAX_ADDED_TOKENS);
        state.added_tokens.drain(..surplus);
        self.store(state, unix_now())
    }

    /// Sets the end of the guest to this number of seconds from now.
    pub(crate) fn extend(&self, claim: &str, ttl_seconds: u64) -> Result<(), Failure> {
        let _one_at_a_time = self.bind_lock.lock().unwrap_or_else(PoisonError::into_inner);
        let bound = self.bound.borrow().clone();
        let bound = bound.filter(|bound| bound.request.claim == claim).ok_or_else(other_claim)?;
        if ttl_seconds == 0 {
            let message = "a sandbox cannot be extended by 0 seconds: give at least 1, or delete it";
            return Err(Failure::new(ErrorCode::InvalidArgument, message));
        }
        let now = unix_now();
        let ttl_seconds = now.saturating_sub(bound.since).saturating_add(ttl_seconds);
        let request = BindRequest { ttl_seconds, ..bound.request.clone() };
        self.store(State { request: Some(request), ..bound.state() }, now)
    }

    /// Saves a state and makes it current. `now` is the time with which the caller calculated: the clock may have advanced.
    fn store(&self, state: State, now: u64) -> Result<(), Failure> {
        save(&self.state_dir, &state).map_err(|error| {
            let message = format!("the binding could not be saved in {}: {error}", self.state_dir.display());
            Failure::new(ErrorCode::Internal, message)
        })?;
        self.bound.send_replace(Bound::new(state, now).map(Arc::new));
        Ok(())
    }

    /// Returns the claim that the guest is bound to.
    pub(crate) fn claim(&self) -> Option<String> {
        self.bound.borrow().as_ref().map(|bound| bound.request.claim.clone())
    }

    /// Refuses any claim other than that of the guest.
    pub(crate) fn check_claim(&self, claim: &str) -> Result<(), Failure> {
        if self.claim().as_deref() == Some(claim) { Ok(()) } else { Err(other_claim()) }
    }

    /// Returns the variables that Bind added to the environment of commands.
    pub(crate) fn env(&self) -> HashMap<String, String> {
        self.bound.borrow().as_ref().map(|bound| bound.request.env.clone()).unwrap_or_default()
    }

    /// Returns the policy's rules for file calls, which allow everything without a policy.
    pub(crate) fn file_rules(&self) -> Arc<FileRules> {
        self.bound.borrow().as_ref().map(|bound| bound.file_rules.clone()).unwrap_or_default()
    }

    /// Returns the policy, in whose paths links are resolved.
    pub(crate) fn policy(&self) -> Option<Arc<Policy>> {
        self.bound.borrow().as_ref().and_then(|bound| bound.policy.clone())
    }

    /// Returns how long the guest lives without a further call; `None`: forever.
    pub(crate) fn time_left(&self, activity: &Activity) -> Option<Duration> {
        let end = self.bound.borrow().as_ref().and_then(|bound| bound.end(activity))?;
        Some(end.saturating_duration_since(Instant::now()))
    }

    /// Returns the working directory of commands: that of Bind, or the guest's own.
    pub(crate) fn working_dir(&self) -> PathBuf {
        let bound = self.bound.borrow();
        let dir = bound.as_ref().map(|bound| &bound.request.working_dir).filter(|dir| !dir.is_empty());
        dir.map_or_else(|| std::env::current_dir().unwrap_or_else(|_| "/".into()), PathBuf::from)
    }

    /// Returns the hashes of the valid tokens. That of the first Bind replaces `started_with`.
    pub(crate) fn tokens_sha256(&self, started_with: Option<[u8; DIGEST_BYTES]>) -> Vec<[u8; DIGEST_BYTES]> {
        let bound = self.bound.borrow().clone();
        let digest = |token: &Bytes| (**token).try_into().ok();
        let first = bound.as_ref().and_then(|bound| digest(&bound.request.token_sha256)).or(started_with);
        let added = bound.iter().flat_map(|bound| &bound.added_tokens).filter_map(digest);
        first.into_iter().chain(added).collect()
    }

    /// Resolves when the time to live or the idle time is up.
    pub(crate) async fn expired(&self, activity: &Activity) {
        let mut bound = self.bound.subscribe();
        loop {
            let end = bound.borrow_and_update().as_ref().and_then(|bound| bound.end(activity));
            let expiry = async {
                match end {
                    Some(end) => tokio::time::sleep_until(end).await,
                    None => std::future::pending().await,
                }
            };
            if end.is_some_and(|end| end <= Instant::now()) {
                return;
            }
            tokio::select! {
                () = expiry => {}
                // This cannot be an error: `self` holds the sender.
                _ = bound.changed() => {}
            }
        }
    }
}

impl Bound {
    fn new(state: State, now: u64) -> Option<Self> {
        let State { request, bound_at: since, added_tokens } = state;
        let request = request?;
        let used = now.saturating_sub(since);
        let remaining = (request.ttl_seconds > 0).then(|| request.ttl_seconds.saturating_sub(used));
        let deadline =
            remaining.and_then(|remaining| Instant::now().checked_add(Duration::from_secs(remaining)));
        let policy = request.policy.clone().map(Arc::new);
        let file_rules = policy.as_deref().map(FileRules::new).unwrap_or_default().into();
        Some(Self { request, policy, added_tokens, since, deadline, file_rules })
    }

    /// Returns the result of a Bind with the policy `wanted`.
    fn outcome(&self, wanted: Option<&Policy>) -> BindOutcome {
        let policy = self.request.policy.as_ref();
        BindOutcome::new(policy, wanted != policy)
    }

    /// Returns the state to save.
    fn state(&self) -> State {
        let Self { request, since, added_tokens, .. } = self;
        State { request: Some(request.clone()), bound_at: *since, added_tokens: added_tokens.clone() }
    }

    /// Returns the SHA-256 of the tokens from all Binds.
    fn tokens(&self) -> impl Iterator<Item = &Bytes> {
        self.added_tokens.iter().chain([&self.request.token_sha256])
    }

    /// Returns when the guest ends without a further call.
    fn end(&self, activity: &Activity) -> Option<Instant> {
        let idle =
            (self.request.idle_ttl_seconds > 0).then(|| Duration::from_secs(self.request.idle_ttl_seconds));
        let idle_end = idle.and_then(|idle| activity.idle_since().checked_add(idle));
        [self.deadline, idle_end].into_iter().flatten().min()
    }
}

fn check(request: &BindRequest) -> Result<(), Failure> {
    crate::process::check_env(&request.env)?;
    bound_files::check(&request.files)?;
    let digest = request.token_sha256.len();
    if !matches!(digest, 0 | DIGEST_BYTES) {
        let message = format!("a token's SHA-256 has {DIGEST_BYTES} bytes, not {digest}");
        return Err(Failure::new(ErrorCode::InvalidArgument, message));
    }
    let dir = &request.working_dir;
    if !dir.is_empty() && !Path::new(dir).is_absolute() {
        let message = format!("the working directory {dir:?} is not absolute: give one that starts with /");
        return Err(Failure::new(ErrorCode::InvalidArgument, message).at(dir));
    }
    Ok(())
}

fn other_claim() -> Failure {
    Failure::new(ErrorCode::NotYours, "this sandbox is bound to another claim: claim or create another one")
}

fn lost_policy() -> Failure {
    let message = "the sandbox's guest has restarted and no longer has the policy that the sandbox was bound to, so it runs \
                   no command: request the sandbox with the same policy, or delete it";
    Failure::new(ErrorCode::NotYours, message)
}

fn policy_sha256(policy: Option<&Policy>) -> [u8; DIGEST_BYTES] {
    let mut hash = Sha256::new_with_prefix([u8::from(policy.is_some())]);
    if let Some(policy) = policy {
        hash.update(policy.encode_to_vec());
    }
    hash.finalize().into()
}

fn unix_now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

fn state_file(dir: &Path) -> PathBuf {
    dir.join("binding")
}

/// Loads the state. Without a valid file the guest is unbound.
fn load(dir: &Path) -> Option<State> {
    let bytes = state_file::read(&state_file(dir), 2 * limits::MAX_MESSAGE_BYTES as u64).ok()?;
    State::decode(&*bytes).ok()
}

fn save(dir: &Path, state: &State) -> io::Result<()> {
    state_file::save(&state_file(dir), &state.encode_to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(request: BindRequest, bound_at: u64) -> State {
        State { request: Some(request), bound_at, added_tokens: Vec::new() }
    }

    #[tokio::test(start_paused = true)]
    async fn a_restart_does_not_change_the_deadline() {
        let dir = tempfile::tempdir().unwrap();
        let request = BindRequest { claim: "a".to_owned(), ttl_seconds: 100, ..BindRequest::default() };
        save(dir.path(), &state(request, unix_now() - 40)).unwrap();
        let remaining =
            Binding::restore(dir.path().to_owned(), false).time_left(&Activity::default()).unwrap();
        assert!((58..=60).contains(&remaining.as_secs()), "{remaining:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_write_does_not_shorten_the_time_to_live() {
        let dir = tempfile::tempdir().unwrap();
        let binding = Binding::restore(dir.path().to_owned(), false);
        let request = BindRequest { claim: "a".to_owned(), ttl_seconds: 100, ..BindRequest::default() };
        // Times in the past show whether the clock is read again.
        binding.store(state(request, 1000), 1040).unwrap();
        assert_eq!(binding.time_left(&Activity::default()), Some(Duration::from_secs(60)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_guest_restarted_after_its_deadline_ends_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let request = BindRequest { claim: "a".to_owned(), ttl_seconds: 100, ..BindRequest::default() };
        save(dir.path(), &state(request, unix_now() - 400)).unwrap();
        let start = Instant::now();
        Binding::restore(dir.path().to_owned(), false).expired(&Activity::default()).await;
        assert_eq!(start.elapsed(), Duration::ZERO);
    }
}
