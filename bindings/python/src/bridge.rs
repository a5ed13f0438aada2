//! Converts Rust futures to calls that Python waits for.
//!
//! A [`Call`] starts when Python waits for it, in one of two ways. `wait()` blocks the calling thread without the GIL
//! and checks for Ctrl-C. `await` runs the call as a task of the runtime, which settles an asyncio future of the
//! running loop; cancelling that future aborts the task. In both cases a cancelled call is dropped at once.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use pyo3::IntoPyObjectExt as _;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use tokio::task::AbortHandle;
use tokio::time::timeout;

use crate::runtime::{self, Resident};

/// The interval of checks for Ctrl-C.
const TICK: Duration = Duration::from_millis(50);

/// Python's `None`; `()` would become an empty tuple.
pub(crate) const NOTHING: Option<()> = None;

/// Converts an answer to its Python value, under the GIL.
type Value = Box<dyn FnOnce(Python<'_>) -> PyResult<Py<PyAny>> + Send>;
/// Runs when the caller has received the answer. It does not run for a cancelled call.
type Given = Box<dyn FnOnce() + Send + Sync>;
type Work = Pin<Box<dyn Future<Output = Answer> + Send>>;

struct Answer {
    value: Value,
    given: Option<Given>,
}

/// One operation, which starts when it is waited for or awaited. Only once.
#[pyclass(frozen, module = "sandpod._native")]
pub(crate) struct Call(Mutex<Option<Resident<Work>>>);

impl Call {
    /// Creates a call that runs `work`.
    pub(crate) fn new<T, E>(work: impl Future<Output = Result<T, E>> + Send + 'static) -> Self
    where
        T: for<'py> IntoPyObject<'py> + Send + 'static,
        PyErr: From<E>,
        E: Send + 'static,
    {
        Self::of(work, None)
    }

    /// Creates a call that runs `work`, and `given` when Python has received the answer.
    pub(crate) fn with_receipt<T, E>(
        work: impl Future<Output = Result<T, E>> + Send + 'static,
        given: impl FnOnce() + Send + Sync + 'static,
    ) -> Self
    where
        T: for<'py> IntoPyObject<'py> + Send + 'static,
        PyErr: From<E>,
        E: Send + 'static,
    {
        Self::of(work, Some(Box::new(given)))
    }

    fn of<T, E>(work: impl Future<Output = Result<T, E>> + Send + 'static, given: Option<Given>) -> Self
    where
        T: for<'py> IntoPyObject<'py> + Send + 'static,
        PyErr: From<E>,
        E: Send + 'static,
    {
        let work: Work = Box::pin(async move {
            let outcome = work.await;
            Answer { value: Box::new(move |py| outcome?.into_py_any(py)), given }
        });
        Self(Mutex::new(Some(Resident::new(work))))
    }

    fn take(&self) -> PyResult<Resident<Work>> {
        let work = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        work.ok_or_else(|| PyRuntimeError::new_err("this call was waited for already"))
    }
}

#[pymethods]
impl Call {
    /// Blocks until the call ends. Other Python threads run meanwhile, and Ctrl-C cancels the call.
    fn wait(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let (mut work, runtime) = (self.take()?, runtime::current()?);
        let answer: PyResult<Answer> = py.detach(move || {
            let work = work.get_mut().ok_or_else(forked)?;
            loop {
                if let Ok(answer) = runtime.block_on(async { timeout(TICK, work.as_mut()).await }) {
                    return Ok(answer);
                }
                // Outside the runtime, because a Python signal handler may call this module.
                #[expect(
                    clippy::redundant_closure_for_method_calls,
                    reason = "the method has one lifetime, not any"
                )]
                Python::try_attach(|py| py.check_signals()).transpose()?;
            }
        });
        let Answer { value, given } = answer?;
        let value = value(py);
        if let Some(given) = given {
            given();
        }
        value
    }

    /// Returns the iterator of an asyncio future of the running loop.
    fn __await__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let asyncio = py.import("asyncio")?;
        let event_loop = asyncio.call_method0("get_running_loop")?;
        let future = event_loop.call_method0("create_future")?;
        let (mut work, runtime) = (self.take()?, runtime::current()?);
        work.get_mut().ok_or_else(forked)?;
        let waiter = Waiter { event_loop: event_loop.unbind(), future: future.clone().unbind() };
        let task = runtime.spawn(async move {
            if let Some(work) = work.get_mut() {
                let answer = work.as_mut().await;
                // Acquiring the GIL may block, so it is not done on a worker thread of the runtime.
                tokio::task::spawn_blocking(move || waiter.settle(answer));
            }
        });
        future.call_method1("add_done_callback", (Abort(Resident::new(task.abort_handle())),))?;
        future.call_method0("__await__")
    }
}

fn forked() -> PyErr {
    PyRuntimeError::new_err("this call was made before the process forked; make it again here")
}

/// An asyncio future and its loop.
struct Waiter {
    event_loop: Py<PyAny>,
    future: Py<PyAny>,
}

impl Waiter {
    /// Schedules the result on the loop. Errors are ignored: the loop is closed or the interpreter is finalizing.
    fn settle(self, answer: Answer) {
        Python::try_attach(|py| {
            let Answer { value, given } = answer;
            let outcome = value(py);
            let receipt = given.map(|given| Receipt(Mutex::new(Some(given))));
            let settle = wrap_pyfunction!(settle, py)?;
            let (value, failed) = match outcome {
                Ok(value) => (value, false),
                Err(error) => (error.into_value(py).into_any(), true),
            };
            self.event_loop.call_method1(
                py,
                "call_soon_threadsafe",
                (settle, self.future, value, failed, receipt),
            )
        });
    }
}

/// Settles a future. Runs on the thread of its loop, because asyncio futures are not thread-safe.
#[pyfunction]
fn settle(
    future: &Bound<'_, PyAny>,
    value: &Bound<'_, PyAny>,
    failed: bool,
    receipt: Option<&Receipt>,
) -> PyResult<()> {
    if !future.call_method0("done")?.is_truthy()? {
        future.call_method1(if failed { "set_exception" } else { "set_result" }, (value,))?;
        if let Some(receipt) = receipt {
            receipt.given();
        }
    }
    Ok(())
}

/// Carries the receipt function of an answer to the loop's thread.
#[pyclass(frozen)]
struct Receipt(Mutex<Option<Given>>);

impl Receipt {
    fn given(&self) {
        let given = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(given) = given {
            given();
        }
    }
}

/// The done callback of an asyncio future: aborts its task if the future was cancelled.
#[pyclass(frozen)]
struct Abort(Resident<AbortHandle>);

#[pymethods]
impl Abort {
    fn __call__(&self, future: &Bound<'_, PyAny>) -> PyResult<()> {
        if let (true, Some(task)) = (future.call_method0("cancelled")?.is_truthy()?, self.0.get()) {
            task.abort();
        }
        Ok(())
    }
}
