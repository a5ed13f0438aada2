//! The one tokio runtime of this process, and what lives on it.
//!
//! It starts with the first call and is never shut down: at exit the kernel ends its threads. A forked child has the
//! memory of its parent's runtime but none of its threads, and locks in it may be held for ever; so the child gets a
//! runtime of its own, and what lived on its parent's is neither used nor dropped there.

use std::process;
use std::sync::atomic::{AtomicPtr, Ordering};

use pyo3::PyResult;
use pyo3::exceptions::PyRuntimeError;
use tokio::runtime::{Builder, Runtime};

/// A runtime and the process whose threads it has.
struct Process {
    id: u32,
    runtime: Runtime,
}

/// No lock guards it: one that another thread holds while we fork stays locked in the child.
static CURRENT: AtomicPtr<Process> = AtomicPtr::new(std::ptr::null_mut());

/// The runtime of this process, started if need be.
pub(crate) fn current() -> PyResult<&'static Runtime> {
    let found = CURRENT.load(Ordering::Acquire);
    if let Some(process) = of_pointer(found).filter(|process| process.id == process::id()) {
        return Ok(&process.runtime);
    }
    let runtime =
        Builder::new_multi_thread().worker_threads(2).thread_name("sandpod").enable_all().build().map_err(
            |error| PyRuntimeError::new_err(format!("cannot start the threads of sandpod: {error}")),
        )?;
    let new = Box::into_raw(Box::new(Process { id: process::id(), runtime }));
    if CURRENT.compare_exchange(found, new, Ordering::AcqRel, Ordering::Acquire).is_err() {
        // Another thread was quicker; ours has done nothing yet.
        discard(new);
    }
    current()
}

#[expect(unsafe_code, reason = "a pointer that is swapped without a lock")]
fn of_pointer(pointer: *mut Process) -> Option<&'static Process> {
    // SAFETY: what CURRENT has held is never freed, and nothing mutates it.
    unsafe { pointer.as_ref() }
}

#[expect(unsafe_code, reason = "takes back what Box::into_raw gave")]
fn discard(pointer: *mut Process) {
    // SAFETY: the pointer comes from Box::into_raw just above its only use, and was published nowhere.
    unsafe { Box::from_raw(pointer) }.runtime.shutdown_background();
}

/// A value that lives on this process's runtime. In a forked child it can't be reached, and is forgotten, not dropped.
pub(crate) struct Resident<T> {
    process: u32,
    value: Option<T>,
}

impl<T> Resident<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { process: process::id(), value: Some(value) }
    }

    /// The value, unless this is a fork of the process that made it.
    pub(crate) fn get(&self) -> Option<&T> {
        self.value.as_ref().filter(|_| self.process == process::id())
    }

    /// Mutable access, under the same condition.
    pub(crate) fn get_mut(&mut self) -> Option<&mut T> {
        self.value.as_mut().filter(|_| self.process == process::id())
    }
}

impl<T> Drop for Resident<T> {
    fn drop(&mut self) {
        let Some(value) = self.value.take() else { return };
        match current() {
            // Inside the runtime, because a value may end its tasks with one more task.
            Ok(runtime) if self.process == process::id() => {
                let _inside = runtime.enter();
                drop(value);
            }
            _ => std::mem::forget(value),
        }
    }
}
