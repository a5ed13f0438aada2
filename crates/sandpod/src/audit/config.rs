//! The audit of a configuration.

use std::path::PathBuf;

use super::{Audit, AuditFile, AuditOptions, AuditSink, CommandRedaction, Otlp};
use crate::Result;

/// The audit of a configuration.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct AuditConfig {
    /// File with a hash chain.
    pub file: Option<PathBuf>,
    /// URL of an OpenTelemetry collector.
    pub otlp_endpoint: Option<String>,
    /// Command text in events.
    pub commands: CommandRedaction,
    /// Reject operations whose event cannot be recorded.
    pub strict: bool,
}

impl AuditConfig {
    /// Starts the audit with the configured sinks and `more`. None if there is no sink.
    pub fn with(&self, more: Option<Box<dyn AuditSink>>) -> Result<Option<Audit>> {
        let mut sinks: Vec<Box<dyn AuditSink>> = more.into_iter().collect();
        if let Some(path) = &self.file {
            sinks.push(Box::new(AuditFile::open(path)?));
        }
        if let Some(endpoint) = &self.otlp_endpoint {
            sinks.push(Box::new(Otlp::new(endpoint)?));
        }
        if sinks.is_empty() {
            return Ok(None);
        }
        let options = AuditOptions { strict: self.strict, commands: self.commands, redact: None };
        Audit::new(sinks, options).map(Some)
    }
}
