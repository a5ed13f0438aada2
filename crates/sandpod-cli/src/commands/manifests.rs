//! `sandpod manifests`: what a cluster needs, as YAML for kubectl. The files of `deploy/` are its source, but for templates:
//! those are the Pods of raw mode, and a test of the library holds their files to them.

use clap::{Args, ValueEnum};
use sandpod::{AgentSandboxConfig, ErrorKind, Layer, Mode, ProcessLayers, RawConfig, RouterDoor};
use serde_json::{Value, json};

use super::Context;
use crate::exit::{Failure, Result};
use crate::manifest::{MAX_CRON_JOB, MAX_LABEL, MAX_NAME, check_image, check_name, check_namespace, fill};
use crate::output::put_bytes;
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
const ROUTER_ROLE: &str = include_str!("../../../../deploy/rbac/agent-sandbox-router.yaml");
/// Where the router is in these two files.
const ROUTER_NAMESPACE: &str = "agent-sandbox-system";
/// What the router is called there.
const ROUTER_NAME: &str = "sandbox-router";
/// The template and its pool, if they have no other name: as the documents call them.
const DEFAULT_NAME: &str = "python";

const EXAMPLES: &str = "\
A mode of the variables or the file counts here, too, unless it is local; the default is raw. In raw mode `all` is the namespace, the rights, the NetworkPolicy and, \
with --image, the reaper; in agent-sandbox mode the namespace, the rights, the template and the warm \
pool. --image is an image with the sandpod command for the reaper, one with agent-sandbox's router for \
the router, and that of the sandboxes for a template. A template has no open port: its guests are reached by exec, and \
with --router-door by the router, too. The router goes where router_namespace says, \
with the rights that --connection-mode tunnel needs there.

Examples:
  sandpod manifests all --namespace agents | kubectl apply --server-side -f -
  sandpod manifests rbac --mode agent-sandbox --namespace agents
  sandpod manifests reaper --namespace agents --image registry.example.com/sandpod:0.1
  sandpod manifests template --name python --namespace agents --image python:3.12-slim
  sandpod manifests template --router-door --namespace agents";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// What is printed
    what: What,
    /// The name of the template, the pool, the reaper, the router or the rights, if not the usual one
    #[arg(long)]
    name: Option<String>,
    /// A template whose guests the sandbox router reaches, too; it needs the Secret `sandpod-guest-token`
    #[arg(long)]
    router_door: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
enum What {
    Namespace,
    Rbac,
    Reaper,
    Networkpolicy,
    Template,
    WarmPool,
    Router,
    All,
}

impl What {
    /// The only mode in which it means something, which need not be said twice.
    fn own_mode(self) -> Option<Mode> {
        match self {
            Self::Template | Self::WarmPool | Self::Router => Some(Mode::AgentSandbox),
            Self::Namespace | Self::Rbac | Self::Reaper | Self::Networkpolicy | Self::All => None,
        }
    }

    /// How long the name of its objects may be.
    fn max_name(self) -> usize {
        match self {
            Self::Reaper => MAX_CRON_JOB,
            Self::Router => MAX_LABEL,
            _ => MAX_NAME,
        }
    }
}

/// What goes into the manifests.
struct Wanted<'a> {
    target: &'a Target,
    config: RawConfig,
    theirs: AgentSandboxConfig,
    /// Only if somebody said so: nobody means `default`.
    namespace_named: bool,
    image: Option<&'a str>,
    name: Option<&'a str>,
    router_door: bool,
}

/// Prints the manifests.
pub(crate) fn run(arguments: &Arguments, context: &Context) -> Result<()> {
    let layers = ProcessLayers::read(context.options.config.as_deref())?;
    let says = |layer: &Layer| layer.options().contains_key("namespace");
    let namespace_named =
        context.options.namespace.is_some() || says(&layers.variables) || says(&layers.file);
    let mode = mode(arguments.what, context.options.mode, &layers);
    let target = Target { mode, options: context.options.clone(), layers };
    let wanted = Wanted {
        config: target.raw()?,
        theirs: target.agent_sandbox()?,
        target: &target,
        namespace_named,
        image: context.options.image.as_deref(),
        name: arguments.name.as_deref(),
        router_door: arguments.router_door,
    };
    wanted.check(arguments.what)?;
    let documents = wanted.documents(arguments.what)?;
    if context.output.is_json() {
        return context.output.json(&list(&documents)?);
    }
    put_bytes(documents.join("---\n").as_bytes())
}

/// The mode as all commands find it; but a cluster is meant, also where sandboxes usually run on this machine.
fn mode(what: What, option: Option<Mode>, layers: &ProcessLayers) -> Mode {
    let of_clusters = |layer: &Layer| layer.mode().filter(|mode| *mode != Mode::Local);
    let said = || of_clusters(&layers.variables).or_else(|| of_clusters(&layers.file));
    option.or(what.own_mode()).or_else(said).unwrap_or(Mode::Raw)
}

impl Wanted<'_> {
    /// Refuses what would make no manifest, or another one.
    fn check(&self, what: What) -> Result<()> {
        if self.target.mode == Mode::Local {
            return Err(Failure::usage(
                "Local sandboxes need nothing of a cluster.",
                "Choose --mode raw or agent-sandbox.",
            ));
        }
        if self.name.is_some() && [What::Namespace, What::Networkpolicy, What::All].contains(&what) {
            return Err(Failure::usage(
                "--name has no meaning here: the objects have fixed names, and a namespace has that of --namespace.",
                "Leave it out.",
            ));
        }
        if self.router_door
            && !(self.target.mode == Mode::AgentSandbox && [What::Template, What::All].contains(&what))
        {
            return Err(Failure::usage(
                "--router-door is for the template, and there is none here.",
                "Leave it out, or print template or all in agent-sandbox mode.",
            ));
        }
        if what == What::Template && self.name.is_some() && self.target.options.template.is_some() {
            return Err(Failure::usage("--name and --template both name the template.", "Give one of them."));
        }
        check_namespace(&self.config.namespace)?;
        check_image(&self.config.image)?;
        self.name.map_or(Ok(()), |name| check_name("An object of Kubernetes", name, what.max_name()))?;
        if self.target.mode == Mode::Raw {
            return Ok(());
        }
        self.theirs.router_namespace.as_deref().map_or(Ok(()), check_namespace)?;
        check_name("The router's Service", &self.theirs.router_service, MAX_LABEL)?;
        check_name("A template", self.template_name(), MAX_NAME)?;
        check_name("A pool", self.pool_name(), MAX_NAME)
    }

    fn documents(&self, what: What) -> Result<Vec<String>> {
        Ok(match what {
            What::Namespace => vec![self.namespace()?],
            What::Rbac => vec![self.rbac()],
            What::Reaper => vec![self.reaper()?],
            What::Networkpolicy => vec![self.filled(NETWORK_POLICY, &[])],
            What::Template => self.template(self.name.unwrap_or(self.template_name()))?,
            What::WarmPool => vec![self.warm_pool()?],
            What::Router => self.router()?,
            What::All => self.all()?,
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
            return Err(Failure::usage(
                "A namespace needs a name.",
                "Give it with --namespace: strict rules for the namespace 'default' are hardly what you want.",
            ));
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
        let image = self.image_for("The reaper needs an image that has the sandpod command.")?;
        let usual = "sandpod-reaper";
        let file = if self.target.mode == Mode::AgentSandbox { CLAIM_REAPER } else { REAPER };
        Ok(self.filled(file, &[("IMAGE", image), (usual, self.name.unwrap_or(usual))]))
    }

    fn router(&self) -> Result<Vec<String>> {
        self.only_in(
            Mode::AgentSandbox,
            "The router",
            "In raw mode there is nothing between sandpod and its Pods",
        )?;
        let image = self.image_for("The router needs its image, which agent-sandbox publishes.")?;
        let (router, role) = (ROUTER_NAME, "sandpod-agent-sandbox-router");
        let role_name = self.name.unwrap_or(role);
        let binding_name = format!("{role_name}-{}", self.config.namespace);
        let values = [
            ("IMAGE", image),
            (ROUTER_NAMESPACE, self.router_namespace()),
            // By this name it is found.
            ("sandbox-router-svc", &self.theirs.router_service),
            (router, self.name.unwrap_or(router)),
            (role, role_name),
            ("sandpod-agent-sandbox-router-NAMESPACE", &binding_name),
        ];
        Ok([ROUTER, ROUTER_ROLE].map(|file| self.filled(file, &values)).to_vec())
    }

    fn router_namespace(&self) -> &str {
        self.theirs.router_namespace.as_deref().unwrap_or(ROUTER_NAMESPACE)
    }

    fn image_for(&self, what: &str) -> Result<&str> {
        self.image.ok_or_else(|| Failure::usage(what, "Name it with --image."))
    }

    fn template(&self, name: &str) -> Result<Vec<String>> {
        self.only_in(Mode::AgentSandbox, "A template", "In raw mode sandpod writes the Pods itself")?;
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
        self.only_in(Mode::AgentSandbox, "This warm pool", "In raw mode warm_pool_size is an option")?;
        Ok(self.filled(WARM_POOL, &[("NAME", self.pool_name()), ("TEMPLATE", self.template_name())]))
    }

    /// The template that sandboxes are made from; if nobody says which, the one that is called like its pool.
    fn template_name(&self) -> &str {
        self.theirs.template_name.as_deref().or(self.name).unwrap_or(DEFAULT_NAME)
    }

    fn pool_name(&self) -> &str {
        self.name.or(self.theirs.warm_pool_name.as_deref()).unwrap_or(self.template_name())
    }

    /// A template and a pool are of one mode.
    fn only_in(&self, mode: Mode, what: &str, why: &str) -> Result<()> {
        if self.target.mode == mode {
            return Ok(());
        }
        Err(Failure::usage(
            format!("{what} has no meaning in {} mode. {why}.", self.target.mode),
            format!("Choose --mode {mode}, or leave it out."),
        ))
    }

    /// A file with the namespace and these values in their places. What has its usual name stays as it is.
    fn filled(&self, file: &str, values: &[(&str, &str)]) -> String {
        let changed = values.iter().filter(|(place, value)| place != value).copied();
        let values: Vec<_> = changed.chain([("NAMESPACE", self.config.namespace.as_str())]).collect();
        fill(file, &values)
    }
}

/// All objects as one JSON value, which kubectl takes, too.
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
    Failure::new(ErrorKind::Internal, format!("Can't write a manifest: {cause}."), "Report this.")
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
    fn every_place_of_every_file_is_filled() {
        let target =
            Target { mode: Mode::Raw, options: Options::default(), layers: ProcessLayers::default() };
        let wanted = Wanted {
            config: RawConfig::default(),
            theirs: AgentSandboxConfig::default(),
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
            ROUTER_ROLE,
        ];
        for file in files {
            let filled = wanted.filled(file, &[("IMAGE", "x"), ("NAME", "x"), ("TEMPLATE", "x")]);
            let objects = list(&[filled]).unwrap();
            // What is left of a place would be a word in capitals.
            let left = texts(&objects).into_iter().find(|text| {
                *text != "ALL" && text.len() > 1 && text.bytes().all(|byte| byte.is_ascii_uppercase())
            });
            assert_eq!(left, None, "{file}");
        }
    }

    #[test]
    fn the_example_of_an_agent_has_the_account_of_the_rights_asks_for_its_token_and_ends_in_time() {
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
        // The manager's shutdown_timeout is 25.
        assert!(agent["terminationGracePeriodSeconds"].as_u64().unwrap() > 25);
    }
}
