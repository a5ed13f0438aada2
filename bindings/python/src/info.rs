//! The details of sandboxes that a provider returns to Python. Times are seconds since the Unix epoch.

use std::collections::BTreeMap;

use pyo3::prelude::*;
use sandpod::agents::unix_seconds;
use sandpod::{GuestDelivery, SandboxId};

#[derive(IntoPyObject)]
pub(crate) struct Info {
    id: String,
    namespace: String,
    thread_id: Option<String>,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
    created_at: Option<f64>,
    last_activity: Option<f64>,
    status: &'static str,
    guest_delivery: Option<&'static str>,
    guest_delivery_reason: Option<String>,
    connection: Option<String>,
    connection_reason: Option<String>,
    durable_dirs: Vec<String>,
}

impl From<sandpod::SandboxInfo> for Info {
    fn from(info: sandpod::SandboxInfo) -> Self {
        Self {
            id: info.id.to_string(),
            namespace: info.namespace,
            thread_id: info.thread_id,
            labels: info.labels,
            annotations: info.annotations,
            created_at: info.created_at.map(unix_seconds),
            last_activity: info.last_activity.map(unix_seconds),
            status: info.status.as_str(),
            guest_delivery: info.guest_delivery.map(GuestDelivery::as_str),
            guest_delivery_reason: info.guest_delivery_reason,
            connection: info.connection,
            connection_reason: info.connection_reason,
            durable_dirs: info.durable_dirs,
        }
    }
}

#[derive(IntoPyObject)]
pub(crate) struct Page {
    sandboxes: Vec<Info>,
    cursor: Option<String>,
}

impl From<sandpod::SandboxPage> for Page {
    fn from(page: sandpod::SandboxPage) -> Self {
        Self { sandboxes: page.sandboxes.into_iter().map(Info::from).collect(), cursor: page.cursor }
    }
}

#[derive(IntoPyObject)]
pub(crate) struct Cleaned {
    deleted: Vec<String>,
    kept: usize,
}

impl From<sandpod::CleanupResult> for Cleaned {
    fn from(cleaned: sandpod::CleanupResult) -> Self {
        let deleted = cleaned.deleted.iter().map(SandboxId::to_string).collect();
        Self { deleted, kept: cleaned.kept }
    }
}

#[derive(IntoPyObject)]
pub(crate) struct Stats {
    total: usize,
    running: usize,
    warm: usize,
    idle: usize,
    thread_ids: Vec<String>,
}

impl From<sandpod::ProviderStats> for Stats {
    fn from(stats: sandpod::ProviderStats) -> Self {
        let sandpod::ProviderStats { total, running, warm, idle, thread_ids, .. } = stats;
        Self { total, running, warm, idle, thread_ids }
    }
}

#[derive(IntoPyObject)]
pub(crate) struct Pool {
    available: usize,
    active: usize,
    total: usize,
    target: usize,
}

impl From<sandpod::PoolStatus> for Pool {
    fn from(pool: sandpod::PoolStatus) -> Self {
        let sandpod::PoolStatus { available, active, total, target, .. } = pool;
        Self { available, active, total, target }
    }
}
