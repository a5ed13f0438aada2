//! Waits until a Pod runs, and reports at once why it can't start.

use std::time::Duration;

use sandpod_kube::k8s_openapi::api::core::v1::{ContainerStatus, Event, Pod, PodCondition, PodStatus};
use sandpod_kube::kube::Api;
use sandpod_kube::kube::api::{ListParams, LogParams};
use sandpod_kube::watch::SharedWatch;
use tokio::time::{Instant, timeout_at};

use super::api::{Watch, within};
use super::loss::loss;
use crate::config::CONTAINER;
use crate::{Error, ErrorCase, ErrorKind, Result};

/// Reasons of a waiting container that no retry fixes. `ErrImagePull` is not one: the kubelet retries, and reports
/// `ImagePullBackOff` if that fails too.
const PERMANENT_REASONS: [&str; 9] = [
    "CrashLoopBackOff",
    "CreateContainerConfigError",
    "CreateContainerError",
    "ErrImageNeverPull",
    "ImageInspectError",
    "ImagePullBackOff",
    "InvalidImageName",
    "RunContainerError",
    "SignatureValidationFailed",
];

/// A Pod that is waited for.
pub(in crate::backend) struct Awaited<'a> {
    pub(in crate::backend) pods: &'a Api<Pod>,
    pub(in crate::backend) watch: &'a SharedWatch<Pod>,
    pub(in crate::backend) namespace: &'a str,
    pub(in crate::backend) name: &'a str,
    pub(in crate::backend) uid: &'a str,
    pub(in crate::backend) limit: Duration,
    /// How long no node may fit the Pod: one may become free, or be added.
    pub(in crate::backend) node_grace: Duration,
}

/// What the state of a Pod shows about its start.
#[derive(Debug, PartialEq)]
enum Progress {
    Running(Box<Pod>),
    Waiting(String),
    /// No node fits the Pod, with the scheduler's message.
    NoNode(String),
    Failed(Failed),
    Lost(String),
}

/// Why a Pod can't start.
#[derive(Debug, PartialEq)]
struct Failed {
    reason: String,
    /// The container that crashes repeatedly, whose log is read.
    crashed: Option<String>,
}

impl Awaited<'_> {
    /// Waits until the sandbox's container runs and returns the Pod.
    pub(in crate::backend) async fn running(&self) -> Result<Pod> {
        let deadline = Instant::now() + self.limit;
        let mut node_deadline: Option<Instant> = None;
        let mut last = "nothing".to_owned();
        let mut watch = Watch::new(self.watch, self.name);
        loop {
            let until = node_deadline.map_or(deadline, |node| node.min(deadline));
            let pod = match timeout_at(until, watch.next()).await {
                Ok(pod) => pod?,
                Err(_) if until < deadline => return Err(self.failed(&format!("no node fits: {last}"))),
                Err(_) => return Err(self.slow(&last).await),
            };
            match self.judge(pod.as_deref()) {
                Progress::Running(pod) => return Ok(*pod),
                Progress::Lost(reason) => {
                    let next = "It was deleted while it started: create the sandbox again.";
                    return Err(Error::new(ErrorKind::NotFound, reason, next));
                }
                Progress::Failed(failed) => return Err(self.explain(failed).await),
                Progress::NoNode(reason) => {
                    node_deadline = node_deadline.or_else(|| Some(Instant::now() + self.node_grace));
                    last = reason;
                }
                Progress::Waiting(reason) => (node_deadline, last) = (None, reason),
            }
        }
    }

    /// Returns the Pod if the sandbox's container ran when it was read.
    pub(in crate::backend) fn running_already(&self, pod: Option<&Pod>) -> Option<Pod> {
        match self.judge(pod) {
            Progress::Running(pod) => Some(*pod),
            _ => None,
        }
    }

    fn judge(&self, pod: Option<&Pod>) -> Progress {
        let ended = pod.filter(|pod| has_ended(pod)).and_then(|pod| pod.status.as_ref());
        if let Some(status) = ended {
            let phase = status.phase.as_deref().unwrap_or_default();
            let why = status.message.clone().or_else(|| status.reason.clone());
            let why = why.or_else(|| containers(status).find_map(failure));
            let why = why.map(|why| format!(" ({why})")).unwrap_or_default();
            let name = self.name;
            let reason = format!("Pod '{name}' entered terminal phase '{phase}' during startup{why}.");
            return Progress::Failed(Failed { reason, crashed: None });
        }
        if let Some(reason) = loss(pod, self.namespace, self.name, self.uid) {
            return Progress::Lost(reason);
        }
        let Some((pod, status)) = pod.and_then(|pod| Some((pod, pod.status.as_ref()?))) else {
            return Progress::Waiting("no status yet".to_owned());
        };
        let sandbox = status.container_statuses.iter().flatten().find(|one| one.name == CONTAINER);
        let state = sandbox.and_then(|container| container.state.as_ref());
        if state.is_some_and(|state| state.running.is_some()) {
            return Progress::Running(Box::new(pod.clone()));
        }
        if let Some((reason, container)) =
            containers(status).find_map(|one| Some((permanent_failure(one)?, one)))
        {
            let crashed = reason.starts_with("CrashLoopBackOff").then(|| container.name.clone());
            let reason = format!("Pod '{}' can't start: {reason}.", self.name);
            return Progress::Failed(Failed { reason, crashed });
        }
        match unschedulable(status) {
            Some(condition) => Progress::NoNode(condition.message.clone().unwrap_or_default()),
            None => Progress::Waiting(describe(status)),
        }
    }

    fn failed(&self, reason: &str) -> Error {
        let message = format!("Pod '{}' can't start: {}.", self.name, reason.trim_end_matches('.'));
        Error::new(ErrorKind::StartFailed, message, self.events())
    }

    async fn slow(&self, last: &str) -> Error {
        let (name, seconds) = (self.name, self.limit.as_secs());
        let message = format!("Pod '{name}' did not reach Running phase within {seconds}s.");
        let warning = self.last_warning().await.map(|warning| format!("; last warning: {warning}"));
        let seen = format!("last seen: {last}{}", warning.unwrap_or_default());
        Error::of_case(ErrorCase::StartupTimeout, message, format!("{} ({seen})", self.events()))
    }

    /// Returns the last warning event, if events can be read. A volume that can't be mounted shows up only there.
    async fn last_warning(&self) -> Option<String> {
        let events: Api<Event> = Api::namespaced(self.pods.clone().into_client(), self.namespace);
        let selector = format!("involvedObject.uid={},type=Warning", self.uid);
        let wanted = ListParams::default().fields(&selector).limit(100);
        let warnings = within(events.list(&wanted)).await.ok()?.items;
        let last = warnings.into_iter().max_by_key(|event| event.last_timestamp.clone())?;
        let reason = last.reason.unwrap_or_default();
        Some(format!("{reason}: {}", last.message.unwrap_or_default()))
    }

    fn events(&self) -> String {
        format!("Check Pod events: kubectl describe pod -n {} {}", self.namespace, self.name)
    }

    /// Adds the last output of a crashed container, if its log can be read.
    async fn explain(&self, failed: Failed) -> Error {
        let said = match &failed.crashed {
            Some(container) => self.last_words(container).await,
            None => String::new(),
        };
        Error::new(ErrorKind::StartFailed, format!("{}{said}", failed.reason), self.events())
    }

    async fn last_words(&self, container: &str) -> String {
        let wanted = LogParams {
            container: Some(container.to_owned()),
            previous: true,
            tail_lines: Some(5),
            limit_bytes: Some(2048),
            ..LogParams::default()
        };
        match within(self.pods.logs(self.name, &wanted)).await {
            Ok(log) if !log.trim().is_empty() => format!(" Its last output: {}", log.trim()),
            _ => String::new(),
        }
    }
}

fn has_ended(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    pod.metadata.deletion_timestamp.is_none() && matches!(phase, Some("Failed" | "Succeeded"))
}

pub(in crate::backend) fn containers(status: &PodStatus) -> impl Iterator<Item = &ContainerStatus> {
    status.init_container_statuses.iter().flatten().chain(status.container_statuses.iter().flatten())
}

/// Returns the reason if this container will not start.
pub(in crate::backend) fn permanent_failure(container: &ContainerStatus) -> Option<String> {
    let waiting = container.state.as_ref()?.waiting.as_ref()?;
    let reason = waiting.reason.as_deref().filter(|reason| PERMANENT_REASONS.contains(reason))?;
    let message = waiting.message.as_deref().unwrap_or("no message from the cluster").trim_end_matches('.');
    let crash = container.last_state.as_ref().and_then(|state| state.terminated.as_ref());
    let crash = crash.map(|end| {
        let said = end.message.as_deref().or(end.reason.as_deref()).unwrap_or_default();
        format!(" (exit code {}: {})", end.exit_code, said.trim())
    });
    Some(format!("{reason}: {message}{}", crash.unwrap_or_default()))
}

/// Returns how this container has failed, if it has.
fn failure(container: &ContainerStatus) -> Option<String> {
    let end = container.state.as_ref()?.terminated.as_ref().filter(|end| end.exit_code != 0)?;
    let said = end.message.as_deref().or(end.reason.as_deref()).unwrap_or_default();
    Some(format!("container '{}' ended with exit code {}: {}", container.name, end.exit_code, said.trim()))
}

fn unschedulable(status: &PodStatus) -> Option<&PodCondition> {
    status.conditions.iter().flatten().find(|condition| {
        condition.type_ == "PodScheduled" && condition.reason.as_deref() == Some("Unschedulable")
    })
}

/// Describes what a starting Pod waits for.
fn describe(status: &PodStatus) -> String {
    let waiting = containers(status).find_map(|container| container.state.as_ref()?.waiting.as_ref());
    let Some(waiting) = waiting else {
        return status.phase.clone().unwrap_or_default();
    };
    [waiting.reason.as_deref(), waiting.message.as_deref()]
        .into_iter()
        .flatten()
        .collect::<Vec<_>>()
        .join(": ")
}

#[cfg(test)]
mod tests {
    use sandpod_kube::kube::{Client, Config};
    use serde_json::{Value, json};

    use super::*;

    /// Returns the progress of a Pod with this status.
    fn judge(status: &Value) -> Progress {
        let config = Config::new("http://127.0.0.1:1".parse().unwrap());
        let client: Client = sandpod_kube::client::client(&config).unwrap();
        let pods = Api::namespaced(client, "n");
        let limit = Duration::from_secs(1);
        let watch = SharedWatch::new(pods.clone(), "");
        let awaited = Awaited {
            pods: &pods,
            watch: &watch,
            namespace: "n",
            name: "p",
            uid: "1",
            limit,
            node_grace: limit,
        };
        let pod: Pod =
            serde_json::from_value(json!({ "metadata": { "name": "p", "uid": "1" }, "status": status }))
                .unwrap();
        awaited.judge(Some(&pod))
    }

    fn container(name: &str, state: &Value) -> Value {
        json!([{ "name": name, "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state }])
    }

    #[tokio::test]
    async fn the_sandboxs_own_container_must_run() {
        let running = json!({ "running": {} });
        let one = json!({ "containerStatuses": container("sandbox", &running) });
        assert!(matches!(judge(&one), Progress::Running(_)));
        let other = json!({ "containerStatuses": container("sidecar", &running) });
        assert!(matches!(judge(&other), Progress::Waiting(_)));
    }

    #[tokio::test]
    async fn a_permanent_failure_is_reported_at_once_with_the_clusters_message() {
        for reason in PERMANENT_REASONS {
            let waiting = json!({ "waiting": { "reason": reason, "message": "the words" } });
            for kind in ["containerStatuses", "initContainerStatuses"] {
                let Progress::Failed(failed) = judge(&json!({ kind: container("sandbox", &waiting) })) else {
                    panic!("{reason} in {kind} does not fail");
                };
                assert_eq!(failed.reason, format!("Pod 'p' can't start: {reason}: the words."));
            }
        }
    }

    #[tokio::test]
    async fn an_image_pull_that_is_retried_is_waited_for() {
        let waiting = json!({ "waiting": { "reason": "ErrImagePull", "message": "x" } });
        let progress = judge(&json!({ "containerStatuses": container("sandbox", &waiting) }));
        assert_eq!(progress, Progress::Waiting("ErrImagePull: x".to_owned()));
    }

    #[tokio::test]
    async fn a_terminal_phase_is_named() {
        let Progress::Failed(failed) = judge(&json!({ "phase": "Failed", "reason": "NodeAffinity" })) else {
            panic!("it does not fail");
        };
        assert_eq!(failed.reason, "Pod 'p' entered terminal phase 'Failed' during startup (NodeAffinity).");
    }

    #[tokio::test]
    async fn a_pod_without_a_fitting_node_has_the_schedulers_message() {
        let condition = json!([{
            "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes",
        }]);
        assert_eq!(judge(&json!({ "conditions": condition })), Progress::NoNode("0/1 nodes".to_owned()));
    }
}
