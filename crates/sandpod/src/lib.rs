//! Sandboxes for AI agents: the library that users import.
//!
//! A [`Provider`] creates sandboxes from a [`Config`] such as [`RawConfig`], finds them by their [`SandboxId`] and
//! deletes them. It returns a [`SandboxHandle`], whose [`Sandbox`] runs commands and file operations. The crate uses
//! `sandpod-client` to communicate with guests and `sandpod-kube` to communicate with Kubernetes.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use sandpod::{ExecuteOptions, Provider, RawConfig, SandboxRequest};
//!
//! let provider = Provider::connect(RawConfig::default()).await?;
//! let handle = provider.get_or_create(SandboxRequest::default()).await?;
//! let executed = handle.sandbox.execute("echo hello", ExecuteOptions::default()).await?;
//! assert_eq!(executed.output, "hello\n");
//! provider.delete(handle.id.as_str(), true).await?;
//! # Ok(())
//! # }
//! ```

pub mod agents;
mod audit;
mod backend;
mod config;
pub mod doctor;
mod error;
mod guard;
mod guest_binaries;
mod id;
mod labels;
mod metrics;
mod modes;
mod naming;
mod provider;
mod setup;

pub use audit::{
    Audit, AuditConfig, AuditEvent, AuditFile, AuditHead, AuditOptions, AuditSink, CommandRedaction,
    Decision, Otlp, Phase, Redaction, verify as verify_audit,
};
pub use backend::local::{GuestProgram, LocalConfig, LocalMount, LocalNetwork};
pub use backend::raw::RouterDoor;
pub use backend::{GuestDelivery, OnLost, install_guest};
pub use config::{
    AgentSandboxConfig, Layer, ProcessLayers, RawConfig, TYPESCRIPT_OPTIONS, TypescriptOption, camel_case,
    typescript_name,
};
pub use error::{Error, Result};
pub use guard::{
    CANCELLED, Checked, CommandRules, DenyScope, Operation, Process, ProcessInfo, Receipt, Sandbox,
    SandboxPolicy, Traversal,
};
pub use guest_binaries::{EmbeddedGuest, embed_guests};
pub use id::SandboxId;
pub use metrics::{Metrics, OperationMetrics};
pub use modes::{Config, Mode};
pub use naming::Naming;
pub use provider::{
    CleanupResult, DeletionResult, ListOptions, PoolStatus, Provider, SandboxHandle, SandboxInfo,
    SandboxPage, SandboxRequest, Stats as ProviderStats, Status,
};
pub use sandpod_client::{
    CallRow, Command, Enforced, Error as CallError, ErrorCase, ErrorCode, ErrorKind, Escaped, Event,
    ExecuteOptions, Executed, Exit, FileInfo, FileKind, GrepOptions, Incomplete, Network, Notice, Policy,
    Retry, StartOptions, Stats, StreamMetrics, TerminalSize, TreeLimits, TreeProgress, TreeSummary,
};
