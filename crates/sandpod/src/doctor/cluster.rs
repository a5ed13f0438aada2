//! Checks a cluster for raw mode without creating objects.

use std::path::Path;
use std::time::{Duration, SystemTime};

use futures::{StreamExt as _, stream};
use sandpod_kube::client::Insecure;
use sandpod_kube::k8s_openapi::api::authentication::v1::SelfSubjectReview;
use sandpod_kube::k8s_openapi::api::authorization::v1::SelfSubjectAccessReview;
use sandpod_kube::k8s_openapi::api::core::v1::{Namespace, Node, Pod, ResourceQuota, Service};
use sandpod_kube::k8s_openapi::jiff::fmt::rfc2822;
use sandpod_kube::kube::api::{ListParams, PostParams};
use sandpod_kube::kube::client::Body;
use sandpod_kube::kube::{self, Api, Client, ResourceExt};
use serde_json::json;

use super::{Finding, Right};
use crate::backend::raw;
use crate::config::ARCH_LABEL;
use crate::{Error, ErrorKind, Mode, RawConfig, Result, guest_binaries};

/// Oldest supported minor version of Kubernetes 1.
const OLDEST: u32 = 29;
/// Maximum clock skew between this machine and the API server.
const CLOCK_LIMIT: Duration = Duration::from_secs(30);
/// Maximum number of concurrent access reviews.
const AT_ONCE: usize = 8;
/// Namespace and name of the Service of agent-sandbox's router.
const ROUTER: (&str, &str) = ("agent-sandbox-system", "sandbox-router-svc");
/// Fix for nodes of another CPU architecture.
const SET_ARCH: &str = "Set the option arch to what the nodes are: SANDPOD_ARCH=arm64";
pub(super) const ADMISSION: &str = "admission";
const ENFORCE: &str = "pod-security.kubernetes.io/enforce";

/// Checks the API server, `rights`, admission, quota, nodes, agent-sandbox and the guest's program. If the API server
/// is unreachable, only the guest's program is checked. Each finding is added to `findings` as soon as it is known.
pub async fn examine_cluster(config: &RawConfig, rights: &[Right], findings: &mut impl Extend<Finding>) {
    let insecure = Insecure::allowed_if(config.allow_insecure_api_server);
    let (client, found) = match reach(config.kubeconfig.as_deref(), config.context.as_deref(), insecure).await
    {
        Ok(reached) => reached,
        Err(error) => return findings.extend([Finding::of("API server", &error), guest(config)]),
    };
    let namespace = &config.namespace;
    findings.extend([Finding::good("API server", found)]);
    findings.extend([version(&client).await]);
    findings.extend([clock(&client).await]);
    findings.extend(allowed(&client, namespace, Mode::Raw, rights, |_| true).await);
    findings.extend([match raw::sample(config) {
        Ok(pod) => admission(&client, namespace, &pod, "option").await,
        Err(error) => Finding::of(ADMISSION, &error),
    }]);
    findings.extend([quota(&client, namespace).await]);
    findings.extend([architectures(&client, Some(&config.arch), SET_ARCH).await]);
    findings.extend([agent_sandbox(&client).await]);
    findings.extend([router(&client).await]);
    findings.extend([guest(config)]);
}

/// Connects to the API server. Returns the client and a description with the URL, proxy, trusted CA and user.
pub(super) async fn reach(
    kubeconfig: Option<&Path>,
    context: Option<&str>,
    insecure: Insecure,
) -> Result<(Client, String)> {
    let kube = sandpod_kube::client::config(kubeconfig, context).await?;
    let way = kube
        .proxy_url
        .as_ref()
        .map(|proxy| format!(" through the proxy {}", host(proxy)))
        .unwrap_or_default();
    let trust = match kube.root_cert {
        _ if kube.accept_invalid_certs => "nothing (allow_insecure_api_server)",
        Some(_) => "the CA of the kubeconfig",
        None => "the CAs of this machine",
    };
    let url = kube.cluster_url.to_string();
    let client = sandpod_kube::client::connect(kubeconfig, context, insecure).await?;
    let user = user(&client).await?;
    Ok((client, format!("{url}{way}, trusted by {trust}, as {user}")))
}

/// Returns the name of the authenticated user.
pub(super) async fn user(client: &Client) -> Result<String> {
    let reviews = Api::<SelfSubjectReview>::all(client.clone());
    let review = reviews.create(&PostParams::default(), &SelfSubjectReview::default()).await;
    let review = review.map_err(|cause| Error::api("reach the API server", &cause))?;
    Ok(review.status.and_then(|status| status.user_info?.username).unwrap_or_default())
}

/// Returns a proxy's address without its credentials.
fn host(proxy: &impl ToString) -> String {
    let text = proxy.to_string();
    text.rsplit('@').next().unwrap_or(&text).to_owned()
}

pub(super) async fn version(client: &Client) -> Finding {
    const CHECK: &str = "Kubernetes";
    match client.apiserver_version().await {
        Ok(info) => {
            let digits: String = info.minor.chars().take_while(char::is_ascii_digit).collect();
            judge_version(&info.git_version, digits.parse().unwrap_or_default())
        }
        Err(cause) => Finding::of(CHECK, &Error::api("read the version", &cause)),
    }
}

fn judge_version(version: &str, minor: u32) -> Finding {
    if minor < OLDEST {
        return Finding::bad("Kubernetes", version, format!("Use Kubernetes 1.{OLDEST} or newer."));
    }
    Finding::good("Kubernetes", version)
}

pub(super) async fn clock(client: &Client) -> Finding {
    let request = http::Request::get("/version").body(Body::empty());
    let Ok(request) = request else { return judge_clock(None, SystemTime::now()) };
    let answer = client.send(request).await;
    let date = answer.ok().and_then(|answer| {
        let date = answer.headers().get("date")?.to_str().ok()?.to_owned();
        Some(SystemTime::from(rfc2822::parse(&date).ok()?.timestamp()))
    });
    judge_clock(date, SystemTime::now())
}

fn judge_clock(theirs: Option<SystemTime>, ours: SystemTime) -> Finding {
    const CHECK: &str = "clock";
    let Some(theirs) = theirs else {
        return Finding::unsure(
            CHECK,
            "the API server does not say what time it is",
            "Compare the clocks yourself.",
        );
    };
    let off = ours.duration_since(theirs).unwrap_or_else(|error| error.duration());
    if off > CLOCK_LIMIT {
        return Finding::bad(
            CHECK,
            format!("this machine's differs from the API server's by {} s", off.as_secs()),
            "Set it: sudo timedatectl set-ntp true. Times to live and tokens depend on it.",
        );
    }
    Finding::good(CHECK, format!("within {} s of the API server's", CLOCK_LIMIT.as_secs()))
}

/// Checks the rights, with one finding for each resource. A missing right is bad only if `is_needed`.
pub(super) async fn allowed(
    client: &Client,
    namespace: &str,
    mode: Mode,
    rights: &[Right],
    is_needed: impl Fn(&Right) -> bool,
) -> Vec<Finding> {
    let asked =
        stream::iter(rights).map(|right| async move { (right, is_allowed(client, namespace, right).await) });
    let answers: Vec<_> = asked.buffered(AT_ONCE).collect().await;
    let mut findings: Vec<Finding> = Vec::new();
    let mut resources: Vec<&str> = rights.iter().map(|right| right.resource.as_str()).collect();
    resources.dedup();
    for resource in resources {
        let of_it = || answers.iter().filter(|(right, _)| right.resource == resource);
        let missing: Vec<_> = of_it().filter(|(_, allowed)| !allowed).map(|(right, _)| *right).collect();
        let verbs =
            |rights: &[&Right]| rights.iter().map(|right| right.verb.as_str()).collect::<Vec<_>>().join(", ");
        let check = format!("rights: {resource}");
        let found = format!("missing: {}", verbs(&missing));
        let fix = format!(
            "sandpod manifests rbac --mode {mode} --namespace {namespace} | kubectl apply --server-side -f -, and use the \
             ServiceAccount that it makes"
        );
        findings.push(match &missing[..] {
            [] => Finding::good(check, verbs(&of_it().map(|(right, _)| *right).collect::<Vec<_>>())),
            missing if missing.iter().any(|right| is_needed(right)) => Finding::bad(check, found, fix),
            _ => Finding::unsure(check, found, format!("Only some setups need it: {fix}")),
        });
    }
    findings
}

pub(super) async fn is_allowed(client: &Client, namespace: &str, right: &Right) -> bool {
    let (resource, part) = right.resource.split_once('/').unwrap_or((&right.resource, ""));
    let asked = json!({ "spec": { "resourceAttributes": {
        "namespace": namespace,
        "group": right.group,
        "resource": resource,
        "subresource": part,
        "name": right.name,
        "verb": right.verb,
    } } });
    let Ok(review) = serde_json::from_value::<SelfSubjectAccessReview>(asked) else { return false };
    let answer = Api::all(client.clone()).create(&PostParams::default(), &review).await;
    answer.is_ok_and(|review| review.status.is_some_and(|status| status.allowed))
}

/// Checks by a dry run that a sandbox's Pod would be admitted: namespace, Pod Security, quota and admission policies.
/// `source` names the origin of the Pod's fields in the fix.
pub(super) async fn admission(client: &Client, namespace: &str, pod: &Pod, source: &str) -> Finding {
    let try_only = PostParams { dry_run: true, ..PostParams::default() };
    let tried = Api::<Pod>::namespaced(client.clone(), namespace).create(&try_only, pod).await;
    let Err(cause) = tried else {
        let level = level(client, namespace).await;
        return Finding::good(ADMISSION, format!("a sandbox's Pod is admitted; {level}"));
    };
    judge_refusal(&Error::api("create a sandbox's Pod", &cause), namespace, source)
}

fn judge_refusal(error: &Error, namespace: &str, source: &str) -> Finding {
    match error.kind() {
        ErrorKind::NotFound => Finding::bad(
            ADMISSION,
            error.message(),
            format!("sandpod manifests namespace --namespace {namespace} | kubectl apply --server-side -f -"),
        ),
        _ if error.message().contains("violates PodSecurity") => Finding::bad(
            ADMISSION,
            error.message(),
            format!(
                "Change the {source} that it names, or allow more there: kubectl label namespace {namespace} {ENFORCE}=baseline \
                 --overwrite"
            ),
        ),
        _ => Finding::of(ADMISSION, error),
    }
}

/// Describes the namespace's Pod Security level, if it is readable.
pub(super) async fn level(client: &Client, namespace: &str) -> String {
    match Api::<Namespace>::all(client.clone()).get(namespace).await {
        Ok(found) => match found.labels().get(ENFORCE) {
            Some(level) => format!("Pod Security is {level}"),
            None => "Pod Security enforces nothing".to_owned(),
        },
        Err(_) => "the Pod Security level cannot be read".to_owned(),
    }
}

pub(super) async fn quota(client: &Client, namespace: &str) -> Finding {
    const CHECK: &str = "quota";
    let quotas = Api::<ResourceQuota>::namespaced(client.clone(), namespace);
    match quotas.list(&ListParams::default()).await {
        Ok(found) => judge_quota(&found.items),
        Err(cause) => unreadable(CHECK, &cause, "kubectl get resourcequota"),
    }
}

fn judge_quota(quotas: &[ResourceQuota]) -> Finding {
    const CHECK: &str = "quota";
    let mut left = Vec::new();
    let mut used_up = Vec::new();
    for status in quotas.iter().filter_map(|quota| quota.status.as_ref()) {
        for (name, hard) in status.hard.iter().flatten() {
            let used =
                status.used.as_ref().and_then(|used| used.get(name)).map_or("0", |used| used.0.as_str());
            left.push(format!("{name} {used} of {}", hard.0));
            if used == hard.0 {
                used_up.push(name.as_str());
            }
        }
    }
    if !used_up.is_empty() {
        let fix =
            "Delete sandboxes with sandpod delete or sandpod gc, ask for less of it, or raise the quota.";
        return Finding::bad(CHECK, format!("used up: {} ({})", used_up.join(", "), left.join(", ")), fix);
    }
    Finding::good(CHECK, if left.is_empty() { "none".to_owned() } else { left.join(", ") })
}

/// Checks that there are nodes of the wanted CPU architecture.
pub(super) async fn architectures(client: &Client, wanted: Option<&str>, fix: &str) -> Finding {
    const CHECK: &str = "nodes";
    match Api::<Node>::all(client.clone()).list(&ListParams::default()).await {
        Ok(nodes) => {
            let mut found: Vec<_> =
                nodes.iter().filter_map(|node| node.labels().get(ARCH_LABEL).cloned()).collect();
            found.sort_unstable();
            found.dedup();
            judge_architectures(&found, wanted, fix)
        }
        Err(cause) => unreadable(CHECK, &cause, "kubectl get nodes -L kubernetes.io/arch"),
    }
}

fn judge_architectures(found: &[String], wanted: Option<&str>, fix: &str) -> Finding {
    const CHECK: &str = "nodes";
    let Some(wanted) = wanted.filter(|wanted| !found.iter().any(|arch| arch == wanted)) else {
        return Finding::good(CHECK, format!("there are some of {}", found.join(", ")));
    };
    Finding::bad(
        CHECK,
        format!(
            "none of {wanted}, but of {}",
            if found.is_empty() { "nothing".to_owned() } else { found.join(", ") }
        ),
        fix,
    )
}

async fn agent_sandbox(client: &Client) -> Finding {
    match served(client).await {
        Ok(served) => judge_served(&served),
        Err(cause) => unreadable("agent-sandbox", &cause, "kubectl api-versions"),
    }
}

fn judge_served(served: &[String]) -> Finding {
    const CHECK: &str = "agent-sandbox";
    if served.is_empty() {
        return Finding::unsure(
            CHECK,
            "not installed",
            "Only --mode agent-sandbox needs it: install it from agent-sandbox.sigs.k8s.io.",
        );
    }
    Finding::good(CHECK, format!("serves {}", served.join(", ")))
}

/// Returns the served versions of agent-sandbox's API groups.
pub(super) async fn served(client: &Client) -> kube::Result<Vec<String>> {
    let groups = client.list_api_groups().await?.groups;
    let theirs = groups.into_iter().filter(|group| group.name.ends_with("agents.x-k8s.io"));
    Ok(theirs.flat_map(|group| group.versions).map(|version| version.group_version).collect())
}

async fn router(client: &Client) -> Finding {
    let services: Api<Service> = Api::namespaced(client.clone(), ROUTER.0);
    match services.get_opt(ROUTER.1).await {
        Ok(service) => judge_router(service.is_some()),
        Err(cause) => unreadable("router", &cause, "kubectl get service -A | grep sandbox-router"),
    }
}

fn judge_router(is_there: bool) -> Finding {
    const CHECK: &str = "router";
    if is_there {
        return Finding::good(CHECK, format!("{} in {}", ROUTER.1, ROUTER.0));
    }
    Finding::unsure(
        CHECK,
        format!("there is no Service {} in {}", ROUTER.1, ROUTER.0),
        "Only --mode agent-sandbox with a router needs it; sandpod's own guest is reached without.",
    )
}

/// Returns the finding for a failed read. A forbidden read is unsure, all other failures are bad.
pub(super) fn unreadable(check: &str, cause: &kube::Error, how: &str) -> Finding {
    match cause {
        kube::Error::Api(status) if status.code == 403 => Finding::unsure(
            check,
            "cannot be read with these rights",
            format!("Optional. To see it, ask the administrator of the cluster for {how}."),
        ),
        cause => Finding::of(check, &Error::api("read it", cause)),
    }
}

fn guest(config: &RawConfig) -> Finding {
    const CHECK: &str = "guest program";
    match guest_binaries::find(&config.arch, config.package_dir.as_deref()) {
        Ok(binaries) => {
            Finding::good(CHECK, format!("for {}, {} KiB", config.arch, binaries.guest.len() / 1024))
        }
        Err(error) => Finding::of(CHECK, &error),
    }
}

#[cfg(test)]
mod tests {
    use sandpod_kube::kube::core::Status;

    use super::*;
    use crate::doctor::{Verdict, fix, next};

    #[test]
    fn clock_skew_is_reported_in_both_directions() {
        let now = SystemTime::now();
        assert_eq!(judge_clock(Some(now), now + Duration::from_secs(5)).verdict, Verdict::Good);
        for off in [now + Duration::from_secs(90), now - Duration::from_secs(90)] {
            assert!(fix(judge_clock(Some(off), now)).contains("timedatectl set-ntp true"));
        }
        assert_eq!(next(judge_clock(None, now)), "Compare the clocks yourself.");
    }

    #[test]
    fn unsupported_kubernetes_version_is_reported() {
        assert_eq!(judge_version("v1.34.4", 34).verdict, Verdict::Good);
        assert!(fix(judge_version("v1.27.1", 27)).contains("1.29 or newer"));
    }

    #[test]
    fn exhausted_quota_is_reported() {
        let quota = |used: &str| -> ResourceQuota {
            serde_json::from_value(json!({ "status": { "hard": { "pods": "2" }, "used": { "pods": used } } }))
                .unwrap()
        };
        assert_eq!(judge_quota(&[]).found, "none");
        assert_eq!(judge_quota(&[quota("1")]).found, "pods 1 of 2");
        assert!(fix(judge_quota(&[quota("2")])).contains("sandpod gc"));
    }

    #[test]
    fn nodes_of_another_architecture_are_reported() {
        let found = ["arm64".to_owned()];
        assert_eq!(judge_architectures(&found, Some("arm64"), SET_ARCH).verdict, Verdict::Good);
        assert!(fix(judge_architectures(&found, Some("amd64"), SET_ARCH)).contains("SANDPOD_ARCH=arm64"));
    }

    #[test]
    fn missing_agent_sandbox_and_router_are_unsure() {
        assert_eq!(judge_served(&["agents.x-k8s.io/v1beta1".to_owned()]).verdict, Verdict::Good);
        let not_installed = next(judge_served(&[]));
        assert!(not_installed.contains("install it from agent-sandbox.sigs.k8s.io"), "{not_installed}");
        assert_eq!(judge_router(true).verdict, Verdict::Good);
        let none = judge_router(false);
        assert_eq!(none.found, "there is no Service sandbox-router-svc in agent-sandbox-system");
        assert!(next(none).starts_with("Only --mode agent-sandbox with a router needs it"));
    }

    #[test]
    fn forbidden_read_is_unsure_and_failed_read_is_bad() {
        let refused = |code| kube::Error::Api(Box::new(Status { code, ..Status::default() }));
        let hidden = next(unreadable("quota", &refused(403), "kubectl get resourcequota"));
        assert!(hidden.starts_with(
            "Optional. To see it, ask the administrator of the cluster for kubectl get resourcequota"
        ));
        let broken = unreadable("quota", &refused(500), "kubectl get resourcequota");
        assert!(broken.found.starts_with("Can't read it: ") && !fix(broken).is_empty());
    }

    #[test]
    fn proxy_credentials_are_not_shown() {
        assert_eq!(host(&"http://user:secret@proxy:3128/"), "proxy:3128/");
    }
}
