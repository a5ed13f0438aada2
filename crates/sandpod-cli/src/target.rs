//! The options of every command, and the provider that they configure.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use sandpod::{
    AgentSandboxConfig, Config, Error, ErrorKind, GuestProgram, Layer, ListOptions, Mode, ProcessLayers,
    Provider, RawConfig, SandboxHandle, SandboxInfo, SandboxRequest,
};
use sandpod_text::nearest;
use serde_json::{Map, Value, json};

use crate::creation::Creation;
use crate::exit::{Failure, Result};
use crate::output::print_to_stderr;
use crate::time::parse_lifetime;

/// The only argument of this program when it is the guest of a local sandbox.
pub(crate) const GUEST: &str = "guest";
/// The most ids that an ambiguous prefix lists.
const MAX_CANDIDATES: usize = 5;
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
    #[arg(long, global = true, value_name = "DURATION", value_parser = parse_lifetime)]
    pub(crate) ttl: Option<Duration>,
    /// Time without a call after which a new sandbox is deleted
    #[arg(long, global = true, value_name = "DURATION", value_parser = parse_lifetime)]
    pub(crate) idle_ttl: Option<Duration>,
    /// The options of a command that creates a sandbox.
    #[arg(skip)]
    pub(crate) creation: Creation,
    /// Whether the id for a beginning of an id is printed.
    #[arg(skip)]
    pub(crate) notes_ids: bool,
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
    let names = Mode::ALL.iter().map(|mode| match mode {
        Mode::Raw => PossibleValue::new(mode.as_str()).alias("kubernetes").alias("k8s"),
        mode => PossibleValue::new(mode.as_str()),
    });
    PossibleValuesParser::new(names).try_map(|name| parse_mode(&name))
}

/// Parses the name of a mode. Raw mode is that of plain Kubernetes.
pub(crate) fn parse_mode(name: &str) -> Result<Mode, Error> {
    match name {
        "kubernetes" | "k8s" => Ok(Mode::Raw),
        name => name.parse(),
    }
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
        check_platform(self.mode, std::env::consts::OS)?;
        let mut config = Config::from_layers(self.mode, self.all_layers()?)?;
        if let Config::Local(config) = &mut config {
            // An installed guest starts faster than this program, which is also a guest.
            let own = || GuestProgram { path: "/proc/self/exe".into(), args: vec![GUEST.to_owned()] };
            config.program = Some(GuestProgram::installed()?.unwrap_or_else(own));
            config.ends_with_process = lifetime == Lifetime::Process;
            config.mounts.clone_from(&self.options.creation.mounts);
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
        self.options.creation.add_to(&mut given, self.mode, |name| self.configured(name).cloned())?;
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
        self.configured(name)?.as_u64()
    }

    /// The value of an option in the variables, or else in the file.
    fn configured(&self, name: &str) -> Option<&Value> {
        let ProcessLayers { variables, file, .. } = &self.layers;
        variables.options().get(name).or_else(|| file.options().get(name))
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

    /// Connects to the sandbox `id`, or whose generated id begins with it, without printing its notices, for commands that use no
    /// files of it.
    pub(crate) async fn reconnect(&self, provider: &Provider, id: &str) -> Result<SandboxHandle> {
        match provider.reconnect(id).await {
            // The error of a sandbox that exists, but has ended or lost its Pod, has its own next step.
            Err(error) if error.kind() == ErrorKind::NotFound && provider.info(id).await.is_err() => {
                let id = self.completed(provider, id, error.message()).await?;
                provider.reconnect(&id).await.map_err(|error| with_command_advice(&id, &error))
            }
            found => found.map_err(|error| with_command_advice(id, &error)),
        }
    }

    /// Returns the details of the sandbox `id`, or whose generated id begins with it.
    pub(crate) async fn info(&self, provider: &Provider, id: &str) -> Result<SandboxInfo> {
        match provider.info(id).await {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let id = self.completed(provider, id, error.message()).await?;
                Ok(provider.info(&id).await?)
            }
            found => Ok(found?),
        }
    }

    /// Returns the generated id that begins with `id`, which is not itself an id, and prints a note.
    async fn completed(&self, provider: &Provider, id: &str, message: &str) -> Result<String> {
        let ids = ids(provider).await?;
        match complete(id, &ids)? {
            Some(found) => {
                if self.options.notes_ids {
                    print_to_stderr(&format!("using sandbox {found}"));
                }
                Ok(found.to_owned())
            }
            None => Err(Failure::new(ErrorKind::NotFound, message, self.suggestion(provider, id).await)),
        }
    }

    /// The next step for an unknown id: a similar id, if there is one.
    pub(crate) async fn suggestion(&self, provider: &Provider, id: &str) -> String {
        let ids = ids(provider).await.unwrap_or_default();
        match nearest(id, ids.iter().map(String::as_str).filter(|other| *other != id)) {
            Some(nearest) => format!("Did you mean '{nearest}'?"),
            None => format!(
                "List the sandboxes in {} mode with `sandpod list`, or create one with `sandpod create`.",
                self.mode
            ),
        }
    }
}

/// Rejects local mode on other systems than Linux.
fn check_platform(mode: Mode, os: &str) -> Result<()> {
    if mode != Mode::Local || os == "linux" {
        return Ok(());
    }
    let system = match os {
        "macos" => "macOS",
        "windows" => "Windows",
        other => other,
    };
    Err(Failure::new(
        ErrorKind::Unsupported,
        format!(
            "Local sandboxes need Linux; on {system} sandboxes run in a cluster, in raw or agent-sandbox mode."
        ),
        "Use --mode raw, or set SANDPOD_MODE or `mode` in the configuration file.",
    ))
}

/// Returns the only generated id that begins with `given`, with or without its `sp-`. A chosen id must be complete: a command
/// for `web`, which is gone, must not use `web-2`.
pub(crate) fn complete<'a>(given: &str, ids: &'a [String]) -> Result<Option<&'a str>> {
    let fits = |id: &&'a str| {
        let digits = id.strip_prefix("sp-").filter(|digits| is_generated(digits));
        digits.is_some_and(|digits| id.starts_with(given) || digits.starts_with(given))
    };
    let found: Vec<&str> =
        ids.iter().map(String::as_str).filter(fits).filter(|_| !given.is_empty()).collect();
    match found[..] {
        [] => Ok(None),
        [id] => Ok(Some(id)),
        _ => {
            let shown: Vec<_> = found.iter().take(MAX_CANDIDATES).copied().collect();
            let more = found.len().checked_sub(MAX_CANDIDATES + 1).map_or(String::new(), |_| " …".to_owned());
            Err(Failure::usage(
                format!("'{given}' is the beginning of {} ids: {}{more}.", found.len(), shown.join(", ")),
                "Give more of the id.",
            ))
        }
    }
}

/// Reports whether these are the digits of a generated id: 8 of `sandpod`, or 26 of the library, in base32.
fn is_generated(digits: &str) -> bool {
    [8, 26].contains(&digits.len())
        && digits.bytes().all(|digit| digit.is_ascii_lowercase() || (b'2'..=b'7').contains(&digit))
}

/// Returns the ids of all sandboxes.
pub(crate) async fn ids(provider: &Provider) -> Result<Vec<String>> {
    let mut options = ListOptions::default();
    let mut ids = Vec::new();
    loop {
        let page = provider.list(options.clone()).await?;
        ids.extend(page.sandboxes.iter().map(|info| info.id.to_string()));
        options.cursor = page.cursor;
        if options.cursor.is_none() {
            return Ok(ids);
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
        let image = [("--image", self.image.is_some())];
        let Creation { network, memory, cpu, mounts, .. } = &self.creation;
        // In agent-sandbox mode the template decides.
        let raw_options =
            [("--network", network.is_some()), ("--memory", memory.is_some()), ("--cpu", cpu.is_some())];
        let local_options = [("--mount", !mounts.is_empty())];
        let agent_sandbox_options = [
            ("--template", self.template.is_some()),
            ("--warm-pool", self.warm_pool.is_some()),
            ("--connection-mode", self.connection_mode.is_some()),
            ("--gateway-name", self.gateway_name.is_some()),
            ("--gateway-namespace", self.gateway_namespace.is_some()),
            ("--api-url", self.api_url.is_some()),
        ];
        let rejected: Vec<_> = match mode {
            Mode::Local => [&cluster_options[..], &image, &agent_sandbox_options].concat(),
            Mode::Raw => [&agent_sandbox_options[..], &local_options].concat(),
            Mode::AgentSandbox => [&image[..], &raw_options, &local_options].concat(),
        };
        match rejected.into_iter().find(|(_, given)| *given) {
            None => Ok(()),
            Some((name, _)) => {
                let next = if name == "--mount" {
                    "Omit it, copy files with `sandpod cp`, or configure volumes in the Pod.".to_owned()
                } else if agent_sandbox_options.iter().any(|(option, _)| *option == name) {
                    "Omit it, or use --mode agent-sandbox.".to_owned()
                } else {
                    "Omit it, or use --mode raw.".to_owned()
                };
                Err(Failure::usage(format!("Option {name} does not apply to {mode} mode."), next))
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
    fn other_systems_than_linux_are_told_which_modes_work() {
        let message = check_platform(Mode::Local, "macos").unwrap_err().to_string();
        assert!(message.contains("on macOS sandboxes run in a cluster"), "{message}");
        check_platform(Mode::Raw, "macos").unwrap();
        check_platform(Mode::Local, "linux").unwrap();
    }

    #[test]
    fn the_beginning_of_a_generated_id_is_enough_if_only_one_id_has_it() {
        let ids = ["sp-abcd2345", "sp-abxy2345", "work", "job-10"].map(str::to_owned);
        let found = |given| complete(given, &ids).unwrap();
        assert_eq!(found("sp-abc"), Some("sp-abcd2345"));
        assert_eq!(found("abx"), Some("sp-abxy2345"));
        assert_eq!(["wo", "job", "job-1", "x", ""].map(found), [None; 5]);
        let ambiguous = complete("ab", &ids).unwrap_err().to_string();
        assert!(ambiguous.contains("beginning of 2 ids: sp-abcd2345, sp-abxy2345."), "{ambiguous}");
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
