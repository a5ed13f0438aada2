//! The tokio runtime, and promises for the work that runs on it.
//!
//! [`promise`] starts work at once and settles a promise of the calling JavaScript thread when the work ends. A pending
//! promise keeps its thread alive, like other promises of I/O. Nothing else in this module does. A cancelled call is
//! rejected at once, except with [`promise_until`].

use std::collections::HashMap;
use std::future::{Future, pending};
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{LazyLock, Mutex, MutexGuard, OnceLock, PoisonError};

use futures::FutureExt as _;
use napi::bindgen_prelude::{Object, ToNapiValue};
use napi::{Env, Result};
use napi_derive::napi;
use sandpod::Receipt;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;

use crate::errors::Failed;

/// The function that makes a value from an answer, on the JavaScript thread.
type Resolver<T> = Box<dyn FnOnce(Env) -> Result<T>>;

/// Returns the runtime of this process. The first call starts it. It is never shut down: the kernel ends its threads.
pub(crate) fn runtime() -> Result<&'static Runtime> {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    if let Some(runtime) = RUNTIME.get() {
        return Ok(runtime);
    }
    let new = Builder::new_multi_thread().worker_threads(2).thread_name("sandpod").enable_all().build();
    let new = new
        .map_err(|error| napi::Error::from_reason(format!("cannot start the threads of sandpod: {error}")))?;
    Ok(RUNTIME.get_or_init(|| new))
}

/// A value that is dropped inside the runtime, because its drop may spawn a task.
pub(crate) struct Resident<T>(Option<T>);

impl<T> Resident<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(Some(value))
    }

    pub(crate) fn get(&self) -> Result<&T> {
        self.0.as_ref().ok_or_else(|| napi::Error::from_reason("this object has ended"))
    }
}

impl<T> Drop for Resident<T> {
    fn drop(&mut self) {
        let _inside = runtime().ok().map(Runtime::enter);
        drop(self.0.take());
    }
}

/// The cancellable calls in flight, by number.
static CALLS: LazyLock<Mutex<HashMap<u32, oneshot::Sender<()>>>> = LazyLock::new(Mutex::default);

fn calls() -> MutexGuard<'static, HashMap<u32, oneshot::Sender<()>>> {
    CALLS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns a number for the next call, unique in the process.
#[napi]
pub fn begin_call() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Cancels a call in flight. A call that has ended is unchanged.
#[napi]
pub fn cancel_call(call: u32) {
    if let Some(cancel) = calls().remove(&call) {
        let _ = cancel.send(());
    }
}

/// The function that runs when JavaScript has received the answer.
type Received = Option<Box<dyn FnOnce() + Send>>;

/// Runs `work` and settles the promise with its outcome.
pub(crate) fn promise<T, E>(
    env: &Env,
    call: Option<u32>,
    work: impl Future<Output = std::result::Result<T, E>> + Send + 'static,
) -> Result<Object<'_>>
where
    T: ToNapiValue + Send + 'static,
    E: Into<Failed> + Send + 'static,
{
    promise_with_receipt(env, call, work, None)
}

/// Like [`promise`], and runs `received` when JavaScript has received the answer.
pub(crate) fn promise_with_receipt<T, E>(
    env: &Env,
    call: Option<u32>,
    work: impl Future<Output = std::result::Result<T, E>> + Send + 'static,
    received: Received,
) -> Result<Object<'_>>
where
    T: ToNapiValue + Send + 'static,
    E: Into<Failed> + Send + 'static,
{
    settle(env, call, async { work.await.map(|value| (value, received)).map_err(Into::into) })
}

/// Like [`promise`], for work that does not fail and returns its answer with an optional receipt.
pub(crate) fn promise_with_late_receipt<T>(
    env: &Env,
    call: Option<u32>,
    work: impl Future<Output = (T, Option<Receipt>)> + Send + 'static,
) -> Result<Object<'_>>
where
    T: ToNapiValue + Send + 'static,
{
    settle(env, call, async { Ok(with_received(work.await)) })
}

/// Like [`promise_with_late_receipt`], for work that returns its answer also when its call is cancelled.
pub(crate) fn promise_until<T, F>(
    env: &Env,
    call: Option<u32>,
    work: impl FnOnce(Cancelled) -> F,
) -> Result<Object<'_>>
where
    T: ToNapiValue + Send + 'static,
    F: Future<Output = (T, Option<Receipt>)> + Send + 'static,
{
    let work = work(Cancelled::of(call));
    settle_with(env, call, async { Ok(with_received(work.await)) })
}

fn with_received<T>((value, receipt): (T, Option<Receipt>)) -> (T, Received) {
    (value, receipt.map(|receipt| -> Box<dyn FnOnce() + Send> { Box::new(|| receipt.given()) }))
}

/// The cancellation of a call.
pub(crate) struct Cancelled(oneshot::Receiver<()>);

impl Cancelled {
    /// Registers a call in flight. Without a number it cannot be cancelled.
    fn of(call: Option<u32>) -> Self {
        let (cancel, cancelled) = oneshot::channel();
        if let Some(call) = call {
            calls().insert(call, cancel);
        }
        Self(cancelled)
    }

    /// Resolves when the call is cancelled, and never if it cannot be.
    pub(crate) async fn wait(self) {
        if self.0.await.is_err() {
            pending::<()>().await;
        }
    }
}

fn settle<T: ToNapiValue + Send + 'static>(
    env: &Env,
    call: Option<u32>,
    work: impl Future<Output = std::result::Result<(T, Received), Failed>> + Send + 'static,
) -> Result<Object<'_>> {
    let cancelled = Cancelled::of(call);
    settle_with(env, call, async move {
        tokio::select! {
            biased;
            () = cancelled.wait() => Err(Failed::cancelled()),
            outcome = work => outcome,
        }
    })
}

fn settle_with<T: ToNapiValue + Send + 'static>(
    env: &Env,
    call: Option<u32>,
    work: impl Future<Output = std::result::Result<(T, Received), Failed>> + Send + 'static,
) -> Result<Object<'_>> {
    let (deferred, promise) = env.create_deferred::<T, Resolver<T>>()?;
    runtime()?.spawn(async move {
        let outcome = AssertUnwindSafe(work).catch_unwind().await;
        let outcome = outcome.unwrap_or_else(|_| Err(Failed::panicked()));
        if let Some(call) = call {
            calls().remove(&call);
        }
        match outcome {
            Ok((value, received)) => deferred.resolve(Box::new(move |_| {
                if let Some(received) = received {
                    received();
                }
                Ok(value)
            })),
            Err(failed) => deferred.reject(failed.into()),
        }
    });
    Ok(promise)
}
