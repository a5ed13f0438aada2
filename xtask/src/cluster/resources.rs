//! The resources that are installed in the running cluster: agent-sandbox from its project's manifests, and the CRDs of the
//! Gateway API.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::images;
use super::tools::{Tools, module_sources};
use crate::progress::wait_for;
use crate::shell::{output, output_with_input};
use crate::workspace::root;

/// The CRDs that must be Established before their use.
const CRDS: [&str; 5] = [
    "gateways.gateway.networking.k8s.io",
    "sandboxclaims.extensions.agents.x-k8s.io",
    "sandboxes.agents.x-k8s.io",
    "sandboxtemplates.extensions.agents.x-k8s.io",
    "sandboxwarmpools.extensions.agents.x-k8s.io",
];

/// Applies everything and waits until the CRDs are Established.
pub(super) fn install(tools: &Tools) -> Result<()> {
    let agent_sandbox = module_sources("testbed/agent-sandbox", "sigs.k8s.io/agent-sandbox")?.join("k8s");
    let gateway_api = module_sources("testbed/gateway-api", "sigs.k8s.io/gateway-api")?;

    let mut resources = Vec::new();
    resources.extend(read_dir(&agent_sandbox.join("crds"))?.into_iter().map(without_old_versions));
    resources.extend(
        read_dir(&gateway_api.join("config/crd/standard"))?
            .into_iter()
            .filter(|r| is(r, &["CustomResourceDefinition"])),
    );
    // The controller runs outside of the cluster, so only the RBAC of its manifests is needed.
    let rights = ["Namespace", "ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"];
    resources.extend(read_dir(&agent_sandbox)?.into_iter().filter(|r| is(r, &rights)));
    resources.extend(router()?);
    // Namespaces first: other resources may be in them.
    resources.sort_by_key(|resource| !is(resource, &["Namespace"]));
    apply(tools, &resources)?;
    wait_for("the CRDs", Duration::from_secs(60), || not_established(tools))
}

/// The router from `deploy`, with the testbed's image.
fn router() -> Result<Vec<Value>> {
    let path = root().join("deploy/agent-sandbox/router.yaml");
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    parse(&text.replace("image: IMAGE", &format!("image: {}", images::ROUTER)))
}

/// Applies resources on the server side: some CRDs are too large for the annotation of client-side apply.
pub(super) fn apply(tools: &Tools, resources: &[Value]) -> Result<()> {
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": resources });
    let mut kubectl = tools.kubectl("admin", ["apply", "--server-side", "--force-conflicts", "--filename=-"]);
    output_with_input(&mut kubectl, &serde_json::to_vec(&list)?)?;
    Ok(())
}

/// The resources of a YAML file.
pub(super) fn read(path: &Path) -> Result<Vec<Value>> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    parse(&text).with_context(|| format!("{} is no valid YAML", path.display()))
}

/// The resources of a YAML text.
pub(super) fn parse(text: &str) -> Result<Vec<Value>> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(text)?;
    Ok(documents.into_iter().filter(Value::is_object).collect())
}

fn read_dir(dir: &Path) -> Result<Vec<Value>> {
    let mut files = fs::read_dir(dir)
        .and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>, _>>())
        .with_context(|| format!("cannot read {}", dir.display()))?;
    files.retain(|path| path.extension().is_some_and(|extension| extension == "yaml"));
    files.sort();
    files.iter().map(|file| read(file)).collect::<Result<Vec<_>>>().map(|lists| lists.concat())
}

fn is(resource: &Value, kinds: &[&str]) -> bool {
    resource["kind"].as_str().is_some_and(|kind| kinds.contains(&kind))
}

/// A CRD with only `v1beta1`: the older version needs a conversion webhook, and 1.0 dropped both.
fn without_old_versions(mut crd: Value) -> Value {
    if let Some(versions) = crd["spec"]["versions"].as_array_mut() {
        versions.retain(|version| version["name"] == "v1beta1");
    }
    if let Some(spec) = crd["spec"].as_object_mut() {
        spec.remove("conversion");
    }
    crd
}

/// The first CRD that is not Established yet.
fn not_established(tools: &Tools) -> Result<Option<String>> {
    let path = r#"jsonpath={range .items[*]}{.metadata.name} {.status.conditions[?(@.type=="Established")].status}{"\n"}{end}"#;
    let seen = output(&mut tools.kubectl("admin", ["get", "crds", "--output", path]))?;
    let missing = CRDS.iter().find(|crd| !seen.contains(&format!("{crd} True")));
    Ok(missing.map(|crd| format!("{crd} is not Established")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crd_keeps_its_current_version_and_loses_its_conversion() {
        let crd = json!({"spec": {"conversion": {"strategy": "Webhook"}, "versions": [{"name": "v1alpha1"}, {"name": "v1beta1"}]}});
        assert_eq!(without_old_versions(crd), json!({"spec": {"versions": [{"name": "v1beta1"}]}}));
    }

    #[test]
    fn a_yaml_file_holds_many_resources_and_empty_documents_are_none() {
        let resources = parse("kind: A\n---\n# nothing\n---\nkind: B\n").unwrap();
        assert_eq!(resources, [json!({"kind": "A"}), json!({"kind": "B"})]);
    }
}
