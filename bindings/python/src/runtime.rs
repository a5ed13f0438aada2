//! The tokio runtime of this process, and [`Resident`] values, which belong to it.
//!
//! The first call starts the runtime. It is never shut down: the kernel ends its threads at exit. A forked child has
//! the memory of its parent's runtime, but not its threads, and locks in that memory may stay held for ever. Therefore
//! the child starts a runtime of its own, and neither uses nor drops the values of its parent's runtime.

use std::process;
use std::sync::atomic::{AtomicPtr, Ordering};

use pyo3::PyResult;
use pyo3::exceptions::PyRuntimeError;
use tokio::runtime::{Builder, Runtime};

/// A runtime and the id of the process that runs its threads.
struct Process {
    id: u32,
    runtime: Runtime,
}

/// An atomic pointer instead of a lock: a lock that another thread holds during a fork stays locked in the child.
static CURRENT: AtomicPtr<Process> = AtomicPtr::new(std::ptr::null_mut());

/// Returns the runtime of this process, and starts it if necessary.
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
        // Another thread started a runtime first; ours has no tasks yet.
        discard(new);
    }
    current()
}

#[expect(unsafe_code, reason = "a pointer that is swapped without a lock")]
fn of_pointer(pointer: *mut Process) -> Option<&'static Process> {
    // SAFETY: a value stored in CURRENT is never freed or mutated.
    unsafe { pointer.as_ref() }
}

#[expect(unsafe_code, reason = "takes back what Box::into_raw gave")]
fn discard(pointer: *mut Process) {
    // SAFETY: the only caller passes a pointer from Box::into_raw that was never published.
    unsafe { Box::from_raw(pointer) }.runtime.shutdown_background();
}

/// A value that belongs to the runtime of this process. A forked child cannot access it, and leaks it on drop.
pub(crate) struct Resident<T> {
    process: u32,
    value: Option<T>,
}

impl<T> Resident<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { process: process::id(), value: Some(value) }
    }

    /// Returns the value, or None in a fork of the process that created it.
    pub(crate) fn get(&self) -> Option<&T> {
        self.value.as_ref().filter(|_| self.process == process::id())
    }

    /// Returns the value for mutation, or None in a fork of the process that created it.
    pub(crate) fn get_mut(&mut self) -> Option<&mut T> {
        self.value.as_mut().filter(|_| self.process == process::id())
    }
}

impl<T> Drop for Resident<T> {
    fn drop(&mut self) {
        let Some(value) = self.value.take() else { return };
        match current() {
            // Inside the runtime, because dropping a value may spawn a task.
            Ok(runtime) if self.process == process::id() => {
                let _inside = runtime.enter();
                drop(value);
            }
            _ => std::mem::forget(value),
        }
    }
}
