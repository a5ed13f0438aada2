//! Converts options with TypeScript names to the configuration of a provider.
//!
//! Every option has its library name in camel case, except for those of [`TYPESCRIPT_OPTIONS`]. The naming of
//! `@bitkaio/langchain-kubernetes` also selects the meaning that its options have.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::LazyLock;

use napi_derive::napi;
use sandpod::{
    AgentSandboxConfig, Config, Layer, Mode, RawConfig, TYPESCRIPT_OPTIONS, camel_case, typescript_name,
};
use serde_json::{Map, Value};

use crate::errors::Failed;

/// The library's options by their names in camel case.
static NAMES: LazyLock<BTreeMap<String, String>> = LazyLock::new(|| {
    let raw = serde_json::to_value(RawConfig::default()).unwrap_or_default();
    let agent_sandbox = serde_json::to_value(AgentSandboxConfig::default()).unwrap_or_default();
    let all = [raw, agent_sandbox];
    let names = all.iter().filter_map(Value::as_object).flat_map(Map::keys);
    names.map(|name| (camel_case(name), name.clone())).collect()
});

/// The naming of the drop-in module for `@bitkaio/langchain-kubernetes`.
const DROP_IN: &str = "langchain-kubernetes-js";
/// The container in which commands run.
const CONTAINER: &str = "sandbox";
/// The shell in which commands run.
const SHELL: &str = "/bin/sh";
/// The limit of a command's output in bytes, as `@bitkaio/langchain-kubernetes` has it.
const OUTPUT_LIMIT_BYTES: u64 = 1_000_000;
/// The documented message for a missing template.
const NO_TEMPLATE: &str = "KubernetesProvider: \"templateName\" is required when mode=\"agent-sandbox\". Example: \
     \"python-sandbox-template\"";

/// The part of `execConfig` that is no option of a provider. The default is that of sandpod's own classes.
#[derive(Clone, Default)]
pub(crate) struct ExecConfig {
    pub(crate) max_output_bytes: Option<u64>,
    /// A shell other than `/bin/sh`.
    pub(crate) shell: Option<String>,
}

/// Reads the options of `mode`, which are JSON. A provider that only adopts claims needs no template.
pub(crate) fn read(
    mode: &str,
    options: &str,
    package_dir: PathBuf,
    only_adopts: bool,
) -> Result<(Config, ExecConfig), Failed> {
    let mode = mode.parse::<Mode>()?;
    let mut options = parse(options)?;
    let exec = if options.get("naming").is_some_and(|naming| naming == DROP_IN) {
        replace_overridden(&mut options);
        take_exec_config(&mut options)?
    } else {
        ExecConfig::default()
    };
    let options = in_library_names(options, mode)?;
    let has_template = ["template_name", "warm_pool_name"].iter().any(|name| options.contains_key(*name));
    if mode == Mode::AgentSandbox && !has_template && !only_adopts {
        return Err(Failed::argument(NO_TEMPLATE));
    }
    let config = Config::from_arguments(mode, Layer::arguments(options)?)?.in_package(package_dir);
    Ok((config, exec))
}

/// Removes the options whose fields `podTemplateOverrides` replaces. The parts that sandpod itself adds to these fields stay.
fn replace_overridden(options: &mut Map<String, Value>) {
    let overrides = options.get("podTemplateOverrides").and_then(Value::as_object);
    let fields: Vec<_> = overrides.into_iter().flat_map(Map::keys).cloned().collect();
    for field in fields {
        options.remove(&field);
    }
}

/// Takes `execConfig` out of the options. Its timeout becomes that of the provider.
fn take_exec_config(options: &mut Map<String, Value>) -> Result<ExecConfig, Failed> {
    let mut exec = ExecConfig { max_output_bytes: Some(OUTPUT_LIMIT_BYTES), shell: None };
    let given = options.remove("execConfig").unwrap_or_default();
    for (name, value) in given.as_object().into_iter().flatten() {
        let wrong =
            |wanted: &str| Failed::argument(format!("execConfig.{name} is {value}, but must be {wanted}."));
        match name.as_str() {
            "container" if value == CONTAINER => {}
            "container" => return Err(wrong("\"sandbox\", the container in which commands run")),
            "timeoutSeconds" => {
                let seconds = value.as_u64().ok_or_else(|| wrong("a whole number of seconds"))?;
                options.insert("executeTimeoutMs".to_owned(), seconds.saturating_mul(1000).into());
            }
            "outputLimitBytes" => {
                let limit = value.as_u64().filter(|limit| *limit > 0);
                exec.max_output_bytes = Some(limit.ok_or_else(|| wrong("a number of bytes"))?);
            }
            "shell" => {
                let shell = value.as_str().filter(|shell| !shell.is_empty());
                let shell = shell.ok_or_else(|| wrong("the path of a shell"))?;
                exec.shell = (shell != SHELL).then(|| shell.to_owned());
            }
            _ => {
                let known = "container, timeoutSeconds, outputLimitBytes and shell";
                return Err(Failed::argument(format!(
                    "There is no option execConfig.{name}. There are {known}."
                )));
            }
        }
    }
    Ok(exec)
}

/// Returns the options from `SANDPOD_*` variables and the configuration file, as JSON with TypeScript names.
#[napi]
pub fn load_options(path: Option<String>) -> napi::Result<String> {
    let path = path.map(PathBuf::from);
    let layer = Layer::of_process(path.as_deref()).map_err(Failed::from)?;
    let options = layer.options().iter().map(|(name, value)| (camel_case(name), value.clone()));
    Ok(Value::Object(options.collect()).to_string())
}

/// Replaces option names in a message with their names in TypeScript.
pub(crate) fn in_typescript(text: &str) -> String {
    let is_of_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let mut result = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find(is_of_name) {
        let (before, from) = rest.split_at(start);
        let end = from.find(|c| !is_of_name(c)).unwrap_or(from.len());
        let (word, after) = from.split_at(end);
        let is_option = word.contains('_') && NAMES.contains_key(&camel_case(word));
        result.push_str(before);
        result.push_str(&if is_option { typescript_name(word) } else { word.to_owned() });
        rest = after;
    }
    result + rest
}

fn parse(options: &str) -> Result<Map<String, Value>, Failed> {
    serde_json::from_str(options)
        .map_err(|error| Failed::argument(format!("The options cannot be read: {error}.")))
}

fn in_library_names(options: Map<String, Value>, mode: Mode) -> Result<Map<String, Value>, Failed> {
    let mut named = Map::new();
    for (name, value) in options {
        let other = TYPESCRIPT_OPTIONS.iter().find(|other| other.name == name);
        let (library, value) = match other {
            Some(other) if other.in_milliseconds => (other.option, seconds(&name, &value)?.into()),
            Some(other) => (other.option, value),
            None => (NAMES.get(&name).unwrap_or(&name).as_str(), value),
        };
        named.insert(library.to_owned(), value);
    }
    let of_mode = Config::options(mode, [])?;
    for other in TYPESCRIPT_OPTIONS.iter().filter(|other| of_mode.contains_key(other.option)) {
        let Some(default) = other.default.and_then(|text| serde_json::from_str::<Value>(text).ok()) else {
            continue;
        };
        let default = if other.in_milliseconds { seconds(other.name, &default)?.into() } else { default };
        named.entry(other.option).or_insert(default);
    }
    Ok(named)
}

/// Rounds milliseconds up to whole seconds, because rounding down to 0 would disable a timeout.
fn seconds(name: &str, value: &Value) -> Result<u64, Failed> {
    match value.as_u64() {
        Some(milliseconds) => Ok(milliseconds.div_ceil(1000)),
        None => {
            Err(Failed::argument(format!("{name} is {value}, but must be a whole number of milliseconds.")))
        }
    }
}
