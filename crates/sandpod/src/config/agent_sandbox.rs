//! The configuration of agent-sandbox mode, [`AgentSandboxConfig`]. The template determines the Pod.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::check::{check_times, one_of};
use super::layers::{read_own, refuse_others};
use super::table::options;
use super::{Layer, OWN_DOMAIN, WORKING_DIR, refused, text};
use crate::audit::CommandRedaction;
use crate::guard::SandboxPolicy;
use crate::{Error, Naming, Result, labels};

/// Values of `connection_mode`.
pub(crate) const CONNECTION_MODES: [&str; 5] = ["exec", "tunnel", "gateway", "direct", "in-cluster"];

options! {
    /// The configuration of agent-sandbox mode. Names and defaults are those of `KubernetesProviderConfig`.
    ///
    /// ```
    /// let config = sandpod::AgentSandboxConfig::of_template("python");
    /// assert_eq!(config.namespace, "default");
    /// assert!(config.check().is_ok());
    /// assert!(sandpod::AgentSandboxConfig::default().check().is_err());
    /// ```
    #[derive(Clone, Deserialize, PartialEq, Serialize)]
    #[serde(default, deny_unknown_fields)]
    pub struct AgentSandboxConfig {
        /// Path of the kubeconfig. Default: `$KUBECONFIG`, then `~/.kube/config`, then the `ServiceAccount` of the Pod.
        kubeconfig: Option<PathBuf> = None,
        /// Context of the kubeconfig. Default: its current context.
        context: Option<String> = None,
        /// Permit an API server without a verified certificate, and plain HTTP to other machines or with credentials. Each
        /// client logs a warning.
        allow_insecure_api_server: bool = false,
        /// URL of the API server, if neither a kubeconfig nor the Pod's `ServiceAccount` names it.
        kube_api_url: Option<String> = None,
        /// Token for `kube_api_url`. Default: the token of the Pod's `ServiceAccount`, if there is one.
        kube_token: Option<String> = None,
        /// Namespace of the sandboxes.
        namespace: String = text("default"),
        /// Seconds in which a sandbox must be ready.
        startup_timeout_seconds: u64 = 120,
        /// Seconds after which a command is killed, for calls without a timeout of their own. 0: no timeout.
        default_exec_timeout: u64 = 1800,
        /// Naming scheme for a claim's labels and annotations: `sandpod`, `langchain-kubernetes` or `langchain-kubernetes-js`.
        naming: Naming = Naming::Sandpod,
        /// Prefix of users' labels in the cluster: a domain with a slash, or an empty text.
        label_prefix: String = text(OWN_DOMAIN),
        /// Labels of every sandbox, each with `label_prefix` before its key.
        default_labels: BTreeMap<String, String> = BTreeMap::new(),
        /// Seconds after creation at which the sandbox is deleted. Default: never.
        ttl_seconds: Option<u64> = None,
        /// Seconds without a call after which the sandbox is deleted. Default: never.
        ttl_idle_seconds: Option<u64> = None,
        /// Older name of `ttl_seconds`, used only without it.
        pod_ttl_seconds: Option<u64> = None,
        /// `SandboxTemplate` of the sandboxes. Its warm pool with the most ready Pods is used, if it has one.
        template_name: Option<String> = None,
        /// `SandboxWarmPool` of the sandboxes.
        warm_pool_name: Option<String> = None,
        /// How the guest is reached: `exec`, `tunnel`, `gateway`, `direct` or `in-cluster`. Default: the first of these that
        /// works.
        connection_mode: Option<String> = None,
        /// Gateway of the sandbox router.
        gateway_name: Option<String> = None,
        /// Namespace of the Gateway.
        gateway_namespace: String = text("default"),
        /// URL of the sandbox router.
        api_url: Option<String> = None,
        /// Port of the sandboxes behind the router.
        server_port: u16 = 8888,
        /// Headers of every request to the router.
        extra_headers: BTreeMap<String, String> = BTreeMap::new(),
        /// PEM file with the client certificate for the router.
        client_cert: Option<PathBuf> = None,
        /// PEM file with the key of `client_cert`.
        client_key: Option<PathBuf> = None,
        /// PEM file with the certificate authorities of the router. Default: those of the system.
        ca_cert: Option<PathBuf> = None,
        /// Bearer token for the router.
        router_token: Option<String> = None,
        /// File with the bearer token for the router, which is read for each connection.
        router_token_file: Option<PathBuf> = None,
        /// Namespace of the router. Default: `agent-sandbox-system`, then `default`.
        router_namespace: Option<String> = None,
        /// Service of the router.
        router_service: String = text("sandbox-router-svc"),
        /// File with the token that opens guests over the network; their templates hold its hash. Default: the file in
        /// `SANDPOD_GUEST_TOKEN_FILE`, then the Secret `sandpod-guest-token`, then a token set through exec.
        guest_token_file: Option<PathBuf> = None,
        /// Working directory of commands. Default: `/workspace`, or the container's own if the template has no guest.
        workdir: Option<String> = None,
        /// Environment variables of every command. They are sent to the guest and are in no object of the cluster.
        env: BTreeMap<String, String> = BTreeMap::new(),
        /// Labels of the Pod, beside the template's. agent-sandbox accepts only those below `sandbox.users.io/`.
        pod_labels: BTreeMap<String, String> = BTreeMap::new(),
        /// Annotations of the Pod, beside the template's.
        pod_annotations: BTreeMap<String, String> = BTreeMap::new(),
        /// Volumes of each sandbox, as a claim's `volumeClaimTemplates`. They replace the template's volumes of the same name.
        volume_claim_templates: Vec<Value> = Vec::new(),
        /// Shell script that runs in every new sandbox before it is handed out. If it fails, creation fails.
        setup_script: Option<String> = None,
        /// Limits of paths, commands and network; see docs/policy.md.
        policy: Option<SandboxPolicy> = None,
        /// File of the audit log, with one event per line in a hash chain.
        audit_file: Option<PathBuf> = None,
        /// URL of an OpenTelemetry collector that receives the audit events, such as `http://localhost:4318`.
        otlp_endpoint: Option<String> = None,
        /// Command text in audit events: `full`, or `hash` for its SHA-256.
        audit_commands: CommandRedaction = CommandRedaction::Full,
        /// Reject operations whose audit event cannot be written. Otherwise the failure is logged.
        strict_audit: bool = false,
    }
    beside {
        /// The directory of the package that the library is part of, with the guest's programs in `guest/<arch>`.
        #[serde(skip)]
        package_dir: Option<PathBuf>,
    }
}

/// Error for a configuration that names neither a template nor a warm pool.
pub(crate) fn no_template() -> Error {
    Error::invalid(
        "template_name is required when mode='agent-sandbox'.",
        "Set KubernetesProviderConfig(template_name='my-template') or use mode='raw' for direct Pod management.",
    )
}

/// Omits the values of variables, headers and tokens, because they may be secrets and debug output may be logged.
impl fmt::Debug for AgentSandboxConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AgentSandboxConfig")
            .field("namespace", &self.namespace)
            .field("template_name", &self.template_name)
            .field("warm_pool_name", &self.warm_pool_name)
            .field("connection_mode", &self.connection_mode)
            .field("env", &self.env.keys())
            .finish_non_exhaustive()
    }
}

impl AgentSandboxConfig {
    /// Creates a configuration for this template, with defaults for all other options.
    pub fn of_template(template: impl Into<String>) -> Self {
        Self { template_name: Some(template.into()), ..Self::default() }
    }

    /// Merges the layers over the defaults. Later layers win. Options of other modes are ignored.
    pub fn from_layers(layers: impl IntoIterator<Item = Layer>) -> Result<Self> {
        read_own(layers, OPTIONS)
    }

    /// Same as [`from_layers`](Self::from_layers), but rejects an option that agent-sandbox mode does not have by name.
    pub fn from_arguments(arguments: Layer) -> Result<Self> {
        refuse_others(&arguments, OPTIONS, "agent-sandbox")?;
        Self::from_layers([arguments])
    }

    /// Working directory of commands in a template that contains the guest.
    pub(crate) fn working_dir(&self) -> &str {
        self.workdir.as_deref().unwrap_or(WORKING_DIR)
    }

    /// Checks that sandboxes can be created.
    pub fn check(&self) -> Result<()> {
        if self.template_name.is_none() && self.warm_pool_name.is_none() {
            return Err(no_template());
        }
        self.check_settings()
    }

    /// Checks that existing sandboxes can be used. This requires no template.
    pub fn check_settings(&self) -> Result<()> {
        self.check_values()?;
        self.check_connection()?;
        self.policy.as_ref().map_or(Ok(()), SandboxPolicy::check)?;
        labels::check_prefix(&self.label_prefix)?;
        labels::check(&self.label_prefix, &self.default_labels)
    }

    fn check_values(&self) -> Result<()> {
        check_times([
            ("startup_timeout_seconds", Some(self.startup_timeout_seconds)),
            ("ttl_seconds", self.ttl_seconds),
            ("pod_ttl_seconds", self.pod_ttl_seconds),
            ("ttl_idle_seconds", self.ttl_idle_seconds),
        ])?;
        if self.server_port == 0 {
            return Err(refused("server_port is 0", "Give the guest's port, or leave it out."));
        }
        let named = [
            ("namespace", Some(&self.namespace)),
            ("template_name", self.template_name.as_ref()),
            ("warm_pool_name", self.warm_pool_name.as_ref()),
            ("router_namespace", self.router_namespace.as_ref()),
            ("router_service", Some(&self.router_service)),
            ("setup_script", self.setup_script.as_ref()),
        ];
        if let Some((name, _)) =
            named.iter().find(|(_, value)| value.is_some_and(|text| text.trim().is_empty()))
        {
            return Err(refused(
                &format!("{name} is empty"),
                "Give a value, or leave it out for the default.",
            ));
        }
        if self.kube_token.is_some() && self.kube_api_url.is_none() {
            let field = "kube_token is set, but kube_api_url is not";
            return Err(refused(field, "Set both, or use a kubeconfig."));
        }
        Ok(())
    }

    fn check_connection(&self) -> Result<()> {
        let Some(mode) = &self.connection_mode else { return self.check_router() };
        one_of("connection_mode", mode, &CONNECTION_MODES)?;
        let needed = [("gateway", "gateway_name", &self.gateway_name), ("direct", "api_url", &self.api_url)];
        for (wanted, option, value) in needed {
            if mode == wanted && value.is_none() {
                return Err(Error::invalid(
                    format!(
                        "connection_mode='{wanted}' requires {option} to be set in KubernetesProviderConfig."
                    ),
                    format!("Set {option}, or leave connection_mode out."),
                ));
            }
        }
        self.check_router()
    }

    fn check_router(&self) -> Result<()> {
        if self.client_cert.is_some() != self.client_key.is_some() {
            let field = "of client_cert and client_key only one is set";
            return Err(refused(field, "Set both: the certificate and its key, each as a PEM file."));
        }
        if self.router_token.is_some() && self.router_token_file.is_some() {
            return Err(refused("router_token and router_token_file are both set", "Set one of them."));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn error_of(fields: serde_json::Value) -> String {
        let config: AgentSandboxConfig = serde_json::from_value(fields).unwrap();
        config.check().unwrap_err().to_string()
    }

    #[test]
    fn template_or_warm_pool_is_required() {
        assert_eq!(
            error_of(json!({})),
            "template_name is required when mode='agent-sandbox'. Set \
             KubernetesProviderConfig(template_name='my-template') or use mode='raw' for direct Pod management."
        );
        AgentSandboxConfig { warm_pool_name: Some(text("pool")), ..AgentSandboxConfig::default() }
            .check()
            .unwrap();
    }

    #[test]
    fn invalid_option_is_named_in_the_error() {
        let with = |fields: serde_json::Value| {
            let mut all = json!({ "template_name": "t" });
            all.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
            error_of(all)
        };
        for (fields, expected) in [
            (json!({ "connection_mode": "gateway" }), "connection_mode='gateway' requires gateway_name"),
            (json!({ "connection_mode": "direct" }), "connection_mode='direct' requires api_url"),
            (json!({ "connection_mode": "pigeon" }), "'in-cluster'"),
            (json!({ "client_cert": "/c" }), "client_key"),
            (json!({ "router_token": "a", "router_token_file": "/b" }), "router_token_file"),
            (json!({ "kube_token": "a" }), "kube_api_url"),
            (json!({ "server_port": 0 }), "server_port"),
            (json!({ "ttl_idle_seconds": 0 }), "ttl_idle_seconds is 0"),
            (json!({ "ttl_seconds": u64::MAX }), "ttl_seconds is more than 100 years"),
            (json!({ "template_name": " " }), "template_name is empty"),
        ] {
            let error = with(fields);
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn option_of_another_mode_is_rejected_by_name() {
        let layer = Layer::arguments(json!({ "image": "busybox" }).as_object().cloned().unwrap()).unwrap();
        let error = AgentSandboxConfig::from_arguments(layer.clone()).unwrap_err();
        assert!(
            error.to_string().contains("image") && error.to_string().contains("agent-sandbox"),
            "{error}"
        );
        assert_eq!(AgentSandboxConfig::from_layers([layer]).unwrap(), AgentSandboxConfig::default());
    }

    #[test]
    fn secrets_are_not_in_debug_output() {
        let config: AgentSandboxConfig = serde_json::from_value(json!({
            "env": { "KEY": "hush" }, "router_token": "hush", "kube_token": "hush",
            "extra_headers": { "X-Key": "hush" },
        }))
        .unwrap();
        assert!(!format!("{config:?}").contains("hush"));
    }
}
