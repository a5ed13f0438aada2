//! The audit that a configuration names.

use std::path::PathBuf;

use super::{Audit, AuditFile, AuditOptions, AuditSink, CommandRedaction, Otlp};
use crate::Result;

/// Who hears of every operation, as a configuration says it.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct AuditConfig {
    /// A file, in a chain of hashes.
    pub file: Option<PathBuf>,
    /// An OpenTelemetry collector.
    pub otlp_endpoint: Option<String>,
    /// What is told of commands.
    pub commands: CommandRedaction,
    /// What can't be told is not done.
    pub strict: bool,
}

impl AuditConfig {
    /// The audit that it names, and `more` as well; none: there is nobody to tell.
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
