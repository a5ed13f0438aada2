//! `sandpod manifests`: what a cluster needs, as YAML for kubectl. The files of `deploy/` are its source.

use clap::{Args, ValueEnum};
use sandpod::{ErrorKind, Mode, ProcessLayers, RawConfig};
use serde_json::{Value, json};

use super::Context;
use crate::exit::{Failure, Result};
use crate::output::put_bytes;
use crate::target::Target;

const NAMESPACE: &str = include_str!("../../../../deploy/namespace.yaml");
pub(super) const RAW_ROLE: &str = include_str!("../../../../deploy/rbac/raw.yaml");
pub(super) const NAMESPACES_ROLE: &str = include_str!("../../../../deploy/rbac/raw-namespaces.yaml");
const AGENT_SANDBOX_ROLE: &str = include_str!("../../../../deploy/rbac/agent-sandbox.yaml");
const NETWORK_POLICY: &str = include_str!("../../../../deploy/networkpolicy.yaml");
const REAPER: &str = include_str!("../../../../deploy/reaper.yaml");
const WARM_POOL: &str = include_str!("../../../../deploy/agent-sandbox/warm-pool.yaml");
/// The template and its pool, if they have no other name.
const DEFAULT_NAME: &str = "sandpod";

const EXAMPLES: &str = "\
In raw mode, which is the default here, `all` is the namespace, the rights, the NetworkPolicy and, with --image, the
reaper; in agent-sandbox mode the namespace, the rights, the template and the warm pool. --image is the image with
the sandpod command for the reaper, and that of the sandboxes for a template.

Examples:
  sandpod manifests all --namespace agents | kubectl apply --server-side -f -
  sandpod manifests rbac --mode agent-sandbox --namespace agents
  sandpod manifests reaper --namespace agents --image registry.example.com/sandpod:0.1
  sandpod manifests template --name python --namespace agents --image python:3.12-slim";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// What is printed
    what: What,
    /// The name of the template, the pool, the reaper or the rights, if not the usual one
    #[arg(long)]
    name: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
enum What {
    Namespace,
    Rbac,
    Reaper,
    Networkpolicy,
    Template,
    WarmPool,
    All,
}

/// What goes into the manifests.
struct Wanted<'a> {
    mode: Mode,
    config: RawConfig,
    /// Only if somebody said so: nobody means `default`.
    namespace_named: bool,
    image: Option<&'a str>,
    name: Option<&'a str>,
}

/// Prints the manifests.
pub(crate) fn run(arguments: &Arguments, context: &Context) -> Result<()> {
    let layers = ProcessLayers::read(context.options.config.as_deref())?;
    let says = |layer: &sandpod::Layer| layer.options().contains_key("namespace");
    let namespace_named =
        context.options.namespace.is_some() || says(&layers.variables) || says(&layers.file);
    let implied = match arguments.what {
        What::Template | What::WarmPool => Mode::AgentSandbox,
        _ => Mode::Raw,
    };
    let mode = context.options.mode.unwrap_or(implied);
    let target = Target { mode, options: context.options.clone(), layers };
    let wanted = Wanted {
        mode,
        config: target.raw()?,
        namespace_named,
        image: context.options.image.as_deref(),
        name: arguments.name.as_deref(),
    };
    let documents = wanted.documents(arguments.what)?;
    if context.output.is_json() {
        return context.output.json(&list(&documents)?);
    }
    put_bytes(documents.join("---\n").as_bytes())
}

impl Wanted<'_> {
    fn documents(&self, what: What) -> Result<Vec<String>> {
        if self.mode == Mode::Local {
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
        Ok(match what {
            What::Namespace => vec![self.namespace()?],
            What::Rbac => vec![self.rbac()],
            What::Reaper => vec![self.reaper()?],
            What::Networkpolicy => vec![self.filled(NETWORK_POLICY, None)],
            What::Template => self.template()?,
            What::WarmPool => vec![self.warm_pool()?],
            What::All => self.all()?,
        })
    }

    fn all(&self) -> Result<Vec<String>> {
        let mut all = vec![self.namespace()?, self.rbac()];
        if self.mode == Mode::AgentSandbox {
            all.extend(self.template()?);
            all.push(self.warm_pool()?);
        } else {
            all.push(self.filled(NETWORK_POLICY, None));
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
        Ok(self.filled(NAMESPACE, None))
    }

    fn rbac(&self) -> String {
        match self.mode {
            Mode::AgentSandbox => self.filled(AGENT_SANDBOX_ROLE, Some("sandpod-agent-sandbox")),
            _ if self.config.namespace_per_sandbox => {
                self.filled(NAMESPACES_ROLE, Some("sandpod-raw-namespaces"))
            }
            _ => self.filled(RAW_ROLE, Some("sandpod-raw")),
        }
    }

    fn reaper(&self) -> Result<String> {
        self.only_in(Mode::Raw, "The reaper", "A SandboxClaim has a time to live of its own")?;
        let image = self.image.ok_or_else(|| {
            Failure::usage("The reaper needs an image that has the sandpod command.", "Name it with --image.")
        })?;
        Ok(self.filled(REAPER, Some("sandpod-reaper")).replace("IMAGE", image))
    }

    fn template(&self) -> Result<Vec<String>> {
        self.only_in(Mode::AgentSandbox, "A template", "In raw mode sandpod writes the Pods itself")?;
        let objects = self.config.template(self.name.unwrap_or(DEFAULT_NAME))?;
        objects
            .iter()
            .map(|object| serde_saphyr::to_string(object).map_err(|cause| unwritable(&cause)))
            .collect()
    }

    fn warm_pool(&self) -> Result<String> {
        self.only_in(Mode::AgentSandbox, "This warm pool", "In raw mode warm_pool_size is an option")?;
        Ok(self.filled(WARM_POOL, Some("NAME")))
    }

    /// A template and a pool are of one mode, which need not be said twice.
    fn only_in(&self, mode: Mode, what: &str, why: &str) -> Result<()> {
        if self.mode == mode {
            return Ok(());
        }
        Err(Failure::usage(
            format!("{what} has no meaning in {} mode. {why}.", self.mode),
            format!("Choose --mode {mode}, or leave it out."),
        ))
    }

    /// A file with the namespace and the name in their places. Comments stay as they are.
    fn filled(&self, file: &str, name: Option<&str>) -> String {
        let new_name = self.name.or(name.filter(|name| *name == "NAME").and(Some(DEFAULT_NAME)));
        let put_in = |line: &str| {
            if line.starts_with('#') {
                return format!("{line}\n");
            }
            let line = line.replace("NAMESPACE", &self.config.namespace);
            match (name, new_name) {
                (Some(name), Some(new_name)) => format!("{}\n", line.replace(name, new_name)),
                _ => format!("{line}\n"),
            }
        };
        file.lines().map(put_in).collect()
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
