//! `sandpod config show`: prints every value of the configuration and its source.

use clap::{Args, Subcommand};
use sandpod::{Config, Layer};
use serde_json::{Map, Value, json};

use super::Context;
use crate::exit::Result;
use crate::target::Target;

/// Options that may hold secrets; their values are hidden.
const SECRETS: [&str; 4] = ["env", "extra_headers", "kube_token", "router_token"];

const EXAMPLES: &str = "\
Precedence: command-line option, SANDPOD_* variable, configuration file, default. Only options of the \
mode are shown; docs/configuration.md describes all of them.

Examples:
  sandpod config show
  sandpod config show --changed
  SANDPOD_IMAGE=busybox sandpod config show --mode raw --output json";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Show every value and its source
    #[command(after_help = EXAMPLES)]
    Show {
        /// Show only values that differ from the default
        #[arg(long)]
        changed: bool,
    },
}

/// An option with its value and source.
struct Setting {
    name: String,
    value: Value,
    source: String,
}

/// Prints the configuration.
pub(crate) fn run(arguments: &Arguments, context: &Context) -> Result<()> {
    let Action::Show { changed } = arguments.action;
    let settings = settings(&context.target()?)?;
    let shown: Vec<_> =
        settings.into_iter().filter(|setting| !changed || setting.source != DEFAULT).collect();
    if context.output.is_json() {
        let value =
            |setting: Setting| (setting.name, json!({ "value": setting.value, "source": setting.source }));
        return context.output.json(&shown.into_iter().map(value).collect::<Map<_, _>>());
    }
    let row =
        |setting: &Setting| vec![setting.name.clone(), format_value(&setting.value), setting.source.clone()];
    context.output.table(&["OPTION", "VALUE", "FROM"], &shown.iter().map(row).collect::<Vec<_>>())
}

const DEFAULT: &str = "default";
const HIDDEN: &str = "***";

fn settings(target: &Target) -> Result<Vec<Setting>> {
    let arguments = target.arguments()?;
    let file = target.layers.path.as_ref().map(|path| format!("file {}", path.display())).unwrap_or_default();
    let source = |name: &str, given: bool, sets: &dyn Fn(&Layer) -> bool| {
        if given {
            "option".to_owned()
        } else if sets(&target.layers.variables) {
            format!("variable SANDPOD_{}", name.to_uppercase())
        } else if sets(&target.layers.file) {
            file.clone()
        } else {
            DEFAULT.to_owned()
        }
    };
    let mode = Setting {
        name: "mode".to_owned(),
        value: json!(target.mode.as_str()),
        source: source("mode", target.options.mode.is_some(), &|layer| layer.mode().is_some()),
    };
    let options = Config::options(target.mode, target.all_layers()?)?.into_iter().map(|(name, value)| {
        let source = source(&name, arguments.options().contains_key(&name), &|layer| {
            layer.options().contains_key(&name)
        });
        let value = if SECRETS.contains(&name.as_str()) { hidden(&value) } else { value };
        Setting { name, value, source }
    });
    Ok(std::iter::once(mode).chain(options).collect())
}

/// Hides a secret, and the values but not the keys of a map.
fn hidden(value: &Value) -> Value {
    match value {
        Value::Object(parts) => {
            parts.keys().map(|name| (name.clone(), json!(HIDDEN))).collect::<Map<_, _>>().into()
        }
        Value::Null => Value::Null,
        _ => json!(HIDDEN),
    }
}

fn format_value(value: &Value) -> String {
    match value {
        Value::Null => "none".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}
