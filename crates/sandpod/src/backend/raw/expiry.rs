//! Ends sandboxes whose creation was never finished.
//!
//! A Lease can't expire by itself, so until its guest is bound a new one is owned by a Job without Pods. The Job is
//! complete from the beginning, and Kubernetes deletes it after its `ttlSecondsAfterFinished`. Garbage collection then
//! deletes the Lease and all that it owns. One Job serves all creations that a process begins within some time.

use std::collections::BTreeMap;
use std::time::Duration;

use sandpod_kube::k8s_openapi::api::batch::v1::Job;
use sandpod_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use sandpod_kube::kube::api::PostParams;
use sandpod_kube::kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::backend::kubernetes::anchor::MANAGED_BY;
use crate::backend::kubernetes::api::{find, within};
use crate::backend::kubernetes::object;
use crate::config::CONTAINER;
use crate::{Error, RawConfig, Result};

/// The prefix of the Jobs' names.
const PREFIX: &str = "sandpod-unfinished-";

/// The Jobs of one namespace that end unfinished sandboxes.
pub(super) struct ExpiryJobs {
    jobs: Api<Job>,
    image: String,
    /// The last Job of each lifetime in seconds.
    known: Mutex<BTreeMap<u64, Known>>,
}

/// The Job of one lifetime.
#[derive(Clone, PartialEq)]
struct Known {
    /// None if the cluster refused to create one.
    job: Option<OwnerReference>,
    end: Instant,
}

impl ExpiryJobs {
    pub(super) fn new(client: Client, config: &RawConfig) -> Self {
        let jobs = Api::namespaced(client, &config.namespace);
        Self { jobs, image: config.image.clone(), known: Mutex::default() }
    }

    /// Returns an owner for a new Lease that ends it within `lifetime`, but not before `least`. None if the cluster
    /// refuses to create one: then only a cleanup ends the Lease.
    pub(super) async fn owner(&self, lifetime: Duration, least: Duration) -> Result<Option<OwnerReference>> {
        let (seconds, usable) = (lifetime.as_secs(), |known: &Known| known.end >= Instant::now() + least);
        let known = self.known.lock().await.get(&seconds).filter(|known| usable(known)).cloned();
        match &known {
            Some(Known { job: None, .. }) => return Ok(None),
            // It may have been deleted, and a Lease without its owner is collected at once.
            Some(Known { job: Some(job), .. }) if self.is_there(job).await? => return Ok(Some(job.clone())),
            _ => {}
        }
        let mut all = self.known.lock().await;
        all.retain(|_, known| usable(known));
        // Another call may have created one meanwhile.
        if let Some(made) = all.get(&seconds).filter(|made| known.as_ref() != Some(made)) {
            return Ok(made.job.clone());
        }
        let end = Instant::now() + lifetime;
        let job = self.create(seconds).await?;
        all.insert(seconds, Known { job: job.clone(), end });
        Ok(job)
    }

    async fn is_there(&self, job: &OwnerReference) -> Result<bool> {
        match find(&self.jobs, &job.name).await {
            Ok(Some(found)) => {
                Ok(found.uid().as_ref() == Some(&job.uid) && found.metadata.deletion_timestamp.is_none())
            }
            Err(error) if error.is_outage() => Err(error),
            Ok(None) | Err(_) => Ok(false),
        }
    }

    async fn create(&self, seconds: u64) -> Result<Option<OwnerReference>> {
        let job: Job = object(manifest(seconds, &self.image))?;
        let created = within(self.jobs.create(&PostParams::default(), &job)).await;
        let error = match created
            .map_err(|cause| Error::api("create the Job that ends unfinished sandboxes", &cause))
        {
            Ok(created) => return Ok(created.uid().map(|uid| owner(created.name_any(), uid))),
            Err(error) => error,
        };
        if error.is_outage() {
            return Err(error);
        }
        tracing::warn!(%error, "a sandbox whose creation is killed will stay until a cleanup");
        Ok(None)
    }
}

fn owner(name: String, uid: String) -> OwnerReference {
    OwnerReference {
        api_version: "batch/v1".to_owned(),
        kind: "Job".to_owned(),
        name,
        uid,
        ..OwnerReference::default()
    }
}

/// Returns a Job that is complete without a Pod. Its template is never used and only satisfies admission policies.
fn manifest(seconds: u64, image: &str) -> Value {
    let container = json!({
        "name": CONTAINER,
        "image": image,
        "securityContext": { "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] } },
    });
    json!({
        "metadata": { "generateName": PREFIX, "labels": { MANAGED_BY.0: MANAGED_BY.1 } },
        "spec": {
            "completions": 0,
            "parallelism": 0,
            "ttlSecondsAfterFinished": seconds,
            "template": {
                "spec": {
                    "restartPolicy": "Never",
                    "automountServiceAccountToken": false,
                    "securityContext": { "runAsNonRoot": true, "seccompProfile": { "type": "RuntimeDefault" } },
                    "containers": [container],
                },
            },
        },
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use http::{Method, Request, Response};
    use sandpod_kube::kube::client::Body;

    use super::*;

    /// The Jobs of a cluster: how many were created, how many requests came, whether one exists and whether creating is
    /// refused.
    #[derive(Default)]
    struct Jobs {
        made: usize,
        asked: usize,
        there: bool,
        refuses: bool,
    }

    fn expiry_jobs() -> (ExpiryJobs, Arc<std::sync::Mutex<Jobs>>) {
        let jobs = Arc::new(std::sync::Mutex::new(Jobs::default()));
        let known = jobs.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let mut jobs = known.lock().unwrap();
            jobs.asked += 1;
            if request.method() == Method::POST && !jobs.refuses {
                (jobs.made, jobs.there) = (jobs.made + 1, true);
            }
            let named = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
            let name =
                if request.method() == Method::POST { format!("{PREFIX}{}", jobs.made) } else { named };
            let job = json!({ "metadata": { "name": name, "uid": name }, "spec": { "template": {} } });
            let refused =
                |code: u16| json!({ "status": "Failure", "code": code, "message": "no", "reason": "" });
            let (code, said) = match *request.method() {
                Method::POST if jobs.refuses => (403, refused(403)),
                Method::GET if !jobs.there => (404, refused(404)),
                _ => (200, job),
            };
            let answer = Response::builder().status(code).body(Body::from(said.to_string().into_bytes()));
            std::future::ready(answer.map_err(tower::BoxError::from))
        });
        (ExpiryJobs::new(Client::new(service, "n"), &RawConfig::default()), jobs)
    }

    const HOUR: Duration = Duration::from_secs(3600);
    const LEAST: Duration = Duration::from_secs(300);

    async fn name(expiry_jobs: &ExpiryJobs, lifetime: Duration) -> Option<String> {
        expiry_jobs.owner(lifetime, LEAST).await.unwrap().map(|owner| owner.name)
    }

    #[tokio::test(start_paused = true)]
    async fn one_job_serves_what_is_begun_as_long_as_it_lives_long_enough() {
        let (expiry_jobs, _) = expiry_jobs();
        let first = name(&expiry_jobs, HOUR).await;
        assert_eq!(name(&expiry_jobs, HOUR).await, first);
        assert_ne!(name(&expiry_jobs, 2 * LEAST).await, first, "it lives too long for those");
        tokio::time::advance(HOUR.saturating_sub(LEAST)).await;
        assert_eq!(name(&expiry_jobs, HOUR).await, first);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_ne!(name(&expiry_jobs, HOUR).await, first);
    }

    #[tokio::test(start_paused = true)]
    async fn a_job_that_was_deleted_is_made_again() {
        let (expiry_jobs, jobs) = expiry_jobs();
        let first = name(&expiry_jobs, HOUR).await;
        jobs.lock().unwrap().there = false;
        assert_ne!(name(&expiry_jobs, HOUR).await, first);
    }

    #[tokio::test(start_paused = true)]
    async fn a_cluster_that_refuses_jobs_is_not_asked_each_time() {
        let (expiry_jobs, jobs) = expiry_jobs();
        jobs.lock().unwrap().refuses = true;
        for _ in 0..3 {
            assert_eq!(name(&expiry_jobs, HOUR).await, None);
        }
        assert_eq!(jobs.lock().unwrap().asked, 1);
    }
}
