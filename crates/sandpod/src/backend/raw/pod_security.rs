//! Checks a Pod for fields that weaken its isolation. It checks the finished Pod, so every way to set a field is
//! covered.

use serde_json::{Value, json};

use super::network::NETWORK_LABEL;
use crate::Result;
use crate::config::{CONTAINER, GUEST_DIR, OWN_PREFIX, RawConfig, STATE_DIR, overlap, refused};

/// Refuses the first weakness of `pod`, unless the configuration permits it. `own` is the same Pod without anything of
/// the user's.
pub(super) fn check(config: &RawConfig, pod: &Value, own: &Value) -> Result<()> {
    if config.allow_insecure_overrides {
        return Ok(());
    }
    let found = in_metadata(config, pod)
        .or_else(|| in_spec(&pod["spec"], &own["spec"]))
        .or_else(|| in_containers(&pod["spec"]))
        .or_else(|| in_guest(&pod["spec"], &own["spec"]));
    match found {
        None => Ok(()),
        Some((path, why)) => Err(refused(
            &format!("{path} {why}, which weakens the sandbox"),
            "Leave it out, or set allow_insecure_overrides to take the risk.",
        )),
    }
}

/// Fields that make the kubelet start processes in the sandbox. The guest admits such processes as clients, and they
/// may run a file that code in the sandbox has written.
const RUN_FROM_OUTSIDE: [&str; 4] =
    ["/lifecycle", "/livenessProbe/exec", "/readinessProbe/exec", "/startupProbe/exec"];

/// The prefix of annotations that set the `AppArmor` profile of a container.
const APP_ARMOR: &str = "container.apparmor.security.beta.kubernetes.io/";

/// The path of the field, and what is wrong with it.
type Weakness = (String, &'static str);

fn in_metadata(config: &RawConfig, pod: &Value) -> Option<Weakness> {
    let label = &pod["metadata"]["labels"][NETWORK_LABEL.0];
    if config.block_network && label != NETWORK_LABEL.1 {
        return Some((
            format!("metadata.labels[{}]", NETWORK_LABEL.0),
            "is not what the deny-all policy selects",
        ));
    }
    // The form before Kubernetes 1.30, which kubelets still apply.
    let annotations = pod["metadata"]["annotations"].as_object().into_iter().flatten();
    let unconfined = |(key, value): &(&String, &Value)| key.starts_with(APP_ARMOR) && *value == "unconfined";
    let (key, _) = annotations.into_iter().find(unconfined)?;
    Some((format!("metadata.annotations[{key}]"), "is 'unconfined'"))
}

fn in_spec(spec: &Value, own: &Value) -> Option<Weakness> {
    let runtime = &own["runtimeClassName"];
    if !runtime.is_null() && spec["runtimeClassName"] != *runtime {
        return Some(("spec.runtimeClassName".to_owned(), "is not the configuration's runtime_class"));
    }
    // In a shared PID namespace the guest isn't PID 1 and can't authenticate its peers.
    for field in ["hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace"] {
        if spec[field] == true {
            return Some((format!("spec.{field}"), "is true"));
        }
    }
    if spec["automountServiceAccountToken"] != false {
        return Some(("spec.automountServiceAccountToken".to_owned(), "is not false"));
    }
    in_volumes(spec).or_else(|| in_pod_context(&spec["securityContext"]))
}

fn in_volumes(spec: &Value) -> Option<Weakness> {
    elements(&spec["volumes"]).find_map(|volume| {
        let path = format!("spec.volumes[{}]", name_of(volume));
        if volume.get("hostPath").is_some() {
            return Some((format!("{path}.hostPath"), "is a folder of the node"));
        }
        let token = elements(&volume["projected"]["sources"])
            .any(|source| source.get("serviceAccountToken").is_some());
        if token {
            return Some((format!("{path}.projected"), "has a ServiceAccount's token"));
        }
        None
    })
}

fn in_pod_context(context: &Value) -> Option<Weakness> {
    let path = "spec.securityContext";
    if context["runAsNonRoot"] != true {
        return Some((format!("{path}.runAsNonRoot"), "is not true"));
    }
    if context.get("seccompProfile").is_none() {
        return Some((format!("{path}.seccompProfile"), "is left out"));
    }
    if elements(&context["sysctls"]).next().is_some() {
        return Some((format!("{path}.sysctls"), "changes the kernel's settings"));
    }
    in_any_context(context, path)
}

/// Checks the fields that Pods and containers have in common.
fn in_any_context(context: &Value, path: &str) -> Option<Weakness> {
    if context["runAsUser"] == 0 {
        return Some((format!("{path}.runAsUser"), "is 0, root"));
    }
    if context["runAsNonRoot"] == false {
        return Some((format!("{path}.runAsNonRoot"), "is false"));
    }
    for profile in ["seccompProfile", "appArmorProfile"] {
        if context[profile]["type"] == "Unconfined" {
            return Some((format!("{path}.{profile}"), "is 'Unconfined'"));
        }
    }
    if !context["seLinuxOptions"].is_null() {
        return Some((format!("{path}.seLinuxOptions"), "changes how SELinux confines it"));
    }
    if context["windowsOptions"]["hostProcess"] == true {
        return Some((format!("{path}.windowsOptions.hostProcess"), "is true"));
    }
    None
}

fn in_containers(spec: &Value) -> Option<Weakness> {
    ["containers", "initContainers", "ephemeralContainers"].into_iter().find_map(|list| {
        elements(&spec[list])
            .find_map(|container| in_container(container, &format!("spec.{list}[{}]", name_of(container))))
    })
}

fn in_container(container: &Value, path: &str) -> Option<Weakness> {
    if elements(&container["ports"]).any(|port| port["hostPort"].as_i64().is_some_and(|port| port != 0)) {
        return Some((format!("{path}.ports"), "has a port of the node"));
    }
    let context = &container["securityContext"];
    let path = format!("{path}.securityContext");
    if context["privileged"] == true {
        return Some((format!("{path}.privileged"), "is true"));
    }
    if context["allowPrivilegeEscalation"] != false {
        return Some((format!("{path}.allowPrivilegeEscalation"), "is not false"));
    }
    if elements(&context["capabilities"]["add"]).next().is_some() {
        return Some((format!("{path}.capabilities.add"), "gives capabilities"));
    }
    if !elements(&context["capabilities"]["drop"]).any(|one| one == "ALL") {
        return Some((format!("{path}.capabilities.drop"), "does not drop ALL"));
    }
    if context["procMount"] == "Unmasked" {
        return Some((format!("{path}.procMount"), "is 'Unmasked'"));
    }
    in_any_context(context, &path)
}

/// Checks that the guest is started by our command from our files.
fn in_guest(spec: &Value, own: &Value) -> Option<Weakness> {
    let path = format!("spec.containers[{CONTAINER}]");
    let (Some(container), Some(own_container)) = (sandbox(spec), sandbox(own)) else {
        return Some((path, "is removed: it is the sandbox"));
    };
    for field in ["command", "args"] {
        if container[field] != own_container[field] {
            return Some((format!("{path}.{field}"), "replaces the guest"));
        }
    }
    if ours(&container["env"], "SANDPOD_") != ours(&own_container["env"], "SANDPOD_") {
        return Some((format!("{path}.env"), "changes variables of the guest"));
    }
    if mounts(container) != mounts(own_container) {
        return Some((format!("{path}.volumeMounts"), "changes mounts of the guest"));
    }
    let last_words = container["terminationMessagePath"].as_str();
    if last_words.is_some_and(is_guests) {
        return Some((format!("{path}.terminationMessagePath"), "is a file of the guest"));
    }
    if let Some(path) =
        RUN_FROM_OUTSIDE.iter().find(|path| !container.pointer(path).unwrap_or(&Value::Null).is_null())
    {
        let path = format!("spec.containers[{CONTAINER}]{}", path.replace('/', "."));
        return Some((path, "starts processes that the guest takes for its clients"));
    }
    for (list, why) in
        [("volumes", "changes volumes of the guest"), ("initContainers", "changes what brings the guest")]
    {
        if ours(&spec[list], OWN_PREFIX) != ours(&own[list], OWN_PREFIX) {
            return Some((format!("spec.{list}"), why));
        }
    }
    None
}

fn sandbox(spec: &Value) -> Option<&Value> {
    elements(&spec["containers"]).find(|container| container["name"] == CONTAINER)
}

/// Returns the elements whose names have this prefix.
fn ours<'a>(list: &'a Value, prefix: &str) -> Vec<&'a Value> {
    elements(list).filter(|one| name_of(one).starts_with(prefix)).collect()
}

/// Returns the mounts that overlap the guest's files or its state.
fn mounts(container: &Value) -> Vec<&Value> {
    let mounts = elements(&container["volumeMounts"]);
    mounts.filter(|mount| is_guests(mount["mountPath"].as_str().unwrap_or_default())).collect()
}

/// Whether `path` overlaps the guest's files or its state.
fn is_guests(path: &str) -> bool {
    [GUEST_DIR, STATE_DIR].iter().any(|dir| overlap(path, dir))
}

fn elements(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

fn name_of(object: &Value) -> &str {
    object["name"].as_str().unwrap_or("?")
}

/// Makes a container of the user as strict as the sandbox's own, in all fields that it does not set.
pub(super) fn harden(container: &mut Value) {
    let context = &mut container["securityContext"];
    let strict = [("allowPrivilegeEscalation", json!(false)), ("capabilities", json!({}))];
    if context.is_null() {
        *context = json!({});
    }
    let Some(fields) = context.as_object_mut() else { return };
    for (field, value) in strict {
        fields.entry(field).or_insert(value);
    }
    if let Some(capabilities) = fields["capabilities"].as_object_mut() {
        capabilities.entry("drop").or_insert(json!(["ALL"]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(fields: Value) -> Option<String> {
        let config: RawConfig = serde_json::from_value(fields).unwrap();
        config.check().err().map(|error| error.to_string())
    }

    #[test]
    #[expect(clippy::too_many_lines, reason = "a table of cases")]
    fn a_weaker_field_is_refused_with_its_path_unless_it_is_allowed() {
        let sandbox = |fields: Value| {
            let mut container = json!({ "name": "sandbox" });
            container.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
            json!({ "containers": [container] })
        };
        let context = |fields: Value| sandbox(json!({ "securityContext": fields }));
        for (overrides, path) in [
            (json!({ "hostNetwork": true }), "spec.hostNetwork"),
            (json!({ "hostPID": true }), "spec.hostPID"),
            (json!({ "hostIPC": true }), "spec.hostIPC"),
            (json!({ "shareProcessNamespace": true }), "spec.shareProcessNamespace"),
            (json!({ "automountServiceAccountToken": true }), "spec.automountServiceAccountToken"),
            (json!({ "automountServiceAccountToken": null }), "spec.automountServiceAccountToken"),
            (
                json!({ "volumes": [{ "name": "h", "hostPath": { "path": "/" } }] }),
                "spec.volumes[h].hostPath",
            ),
            (
                json!({ "volumes": [{ "name": "t", "projected": { "sources": [
                    { "serviceAccountToken": { "path": "token" } },
                ] } }] }),
                "spec.volumes[t].projected",
            ),
            (json!({ "securityContext": null }), "spec.securityContext.runAsNonRoot"),
            (json!({ "securityContext": { "runAsUser": 0 } }), "spec.securityContext.runAsUser"),
            (
                json!({ "securityContext": { "seccompProfile": { "type": "Unconfined" } } }),
                "spec.securityContext.seccompProfile",
            ),
            (json!({ "securityContext": { "seccompProfile": null } }), "spec.securityContext.seccompProfile"),
            (
                json!({ "securityContext": { "sysctls": [{ "name": "a", "value": "b" }] } }),
                "spec.securityContext.sysctls",
            ),
            (context(json!({ "privileged": true })), "spec.containers[sandbox].securityContext.privileged"),
            (
                context(json!({ "allowPrivilegeEscalation": true })),
                "spec.containers[sandbox].securityContext.allowPrivilegeEscalation",
            ),
            (
                context(json!({ "$patch": "replace" })),
                "spec.containers[sandbox].securityContext.allowPrivilegeEscalation",
            ),
            (context(json!({ "capabilities": { "add": ["SYS_ADMIN"] } })), "capabilities.add"),
            (context(json!({ "capabilities": { "drop": [] } })), "capabilities.drop"),
            (context(json!({ "runAsUser": 0 })), "spec.containers[sandbox].securityContext.runAsUser"),
            (context(json!({ "runAsNonRoot": false })), "runAsNonRoot"),
            (context(json!({ "procMount": "Unmasked" })), "procMount"),
            (context(json!({ "seccompProfile": { "type": "Unconfined" } })), "seccompProfile"),
            (context(json!({ "appArmorProfile": { "type": "Unconfined" } })), "appArmorProfile"),
            (sandbox(json!({ "ports": [{ "containerPort": 1, "hostPort": 1 }] })), "ports"),
            (context(json!({ "seLinuxOptions": { "type": "spc_t" } })), "seLinuxOptions"),
            (
                sandbox(json!({ "lifecycle": { "postStart": { "exec": { "command": ["x"] } } } })),
                "spec.containers[sandbox].lifecycle",
            ),
            (
                sandbox(json!({ "livenessProbe": { "exec": { "command": ["/workspace/x"] } } })),
                "spec.containers[sandbox].livenessProbe.exec",
            ),
            (sandbox(json!({ "command": ["sh"] })), "spec.containers[sandbox].command"),
            (sandbox(json!({ "args": ["--", "sh"] })), "spec.containers[sandbox].args"),
            (sandbox(json!({ "env": [{ "name": "SANDPOD_STATE_DIR", "value": "/x" }] })), ".env"),
            (
                sandbox(
                    json!({ "env": [{ "name": "SANDPOD_DISABLED_KERNEL_FEATURES", "value": "landlock" }] }),
                ),
                ".env",
            ),
            (
                sandbox(
                    json!({ "env": [{ "name": "SANDPOD_DISABLED_KERNEL_FEATURES", "$patch": "delete" }] }),
                ),
                ".env",
            ),
            (sandbox(json!({ "env": [{ "name": "SANDPOD_TOKEN_SHA256", "value": "00" }] })), ".env"),
            (sandbox(json!({ "terminationMessagePath": "/sandpod/boot" })), ".terminationMessagePath"),
            (
                json!({ "metadata": { "annotations": {
                    "container.apparmor.security.beta.kubernetes.io/sandbox": "unconfined",
                } } }),
                "metadata.annotations[container.apparmor.security.beta.kubernetes.io/sandbox]",
            ),
            (
                sandbox(json!({ "volumeMounts": [{ "name": "v", "mountPath": "/sandpod/boot" }] })),
                ".volumeMounts",
            ),
            (
                sandbox(json!({ "volumeMounts": [{ "mountPath": "/sandpod", "$patch": "delete" }] })),
                ".volumeMounts",
            ),
            (json!({ "volumes": [{ "name": "sandpod-guest", "emptyDir": {} }] }), "spec.volumes"),
            (
                json!({ "containers": [{ "name": "sandbox", "$patch": "delete" }] }),
                "spec.containers[sandbox]",
            ),
            (
                json!({ "containers": [{ "name": "c", "securityContext": { "privileged": true } }] }),
                "spec.containers[c].securityContext.privileged",
            ),
            (
                json!({ "metadata": { "labels": { "sandpod.dev/network": null } } }),
                "metadata.labels[sandpod.dev/network]",
            ),
        ] {
            let said = refusal(json!({ "pod_template_overrides": overrides })).unwrap_or_default();
            assert!(said.contains(path) && said.contains("allow_insecure_overrides"), "{overrides}: {said}");
            let allowed = json!({ "pod_template_overrides": overrides, "allow_insecure_overrides": true });
            assert_eq!(refusal(allowed), None, "{overrides}");
        }
    }

    #[test]
    fn app_armor_annotation_unconfined_is_refused() {
        let key = "container.apparmor.security.beta.kubernetes.io/sandbox";
        let said = refusal(json!({ "extra_annotations": { key: "unconfined" } })).unwrap_or_default();
        assert!(said.contains(key), "{said}");
        assert_eq!(refusal(json!({ "extra_annotations": { key: "runtime/default" } })), None);
    }

    #[test]
    fn a_runtime_class_that_was_asked_for_is_not_taken_away_by_an_override() {
        let overrides = json!({ "runtimeClassName": null });
        let said = refusal(json!({ "runtime_class": "gvisor", "pod_template_overrides": overrides }));
        assert!(said.unwrap_or_default().contains("spec.runtimeClassName"));
        assert_eq!(refusal(json!({ "pod_template_overrides": { "runtimeClassName": "kata" } })), None);
    }

    #[test]
    fn volumes_and_init_containers_weaken_a_sandbox_no_more_than_overrides_do() {
        for (fields, path) in [
            (
                json!({ "volumes": [{ "name": "h", "hostPath": { "path": "/" } }] }),
                "spec.volumes[h].hostPath",
            ),
            (
                json!({ "init_containers": [{ "name": "i", "securityContext": { "runAsUser": 0 } }] }),
                "spec.initContainers[i].securityContext.runAsUser",
            ),
        ] {
            let said = refusal(fields).unwrap_or_default();
            assert!(said.contains(path), "{said}");
        }
    }
}
