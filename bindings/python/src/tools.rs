//! The texts that tools return: errors, and shortened outputs.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use sandpod::agents::{Surface, ToolError, offload};

/// Returns the text of a tool for an error about `path`.
#[pyfunction]
#[pyo3(signature = (tool, code, message, path = "", *, old = "", max_binary_bytes = 0))]
pub(crate) fn tool_error(
    tool: &str,
    code: &str,
    message: &str,
    path: &str,
    old: &str,
    max_binary_bytes: u64,
) -> PyResult<String> {
    let error = ToolError::new(Surface::Python, code, message);
    Ok(match tool {
        "read" => error.read(path, max_binary_bytes),
        "write" => error.write(path),
        "edit" => error.edit(path, old),
        "delete" => error.delete(path),
        "list" => error.list(path),
        "glob" => error.glob(path),
        "transfer" => error.transfer(),
        other => return Err(PyValueError::new_err(format!("There is no tool {other:?}."))),
    })
}

/// Returns the exit code of a command without a result, or None if the command may have run.
#[pyfunction]
pub(crate) fn exit_code_without_result(code: &str) -> Option<i32> {
    ToolError::new(Surface::Python, code, "").exit_code()
}

/// Returns the number of bytes of output to capture if the caller requests `max_bytes`.
#[pyfunction]
#[pyo3(signature = (max_bytes))]
pub(crate) fn capture_limit(max_bytes: Option<u64>) -> u64 {
    offload::capture_limit(max_bytes)
}

/// Returns the shortened output for a result without a file, or None if the output fits.
#[pyfunction]
pub(crate) fn truncated_output(output: &str) -> Option<&str> {
    offload::truncated(output)
}

/// Returns the first and last lines of a captured output, and whether a marker has the number of omitted lines.
#[pyfunction]
pub(crate) fn output_preview(output: &str) -> (String, bool) {
    let preview = offload::preview(output);
    (preview.text, preview.has_marker)
}
