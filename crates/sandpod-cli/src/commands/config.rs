//! `sandpod config show`: every value of the configuration, and where it comes from.

use clap::{Args, Subcommand};
use sandpod::Layer;
use serde_json::{Map, Value, json};

use super::Context;
use crate::exit::{Failure, Result};
use crate::target::Target;

/// What may hold secrets: shown without values.
const SECRET: &str = "env";

const EXAMPLES: &str = "\
An option wins over a SANDPOD_* variable, which wins over the file, which wins over the default.
docs/configuration.md explains every option.

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
    let values = serde_json::to_value(target.raw()?);
    let values =
        values.map_err(|cause| Failure::local("show the configuration", &std::io::Error::other(cause)))?;
    let options = values.as_object().cloned().unwrap_or_default().into_iter().map(|(name, value)| {
        let source = source(&name, arguments.options().contains_key(&name), &|layer| {
            layer.options().contains_key(&name)
        });
        let value = if name == SECRET { hidden(&value) } else { value };
        Setting { name, value, source }
    });
    Ok(std::iter::once(mode).chain(options).collect())
}

/// The names without their values.
fn hidden(value: &Value) -> Value {
    let names = value.as_object().into_iter().flat_map(Map::keys);
    names.map(|name| (name.clone(), json!("***"))).collect::<Map<_, _>>().into()
}

fn plain(value: &Value) -> String {
    match value {
        Value::Null => "none".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}
