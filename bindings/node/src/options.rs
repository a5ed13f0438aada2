//! Converts options with TypeScript names to the configuration of a provider.
//!
//! Every option has its library name in camel case. Some options have other names, units or defaults in the
//! documentation of `@bitkaio/langchain-kubernetes`; these constants contain the differences.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::LazyLock;

use napi_derive::napi;
use sandpod::{AgentSandboxConfig, Config, Layer, Mode, RawConfig, camel_case};
use serde_json::{Map, Value};

use crate::errors::Failed;

/// The library's options by their TypeScript names.
static NAMES: LazyLock<BTreeMap<String, String>> = LazyLock::new(|| {
    let raw = serde_json::to_value(RawConfig::default()).unwrap_or_default();
    let agent_sandbox = serde_json::to_value(AgentSandboxConfig::default()).unwrap_or_default();
    let all = [raw, agent_sandbox];
    let names = all.iter().filter_map(Value::as_object).flat_map(Map::keys);
    names.map(|name| (camel_case(name), name.clone())).collect()
});

/// The documented options whose names differ from the library's in camel case.
const OF_THE_DOCUMENT: [(&str, &str); 2] = [("routerUrl", "api_url"), ("kubeconfigPath", "kubeconfig")];
/// The times that are documented in milliseconds. The library uses seconds.
const MILLISECONDS: [(&str, &str); 2] =
    [("startupTimeoutMs", "startup_timeout_seconds"), ("executeTimeoutMs", "default_exec_timeout")];
/// The documented default namespace.
const NAMESPACE: &str = "deepagents-sandboxes";
/// The documented message for a missing template.
const NO_TEMPLATE: &str = "KubernetesProvider: \"templateName\" is required when mode=\"agent-sandbox\". Example: \
     \"python-sandbox-template\"";
/// The documented default timeout of commands in seconds.
const EXEC_TIMEOUT: u64 = 300;

/// Reads the options of `mode`, which are JSON. A provider that only adopts claims needs no template.
pub(crate) fn read(
    mode: &str,
    options: &str,
    package_dir: PathBuf,
    only_adopts: bool,
) -> Result<Config, Failed> {
    let mode = mode.parse::<Mode>()?;
    let options = in_library_names(parse(options)?, mode)?;
    let has_template = ["template_name", "warm_pool_name"].iter().any(|name| options.contains_key(*name));
    if mode == Mode::AgentSandbox && !has_template && !only_adopts {
        return Err(Failed::argument(NO_TEMPLATE));
    }
    Ok(Config::from_arguments(mode, Layer::arguments(options)?)?.in_package(package_dir))
}

/// Returns the names of all options, for a test of the TypeScript interface.
#[napi]
pub fn option_names() -> Vec<String> {
    NAMES.keys().cloned().collect()
}

/// Returns the options from `SANDPOD_*` variables and the configuration file, as JSON with TypeScript names.
#[napi]
pub fn load_options(path: Option<String>) -> napi::Result<String> {
    let path = path.map(PathBuf::from);
    let layer = Layer::of_process(path.as_deref()).map_err(Failed::from)?;
    let options = layer.options().iter().map(|(name, value)| (camel_case(name), value.clone()));
    Ok(Value::Object(options.collect()).to_string())
}

/// Replaces option names in a message with their names in camel case.
pub(crate) fn in_camel_case(text: &str) -> String {
    let is_of_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let mut result = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find(is_of_name) {
        let (before, from) = rest.split_at(start);
        let end = from.find(|c| !is_of_name(c)).unwrap_or(from.len());
        let (word, after) = from.split_at(end);
        let camel = camel_case(word);
        let is_option = word.contains('_') && NAMES.contains_key(&camel);
        result.extend([before, if is_option { &camel } else { word }]);
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
        if let Some((_, known)) = MILLISECONDS.iter().find(|(other, _)| *other == name) {
            named.insert((*known).to_owned(), seconds(&name, &value)?.into());
        } else if let Some((_, known)) = OF_THE_DOCUMENT.iter().find(|(other, _)| *other == name) {
            named.insert((*known).to_owned(), value);
        } else {
            named.insert(NAMES.get(&name).cloned().unwrap_or(name), value);
        }
    }
    named.entry("default_exec_timeout").or_insert_with(|| EXEC_TIMEOUT.into());
    if mode != Mode::Local {
        named.entry("namespace").or_insert_with(|| NAMESPACE.into());
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
