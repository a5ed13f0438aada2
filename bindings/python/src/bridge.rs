//! How a Rust future becomes something that Python can wait for.
//!
//! A [`Call`] does nothing until it is waited for, in one of two ways. `wait()` blocks this thread without the GIL and
//! notices Ctrl-C. `await` runs it as a task of the runtime and settles an asyncio future from there, on whichever loop
//! awaits; cancelling that future aborts the task. Either way a call that is given up is dropped at once.

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

/// How long Ctrl-C may go unnoticed.
const TICK: Duration = Duration::from_millis(50);

/// Python's None: `()` would be an empty tuple there.
pub(crate) const NOTHING: Option<()> = None;

/// Makes the Python value of an answer, once the GIL is held.
type Value = Box<dyn FnOnce(Python<'_>) -> PyResult<Py<PyAny>> + Send>;
/// What is done when the caller has the answer, and not done if the caller gives the call up before.
type Given = Box<dyn FnOnce() + Send + Sync>;
type Work = Pin<Box<dyn Future<Output = Answer> + Send>>;

struct Answer {
    value: Value,
    given: Option<Given>,
}

/// One operation, to be waited for once.
#[pyclass(frozen, module = "sandpod._native")]
pub(crate) struct Call(Mutex<Option<Resident<Work>>>);

impl Call {
    /// A call that does `work` when it is waited for.
    pub(crate) fn new<T, E>(work: impl Future<Output = Result<T, E>> + Send + 'static) -> Self
    where
        T: for<'py> IntoPyObject<'py> + Send + 'static,
        PyErr: From<E>,
        E: Send + 'static,
    {
        Self::of(work, None)
    }

    /// A call that does `work`, and `given` when Python has the answer.
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
    /// Blocks until the answer is there. Other Python threads run meanwhile, and Ctrl-C ends the call.
    fn wait(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let (mut work, runtime) = (self.take()?, runtime::current()?);
        let answer: PyResult<Answer> = py.detach(move || {
            let work = work.get_mut().ok_or_else(forked)?;
            loop {
                if let Ok(answer) = runtime.block_on(async { timeout(TICK, work.as_mut()).await }) {
                    return Ok(answer);
                }
                // Outside the runtime: a signal's handler may be Python that calls us. An interpreter that ends has none.
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

    /// What `await` iterates over: an asyncio future of the running loop.
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
                // Where the GIL may be waited for: not on the threads that move everybody's bytes.
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

/// The asyncio future that waits for an answer, and its loop.
struct Waiter {
    event_loop: Py<PyAny>,
    future: Py<PyAny>,
}

impl Waiter {
    /// Hands the answer over. Nobody is there to hear that the loop is closed or the interpreter is about to end.
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

/// Runs on the loop's own thread, the only one that may touch its futures.
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

/// On its way to the loop's thread with an answer: what is done there when the caller has that.
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

/// Called when an asyncio future is done: aborts the task behind it if that is because it was cancelled.
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
