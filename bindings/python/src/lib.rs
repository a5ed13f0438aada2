//! The native half of the Python package: it converts values and contains no rules of its own.
//!
//! A `Provider` creates and finds sandboxes, and a `Sandbox` runs operations in one. Their methods that do I/O return a
//! `Call`, which Python waits for or awaits. All calls run on the single tokio runtime of the process.

mod bridge;
mod errors;
mod guard;
mod info;
mod logs;
mod process;
mod provider;
mod runtime;
mod sandbox;
mod threads;
mod tools;
mod tree;

/// The private native module. The Python files of the package are its public interface.
#[pyo3::pymodule(gil_used = false)]
mod _native {
    #[pymodule_export]
    use crate::bridge::Call;
    #[pymodule_export]
    use crate::guard::{Policy, Receipt, verify_audit};
    #[pymodule_export]
    use crate::logs::forward_logs;
    #[pymodule_export]
    use crate::process::{Output, Process};
    #[pymodule_export]
    use crate::provider::{Provider, check_mode, default_scope, load_options};
    #[pymodule_export]
    use crate::sandbox::Sandbox;
    #[pymodule_export]
    use crate::threads::Threads;
    #[pymodule_export]
    use crate::tools::{
        capture_limit, exit_code_without_result, output_preview, tool_error, truncated_output,
    };
    #[pymodule_export]
    use crate::tree::Progress;
}
