//! The reference of all options. The tests check, or update with `SANDPOD_UPDATE`, docs/configuration.md, the docstrings
//! of Python's `KubernetesProviderConfig`, the tables of the Python package's README, and the npm package's interface, modes
//! and OPTIONS.md.

use super::table::Entry;

impl Entry {
    /// The documentation as one line.
    pub(super) fn text(&self) -> String {
        self.doc.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fmt::Write as _;
    use std::fs;
    use std::path::{Path, PathBuf};

    use serde_json::Value;

    use super::*;
    use crate::config::{OPTIONS, agent_sandbox, table, typescript_reference};
    use crate::{AgentSandboxConfig, LocalConfig, Mode, RawConfig};

    /// Maximum line length in Python.
    const PYTHON_LINE: usize = 120;

    /// Checks that a generated file is up to date. With `SANDPOD_UPDATE`, updates the file first.
    fn check(path: &str, generate: impl Fn(&str) -> String) {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
        let found = fs::read_to_string(&path).unwrap_or_default();
        if std::env::var_os("SANDPOD_UPDATE").is_some() {
            fs::write(&path, generate(&found)).unwrap();
        }
        let found = fs::read_to_string(&path).unwrap();
        let update = "run `SANDPOD_UPDATE=1 cargo test -p sandpod --lib reference`";
        assert!(found == generate(&found), "{} is stale: {update}", path.display());
    }

    #[test]
    fn documentation_lists_every_option_with_its_default() {
        check("docs/configuration.md", |_| {
            let mut page = include_str!("documentation.md").to_owned();
            write_rows(&mut page, OPTIONS.iter(), &serde_json::to_value(RawConfig::default()).unwrap());
            page += include_str!("documentation_agent_sandbox.md");
            let defaults = serde_json::to_value(AgentSandboxConfig::default()).unwrap();
            write_rows(&mut page, table::of_agent_sandbox_alone(), &defaults);
            page
        });
    }

    fn write_rows(page: &mut String, options: impl Iterator<Item = &'static Entry>, defaults: &Value) {
        for option in options {
            let default = &defaults[option.name];
            let default = if default.is_null() { "none".to_owned() } else { format!("`{default}`") };
            writeln!(page, "| `{}` | {} | {default} | {} |", option.name, option.form.shown(), option.text())
                .unwrap();
        }
    }

    const PYTHON_CONFIG: &str = "bindings/python/python/sandpod/config.py";

    /// Returns the option that a line of the class declares, and its default.
    fn field(line: &str) -> Option<(&'static Entry, String)> {
        let (name, rest) = line.strip_prefix("    ")?.split_once(": ")?;
        let default = rest.split_once(" = ")?.1;
        Some((table::find(name)?, python_default(default)))
    }

    /// Returns the default of a Python field, with single quotes.
    fn python_default(default: &str) -> String {
        let inner = |start: &str| default.strip_prefix(start).and_then(|rest| rest.strip_suffix(')'));
        let value = if let Some(unset) = inner("_UnsetText(").or_else(|| inner("_Unset(")) {
            unset
        } else if default.contains("default_factory=dict") {
            "{}"
        } else if let Some((_, list)) = default.split_once("default_factory=lambda: ") {
            list.trim_end_matches(')')
        } else if default.contains("default_factory=list") {
            "[]"
        } else if let Some((_, value)) = default.split_once("field(default=") {
            value.split([',', ')']).next().unwrap_or_default()
        } else {
            default
        };
        value.replace('"', "'")
    }

    #[test]
    fn python_fields_have_the_documentation_of_the_table() {
        check(PYTHON_CONFIG, |found| {
            let (mut generated, mut lines) = (String::new(), found.lines().peekable());
            while let Some(line) = lines.next() {
                generated.push_str(line);
                generated.push('\n');
                if let Some((option, _)) = field(line) {
                    if lines.peek().is_some_and(|next| next.starts_with("    \"\"\"")) {
                        let first = lines.next().unwrap();
                        let mut is_over = first.len() > 7 && first.ends_with("\"\"\"");
                        while !is_over {
                            is_over = lines.next().is_none_or(|line| line.ends_with("\"\"\""));
                        }
                    }
                    generated += &docstring(&option.text());
                }
            }
            generated
        });
    }

    fn docstring(text: &str) -> String {
        let line = format!("    \"\"\"{text}\"\"\"\n");
        if line.chars().count() <= PYTHON_LINE + 1 {
            return line;
        }
        let mut lines = vec!["    \"\"\"".to_owned()];
        for word in text.split(' ') {
            let last = lines.last_mut().unwrap();
            if last.len() + 1 + word.len() > PYTHON_LINE {
                lines.push(format!("    {word}"));
            } else {
                if !last.ends_with("\"\"\"") {
                    last.push(' ');
                }
                last.push_str(word);
            }
        }
        lines.join("\n") + "\n    \"\"\"\n"
    }

    #[test]
    fn python_readme_lists_every_option_with_its_default() {
        let config = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..").join(PYTHON_CONFIG);
        let config = fs::read_to_string(config).unwrap();
        let defaults: BTreeMap<_, _> =
            config.lines().filter_map(field).map(|(option, default)| (option.name, default)).collect();
        let of_both = |option: &&Entry| table::has(agent_sandbox::OPTIONS, option.name);
        let tables = [
            ("raw and agent-sandbox", OPTIONS.iter().filter(of_both).collect::<Vec<_>>()),
            ("agent-sandbox", table::of_agent_sandbox_alone().collect()),
            ("raw", OPTIONS.iter().filter(|option| !of_both(option)).collect()),
        ];
        check("bindings/python/README.md", |found| {
            tables.iter().fold(found.to_owned(), |page, (modes, options)| {
                let (start, end) = (format!("<!-- options of {modes} -->\n"), "<!-- end of options -->\n");
                let (before, rest) = page.split_once(&start).expect("the README has the markers");
                let (_, after) = rest.split_once(end).expect("the README has the markers");
                let row = |option: &&Entry| {
                    format!("| `{}` | `{}` | {} |\n", option.name, defaults[option.name], option.text())
                };
                let rows: String = options.iter().map(row).collect();
                format!(
                    "{before}{start}| field | default | meaning |\n| --- | --- | --- |\n{rows}{end}{after}"
                )
            })
        });
    }

    #[test]
    fn npm_package_declares_every_option_with_its_default() {
        let update = "SANDPOD_UPDATE=1 cargo test -p sandpod --lib reference";
        check("bindings/node/ts/src/generated-options.ts", |_| {
            let interface = typescript_reference::interface("GeneratedOptions");
            format!(
                "// Generated by `{update}`. Do not edit.\n\n/** The options of the library. */\n{interface}"
            )
        });
        check("bindings/node/OPTIONS.md", |_| {
            format!(
                "# Options\n\nGenerated by `{update}`. Do not edit.\n\n{}",
                typescript_reference::markdown()
            )
        });
    }

    #[test]
    fn typescript_type_lists_every_mode() {
        const TYPE: &str = "export type SandboxMode = ";
        check("bindings/node/ts/src/options.ts", |found| {
            let modes: Vec<_> = Mode::ALL.iter().map(|mode| format!("\"{mode}\"")).collect();
            let declared = format!("{TYPE}{};", modes.join(" | "));
            let lines =
                found.lines().map(|line| if line.starts_with(TYPE) { declared.as_str() } else { line });
            lines.flat_map(|line| [line, "\n"]).collect()
        });
    }

    #[test]
    fn local_mode_has_only_options_of_the_table() {
        let options = LocalConfig::options([]).unwrap();
        assert!(options.keys().all(|name| table::find(name).is_some()));
    }
}
