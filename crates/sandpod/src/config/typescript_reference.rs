//! The npm package's declarations of the options.

use std::fmt::Write as _;

use serde_json::Value;

use super::table::{self, Entry, Form};
use super::typescript::{TYPESCRIPT_OPTIONS, TypescriptOption, typescript_name};
use crate::{Config, Mode};

/// The declaration of an option.
struct Declaration {
    name: String,
    kind: String,
    /// The default as JSON.
    default: String,
    modes: String,
    doc: String,
}

fn difference(option: &str) -> Option<&'static TypescriptOption> {
    TYPESCRIPT_OPTIONS.iter().find(|other| other.option == option)
}

fn declarations() -> Vec<Declaration> {
    let defaults = [Mode::Raw, Mode::AgentSandbox, Mode::Local]
        .map(|mode| (mode, Config::options(mode, []).unwrap_or_default()));
    let declaration = |option: &Entry| {
        let of_modes: Vec<_> =
            defaults.iter().filter(|(_, options)| options.contains_key(option.name)).collect();
        let default = of_modes.first().map_or(&Value::Null, |(_, options)| &options[option.name]);
        let other = difference(option.name);
        let or_null = if option.optional { " | null" } else { "" };
        let default =
            other.and_then(|other| other.default).map_or_else(|| default.to_string(), str::to_owned);
        Declaration {
            name: typescript_name(option.name),
            kind: format!("{}{or_null}", typescript_type(option.form)),
            default,
            modes: of_modes.iter().map(|(mode, _)| mode.as_str()).collect::<Vec<_>>().join(", "),
            doc: other
                .and_then(|other| other.doc)
                .map_or_else(|| in_camel_case(&option.text()), str::to_owned),
        }
    };
    table::all().map(declaration).collect()
}

/// Replaces the names of options in backticks by those in TypeScript.
fn in_camel_case(text: &str) -> String {
    let parts = text.split('`').enumerate().map(|(number, part)| {
        let is_option = number % 2 == 1 && table::find(part).is_some();
        if is_option { typescript_name(part) } else { part.to_owned() }
    });
    parts.collect::<Vec<_>>().join("`")
}

fn typescript_type(form: Form) -> &'static str {
    match form {
        Form::Text => "string",
        Form::Number => "number",
        Form::Flag => "boolean",
        Form::Texts => "string[]",
        Form::TextMap => "Record<string, string>",
        Form::Object => "Record<string, unknown>",
        Form::Objects => "Record<string, unknown>[]",
    }
}

/// Generates a documented interface with the options of all modes.
pub(super) fn interface(name: &str) -> String {
    let mut text = format!("export interface {name} {{\n");
    for Declaration { name, kind, default, modes, doc } in declarations() {
        let _ = write!(
            text,
            "  /**\n   * {doc}\n   *\n   * Modes: {modes}.\n   * @default {default}\n   */\n  {name}?: {kind};\n",
        );
    }
    text + "}\n"
}

/// Generates a Markdown table with the options of all modes.
pub(super) fn markdown() -> String {
    let cell = |text: &str| text.replace('|', "\\|");
    let mut rows =
        "| Option | Type | Default | Modes | Description |\n| --- | --- | --- | --- | --- |\n".to_owned();
    for Declaration { name, kind, default, modes, doc } in declarations() {
        let default = if default == "null" { "none".to_owned() } else { format!("`{}`", cell(&default)) };
        let _ = writeln!(rows, "| `{name}` | `{}` | {default} | {modes} | {} |", cell(&kind), cell(&doc));
    }
    rows
}

#[test]
fn interface_lists_every_option_once_with_its_modes() {
    let text = interface("Options");
    for option in table::all() {
        let field = format!("\n  {}?: ", typescript_name(option.name));
        assert_eq!(text.matches(&field).count(), 1, "{}", option.name);
    }
    assert!(text.contains(
        "   * Modes: raw, agent-sandbox, local.\n   * @default {}\n   */\n  env?: Record<string, string>;\n"
    ));
    assert!(text.contains("  policy?: Record<string, unknown> | null;\n"));
    assert!(!text.contains("*//"), "no text ends the comment");
}

#[test]
fn options_that_differ_have_their_own_names_and_defaults() {
    assert!(TYPESCRIPT_OPTIONS.iter().all(|other| table::find(other.option).is_some()));
    let text = interface("Options");
    assert!(text.contains("   * @default 300000\n   */\n  executeTimeoutMs?: number;\n"));
    assert!(text.contains("  routerUrl?: string | null;\n"));
    assert!(!text.contains("defaultExecTimeout") && !text.contains("label_prefix"));
}
