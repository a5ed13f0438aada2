//! Applies strategic merge patches to Pods as the API server does: objects merge field by field, lists with a merge key
//! merge element by element, all other lists are replaced, and null removes a field.
//!
//! The directives `$patch`, `$retainKeys` and `$deleteFromPrimitiveList/…` are supported. `$setElementOrder/…` is
//! ignored, because order has no meaning in these lists.

use serde_json::{Map, Value};

const PATCH: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const DELETE_FROM: &str = "$deleteFromPrimitiveList/";
const SET_ORDER: &str = "$setElementOrder/";

/// The lists of a Pod that merge, with their merge keys. Those below `containers` also apply to init and ephemeral
/// containers.
const MERGE_KEYS: [(&str, &str); 14] = [
    ("metadata.ownerReferences", "uid"),
    ("spec.containers", "name"),
    ("spec.ephemeralContainers", "name"),
    ("spec.hostAliases", "ip"),
    ("spec.imagePullSecrets", "name"),
    ("spec.initContainers", "name"),
    ("spec.resourceClaims", "name"),
    ("spec.schedulingGates", "name"),
    ("spec.topologySpreadConstraints", "topologyKey"),
    ("spec.volumes", "name"),
    ("spec.containers.env", "name"),
    ("spec.containers.ports", "containerPort"),
    ("spec.containers.volumeDevices", "devicePath"),
    ("spec.containers.volumeMounts", "mountPath"),
];

/// Applies `patch` to the Pod `target`. An error names the part of the patch that is invalid.
pub(super) fn apply(target: &mut Value, patch: &Value) -> Result<(), String> {
    merge_value(target, patch, "")
}

/// Returns the merge key of the list at `path`, if it merges.
fn merge_key(path: &str) -> Option<&'static str> {
    let path = path.replacen("spec.initContainers.", "spec.containers.", 1).replacen(
        "spec.ephemeralContainers.",
        "spec.containers.",
        1,
    );
    MERGE_KEYS.iter().find(|(list, _)| *list == path).map(|(_, key)| *key)
}

fn merge_value(target: &mut Value, patch: &Value, at: &str) -> Result<(), String> {
    match (patch, merge_key(at)) {
        (Value::Object(patch), _) => merge_object(target, patch, at),
        (Value::Array(patch), Some(key)) => merge_list(target, patch, at, key),
        _ => {
            *target = patch.clone();
            Ok(())
        }
    }
}

fn merge_object(target: &mut Value, patch: &Map<String, Value>, at: &str) -> Result<(), String> {
    match directive(patch, at)? {
        Some("replace") => *target = Value::Object(Map::new()),
        Some("delete") => {
            *target = Value::Null;
            return Ok(());
        }
        _ => {}
    }
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Some(object) = target.as_object_mut() else { return Ok(()) };
    if let Some(keys) = patch.get(RETAIN_KEYS) {
        let keys = keys.as_array().ok_or_else(|| format!("{at}.{RETAIN_KEYS} is not a list"))?;
        object.retain(|name, _| keys.iter().any(|key| key == name));
    }
    for (name, value) in patch {
        if let Some(list) = name.strip_prefix(DELETE_FROM) {
            remove_all(object.get_mut(list), value);
        } else if name.starts_with(SET_ORDER) || [PATCH, RETAIN_KEYS].contains(&name.as_str()) {
            // Handled above, or ignored.
        } else if name.starts_with('$') {
            return Err(format!("{} is not a directive of a strategic merge patch", below(at, name)));
        } else if value.is_null() {
            object.remove(name);
        } else {
            let field = object.entry(name.clone()).or_insert(Value::Null);
            merge_value(field, value, &below(at, name))?;
            if field.is_null() {
                object.remove(name);
            }
        }
    }
    Ok(())
}

/// Merges a list by its merge key.
fn merge_list(target: &mut Value, patch: &[Value], at: &str, key: &str) -> Result<(), String> {
    let is_replace = |one: &Value| {
        one.as_object().is_some_and(|one| one.len() == 1 && one.get(PATCH) == Some(&"replace".into()))
    };
    if patch.iter().any(is_replace) {
        *target = patch.iter().filter(|one| !is_replace(one)).cloned().collect();
        return Ok(());
    }
    if !target.is_array() {
        *target = Value::Array(Vec::new());
    }
    let Some(list) = target.as_array_mut() else { return Ok(()) };
    for one in patch {
        let named = one.as_object().and_then(|object| Some((object, object.get(key)?)));
        let (object, name) = named.ok_or_else(|| format!("{at} has an element without '{key}'"))?;
        let place = list.iter().position(|there| there.get(key) == Some(name));
        match (directive(object, at)?, place) {
            (Some("delete"), Some(place)) => drop(list.remove(place)),
            (Some("delete"), None) => {}
            (_, Some(place)) => merge_object(&mut list[place], object, at)?,
            (_, None) => {
                let mut new = Value::Null;
                merge_object(&mut new, object, at)?;
                list.push(new);
            }
        }
    }
    Ok(())
}

fn directive<'a>(patch: &'a Map<String, Value>, at: &str) -> Result<Option<&'a str>, String> {
    match patch.get(PATCH).map(Value::as_str) {
        None => Ok(None),
        Some(Some(known @ ("replace" | "delete" | "merge"))) => Ok(Some(known)),
        Some(other) => {
            let shown = other.unwrap_or("no text");
            Err(format!("{} is {shown}: use 'replace', 'delete' or 'merge'", below(at, PATCH)))
        }
    }
}

fn remove_all(list: Option<&mut Value>, unwanted: &Value) {
    if let (Some(list), Some(unwanted)) = (list.and_then(Value::as_array_mut), unwanted.as_array()) {
        list.retain(|one| !unwanted.contains(one));
    }
}

fn below(at: &str, name: &str) -> String {
    if at.is_empty() { name.to_owned() } else { format!("{at}.{name}") }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod() -> Value {
        json!({ "spec": {
            "containers": [{
                "name": "sandbox", "image": "one",
                "env": [{ "name": "A", "value": "1" }, { "name": "B", "value": "2" }],
                "ports": [{ "containerPort": 80 }],
                "volumeMounts": [{ "name": "v", "mountPath": "/v" }],
                "securityContext": { "capabilities": { "drop": ["ALL"] } },
            }],
            "volumes": [{ "name": "v", "emptyDir": {} }],
            "tolerations": [{ "key": "a" }],
            "nodeSelector": { "arch": "amd64" },
        }})
    }

    fn merged(patch: &Value) -> Value {
        let mut pod = pod();
        apply(&mut pod, &json!({ "spec": patch })).unwrap();
        pod["spec"].take()
    }

    #[test]
    fn objects_merge_field_by_field_and_null_removes() {
        let spec = merged(&json!({ "nodeSelector": { "disk": "ssd" }, "tolerations": null }));
        assert_eq!(spec["nodeSelector"], json!({ "arch": "amd64", "disk": "ssd" }));
        assert_eq!(spec.get("tolerations"), None);
        assert_eq!(merged(&json!({ "nodeSelector": { "arch": null } }))["nodeSelector"], json!({}));
    }

    #[test]
    fn a_container_is_found_by_its_name_and_its_lists_by_their_own_keys() {
        let spec = merged(&json!({ "containers": [{
            "name": "sandbox",
            "env": [{ "name": "B", "value": "3" }, { "name": "C", "value": "4" }],
            "ports": [{ "containerPort": 80, "name": "http" }],
            "volumeMounts": [{ "name": "w", "mountPath": "/v" }],
        }]}));
        let container = &spec["containers"][0];
        assert_eq!(container["image"], "one");
        let value = |place: usize| &container["env"][place]["value"];
        assert_eq!([value(0), value(1), value(2)], ["1", "3", "4"]);
        assert_eq!(container["ports"], json!([{ "containerPort": 80, "name": "http" }]));
        assert_eq!(container["volumeMounts"], json!([{ "name": "w", "mountPath": "/v" }]));
        let sidecar = merged(&json!({ "containers": [{ "name": "sidecar", "image": "two" }] }));
        assert_eq!(sidecar["containers"].as_array().unwrap().len(), 2);
    }

    #[test]
    fn the_lists_of_init_containers_merge_as_those_of_containers() {
        let mut pod = json!({ "spec": { "initContainers": [{ "name": "i", "env": [{ "name": "A" }] }] } });
        let patch = json!({ "spec": { "initContainers": [{ "name": "i", "env": [{ "name": "B" }] }] } });
        apply(&mut pod, &patch).unwrap();
        assert_eq!(pod["spec"]["initContainers"][0]["env"], json!([{ "name": "A" }, { "name": "B" }]));
    }

    #[test]
    fn lists_without_names_are_replaced() {
        assert_eq!(
            merged(&json!({ "tolerations": [{ "key": "b" }] }))["tolerations"],
            json!([{ "key": "b" }])
        );
        let spec = merged(&json!({ "containers": [{
            "name": "sandbox", "securityContext": { "capabilities": { "drop": ["NET_RAW"] } },
        }]}));
        assert_eq!(spec["containers"][0]["securityContext"]["capabilities"]["drop"], json!(["NET_RAW"]));
    }

    #[test]
    fn directives_replace_delete_and_retain() {
        let spec = merged(&json!({
            "volumes": [{ "name": "v", "$patch": "delete" }, { "name": "w", "emptyDir": {} }],
            "nodeSelector": { "$patch": "replace", "disk": "ssd" },
        }));
        assert_eq!(spec["volumes"], json!([{ "name": "w", "emptyDir": {} }]));
        assert_eq!(spec["nodeSelector"], json!({ "disk": "ssd" }));
        let spec =
            merged(&json!({ "volumes": [{ "$patch": "replace" }, { "name": "only", "emptyDir": {} }] }));
        assert_eq!(spec["volumes"], json!([{ "name": "only", "emptyDir": {} }]));
        let spec = merged(&json!({ "volumes": [{
            "name": "v", "$retainKeys": ["name", "configMap"], "configMap": { "name": "m" },
        }]}));
        assert_eq!(spec["volumes"], json!([{ "name": "v", "configMap": { "name": "m" } }]));
        let spec =
            merged(&json!({ "containers": [{ "name": "sandbox", "securityContext": { "capabilities": {
                "$deleteFromPrimitiveList/drop": ["ALL"],
            }}}]}));
        assert_eq!(spec["containers"][0]["securityContext"]["capabilities"]["drop"], json!([]));
    }

    #[test]
    fn an_invalid_patch_is_refused_with_its_path() {
        for (patch, path) in [
            (json!({ "containers": [{ "image": "x" }] }), "spec.containers"),
            (json!({ "nodeSelector": { "$patch": "erase" } }), "spec.nodeSelector.$patch"),
            (json!({ "$frobnicate": 1 }), "spec.$frobnicate"),
        ] {
            let error = apply(&mut pod(), &json!({ "spec": patch })).unwrap_err();
            assert!(error.contains(path), "{error}");
        }
    }
}
