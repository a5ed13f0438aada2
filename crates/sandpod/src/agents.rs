//! Code that the bindings for agent frameworks share, without the types of any language.
//!
//! A [`LazyProvider`] reads its kubeconfig with its first call. [`Threads`] finds or creates the sandbox of each
//! conversation thread. [`upload_files`] and [`download_files`] transfer several files within common limits. A
//! [`ToolError`] has the text that an agent's tool returns for an error, and [`offload`] shortens outputs that are too
//! long for a conversation. [`forward_logs`] passes the log to a language's own logging library. Bindings only convert
//! types.

mod files;
mod lazy;
mod logs;
pub mod offload;
mod threads;
mod time;
mod tool_error;

pub use self::files::{MAX_DOWNLOAD_BYTES, download_files, upload_files};
pub use self::lazy::LazyProvider;
pub use self::logs::{LogLine, forward_logs};
pub use self::threads::{SCOPE_LABEL, SHUTDOWN_TIMEOUT, THREAD_LABEL, ThreadLife, ThreadState, Threads};
pub use self::time::unix_seconds;
pub use self::tool_error::{Surface, ToolError};
