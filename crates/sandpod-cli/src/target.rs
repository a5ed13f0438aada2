//! The options of every command, and the provider that they configure.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use sandpod::{
    AgentSandboxConfig, Config, Error, ErrorKind, GuestProgram, Layer, ListOptions, Mode, ProcessLayers,
    Provider, RawConfig, SandboxHandle, SandboxInfo, SandboxRequest,
};
use sandpod_text::nearest;
use serde_json::{Map, Value, json};

use crate::exit::{Failure, Result};
use crate::time::parse_duration;

/// The only argument of this program when it is the guest of a local sandbox.
pub(crate) const GUEST: &str = "guest";
/// The connection modes of the library.
const CONNECTION_MODES: [&str; 5] = ["exec", "tunnel", "gateway", "direct", "in-cluster"];

/// The options of every command. Precedence: option, variable, configuration file, default.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Configuration")]
pub(crate) struct Options {
    /// Backend of sandboxes: local, raw or agent-sandbox [default: SANDPOD_MODE, the file's mode, local]
    #[arg(long, global = true, alias = "backend", value_name = "MODE", value_parser = modes(), hide_possible_values = true)]
    pub(crate) mode: Option<Mode>,
    /// Configuration file [default: SANDPOD_CONFIG, ~/.config/sandpod/config.toml]
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Kubernetes namespace of sandboxes
    #[arg(long, short, global = true)]
    pub(crate) namespace: Option<String>,
    /// Context of the kubeconfig
    #[arg(long, global = true)]
    pub(crate) context: Option<String>,
    /// Path of the kubeconfig
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Container image of new sandboxes
    #[arg(long, global = true)]
    pub(crate) image: Option<String>,
    /// SandboxTemplate of new sandboxes
    #[arg(long, global = true, alias = "template-name", value_name = "NAME")]
    pub(crate) template: Option<String>,
    /// SandboxWarmPool that new sandboxes are claimed from
    #[arg(long, global = true, alias = "warm-pool-name", value_name = "NAME")]
    pub(crate) warm_pool: Option<String>,
    /// Connection to guests: exec, tunnel, gateway, direct or in-cluster
    #[arg(long, global = true, value_name = "MODE", value_parser = CONNECTION_MODES, hide_possible_values = true)]
    pub(crate) connection_mode: Option<String>,
    /// Gateway in front of the router
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) gateway_name: Option<String>,
    /// Namespace of the Gateway
    #[arg(long, global = true, value_name = "NAMESPACE")]
    pub(crate) gateway_namespace: Option<String>,
    /// URL of the router
    #[arg(long, global = true, value_name = "URL")]
    pub(crate) api_url: Option<String>,
    // Not global: clap keeps only the values after the command of a repeated global option.
    /// Label of new or listed sandboxes; may be repeated
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = parse_label)]
    pub(crate) labels: Vec<(String, String)>,
    /// Time after which a new sandbox is deleted, for example 1h30m
    #[arg(long, global = true, value_name = "DURATION", value_parser = parse_duration)]
    pub(crate) ttl: Option<Duration>,
    /// Time without a call after which a new sandbox is deleted
    #[arg(long, global = true, value_name = "DURATION", value_parser = parse_duration)]
    pub(crate) idle_ttl: Option<Duration>,
}

// The labels after commands that create or list sandboxes. No doc comment: it would replace the help of the command.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Labels {
    /// Label of new or listed sandboxes; may be repeated
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = parse_label)]
    labels: Vec<(String, String)>,
}

/// Parses a mode; shells complete its values.
fn modes() -> impl TypedValueParser<Value = Mode> {
    PossibleValuesParser::new(Mode::ALL.iter().map(|mode| mode.as_str())).try_map(|name| name.parse::<Mode>())
}

fn parse_label(text: &str) -> Result<(String, String), String> {
    let (key, value) =
        text.split_once('=').ok_or_else(|| format!("'{text}' is not a label such as team=search"))?;
    Ok((key.to_owned(), value.to_owned()))
}

/// The lifetime of local sandboxes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Lifetime {
    /// Until they are deleted.
    Persistent,
    /// Until this process ends.
    Process,
}

/// The mode and the configuration, from all sources.
pub(crate) struct Target {
    pub(crate) mode: Mode,
    pub(crate) options: Options,
    pub(crate) layers: ProcessLayers,
}

impl Target {
    /// Reads the sources. Rejects options that the mode does not have.
    pub(crate) fn new(options: Options) -> Result<Self> {
        let layers = ProcessLayers::read(options.config.as_deref())?;
        let mode = options.mode.or(layers.variables.mode()).or(layers.file.mode()).unwrap_or(Mode::Local);
        options.check_mode(mode)?;
        Ok(Self { mode, options, layers })
    }

    /// Opens a provider that creates sandboxes. Agent-sandbox mode requires a template or a warm pool.
    pub(crate) async fn creating_provider(&self, lifetime: Lifetime) -> Result<Provider> {
        if self.mode == Mode::AgentSandbox {
            let config = self.agent_sandbox()?;
            if config.template_name.is_none() && config.warm_pool_name.is_none() {
                return Err(Failure::usage(
                    "Agent-sandbox mode requires a template or a warm pool.",
                    "Name one with --template, SANDPOD_TEMPLATE_NAME or `template_name` in the configuration file; `sandpod manifests template` prints a template.",
                ));
            }
        }
        self.provider(lifetime).await
    }

    /// Opens a provider that finds, uses and deletes sandboxes.
    pub(crate) async fn provider(&self, lifetime: Lifetime) -> Result<Provider> {
        let mut config = Config::from_layers(self.mode, self.all_layers()?)?;
        if let Config::Local(config) = &mut config {
            // An installed guest starts faster than this program, which is also a guest.
            let own = || GuestProgram { path: "/proc/self/exe".into(), args: vec![GUEST.to_owned()] };
            config.program = Some(GuestProgram::installed()?.unwrap_or_else(own));
            config.ends_with_process = lifetime == Lifetime::Process;
        }
        Ok(Provider::open(config).await?)
    }

    /// The configuration of agent-sandbox mode, with or without a template.
    pub(crate) fn agent_sandbox(&self) -> Result<AgentSandboxConfig> {
        Ok(AgentSandboxConfig::from_layers(self.all_layers()?)?)
    }

    /// The layers of the configuration, in increasing precedence: file, variables, arguments.
    pub(crate) fn all_layers(&self) -> Result<[Layer; 3]> {
        Ok([self.layers.file.clone(), self.layers.variables.clone(), self.arguments()?])
    }

    /// The configuration of raw mode.
    pub(crate) fn raw(&self) -> Result<RawConfig> {
        Ok(RawConfig::from_layers(self.all_layers()?)?)
    }

    /// The options of the command line.
    pub(crate) fn arguments(&self) -> Result<Layer> {
        let options = self.options.clone();
        let kubeconfig = options.kubeconfig.map(|path| path.to_string_lossy().into_owned());
        let texts = [
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
        let mut given: Map<String, Value> =
            texts.into_iter().filter_map(|(name, value)| Some((name.to_owned(), json!(value?)))).collect();
        let durations = [("ttl_seconds", self.options.ttl), ("ttl_idle_seconds", self.options.idle_ttl)];
        given.extend(
            durations
                .into_iter()
                .filter_map(|(name, value)| Some((name.to_owned(), json!(value?.as_secs())))),
        );
        Ok(Layer::arguments(given)?)
    }

    /// The labels before and after the command.
    pub(crate) fn labels(&self, after: &Labels) -> BTreeMap<String, String> {
        self.options.labels.iter().chain(&after.labels).cloned().collect()
    }

    /// The request for a new sandbox.
    pub(crate) fn request(&self, labels: &Labels) -> SandboxRequest {
        SandboxRequest {
            labels: self.labels(labels),
            ttl: self.options.ttl,
            idle_ttl: self.options.idle_ttl,
            ..SandboxRequest::default()
        }
    }

    /// The timeout of commands without `--timeout`, if a variable or the file sets it. The library's default is for programs;
    /// the user of a terminal can interrupt a command.
    pub(crate) fn exec_timeout(&self) -> Option<Duration> {
        self.number("default_exec_timeout").map(Duration::from_secs)
    }

    /// Reports whether an option, a variable or the file sets a TTL or an idle TTL.
    pub(crate) fn has_ttl(&self) -> bool {
        let names = ["ttl_seconds", "pod_ttl_seconds", "ttl_idle_seconds"];
        let given = self.options.ttl.is_some() || self.options.idle_ttl.is_some();
        given || names.into_iter().any(|name| self.number(name).is_some())
    }

    /// The value of a numeric option in the variables, or else in the file.
    fn number(&self, name: &str) -> Option<u64> {
        let value = |layer: &Layer| layer.options().get(name)?.as_u64();
        value(&self.layers.variables).or_else(|| value(&self.layers.file))
    }

    /// Connects to the sandbox `id` and prints its notices on stderr.
    pub(crate) async fn sandbox(&self, id: &str) -> Result<SandboxHandle> {
        let provider = self.provider(Lifetime::Persistent).await?;
        let handle = self.reconnect(&provider, id).await?;
        if print_notices(&handle) {
            provider.close().await;
        }
        Ok(handle)
    }

    /// Connects to the sandbox `id` without printing its notices, for commands that use no files of it.
    pub(crate) async fn reconnect(&self, provider: &Provider, id: &str) -> Result<SandboxHandle> {
        match provider.reconnect(id).await {
            // The error of a sandbox that exists, but has ended or lost its Pod, has its own next step.
            Err(error) if error.kind() == ErrorKind::NotFound && provider.info(id).await.is_err() => {
                Err(self.not_found(provider, id, error.message()).await)
            }
            found => found.map_err(|error| with_command_advice(id, &error)),
        }
    }

    /// Returns the details of the sandbox `id`.
    pub(crate) async fn info(&self, provider: &Provider, id: &str) -> Result<SandboxInfo> {
        match provider.info(id).await {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                Err(self.not_found(provider, id, error.message()).await)
            }
            found => Ok(found?),
        }
    }

    async fn not_found(&self, provider: &Provider, id: &str, message: &str) -> Failure {
        Failure::new(ErrorKind::NotFound, message, self.suggestion(provider, id).await)
    }

    /// The next step for an unknown id: a similar id, if there is one.
    pub(crate) async fn suggestion(&self, provider: &Provider, id: &str) -> String {
        let page = provider.list(ListOptions::default()).await.map(|page| page.sandboxes).unwrap_or_default();
        let ids = page.iter().map(|info| info.id.as_str()).filter(|other| *other != id);
        match nearest(id, ids) {
            Some(nearest) => format!("Did you mean '{nearest}'?"),
            None => format!(
                "List the sandboxes in {} mode with `sandpod list`, or create one with `sandpod create`.",
                self.mode
            ),
        }
    }
}

/// Converts an error of the library, and adds the command or flag to its next step.
pub(crate) fn with_command_advice(id: &str, error: &Error) -> Failure {
    let next = error.next_step();
    let next = match (next.strip_suffix("Create it again."), next.strip_prefix("Set force")) {
        (Some(before), _) => format!("{before}Create it again with `sandpod create --id {id}`."),
        (_, Some(rest)) => format!("Give --force{rest}"),
        _ => next.to_owned(),
    };
    Failure::new(error.kind(), error.message(), next)
}

/// Prints the notices of a sandbox, such as lost files. Returns whether there were any.
pub(crate) fn print_notices(handle: &SandboxHandle) -> bool {
    let notices = handle.sandbox.take_notices();
    for notice in &notices {
        tracing::warn!("{notice}");
    }
    !notices.is_empty()
}

/// Returns the details of the sandbox `id`, if it exists.
pub(crate) async fn find(provider: &Provider, id: &str) -> Result<Option<SandboxInfo>> {
    match provider.info(id).await {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        found => Ok(Some(found?)),
    }
}

impl Options {
    fn check_mode(&self, mode: Mode) -> Result<()> {
        let cluster_options = [
            ("--namespace", self.namespace.is_some()),
            ("--context", self.context.is_some()),
            ("--kubeconfig", self.kubeconfig.is_some()),
        ];
        let raw_options = [("--image", self.image.is_some())];
        let agent_sandbox_options = [
            ("--template", self.template.is_some()),
            ("--warm-pool", self.warm_pool.is_some()),
            ("--connection-mode", self.connection_mode.is_some()),
            ("--gateway-name", self.gateway_name.is_some()),
            ("--gateway-namespace", self.gateway_namespace.is_some()),
            ("--api-url", self.api_url.is_some()),
        ];
        let rejected: Vec<_> = match mode {
            Mode::Local => [&cluster_options[..], &raw_options, &agent_sandbox_options].concat(),
            Mode::Raw => agent_sandbox_options.to_vec(),
            Mode::AgentSandbox => raw_options.to_vec(),
        };
        match rejected.into_iter().find(|(_, given)| *given) {
            None => Ok(()),
            Some((name, _)) => {
                let fitting = if agent_sandbox_options.iter().any(|(option, _)| *option == name) {
                    "agent-sandbox"
                } else {
                    "raw"
                };
                Err(Failure::usage(
                    format!("Option {name} does not apply to {mode} mode."),
                    format!("Omit it, or use --mode {fitting}."),
                ))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rejected(options: &Options, mode: Mode) -> String {
        options.check_mode(mode).unwrap_err().to_string()
    }

    #[test]
    fn an_option_of_another_mode_is_rejected_by_name() {
        let image = Options { image: Some("x".to_owned()), ..Options::default() };
        let message = rejected(&image, Mode::Local);
        assert!(
            message.contains("--image does not apply to local mode") && message.contains("--mode raw"),
            "{message}"
        );
        image.check_mode(Mode::Raw).unwrap();
        rejected(&image, Mode::AgentSandbox);

        let template = Options { template: Some("x".to_owned()), ..Options::default() };
        let message = rejected(&template, Mode::Raw);
        assert!(message.contains("--template") && message.contains("--mode agent-sandbox"), "{message}");
        template.check_mode(Mode::AgentSandbox).unwrap();
    }

    #[test]
    fn next_steps_of_the_library_get_the_command_or_flag() {
        let message = |next: &str| {
            with_command_advice("work", &Error::new(ErrorKind::NotFound, "It is lost.", next)).to_string()
        };
        assert!(
            message("Create it again.").ends_with("next: Create it again with `sandpod create --id work`.")
        );
        assert!(
            message("Ask the owner of the claim for a new one.")
                .ends_with("next: Ask the owner of the claim for a new one.")
        );
    }

    #[test]
    fn a_label_is_a_key_and_a_value() {
        assert_eq!(parse_label("a=b=c"), Ok(("a".to_owned(), "b=c".to_owned())));
        assert!(parse_label("a").unwrap_err().contains("team=search"));
    }
}
