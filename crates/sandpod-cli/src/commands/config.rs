//! `sandpod config show`: every value of the configuration, and where it comes from.

use clap::{Args, Subcommand};
use sandpod::{Config, Layer};
use serde_json::{Map, Value, json};

use super::Context;
use crate::exit::Result;
use crate::target::Target;

/// What may hold secrets: shown without values.
const SECRETS: [&str; 4] = ["env", "extra_headers", "kube_token", "router_token"];

const EXAMPLES: &str = "\
An option wins over a SANDPOD_* variable, which wins over the file, which wins over the default. \
Only what the mode has is shown; docs/configuration.md explains every option.

Examples:
  sandpod config show
  sandpod config show --changed
  SANDPOD_IMAGE=busybox sandpod config show --mode raw --output json";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Show every value and where it comes from
    #[command(after_help = EXAMPLES)]
    Show {
        /// Only what is not the default
        #[arg(long)]
        changed: bool,
    },
}

/// One option.
struct Setting {
    name: String,
    value: Value,
    source: String,
}

/// Prints the configuration.
pub(crate) fn run(arguments: &Arguments, context: &Context) -> Result<()> {
    let What::Show { changed } = arguments.what;
    let settings = settings(&context.target()?)?;
    let shown: Vec<_> =
        settings.into_iter().filter(|setting| !changed || setting.source != DEFAULT).collect();
    if context.output.is_json() {
        let value =
            |setting: Setting| (setting.name, json!({ "value": setting.value, "source": setting.source }));
        return context.output.json(&shown.into_iter().map(value).collect::<Map<_, _>>());
    }
    let row = |setting: &Setting| vec![setting.name.clone(), plain(&setting.value), setting.source.clone()];
    context.output.table(&["OPTION", "VALUE", "FROM"], &shown.iter().map(row).collect::<Vec<_>>())
}

const DEFAULT: &str = "default";
const HIDDEN: &str = "***";

fn settings(target: &Target) -> Result<Vec<Setting>> {
    let arguments = target.arguments()?;
    let file = target.layers.path.as_ref().map(|path| format!("file {}", path.display())).unwrap_or_default();
    let source = |name: &str, given: bool, says: &dyn Fn(&Layer) -> bool| {
        if given {
            "option".to_owned()
        } else if says(&target.layers.variables) {
            format!("variable SANDPOD_{}", name.to_uppercase())
        } else if says(&target.layers.file) {
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

/// That something is there, and what its parts are called.
fn hidden(value: &Value) -> Value {
    match value {
        Value::Object(parts) => {
            parts.keys().map(|name| (name.clone(), json!(HIDDEN))).collect::<Map<_, _>>().into()
        }
        Value::Null => Value::Null,
        _ => json!(HIDDEN),
    }
}

fn plain(value: &Value) -> String {
    match value {
        Value::Null => "none".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}
