//! `sandpod manifests`: prints Kubernetes manifests. Their source is `deploy/`, except for templates, which are generated from
//! the Pods of raw mode; a test of the library compares the files of `deploy/` with them.

use clap::{Args, ValueEnum};
use sandpod::{AgentSandboxConfig, ErrorKind, Layer, Mode, ProcessLayers, RawConfig, RouterDoor};
use serde_json::{Value, json};

use super::Context;
use crate::exit::{Failure, Result};
use crate::manifest::{MAX_CRON_JOB, MAX_LABEL, MAX_NAME, check_image, check_name, check_namespace, fill};
use crate::output::print_bytes;
use crate::target::Target;

const NAMESPACE: &str = include_str!("../../../../deploy/namespace.yaml");
pub(super) const RAW_ROLE: &str = include_str!("../../../../deploy/rbac/raw.yaml");
pub(super) const NAMESPACES_ROLE: &str = include_str!("../../../../deploy/rbac/raw-namespaces.yaml");
pub(super) const AGENT_SANDBOX_ROLE: &str = include_str!("../../../../deploy/rbac/agent-sandbox.yaml");
const NETWORK_POLICY: &str = include_str!("../../../../deploy/networkpolicy.yaml");
const REAPER: &str = include_str!("../../../../deploy/reaper.yaml");
const CLAIM_REAPER: &str = include_str!("../../../../deploy/agent-sandbox/reaper.yaml");
const WARM_POOL: &str = include_str!("../../../../deploy/agent-sandbox/warm-pool.yaml");
const ROUTER: &str = include_str!("../../../../deploy/agent-sandbox/router.yaml");
const SANDPOD_ROUTER: &str = include_str!("../../../../deploy/router.yaml");
const SANDPOD_ROUTER_ROLE: &str = include_str!("../../../../deploy/rbac/router.yaml");
/// The rights of sandpod's clients in the namespace of either router.
const TUNNEL_ROLE: &str = include_str!("../../../../deploy/rbac/agent-sandbox-router.yaml");
/// The namespace of the router in these files.
const ROUTER_NAMESPACE: &str = "agent-sandbox-system";
/// The name of agent-sandbox's router, and the label `app` of both routers' Pods.
const ROUTER_NAME: &str = "sandbox-router";
/// The default name of the template and its pool, as in the documents.
const DEFAULT_NAME: &str = "python";

const EXAMPLES: &str = "\
The default mode is raw, unless SANDPOD_MODE or the configuration file sets agent-sandbox.

In raw mode, all prints the namespace, the RBAC objects, the NetworkPolicy and, with --image, the reaper. In agent-sandbox \
mode, it prints the namespace, the RBAC objects, the template and the warm pool.

The router is agent-sandbox's own; sandpod-router authorizes each request.

--image is the image of the sandboxes for a template, an image with the sandpod command for the reaper, and the image of \
the router for a router. A template opens no port, and clients connect by exec; --router-door adds access \
through the router. The router is placed in router_namespace, with the RBAC objects for --connection-mode tunnel.

Examples:
  sandpod manifests all --namespace agents | kubectl apply --server-side -f -
  sandpod manifests rbac --mode agent-sandbox --namespace agents
  sandpod manifests reaper --namespace agents --image registry.example.com/sandpod:0.1
  sandpod manifests template --name python --namespace agents --image python:3.12-slim
  sandpod manifests template --router-door --namespace agents";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Manifests to print
    what: ManifestKind,
    /// Name of the template, pool, reaper, router or RBAC objects [default: that of deploy/]
    #[arg(long)]
    name: Option<String>,
    /// Let the sandbox router connect to guests of the template; requires the Secret sandpod-guest-token
    #[arg(long)]
    router_door: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
enum ManifestKind {
    Namespace,
    Rbac,
    Reaper,
    Networkpolicy,
    Template,
    WarmPool,
    Router,
    SandpodRouter,
    All,
}

impl ManifestKind {
    /// The mode of manifests that only one mode has; it need not be given.
    fn own_mode(self) -> Option<Mode> {
        match self {
            Self::Template | Self::WarmPool | Self::Router | Self::SandpodRouter => Some(Mode::AgentSandbox),
            Self::Namespace | Self::Rbac | Self::Reaper | Self::Networkpolicy | Self::All => None,
        }
    }

    /// The maximum length of the objects' name.
    fn max_name(self) -> usize {
        match self {
            Self::Reaper => MAX_CRON_JOB,
            Self::Router | Self::SandpodRouter => MAX_LABEL,
            _ => MAX_NAME,
        }
    }
}

/// The values of the manifests.
struct Generator<'a> {
    target: &'a Target,
    config: RawConfig,
    agent_sandbox: AgentSandboxConfig,
    /// A namespace was named: `default` is hardly intended.
    namespace_named: bool,
    image: Option<&'a str>,
    name: Option<&'a str>,
    router_door: bool,
}

/// Prints the manifests.
pub(crate) fn run(arguments: &Arguments, context: &Context) -> Result<()> {
    let layers = ProcessLayers::read(context.options.config.as_deref())?;
    let sets_namespace = |layer: &Layer| layer.options().contains_key("namespace");
    let namespace_named = context.options.namespace.is_some()
        || sets_namespace(&layers.variables)
        || sets_namespace(&layers.file);
    let mode = mode(arguments.what, context.options.mode, &layers);
    let target = Target { mode, options: context.options.clone(), layers };
    let generator = Generator {
        config: target.raw()?,
        agent_sandbox: target.agent_sandbox()?,
        target: &target,
        namespace_named,
        image: context.options.image.as_deref(),
        name: arguments.name.as_deref(),
        router_door: arguments.router_door,
    };
    generator.check(arguments.what)?;
    let documents = generator.documents(arguments.what)?;
    if context.output.is_json() {
        return context.output.json(&list(&documents)?);
    }
    print_bytes(documents.join("---\n").as_bytes())
}

/// The mode, as for other commands, but `local` in a variable or the file is ignored: manifests are for a cluster.
fn mode(what: ManifestKind, option: Option<Mode>, layers: &ProcessLayers) -> Mode {
    let cluster_options = |layer: &Layer| layer.mode().filter(|mode| *mode != Mode::Local);
    let configured = || cluster_options(&layers.variables).or_else(|| cluster_options(&layers.file));
    option.or(what.own_mode()).or_else(configured).unwrap_or(Mode::Raw)
}

impl Generator<'_> {
    /// Rejects invalid names and options that do not apply.
    fn check(&self, what: ManifestKind) -> Result<()> {
        if self.target.mode == Mode::Local {
            return Err(Failure::usage(
                "Local mode has no manifests.",
                "Use --mode raw or --mode agent-sandbox.",
            ));
        }
        if self.name.is_some()
            && [ManifestKind::Namespace, ManifestKind::Networkpolicy, ManifestKind::All].contains(&what)
        {
            return Err(Failure::usage(
                "--name does not apply to these manifests: their names are fixed, and --namespace names the namespace.",
                "Omit it.",
            ));
        }
        if self.router_door
            && !(self.target.mode == Mode::AgentSandbox
                && [ManifestKind::Template, ManifestKind::All].contains(&what))
        {
            return Err(Failure::usage(
                "--router-door applies only to a template.",
                "Omit it, or print `template` or `all` with --mode agent-sandbox.",
            ));
        }
        if what == ManifestKind::Template && self.name.is_some() && self.target.options.template.is_some() {
            return Err(Failure::usage("--name and --template both name the template.", "Use one of them."));
        }
        check_namespace(&self.config.namespace)?;
        check_image(&self.config.image)?;
        self.name.map_or(Ok(()), |name| check_name("a Kubernetes object", name, what.max_name()))?;
        if self.target.mode == Mode::Raw {
            return Ok(());
        }
        self.agent_sandbox.router_namespace.as_deref().map_or(Ok(()), check_namespace)?;
        check_name("the router's Service", &self.agent_sandbox.router_service, MAX_LABEL)?;
        check_name("a SandboxTemplate", self.template_name(), MAX_NAME)?;
        check_name("a SandboxWarmPool", self.pool_name(), MAX_NAME)
    }

    fn documents(&self, what: ManifestKind) -> Result<Vec<String>> {
        Ok(match what {
            ManifestKind::Namespace => vec![self.namespace()?],
            ManifestKind::Rbac => vec![self.rbac()],
            ManifestKind::Reaper => vec![self.reaper()?],
            ManifestKind::Networkpolicy => vec![self.filled(NETWORK_POLICY, &[])],
            ManifestKind::Template => self.template(self.name.unwrap_or(self.template_name()))?,
            ManifestKind::WarmPool => vec![self.warm_pool()?],
            ManifestKind::Router => self.router(ROUTER_NAME, &[ROUTER])?,
            ManifestKind::SandpodRouter => {
                self.router("sandpod-router", &[SANDPOD_ROUTER_ROLE, SANDPOD_ROUTER])?
            }
            ManifestKind::All => self.all()?,
        })
    }

    fn all(&self) -> Result<Vec<String>> {
        let mut all = vec![self.namespace()?, self.rbac()];
        if self.target.mode == Mode::AgentSandbox {
            all.extend(self.template(self.template_name())?);
            all.push(self.warm_pool()?);
        } else {
            all.push(self.filled(NETWORK_POLICY, &[]));
            if self.image.is_some() {
                all.push(self.reaper()?);
            }
        }
        Ok(all)
    }

    fn namespace(&self) -> Result<String> {
        if !self.namespace_named {
            return Err(Failure::usage("No namespace is named.", "Name it with --namespace."));
        }
        Ok(self.filled(NAMESPACE, &[]))
    }

    fn rbac(&self) -> String {
        let (file, usual) = match self.target.mode {
            Mode::AgentSandbox => (AGENT_SANDBOX_ROLE, "sandpod-agent-sandbox"),
            _ if self.config.namespace_per_sandbox => (NAMESPACES_ROLE, "sandpod-raw-namespaces"),
            _ => (RAW_ROLE, "sandpod-raw"),
        };
        self.filled(file, &[(usual, self.name.unwrap_or(usual))])
    }

    fn reaper(&self) -> Result<String> {
        let image = self.image_for("The reaper requires an image with the sandpod command.")?;
        let usual = "sandpod-reaper";
        let file = if self.target.mode == Mode::AgentSandbox { CLAIM_REAPER } else { REAPER };
        Ok(self.filled(file, &[("IMAGE", image), (usual, self.name.unwrap_or(usual))]))
    }

    /// A router from `files`, in which it is called `router`, with the rights for its clients.
    fn router(&self, router: &str, files: &[&str]) -> Result<Vec<String>> {
        self.only_in(Mode::AgentSandbox, "The router", "Raw mode has no router")?;
        let image = self.image_for("The router requires its image.")?;
        let role = "sandpod-agent-sandbox-router";
        let role_name = self.name.unwrap_or(role);
        let binding_name = format!("{role_name}-{}", self.config.namespace);
        let router_values = [
            ("IMAGE", image),
            ("NAMESPACE", self.router_namespace()),
            (ROUTER_NAMESPACE, self.router_namespace()),
            // Clients find the router by this name.
            ("sandbox-router-svc", &self.agent_sandbox.router_service),
            (router, self.name.unwrap_or(router)),
        ];
        let client_values = [
            (ROUTER_NAMESPACE, self.router_namespace()),
            (role, role_name),
            ("sandpod-agent-sandbox-router-NAMESPACE", &binding_name),
        ];
        let files = files.iter().map(|file| self.filled(file, &router_values));
        Ok(files.chain([self.filled(TUNNEL_ROLE, &client_values)]).collect())
    }

    fn router_namespace(&self) -> &str {
        self.agent_sandbox.router_namespace.as_deref().unwrap_or(ROUTER_NAMESPACE)
    }

    fn image_for(&self, what: &str) -> Result<&str> {
        self.image.ok_or_else(|| Failure::usage(what, "Name it with --image."))
    }

    fn template(&self, name: &str) -> Result<Vec<String>> {
        self.only_in(Mode::AgentSandbox, "A SandboxTemplate", "In raw mode, sandpod creates the Pods")?;
        let door = self.router_door.then(|| RouterDoor {
            namespace: self.router_namespace().to_owned(),
            name: ROUTER_NAME.to_owned(),
        });
        let objects = self.config.template(name, door.as_ref())?;
        objects
            .iter()
            .map(|object| serde_saphyr::to_string(object).map_err(|cause| unwritable(&cause)))
            .collect()
    }

    fn warm_pool(&self) -> Result<String> {
        self.only_in(Mode::AgentSandbox, "A SandboxWarmPool", "In raw mode, set the option warm_pool_size")?;
        Ok(self.filled(WARM_POOL, &[("NAME", self.pool_name()), ("TEMPLATE", self.template_name())]))
    }

    /// The name of the template; by default that of its pool.
    fn template_name(&self) -> &str {
        self.agent_sandbox.template_name.as_deref().or(self.name).unwrap_or(DEFAULT_NAME)
    }

    fn pool_name(&self) -> &str {
        self.name.or(self.agent_sandbox.warm_pool_name.as_deref()).unwrap_or(self.template_name())
    }

    /// Rejects manifests that the mode does not have.
    fn only_in(&self, mode: Mode, what: &str, why: &str) -> Result<()> {
        if self.target.mode == mode {
            return Ok(());
        }
        Err(Failure::usage(
            format!("{what} does not apply to {} mode. {why}.", self.target.mode),
            format!("Use --mode {mode}, or omit it."),
        ))
    }

    /// Fills the namespace and `values` into a file. A value equal to its placeholder is left unquoted.
    fn filled(&self, file: &str, values: &[(&str, &str)]) -> String {
        let changed = values.iter().filter(|(place, value)| place != value).copied();
        let values: Vec<_> = changed.chain([("NAMESPACE", self.config.namespace.as_str())]).collect();
        fill(file, &values)
    }
}

/// All objects as one JSON List, which kubectl accepts.
fn list(documents: &[String]) -> Result<Value> {
    let mut items = Vec::new();
    for document in documents {
        let objects: Vec<Value> =
            serde_saphyr::from_multiple(document).map_err(|cause| unwritable(&cause))?;
        items.extend(objects);
    }
    Ok(json!({ "apiVersion": "v1", "kind": "List", "items": items }))
}

fn unwritable(cause: &dyn std::error::Error) -> Failure {
    Failure::new(ErrorKind::Internal, format!("Cannot generate a manifest: {cause}."), "Report this bug.")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::Options;

    /// All texts of a value.
    fn texts(value: &Value) -> Vec<&str> {
        match value {
            Value::String(text) => vec![text],
            Value::Array(values) => values.iter().flat_map(texts).collect(),
            Value::Object(values) => values.values().flat_map(texts).collect(),
            _ => Vec::new(),
        }
    }

    #[test]
    fn every_placeholder_of_every_file_is_filled() {
        let target =
            Target { mode: Mode::Raw, options: Options::default(), layers: ProcessLayers::default() };
        let generator = Generator {
            config: RawConfig::default(),
            agent_sandbox: AgentSandboxConfig::default(),
            target: &target,
            namespace_named: true,
            image: None,
            name: None,
            router_door: false,
        };
        let files = [
            NAMESPACE,
            RAW_ROLE,
            NAMESPACES_ROLE,
            AGENT_SANDBOX_ROLE,
            NETWORK_POLICY,
            REAPER,
            CLAIM_REAPER,
            WARM_POOL,
            ROUTER,
            SANDPOD_ROUTER,
            SANDPOD_ROUTER_ROLE,
            TUNNEL_ROLE,
        ];
        for file in files {
            let filled = generator.filled(file, &[("IMAGE", "x"), ("NAME", "x"), ("TEMPLATE", "x")]);
            let objects = list(&[filled]).unwrap();
            // An unfilled placeholder would be a word in capitals.
            let left = texts(&objects).into_iter().find(|text| {
                *text != "ALL" && text.len() > 1 && text.bytes().all(|byte| byte.is_ascii_uppercase())
            });
            assert_eq!(left, None, "{file}");
        }
    }

    #[test]
    fn the_example_agent_uses_the_rbac_account_and_has_time_to_shut_down() {
        const AGENT: &str = include_str!("../../../../deploy/agent.yaml");
        let objects = |file: &str| serde_saphyr::from_multiple::<Value>(file).unwrap();
        let agent = &objects(AGENT)[0]["spec"]["template"]["spec"];
        let account = &objects(RAW_ROLE)[0];
        assert_eq!(
            (&account["kind"], &account["automountServiceAccountToken"]),
            (&json!("ServiceAccount"), &json!(false))
        );
        assert_eq!(agent["serviceAccountName"], account["metadata"]["name"]);
        assert_eq!(agent["automountServiceAccountToken"], true);
        // The default shutdown_timeout of the manager is 25 seconds.
        assert!(agent["terminationGracePeriodSeconds"].as_u64().unwrap() > 25);
    }
}
