//! `pod_template_overrides`: the user's changes of the Pod.

use serde_json::{Map, Value, json};

use super::pool::{POOL_LABEL, STATUS_LABEL};
use super::strategic_merge;
use crate::Result;
use crate::backend::kubernetes::anchor::{ID_LABEL, MANAGED_BY};
use crate::config::{RawConfig, refused};

/// The labels by which we find our Pods.
const OWN_LABELS: [&str; 4] = [MANAGED_BY.0, ID_LABEL, POOL_LABEL, STATUS_LABEL];

/// Applies the user's overrides to the Pod.
pub(super) fn overridden(config: &RawConfig, mut pod: Value) -> Result<Value> {
    let Some(overrides) = &config.pod_template_overrides else { return Ok(pod) };
    let next =
        "Write it as a strategic merge patch of a Pod's spec, or of a template with metadata and spec.";
    let bad = |cause: &str| refused(&format!("pod_template_overrides: {cause}"), next);
    let fields = overrides.as_object().ok_or_else(|| bad("it is not an object"))?;
    // A Pod's spec has no field of either name.
    let is_template = fields.contains_key("metadata") || fields.contains_key("spec");
    let patch = if is_template { overrides.clone() } else { json!({ "spec": overrides }) };
    if let Some(name) =
        fields.keys().find(|name| is_template && !["metadata", "spec"].contains(&name.as_str()))
    {
        return Err(bad(&format!("'{name}' is beside metadata and spec")));
    }
    let metadata = patch["metadata"].as_object().into_iter().flatten();
    for (name, values) in metadata {
        if !["labels", "annotations"].contains(&name.as_str()) {
            return Err(bad(&format!("metadata.{name} is sandpod's own")));
        }
        let own = values.as_object().into_iter().flat_map(Map::keys);
        if let Some(own) = own.into_iter().find(|key| OWN_LABELS.contains(&key.as_str())) {
            return Err(bad(&format!("metadata.{name}[{own}] is sandpod's own")));
        }
    }
    strategic_merge::apply(&mut pod, &patch).map_err(|cause| bad(&cause))?;
    Ok(pod)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::raw::delivery::GuestSource;
    use crate::backend::raw::pod;

    #[test]
    fn overrides_are_a_spec_or_a_template_and_leave_what_is_ours() {
        let json_of = |fields: Value| {
            let config: RawConfig = serde_json::from_value(fields).unwrap();
            serde_json::to_value(pod::spec(&config, &GuestSource::default()).unwrap()).unwrap()
        };
        let plain = json_of(json!({ "pod_template_overrides": { "dnsPolicy": "Default" } }));
        let template = json_of(json!({ "pod_template_overrides": { "spec": { "dnsPolicy": "Default" } } }));
        assert_eq!((&plain["dnsPolicy"], &plain), (&json!("Default"), &template));
        assert_eq!(plain["containers"][0]["name"], "sandbox");
        for (overrides, name) in [
            (json!({ "spec": {}, "hostname": "x" }), "'hostname'"),
            (json!({ "metadata": { "name": "x" } }), "metadata.name"),
            (json!({ "metadata": { "labels": { "sandpod.dev/id": "x" } } }), "sandpod.dev/id"),
            (json!([]), "not an object"),
            (json!({ "containers": [{ "image": "x" }] }), "spec.containers"),
        ] {
            let config: RawConfig =
                serde_json::from_value(json!({ "pod_template_overrides": overrides })).unwrap();
            let said = config.check().unwrap_err().to_string();
            assert!(said.contains("pod_template_overrides") && said.contains(name), "{said}");
        }
    }
}
