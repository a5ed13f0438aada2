//! The details of sandboxes that a provider returns to JavaScript.

use std::collections::HashMap;
use std::time::SystemTime;

use napi_derive::napi;
use sandpod::agents::unix_seconds;

#[napi(object, object_from_js = false)]
pub struct Info {
    pub id: String,
    pub namespace: String,
    pub thread_id: Option<String>,
    pub labels: HashMap<String, String>,
    pub annotations: HashMap<String, String>,
    /// Milliseconds since the Unix epoch, like `last_activity`.
    pub created_at: Option<f64>,
    pub last_activity: Option<f64>,
    pub status: String,
    pub connection: Option<String>,
    pub connection_reason: Option<String>,
    pub durable_dirs: Vec<String>,
}

impl From<sandpod::SandboxInfo> for Info {
    fn from(info: sandpod::SandboxInfo) -> Self {
        Self {
            id: info.id.to_string(),
            namespace: info.namespace,
            thread_id: info.thread_id,
            labels: info.labels.into_iter().collect(),
            annotations: info.annotations.into_iter().collect(),
            created_at: info.created_at.map(milliseconds),
            last_activity: info.last_activity.map(milliseconds),
            status: info.status.as_str().to_owned(),
            connection: info.connection,
            connection_reason: info.connection_reason,
            durable_dirs: info.durable_dirs,
        }
    }
}

#[napi(object, object_from_js = false)]
pub struct Page {
    pub sandboxes: Vec<Info>,
    pub cursor: Option<String>,
}

#[napi(object, object_from_js = false)]
pub struct Cleaned {
    pub deleted: Vec<String>,
    pub kept: u32,
}

#[napi(object, object_from_js = false)]
pub struct Deletion {
    pub deleted: Vec<String>,
    pub error: Option<String>,
}

#[napi(object, object_from_js = false)]
pub struct ProviderStats {
    pub total: u32,
    pub running: u32,
    pub warm: u32,
    pub idle: u32,
    pub thread_ids: Vec<String>,
}

impl From<sandpod::ProviderStats> for ProviderStats {
    fn from(stats: sandpod::ProviderStats) -> Self {
        Self {
            total: count(stats.total),
            running: count(stats.running),
            warm: count(stats.warm),
            idle: count(stats.idle),
            thread_ids: stats.thread_ids,
        }
    }
}

#[napi(object, object_from_js = false)]
pub struct Pool {
    pub available: u32,
    pub active: u32,
    pub total: u32,
    pub target: u32,
}

impl From<sandpod::PoolStatus> for Pool {
    fn from(pool: sandpod::PoolStatus) -> Self {
        Self {
            available: count(pool.available),
            active: count(pool.active),
            total: count(pool.total),
            target: count(pool.target),
        }
    }
}

pub(crate) fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

pub(crate) fn milliseconds(time: SystemTime) -> f64 {
    unix_seconds(time) * 1000.0
}
