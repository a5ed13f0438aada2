//! Chooses the warm pool that a sandbox is claimed from.
//!
//! A claim names a pool, and only in v1alpha1 a template. A template without a pool therefore gets one of ours with
//! zero replicas, which all its sandboxes share. A cleanup deletes it when no claim names it.

use std::collections::BTreeSet;

use data_encoding::HEXLOWER;
use futures::future::try_join_all;
use sandpod_kube::agent_sandbox::{SandboxClaim, SandboxTemplate, SandboxWarmPool, Served, Version};
use sandpod_kube::kube::api::{ListParams, PostParams};
use sandpod_kube::kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::backend::kubernetes::anchor::MANAGED_BY;
use crate::backend::kubernetes::api::{self, find, is, within};
use crate::backend::kubernetes::object;
use crate::config::no_template;
use crate::provider::PoolStatus;
use crate::{AgentSandboxConfig, Error, ErrorCase, ErrorKind, Result};

/// On a pool that we made for a template without one.
const SHARED: (&str, &str) = ("sandpod.dev/pool", "shared");
/// How many claims are read with one request.
const PAGE: u32 = 500;

/// What a claim takes its sandbox from.
#[derive(Clone, Debug)]
pub(super) enum Origin {
    Pool(String),
    /// In v1alpha1: a template, and the only pool of it to take from.
    Template(String, Option<String>),
}

impl Origin {
    /// Returns the fields of the claim's spec.
    pub(super) fn spec(&self) -> Value {
        match self {
            Self::Pool(name) => json!({ "warmPoolRef": { "name": name } }),
            Self::Template(name, pool) => {
                json!({ "sandboxTemplateRef": { "name": name }, "warmpool": pool })
            }
        }
    }
}

/// The pools of one namespace, for one configuration.
#[derive(Clone)]
pub(super) struct Pools {
    served: Served,
    namespace: String,
    template: Option<String>,
    /// The only pool to take from.
    named: Option<String>,
    templates: Api<SandboxTemplate>,
    warm: Api<SandboxWarmPool>,
    claims: Api<SandboxClaim>,
}

impl Pools {
    pub(super) fn new(client: &Client, served: Served, config: &AgentSandboxConfig) -> Self {
        Self {
            served,
            namespace: config.namespace.clone(),
            template: config.template_name.clone(),
            named: config.warm_pool_name.clone(),
            templates: Api::namespaced(client.clone(), &config.namespace),
            warm: Api::namespaced(client.clone(), &config.namespace),
            claims: Api::namespaced(client.clone(), &config.namespace),
        }
    }

    /// Returns the pool that the configuration names, or the template's pool with the most ready sandboxes, or ours.
    pub(super) async fn choose(&self) -> Result<Origin> {
        let version = self.served.version().await;
        let version =
            version.map_err(|cause| super::refused("read the versions of agent-sandbox", &cause))?;
        if let Some(name) = &self.named {
            let pool = self.find_pool(name).await?.ok_or_else(|| self.no_pool(name))?;
            self.check(&pool)?;
            return Ok(match version {
                Version::V1Beta1 => Origin::Pool(name.clone()),
                Version::V1Alpha1 => {
                    Origin::Template(pool.spec.sandbox_template_ref.name, Some(name.clone()))
                }
            });
        }
        let template = self.template.as_deref().ok_or_else(no_template)?;
        match version {
            Version::V1Beta1 => self.choose_pool(template).await.map(Origin::Pool),
            Version::V1Alpha1 if self.find_template(template).await? => {
                Ok(Origin::Template(template.to_owned(), None))
            }
            Version::V1Alpha1 => Err(self.no_template(template)),
        }
    }

    async fn choose_pool(&self, template: &str) -> Result<String> {
        match fullest(&self.list().await?, template) {
            // The controller reports a missing template itself.
            Some(pool) => Ok(pool.name_any()),
            None if self.find_template(template).await? => self.ensure_shared(template).await,
            None => Err(self.no_template(template)),
        }
    }

    /// Creates our pool again if `pool` is ours and gone: a cleanup may just have found it unused.
    pub(super) async fn restore(&self, pool: &str) -> Result<()> {
        match &self.template {
            Some(template) if shared_name(template) == pool => self.ensure_shared(template).await.map(drop),
            _ => Err(self.no_pool(pool)),
        }
    }

    /// Returns the counts of the pool that sandboxes are taken from.
    pub(super) async fn status(&self) -> Result<PoolStatus> {
        let pools = match (&self.named, &self.template) {
            (Some(name), _) => self.find_pool(name).await?.into_iter().collect(),
            (None, Some(template)) => of_template(self.list().await?, template),
            (None, None) => Vec::new(),
        };
        let names: BTreeSet<_> = pools.iter().map(ResourceExt::name_any).collect();
        let claims = self.all_claims().await?;
        let is_theirs = |claim: &SandboxClaim| pool_of(claim).is_some_and(|pool| names.contains(pool));
        let active = claims.iter().filter(|claim| is_theirs(claim)).count();
        let count = |number: i32| usize::try_from(number).unwrap_or_default();
        let ready = |pool: &SandboxWarmPool| pool.status.as_ref().map_or(0, |status| status.ready_replicas);
        let available = pools.iter().map(|pool| count(ready(pool))).sum();
        let target = pools.iter().map(|pool| count(pool.spec.replicas)).sum();
        Ok(PoolStatus { available, active, total: available + active, target })
    }

    /// Deletes our pools that no claim names.
    pub(super) async fn remove_unused(&self) -> Result<()> {
        let ours = ListParams::default().labels(&format!("{}={}", SHARED.0, SHARED.1));
        let ours = within(self.warm.list(&ours)).await;
        let ours = ours.map_err(|cause| super::refused("list SandboxWarmPools", &cause))?.items;
        if ours.is_empty() {
            return Ok(());
        }
        let claims = self.all_claims().await?;
        let used: BTreeSet<_> = claims.iter().filter_map(pool_of).collect();
        let unused = ours.iter().filter(|pool| !used.contains(pool.name_any().as_str()));
        let unused: Vec<_> = unused.filter_map(|pool| Some((pool.name_any(), pool.uid()?))).collect();
        let removing = unused.iter().map(|(name, uid)| api::delete(&self.warm, name, uid));
        try_join_all(removing).await.map(drop).map_err(super::with_role_advice)
    }

    /// Returns the selector of the unclaimed Pods of a pool, once the controller has published it.
    pub(super) async fn selector(&self, pool: &str) -> Result<Option<String>> {
        let status = self.find_pool(pool).await?.and_then(|pool| pool.status);
        Ok(status.map(|status| status.selector).filter(|selector| !selector.is_empty()))
    }

    async fn find_template(&self, name: &str) -> Result<bool> {
        Ok(find(&self.templates, name).await.map_err(super::with_role_advice)?.is_some())
    }

    async fn find_pool(&self, name: &str) -> Result<Option<SandboxWarmPool>> {
        find(&self.warm, name).await.map_err(super::with_role_advice)
    }

    async fn list(&self) -> Result<Vec<SandboxWarmPool>> {
        let pools = within(self.warm.list(&ListParams::default())).await;
        pools.map(|pools| pools.items).map_err(|cause| super::refused("list SandboxWarmPools", &cause))
    }

    async fn all_claims(&self) -> Result<Vec<SandboxClaim>> {
        let (mut all, mut wanted) = (Vec::new(), ListParams::default().limit(PAGE));
        loop {
            let page = within(self.claims.list(&wanted)).await;
            let page = page.map_err(|cause| super::refused("list SandboxClaims", &cause))?;
            all.extend(page.items);
            match page.metadata.continue_.filter(|cursor| !cursor.is_empty()) {
                None => return Ok(all),
                cursor => wanted.continue_token = cursor,
            }
        }
    }

    async fn ensure_shared(&self, template: &str) -> Result<String> {
        let name = shared_name(template);
        let pool: SandboxWarmPool = object(json!({
            "apiVersion": "extensions.agents.x-k8s.io/v1beta1",
            "kind": "SandboxWarmPool",
            "metadata": { "name": name, "labels": { MANAGED_BY.0: MANAGED_BY.1, SHARED.0: SHARED.1 } },
            "spec": { "replicas": 0, "sandboxTemplateRef": { "name": template } },
        }))?;
        match within(self.warm.create(&PostParams::default(), &pool)).await {
            Err(cause) if is(&cause, 403) => Err(self.may_not_make_pools(template)),
            Err(cause) if !is(&cause, 409) => {
                Err(super::refused(&format!("create SandboxWarmPool '{name}'"), &cause))
            }
            _ => Ok(name),
        }
    }

    /// Refuses a pool of another template than the configuration names.
    fn check(&self, pool: &SandboxWarmPool) -> Result<()> {
        let has = &pool.spec.sandbox_template_ref.name;
        match &self.template {
            Some(template) if template != has => Err(Error::new(
                ErrorKind::StartFailed,
                format!(
                    "SandboxWarmPool '{}' holds sandboxes of template '{has}', and template_name is '{template}'.",
                    pool.name_any()
                ),
                "Leave template_name out, or name a pool of that template.",
            )),
            _ => Ok(()),
        }
    }

    fn no_template(&self, template: &str) -> Error {
        let message = format!("SandboxTemplate '{template}' not found in namespace '{}'.", self.namespace);
        Error::of_case(ErrorCase::MissingTemplate, message, "Create it first — see README.")
    }

    fn no_pool(&self, pool: &str) -> Error {
        let message = format!("SandboxWarmPool '{pool}' not found in namespace '{}'.", self.namespace);
        Error::of_case(ErrorCase::MissingTemplate, message, "Create it first — see README.")
    }

    fn may_not_make_pools(&self, template: &str) -> Error {
        Error::new(
            ErrorKind::Denied,
            format!(
                "There is no SandboxWarmPool of template '{template}' in namespace '{}', and creating one is forbidden.",
                self.namespace
            ),
            "Ask for a pool of it (replicas: 0 will do), or apply deploy/rbac/agent-sandbox.yaml, which allows creating one.",
        )
    }
}

/// Returns the pool of a template that has the most ready sandboxes. Ours are not counted.
fn fullest<'a>(pools: &'a [SandboxWarmPool], template: &str) -> Option<&'a SandboxWarmPool> {
    let ready = |pool: &SandboxWarmPool| pool.status.as_ref().map_or(0, |status| status.ready_replicas);
    let of_others =
        |pool: &&SandboxWarmPool| pool.labels().get(SHARED.0).map(String::as_str) != Some(SHARED.1);
    let theirs = pools.iter().filter(|pool| pool.spec.sandbox_template_ref.name == template);
    theirs.filter(of_others).max_by_key(|pool| ready(pool))
}

fn of_template(pools: Vec<SandboxWarmPool>, template: &str) -> Vec<SandboxWarmPool> {
    pools.into_iter().filter(|pool| pool.spec.sandbox_template_ref.name == template).collect()
}

/// Returns the pool that a claim names.
fn pool_of(claim: &SandboxClaim) -> Option<&str> {
    let spec = &claim.spec;
    spec.warm_pool_ref.as_ref().map(|pool| pool.name.as_str()).or(spec.warm_pool.as_deref())
}

/// Returns the name of our pool of a template. A template's name may be longer than a label.
fn shared_name(template: &str) -> String {
    let name = format!("sandpod-{template}");
    if name.len() <= 63 {
        name
    } else {
        format!("sandpod-{}", &HEXLOWER.encode(&Sha256::digest(template))[..12])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(name: &str, template: &str, ready: i32, shared: bool) -> SandboxWarmPool {
        let labels = if shared { json!({ SHARED.0: SHARED.1 }) } else { json!({}) };
        serde_json::from_value(json!({
            "apiVersion": "extensions.agents.x-k8s.io/v1beta1",
            "kind": "SandboxWarmPool",
            "metadata": { "name": name, "labels": labels },
            "spec": { "replicas": 5, "sandboxTemplateRef": { "name": template } },
            "status": { "replicas": ready, "readyReplicas": ready },
        }))
        .unwrap()
    }

    #[test]
    fn of_a_templates_pools_the_one_with_most_ready_is_taken() {
        let pools = [
            pool("a", "t", 1, false),
            pool("b", "t", 3, false),
            pool("c", "other", 9, false),
            pool("d", "t", 0, true),
        ];
        assert_eq!(fullest(&pools, "t").unwrap().name_any(), "b");
        assert!(fullest(&pools[3..], "t").is_none(), "ours are always empty");
    }

    #[test]
    fn our_own_pool_has_a_name_that_kubernetes_takes() {
        assert_eq!(shared_name("python"), "sandpod-python");
        assert_eq!(shared_name(&"t".repeat(200)).len(), 20);
    }
}
