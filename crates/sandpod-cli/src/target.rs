//! Where sandboxes are: the options that every command takes, and the provider that they mean.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use sandpod::{
    AgentSandboxConfig, Config, Error, ErrorKind, GuestProgram, Layer, ListOptions, Mode, ProcessLayers,
    Provider, RawConfig, SandboxHandle, SandboxInfo, SandboxRequest,
};
use serde_json::{Map, Value, json};

use crate::exit::{Failure, Result};
use crate::likeness::nearest;
use crate::time::parse_length;

/// The only word that this program is given when it is to be the guest of a local sandbox.
pub(crate) const GUEST: &str = "guest";
/// The ways to a guest that the library knows.
const CONNECTION_MODES: [&str; 5] = ["exec", "tunnel", "gateway", "direct", "in-cluster"];

/// What every command takes. An option over a variable over the file over the default.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Where")]
pub(crate) struct Options {
    /// Where sandboxes run: local, raw or agent-sandbox [default: SANDPOD_MODE, the file's mode, local]
    #[arg(long, global = true, alias = "backend", value_name = "MODE", value_parser = modes(), hide_possible_values = true)]
    pub(crate) mode: Option<Mode>,
    /// The configuration file [default: SANDPOD_CONFIG, ~/.config/sandpod/config.toml]
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// The namespace of sandboxes
    #[arg(long, short, global = true)]
    pub(crate) namespace: Option<String>,
    /// The kubeconfig's context
    #[arg(long, global = true)]
    pub(crate) context: Option<String>,
    /// The kubeconfig
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// The image of new sandboxes
    #[arg(long, global = true)]
    pub(crate) image: Option<String>,
    /// The SandboxTemplate of new sandboxes
    #[arg(long, global = true, alias = "template-name", value_name = "NAME")]
    pub(crate) template: Option<String>,
    /// The SandboxWarmPool that sandboxes are taken from
    #[arg(long, global = true, alias = "warm-pool-name", value_name = "NAME")]
    pub(crate) warm_pool: Option<String>,
    /// How guests are reached: exec, tunnel, gateway, direct or in-cluster
    #[arg(long, global = true, value_name = "HOW", value_parser = CONNECTION_MODES, hide_possible_values = true)]
    pub(crate) connection_mode: Option<String>,
    /// The Gateway that leads to the router
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) gateway_name: Option<String>,
    /// The Gateway's namespace
    #[arg(long, global = true, value_name = "NAMESPACE")]
    pub(crate) gateway_namespace: Option<String>,
    /// The router's address
    #[arg(long, global = true, value_name = "URL")]
    pub(crate) api_url: Option<String>,
    // Not global: of such an option clap keeps only what stands after the command.
    /// A label of new sandboxes, or of those that are listed; may be repeated
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = parse_label)]
    pub(crate) labels: Vec<(String, String)>,
    /// A new sandbox ends after so long, for example 1h30m
    #[arg(long, global = true, value_name = "LENGTH", value_parser = parse_length)]
    pub(crate) ttl: Option<Duration>,
    /// A new sandbox ends after so long without a call
    #[arg(long, global = true, value_name = "LENGTH", value_parser = parse_length)]
    pub(crate) idle_ttl: Option<Duration>,
}

// What commands take that make or list sandboxes. No doc comment: it would take the place of what they say themselves.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Labels {
    /// A label of new sandboxes, or of those that are listed; may be repeated
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = parse_label)]
    labels: Vec<(String, String)>,
}

/// The modes by their names, which shells complete.
fn modes() -> impl TypedValueParser<Value = Mode> {
    PossibleValuesParser::new(Mode::ALL.iter().map(|mode| mode.as_str())).try_map(|name| name.parse::<Mode>())
}

fn parse_label(text: &str) -> Result<(String, String), String> {
    let (key, value) =
        text.split_once('=').ok_or_else(|| format!("'{text}' is no label: write team=search"))?;
    Ok((key.to_owned(), value.to_owned()))
}

/// How long sandboxes of this machine stay.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Stay {
    /// Until they are deleted.
    Kept,
    /// No longer than this process.
    WithUs,
}

/// Where sandboxes are, once all sources were read.
pub(crate) struct Target {
    pub(crate) mode: Mode,
    pub(crate) options: Options,
    pub(crate) layers: ProcessLayers,
}

impl Target {
    /// Reads the sources, and refuses options that mean nothing in the mode.
    pub(crate) fn new(options: Options) -> Result<Self> {
        let layers = ProcessLayers::read(options.config.as_deref())?;
        let mode = options.mode.or(layers.variables.mode()).or(layers.file.mode()).unwrap_or(Mode::Local);
        options.refuse_meaningless(mode)?;
        Ok(Self { mode, options, layers })
    }

    /// What makes sandboxes: those of agent-sandbox come from a template or a pool.
    pub(crate) async fn maker(&self, stay: Stay) -> Result<Provider> {
        if self.mode == Mode::AgentSandbox {
            let config = self.agent_sandbox()?;
            if config.template_name.is_none() && config.warm_pool_name.is_none() {
                return Err(Failure::usage(
                    "Sandboxes of agent-sandbox are made from a template, and none is named.",
                    "Name it with --template, SANDPOD_TEMPLATE_NAME or template_name in the file; `sandpod manifests template` prints one.",
                ));
            }
        }
        self.provider(stay).await
    }

    /// What finds, uses and deletes sandboxes.
    pub(crate) async fn provider(&self, stay: Stay) -> Result<Provider> {
        let mut config = Config::from_layers(self.mode, self.all_layers()?)?;
        if let Config::Local(config) = &mut config {
            // An installed guest starts faster than this program, which is also a guest.
            let own = || GuestProgram { path: "/proc/self/exe".into(), args: vec![GUEST.to_owned()] };
            config.program = Some(GuestProgram::installed()?.unwrap_or_else(own));
            config.ends_with_process = stay == Stay::WithUs;
        }
        Ok(Provider::open(config).await?)
    }

    /// The configuration of agent-sandbox mode, with or without a template.
    pub(crate) fn agent_sandbox(&self) -> Result<AgentSandboxConfig> {
        Ok(AgentSandboxConfig::from_layers(self.all_layers()?)?)
    }

    /// What the file, the variables and the command line say, each before those that it gives way to.
    pub(crate) fn all_layers(&self) -> Result<[Layer; 3]> {
        Ok([self.layers.file.clone(), self.layers.variables.clone(), self.arguments()?])
    }

    /// The configuration of raw mode.
    pub(crate) fn raw(&self) -> Result<RawConfig> {
        Ok(RawConfig::from_layers(self.all_layers()?)?)
    }

    /// What the command line itself says.
    pub(crate) fn arguments(&self) -> Result<Layer> {
        let options = self.options.clone();
        let kubeconfig = options.kubeconfig.map(|path| path.to_string_lossy().into_owned());
        let said = [
            ("namespace", options.namespace),
            ("context", options.context),
            ("kubeconfig", kubeconfig),
            ("image", options.image),
            ("template_name", options.template),
            ("warm_pool_name", options.warm_pool),
            ("connection_mode", options.connection_mode),
            ("gateway_name", options.gateway_name),
            ("gateway_namespace", options.gateway_namespace),
            ("api_url", options.api_url),
        ];
        let mut said: Map<String, Value> =
            said.into_iter().filter_map(|(name, value)| Some((name.to_owned(), json!(value?)))).collect();
        let lengths = [("ttl_seconds", self.options.ttl), ("ttl_idle_seconds", self.options.idle_ttl)];
        said.extend(
            lengths.into_iter().filter_map(|(name, value)| Some((name.to_owned(), json!(value?.as_secs())))),
        );
        Ok(Layer::arguments(said)?)
    }

    /// The labels that were given before the command and after it.
    pub(crate) fn labels(&self, after: &Labels) -> BTreeMap<String, String> {
        self.options.labels.iter().chain(&after.labels).cloned().collect()
    }

    /// A new sandbox as the options say.
    pub(crate) fn request(&self, labels: &Labels) -> SandboxRequest {
        SandboxRequest {
            labels: self.labels(labels),
            ttl: self.options.ttl,
            idle_ttl: self.options.idle_ttl,
            ..SandboxRequest::default()
        }
    }

    /// How long a command may take that nobody gave a limit, if the file or a variable says so; the default is for
    /// programs, and a person sees what a command does.
    pub(crate) fn exec_timeout(&self) -> Option<Duration> {
        self.said("default_exec_timeout").map(Duration::from_secs)
    }

    /// Whether an option, a variable or the file says how long sandboxes live, used or not.
    pub(crate) fn says_an_end(&self) -> bool {
        let names = ["ttl_seconds", "pod_ttl_seconds", "ttl_idle_seconds"];
        let given = self.options.ttl.is_some() || self.options.idle_ttl.is_some();
        given || names.into_iter().any(|name| self.said(name).is_some())
    }

    /// The number that a variable, or else the file, gives an option.
    fn said(&self, name: &str) -> Option<u64> {
        let said = |layer: &Layer| layer.options().get(name)?.as_u64();
        said(&self.layers.variables).or_else(|| said(&self.layers.file))
    }

    /// The sandbox `id`. What its user has to know of it is said on stderr.
    pub(crate) async fn sandbox(&self, id: &str) -> Result<SandboxHandle> {
        let provider = self.provider(Stay::Kept).await?;
        let handle = self.reconnect(&provider, id).await?;
        if say_notices(&handle) {
            provider.close().await;
        }
        Ok(handle)
    }

    /// The sandbox `id`, for what needs none of its files.
    pub(crate) async fn reconnect(&self, provider: &Provider, id: &str) -> Result<SandboxHandle> {
        match provider.reconnect(id).await {
            // One that is there, but has ended or lost its place, says itself what to do.
            Err(error) if error.kind() == ErrorKind::NotFound && provider.info(id).await.is_err() => {
                Err(self.not_found(provider, id, error.message()).await)
            }
            found => found.map_err(|error| advised(id, &error)),
        }
    }

    /// What is known of the sandbox `id`.
    pub(crate) async fn info(&self, provider: &Provider, id: &str) -> Result<SandboxInfo> {
        match provider.info(id).await {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                Err(self.not_found(provider, id, error.message()).await)
            }
            found => Ok(found?),
        }
    }

    async fn not_found(&self, provider: &Provider, id: &str, message: &str) -> Failure {
        Failure::new(ErrorKind::NotFound, message, self.instead_of(provider, id).await)
    }

    /// What to do when there is no such sandbox: perhaps another one was meant.
    pub(crate) async fn instead_of(&self, provider: &Provider, id: &str) -> String {
        let page = provider.list(ListOptions::default()).await.map(|page| page.sandboxes).unwrap_or_default();
        let ids = page.iter().map(|info| info.id.as_str()).filter(|other| *other != id);
        match nearest(id, ids) {
            Some(nearest) => format!("Did you mean '{nearest}'?"),
            None => format!(
                "See which there are in {} mode with `sandpod list`, or make one with `sandpod create`.",
                self.mode
            ),
        }
    }
}

/// The library's error, with the command or the flag for what it advises: it names neither.
pub(crate) fn advised(id: &str, error: &Error) -> Failure {
    let next = error.next_step();
    let next = match (next.strip_suffix("Create it again."), next.strip_prefix("Set force")) {
        (Some(before), _) => format!("{before}Create it again with `sandpod create --id {id}`."),
        (_, Some(rest)) => format!("Give --force{rest}"),
        _ => next.to_owned(),
    };
    Failure::new(error.kind(), error.message(), next)
}

/// Says what the sandbox's user has to know before the first call, if anything.
pub(crate) fn say_notices(handle: &SandboxHandle) -> bool {
    let notices = handle.sandbox.take_notices();
    for notice in &notices {
        tracing::warn!("{notice}");
    }
    !notices.is_empty()
}

/// What is known of the sandbox `id`, if there is one.
pub(crate) async fn find(provider: &Provider, id: &str) -> Result<Option<SandboxInfo>> {
    match provider.info(id).await {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        found => Ok(Some(found?)),
    }
}

impl Options {
    fn refuse_meaningless(&self, mode: Mode) -> Result<()> {
        let of_clusters = [
            ("--namespace", self.namespace.is_some()),
            ("--context", self.context.is_some()),
            ("--kubeconfig", self.kubeconfig.is_some()),
        ];
        let of_raw = [("--image", self.image.is_some())];
        let of_agent_sandbox = [
            ("--template", self.template.is_some()),
            ("--warm-pool", self.warm_pool.is_some()),
            ("--connection-mode", self.connection_mode.is_some()),
            ("--gateway-name", self.gateway_name.is_some()),
            ("--gateway-namespace", self.gateway_namespace.is_some()),
            ("--api-url", self.api_url.is_some()),
        ];
        let refused: Vec<_> = match mode {
            Mode::Local => [&of_clusters[..], &of_raw, &of_agent_sandbox].concat(),
            Mode::Raw => of_agent_sandbox.to_vec(),
            Mode::AgentSandbox => of_raw.to_vec(),
        };
        match refused.into_iter().find(|(_, given)| *given) {
            None => Ok(()),
            Some((name, _)) => {
                let fitting =
                    if of_agent_sandbox.iter().any(|(of, _)| *of == name) { "agent-sandbox" } else { "raw" };
                Err(Failure::usage(
                    format!("The option {name} has no meaning in {mode} mode."),
                    format!("Leave it out, or choose --mode {fitting}."),
                ))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(options: &Options, mode: Mode) -> String {
        options.refuse_meaningless(mode).unwrap_err().to_string()
    }

    #[test]
    fn an_option_without_meaning_in_the_mode_is_refused_by_its_name() {
        let image = Options { image: Some("x".to_owned()), ..Options::default() };
        let said = refused(&image, Mode::Local);
        assert!(
            said.contains("--image has no meaning in local mode") && said.contains("--mode raw"),
            "{said}"
        );
        image.refuse_meaningless(Mode::Raw).unwrap();
        refused(&image, Mode::AgentSandbox);

        let template = Options { template: Some("x".to_owned()), ..Options::default() };
        let said = refused(&template, Mode::Raw);
        assert!(said.contains("--template") && said.contains("--mode agent-sandbox"), "{said}");
        template.refuse_meaningless(Mode::AgentSandbox).unwrap();
    }

    #[test]
    fn what_the_library_advises_comes_as_a_command_or_a_flag() {
        let said =
            |next: &str| advised("work", &Error::new(ErrorKind::NotFound, "It is lost.", next)).to_string();
        assert!(said("Create it again.").ends_with("next: Create it again with `sandpod create --id work`."));
        assert!(
            said("Ask who made its claim for another one.")
                .ends_with("next: Ask who made its claim for another one.")
        );
    }

    #[test]
    fn a_label_is_a_key_and_a_value() {
        assert_eq!(parse_label("a=b=c"), Ok(("a".to_owned(), "b=c".to_owned())));
        assert!(parse_label("a").unwrap_err().contains("team=search"));
    }
}
