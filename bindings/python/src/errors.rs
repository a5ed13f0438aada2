//! Converts failures to Python exceptions. `python/sandpod/errors.py` defines the classes.

use pyo3::IntoPyObjectExt as _;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyAny;

pyo3::import_exception!(sandpod.errors, SandboxError);
pyo3::import_exception!(sandpod.errors, SandboxNotFoundError);

/// A failed operation in a sandbox. It is always a `SandboxError`, which the Python side converts to a result.
pub(crate) struct OperationError(sandpod_client::Error);

impl From<sandpod_client::Error> for OperationError {
    fn from(error: sandpod_client::Error) -> Self {
        Self(error)
    }
}

impl From<OperationError> for PyErr {
    fn from(OperationError(error): OperationError) -> Self {
        SandboxError::new_err((error.to_string(), error.code()))
    }
}

/// A failed call of a provider.
pub(crate) struct ProviderError(sandpod::Error);

impl From<sandpod::Error> for ProviderError {
    fn from(error: sandpod::Error) -> Self {
        Self(error)
    }
}

impl From<ProviderError> for PyErr {
    fn from(ProviderError(error): ProviderError) -> Self {
        let message = error.to_string();
        match error.kind().python_class() {
            "ValueError" => PyValueError::new_err(message),
            "SandboxNotFoundError" => SandboxNotFoundError::new_err(message),
            _ => SandboxError::new_err((message, error.code())),
        }
    }
}

/// Returns the error for an object that was created before the process forked.
pub(crate) fn forked(what: &str, next: &str) -> PyErr {
    let message =
        format!("This {what} was made before the process forked, and its connection is the parent's. {next}");
    SandboxError::new_err((message, "forked"))
}

/// The outcome of one item of a batch: its value, or its exception, which is returned and not raised.
pub(crate) struct Outcome<T>(pub(crate) Result<T, OperationError>);

impl<'py, T: IntoPyObject<'py>> IntoPyObject<'py> for Outcome<T> {
    type Target = PyAny;
    type Output = Bound<'py, PyAny>;
    type Error = PyErr;

    fn into_pyobject(self, py: Python<'py>) -> PyResult<Self::Output> {
        match self.0 {
            Ok(value) => value.into_bound_py_any(py),
            Err(error) => PyErr::from(error).into_value(py).into_bound_py_any(py),
        }
    }
}
