//! Checks a cluster with agent-sandbox without creating objects.

use sandpod_kube::agent_sandbox::{SandboxTemplate, SandboxWarmPool, Served};
use sandpod_kube::client::Insecure;
use sandpod_kube::k8s_openapi::api::apps::v1::Deployment;
use sandpod_kube::k8s_openapi::api::core::v1::ConfigMap;
use sandpod_kube::k8s_openapi::api::networking::v1::NetworkPolicy;
use sandpod_kube::kube::api::ListParams;
use sandpod_kube::kube::{Api, Client, ResourceExt};

use super::cluster::{
    ADMISSION, admission, allowed, architectures, clock, is_allowed, level, quota, served, unreadable,
    version,
};
use super::{Finding, Right, Verdict, cluster, template};
use crate::backend::agent_sandbox::{AgentSandbox, ConnectionMode};
use crate::backend::raw::guest_map_names;
use crate::{AgentSandboxConfig, Mode, Result};

/// Usual namespace and name of agent-sandbox's controller.
const CONTROLLER: (&str, &str) = ("agent-sandbox-system", "agent-sandbox-controller");
/// API group of claims, templates and warm pools.
const EXTENSIONS: &str = "extensions.agents.x-k8s.io/";
const POOL: &str = "warm pool";
/// API versions that sandpod supports.
const VERSIONS: [&str; 2] = ["v1beta1", "v1alpha1"];

/// Checks the API server, `rights`, agent-sandbox, the template, its warm pools and the connection modes. A check is
/// skipped if its prerequisite is missing. Each finding is added to `findings` as soon as it is known.
pub async fn examine_agent_sandbox(
    config: &AgentSandboxConfig,
    rights: &[Right],
    findings: &mut impl Extend<Finding>,
) {
    findings.extend(config.check_settings().err().map(|error| Finding::of("configuration", &error)));
    let (client, found) = match reach(config).await {
        Ok(reached) => reached,
        Err(error) => {
            findings.extend([Finding::of("API server", &error)]);
            return findings.extend(unnamed(config));
        }
    };
    findings.extend([Finding::good("API server", found)]);
    findings.extend([version(&client).await]);
    findings.extend([clock(&client).await]);
    let is_needed = |right: &Right| is_needed(right, config);
    findings.extend(allowed(&client, &config.namespace, Mode::AgentSandbox, rights, is_needed).await);
    findings.extend([quota(&client, &config.namespace).await]);
    let installed = installed(&client).await;
    let is_installed = installed.verdict != Verdict::Bad;
    findings.extend([installed]);
    findings.extend([controller(&client).await]);
    if is_installed {
        origin(&client, config, findings).await;
    }
    connection_modes(&client, config, findings).await;
}

/// Connects to the API server. Returns the client and a description with the URL and the user.
async fn reach(config: &AgentSandboxConfig) -> Result<(Client, String)> {
    let insecure = Insecure::allowed_if(config.allow_insecure_api_server);
    let Some(url) = &config.kube_api_url else {
        return cluster::reach(config.kubeconfig.as_deref(), config.context.as_deref(), insecure).await;
    };
    let client = sandpod_kube::client::at(url, config.kube_token.as_deref(), insecure)?;
    let user = cluster::user(&client).await?;
    Ok((client, format!("{url}, as {user}")))
}

/// Whether this configuration requires the right. The role also grants optional rights: for empty pools of templates
/// without one, stock runtimes, Gateways, and the Secret of guests that are reached over the network.
fn is_needed(right: &Right, config: &AgentSandboxConfig) -> bool {
    let mode = config.connection_mode.as_deref();
    match (right.resource.as_str(), right.verb.as_str()) {
        ("sandboxwarmpools", "create" | "delete") | ("pods/portforward" | "secrets", _) => false,
        ("pods/exec", _) => mode.is_none_or(|mode| mode == ConnectionMode::Exec.name()),
        ("gateways", _) => mode == Some(ConnectionMode::Gateway.name()),
        _ => true,
    }
}

async fn installed(client: &Client) -> Finding {
    match served(client).await {
        Ok(served) => judge_served(&served),
        Err(cause) => unreadable("agent-sandbox", &cause, "kubectl api-versions"),
    }
}

fn judge_served(served: &[String]) -> Finding {
    const CHECK: &str = "agent-sandbox";
    let install = "Install its controller with extensions from agent-sandbox.sigs.k8s.io, or use --mode raw, which needs only \
                   Pods.";
    let mut extensions = served.iter().filter_map(|version| version.strip_prefix(EXTENSIONS)).peekable();
    if served.is_empty() {
        return Finding::bad(CHECK, "not installed", install);
    }
    if extensions.peek().is_none() {
        return Finding::bad(
            CHECK,
            format!("its extensions are missing: serves {}", served.join(", ")),
            install,
        );
    }
    let found = format!("serves {}", served.join(", "));
    if extensions.any(|version| VERSIONS.contains(&version)) {
        return Finding::good(CHECK, found);
    }
    Finding::bad(
        CHECK,
        found,
        format!(
            "Install a version of it, or of sandpod, so that both speak one: this one speaks {}.",
            VERSIONS.join(" and ")
        ),
    )
}

async fn controller(client: &Client) -> Finding {
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), CONTROLLER.0);
    match deployments.get_opt(CONTROLLER.1).await {
        Ok(found) => judge_controller(found.as_ref()),
        Err(cause) => unreadable("controller", &cause, "kubectl get deployment -A | grep agent-sandbox"),
    }
}

fn judge_controller(deployment: Option<&Deployment>) -> Finding {
    const CHECK: &str = "controller";
    let (namespace, name) = CONTROLLER;
    let Some(deployment) = deployment else {
        return Finding::unsure(
            CHECK,
            format!("there is no Deployment {name} in {namespace}"),
            "If it runs elsewhere that is fine: a sandbox that is made shows it.",
        )
        .until_made();
    };
    let ready = deployment.status.as_ref().and_then(|status| status.ready_replicas).unwrap_or_default();
    if ready == 0 {
        return Finding::bad(
            CHECK,
            format!("no Pod of {name} is ready"),
            format!("See why: kubectl --namespace {namespace} describe pods --selector app={name}"),
        );
    }
    Finding::good(CHECK, format!("{ready} of {name} ready"))
}

/// Checks the warm pool and the template of the sandboxes.
async fn origin(client: &Client, config: &AgentSandboxConfig, findings: &mut impl Extend<Finding>) {
    if let Some(unnamed) = unnamed(config) {
        return findings.extend([unnamed]);
    }
    let theirs = Served::new(client.clone()).client();
    let pools: Api<SandboxWarmPool> = Api::namespaced(theirs.clone(), &config.namespace);
    let pools = match pools.list(&ListParams::default()).await {
        Ok(pools) => pools.items,
        Err(cause) => return findings.extend([unreadable(POOL, &cause, "kubectl get sandboxwarmpools")]),
    };
    findings.extend([judge_pools(&pools, config)]);
    let named = config.warm_pool_name.as_deref();
    let of_pool = pools.iter().find(|pool| named == Some(&pool.name_any()));
    let of_pool = of_pool.map(|pool| &pool.spec.sandbox_template_ref.name);
    let Some(name) = config.template_name.as_ref().or(of_pool) else { return };
    let templates: Api<SandboxTemplate> = Api::namespaced(theirs, &config.namespace);
    match templates.get_opt(name).await {
        Ok(Some(template)) => examine_template(client, config, &template, findings).await,
        Ok(None) => findings.extend([missing_template(name, &config.namespace)]),
        Err(cause) => findings.extend([unreadable("template", &cause, "kubectl get sandboxtemplates")]),
    }
}

/// Returns a finding if neither a template nor a warm pool is named.
fn unnamed(config: &AgentSandboxConfig) -> Option<Finding> {
    let is_named = config.template_name.is_some() || config.warm_pool_name.is_some();
    let finding = || {
        Finding::bad(
            "template",
            "none is named: sandboxes that are there can be used, and none can be made",
            "Name it with --template, SANDPOD_TEMPLATE_NAME or template_name in the file.",
        )
    };
    (!is_named).then(finding)
}

fn missing_template(name: &str, namespace: &str) -> Finding {
    Finding::bad(
        "template",
        format!("SandboxTemplate '{name}' not found in namespace '{namespace}'"),
        template::manifest(name, namespace),
    )
}

/// Checks the named pool, or else the pools of the template.
fn judge_pools(pools: &[SandboxWarmPool], config: &AgentSandboxConfig) -> Finding {
    let template = config.template_name.as_deref();
    let Some(name) = config.warm_pool_name.as_deref() else {
        let of_template = pools.iter().filter(|pool| template == Some(&pool.spec.sandbox_template_ref.name));
        let filled: Vec<_> = of_template.map(filling).collect();
        let none = || "none of the template: every sandbox starts cold".to_owned();
        return Finding::good(POOL, if filled.is_empty() { none() } else { filled.join(", ") });
    };
    match pools.iter().find(|pool| pool.name_any() == name) {
        Some(pool) => judge_pool(pool, template, &config.namespace),
        None => missing_pool(name, template.unwrap_or("TEMPLATE"), &config.namespace),
    }
}

fn judge_pool(pool: &SandboxWarmPool, template: Option<&str>, namespace: &str) -> Finding {
    let has = &pool.spec.sandbox_template_ref.name;
    match template {
        Some(template) if template != has => Finding::bad(
            POOL,
            format!("{} holds sandboxes of the template '{has}', and '{template}' is named", pool.name_any()),
            "Leave the template out, or name a pool of that template.",
        ),
        _ if pool.spec.replicas > 0 && ready(pool) == 0 => Finding::unsure(
            POOL,
            filling(pool),
            format!("See why nothing is ready: kubectl --namespace {namespace} describe sandboxes"),
        ),
        _ => Finding::good(POOL, filling(pool)),
    }
}

fn missing_pool(name: &str, template: &str, namespace: &str) -> Finding {
    Finding::bad(
        POOL,
        format!("SandboxWarmPool '{name}' not found in namespace '{namespace}'"),
        format!(
            "sandpod manifests warm-pool --name {name} --template {template} --namespace {namespace} | kubectl apply \
             --server-side -f -"
        ),
    )
}

fn ready(pool: &SandboxWarmPool) -> i32 {
    pool.status.as_ref().map_or(0, |status| status.ready_replicas)
}

fn filling(pool: &SandboxWarmPool) -> String {
    format!("{}: {} of {} ready", pool.name_any(), ready(pool), pool.spec.replicas)
}

async fn examine_template(
    client: &Client,
    config: &AgentSandboxConfig,
    found: &SandboxTemplate,
    findings: &mut impl Extend<Finding>,
) {
    let namespace = &config.namespace;
    findings.extend([template::guest(found, namespace), template::writable(found, config.working_dir())]);
    findings.extend(guest_maps(client, config, found).await);
    findings.extend([policy(client, namespace, found).await]);
    findings.extend([admitted(client, namespace, found).await]);
    let fix = "Change the template's nodeSelector to what the nodes are, and its image and guest with it.";
    findings.extend([architectures(client, template::arch(found), fix).await]);
}

/// Checks that the `ConfigMaps` of the guest exist and contain this version.
async fn guest_maps(
    client: &Client,
    config: &AgentSandboxConfig,
    found: &SandboxTemplate,
) -> Option<Finding> {
    let (namespace, name) = (&config.namespace, found.name_any());
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    for map in template::config_maps(found) {
        // Without permission to read them, only the start of a sandbox shows whether they exist.
        if matches!(maps.get_metadata_opt(&map).await, Ok(None)) {
            return Some(Finding::bad(
                "template's guest",
                format!("its ConfigMap '{map}' is not there: no sandbox can start"),
                format!(
                    "Print the template again, with its ConfigMaps: {}",
                    template::manifest(&name, namespace)
                ),
            ));
        }
    }
    let arch = template::arch(found).unwrap_or("amd64");
    match guest_map_names(arch, config.package_dir.as_deref()).await {
        Ok(ours) => template::version(found, &ours, namespace),
        Err(error) => Some(Finding::unsure("guest program", error.message(), error.next_step())),
    }
}

async fn policy(client: &Client, namespace: &str, found: &SandboxTemplate) -> Finding {
    let policies: Api<NetworkPolicy> = Api::namespaced(client.clone(), namespace);
    match policies.list(&ListParams::default()).await {
        Ok(policies) => template::policy(found, &policies.items, namespace),
        Err(cause) => unreadable("network policy", &cause, "kubectl get networkpolicies"),
    }
}

/// Checks that a Pod of the template would be admitted. Most users lack the right to try, because the controller
/// creates the Pods.
async fn admitted(client: &Client, namespace: &str, found: &SandboxTemplate) -> Finding {
    let create =
        Right { group: String::new(), resource: "pods".to_owned(), name: None, verb: "create".to_owned() };
    if is_allowed(client, namespace, &create).await {
        return admission(client, namespace, &template::pod(found), "field of the template").await;
    }
    Finding::unsure(
        ADMISSION,
        format!("cannot be tried with these rights; {}", level(client, namespace).await),
        "Creating a sandbox shows it.",
    )
    .until_made()
}

/// Checks the requested connection mode, or else those that are configured in addition to exec.
async fn connection_modes(client: &Client, config: &AgentSandboxConfig, findings: &mut impl Extend<Finding>) {
    let backend = AgentSandbox::new(client.clone(), config.clone());
    let wanted = config.connection_mode.as_deref();
    let is_meant = |mode: &ConnectionMode| match wanted {
        Some(wanted) => mode.name() == wanted,
        None => match mode {
            ConnectionMode::Exec | ConnectionMode::InCluster => false,
            ConnectionMode::Tunnel => true,
            ConnectionMode::Gateway => config.gateway_name.is_some(),
            ConnectionMode::Direct => config.api_url.is_some(),
        },
    };
    for mode in ConnectionMode::ALL.into_iter().filter(is_meant) {
        let looked = backend.probe_route(mode).await.map_err(|error| error.to_string());
        findings.extend([judge_mode(mode, looked, wanted.is_some(), &config.namespace)]);
    }
    let over_network = wanted.is_some_and(|mode| mode != ConnectionMode::Exec.name());
    if over_network {
        findings.extend([judge_token(backend.lacks_secret().await)]);
    }
}

fn judge_mode(
    mode: ConnectionMode,
    looked: Result<String, String>,
    is_demanded: bool,
    namespace: &str,
) -> Finding {
    let check = format!("connection mode: {}", mode.name());
    let fix = match mode {
        ConnectionMode::Exec | ConnectionMode::InCluster => String::new(),
        ConnectionMode::Tunnel => format!(
            "sandpod manifests router --image IMAGE --namespace {namespace} | kubectl apply --server-side -f -"
        ),
        ConnectionMode::Gateway => {
            "Check --gateway-name and --gateway-namespace, and that the Gateway has an address: kubectl get \
                         gateways -A"
                .to_owned()
        }
        ConnectionMode::Direct => "Check --api-url, and that the router answers there.".to_owned(),
    };
    match looked {
        Ok(found) => Finding::good(check, found),
        Err(why) if is_demanded => Finding::bad(check, why, fix),
        Err(why) => Finding::unsure(check, why, format!("Needed only where exec is forbidden: {fix}")),
    }
}

fn judge_token(lacks_secret: Result<Option<String>>) -> Finding {
    const CHECK: &str = "guest token";
    match lacks_secret {
        Ok(None) => Finding::good(CHECK, "the secret of the template's guests can be read"),
        Ok(Some(why)) => Finding::unsure(
            CHECK,
            format!("{why}: each process brings its own token by exec, or uses a stock runtime"),
            "Where exec is forbidden, create the Secret as deploy/agent-sandbox/template-init-container.yaml says, or set \
             guest_token_file.",
        ),
        Err(error) => Finding::of(CHECK, &error),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::Error;
    use crate::doctor::{fix, next};

    fn pool(name: &str, template: &str, ready: i32) -> SandboxWarmPool {
        serde_json::from_value(json!({
            "apiVersion": "extensions.agents.x-k8s.io/v1beta1",
            "kind": "SandboxWarmPool",
            "metadata": { "name": name },
            "spec": { "replicas": 2, "sandboxTemplateRef": { "name": template } },
            "status": { "readyReplicas": ready },
        }))
        .unwrap()
    }

    fn config(fields: serde_json::Value) -> AgentSandboxConfig {
        serde_json::from_value(fields).unwrap()
    }

    #[test]
    fn missing_or_incompatible_agent_sandbox_is_reported() {
        let of =
            |served: &[&str]| judge_served(&served.iter().map(|one| (*one).to_owned()).collect::<Vec<_>>());
        for version in VERSIONS {
            let served = [format!("agents.x-k8s.io/{version}"), format!("{EXTENSIONS}{version}")];
            assert_eq!(judge_served(&served).verdict, Verdict::Good);
        }
        assert!(fix(of(&[])).contains("Install its controller with extensions"));
        assert!(fix(of(&["agents.x-k8s.io/v1beta1"])).contains("with extensions"));
        assert!(fix(of(&["extensions.agents.x-k8s.io/v2"])).contains("speaks v1beta1 and v1alpha1"));
    }

    #[test]
    fn controller_that_is_not_ready_is_reported() {
        let ready = |ready: i32| -> Deployment {
            serde_json::from_value(json!({ "status": { "readyReplicas": ready } })).unwrap()
        };
        assert_eq!(judge_controller(Some(&ready(1))).verdict, Verdict::Good);
        assert!(
            fix(judge_controller(Some(&ready(0))))
                .contains("describe pods --selector app=agent-sandbox-controller")
        );
        assert!(next(judge_controller(None)).contains("If it runs elsewhere that is fine"));
    }

    #[test]
    fn missing_mismatched_and_empty_pools_are_reported() {
        let pools = [pool("full", "python", 2), pool("empty", "python", 0)];
        let of = |fields: serde_json::Value| judge_pools(&pools, &config(fields));
        assert_eq!(of(json!({ "warm_pool_name": "full" })).found, "full: 2 of 2 ready");
        assert_eq!(of(json!({ "template_name": "python" })).found, "full: 2 of 2 ready, empty: 0 of 2 ready");
        assert!(of(json!({ "template_name": "other" })).found.contains("starts cold"));
        let missing =
            fix(of(json!({ "warm_pool_name": "none", "template_name": "python", "namespace": "a" })));
        assert!(
            missing.contains("manifests warm-pool --name none --template python --namespace a"),
            "{missing}"
        );
        let other = fix(of(json!({ "warm_pool_name": "full", "template_name": "other" })));
        assert!(other.contains("Leave the template out"), "{other}");
        let empty = of(json!({ "warm_pool_name": "empty" }));
        assert!(next(empty).contains("describe sandboxes"));
    }

    #[test]
    fn unusable_connection_mode_is_bad_only_if_requested() {
        let broken =
            |mode: ConnectionMode, demanded: bool| judge_mode(mode, Err("no".to_owned()), demanded, "agents");
        assert!(
            fix(broken(ConnectionMode::Tunnel, true))
                .contains("sandpod manifests router --image IMAGE --namespace agents")
        );
        assert!(fix(broken(ConnectionMode::Gateway, true)).contains("--gateway-name"));
        assert!(fix(broken(ConnectionMode::Direct, true)).contains("--api-url"));
        assert!(
            next(broken(ConnectionMode::Tunnel, false)).starts_with("Needed only where exec is forbidden: ")
        );
        assert_eq!(
            judge_mode(ConnectionMode::Tunnel, Ok("there".to_owned()), true, "agents").verdict,
            Verdict::Good
        );
    }

    #[test]
    fn missing_and_unreadable_tokens_are_reported() {
        assert_eq!(judge_token(Ok(None)).verdict, Verdict::Good);
        assert!(next(judge_token(Ok(Some("no Secret".to_owned())))).contains("guest_token_file"));
        let error = Error::invalid("It can't be read.", "Name a file.");
        assert_eq!(fix(judge_token(Err(error))), "Name a file.");
    }

    #[test]
    fn optional_rights_are_distinguished_from_required_rights() {
        let right = |resource: &str, verb: &str| Right {
            group: String::new(),
            resource: resource.to_owned(),
            name: None,
            verb: verb.to_owned(),
        };
        let usual = config(json!({ "template_name": "t" }));
        assert!(
            is_needed(&right("sandboxclaims", "create"), &usual)
                && is_needed(&right("pods/exec", "get"), &usual)
        );
        assert!(!is_needed(&right("sandboxwarmpools", "create"), &usual));
        assert!(!is_needed(&right("gateways", "get"), &usual));
        assert!(!is_needed(&right("secrets", "get"), &usual));
        let gateway = config(json!({ "connection_mode": "gateway" }));
        assert!(is_needed(&right("gateways", "get"), &gateway));
        assert!(!is_needed(&right("pods/exec", "get"), &gateway));
    }

    #[tokio::test]
    async fn missing_cluster_and_missing_template_are_both_reported() {
        let nothing = config(json!({ "kubeconfig": "/nothing", "connection_mode": "pigeon" }));
        let mut findings = Vec::new();
        examine_agent_sandbox(&nothing, &[], &mut findings).await;
        let checks: Vec<_> = findings.iter().map(|finding| finding.check.as_str()).collect();
        assert_eq!(checks, ["configuration", "API server", "template"]);
        assert!(findings.into_iter().all(|finding| !fix(finding).is_empty()));
    }
}
