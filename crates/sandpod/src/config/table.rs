//! The table of options. The `options!` macro declares a configuration struct, its defaults and its [`Entry`] list.
//! Files, variables and docs/configuration.md use the same list.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde_json::Value;

use super::agent_sandbox;
use crate::Naming;
use crate::audit::CommandRedaction;
use crate::guard::SandboxPolicy;

/// Name, documentation and type of one option.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) name: &'static str,
    #[cfg_attr(not(test), expect(dead_code, reason = "the tests render the documentation"))]
    pub(super) doc: &'static [&'static str],
    pub(super) form: Form,
    /// Whether the option can be unset.
    pub(super) optional: bool,
}

/// Type of an option, which determines its syntax in a variable.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Form {
    Text,
    Number,
    Flag,
    Texts,
    TextMap,
    Object,
    Objects,
}

impl Form {
    /// Name of the type in documentation and errors.
    pub(super) fn shown(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Number => "number",
            Self::Flag => "true or false",
            Self::Texts => "list of texts",
            Self::TextMap => "map of texts",
            Self::Object => "object",
            Self::Objects => "list of objects",
        }
    }

    /// As [`shown`](Self::shown), for a sentence.
    pub(super) fn with_article(self) -> String {
        match self {
            Self::Flag => self.shown().to_owned(),
            Self::Object => format!("an {}", self.shown()),
            _ => format!("a {}", self.shown()),
        }
    }
}

/// A Rust type that an option can have.
pub(super) trait Held {
    const FORM: Form;
    const OPTIONAL: bool = false;
}

macro_rules! held {
    ($($type:ty => $form:ident),+ $(,)?) => { $(impl Held for $type { const FORM: Form = Form::$form; })+ };
}

held! {
    String => Text,
    PathBuf => Text,
    bool => Flag,
    i64 => Number,
    u16 => Number,
    u32 => Number,
    u64 => Number,
    Vec<String> => Texts,
    BTreeMap<String, String> => TextMap,
    Value => Object,
    Vec<Value> => Objects,
    SandboxPolicy => Object,
    CommandRedaction => Text,
    Naming => Text,
}

impl<T: Held> Held for Option<T> {
    const FORM: Form = T::FORM;
    const OPTIONAL: bool = true;
}

/// Declares a configuration struct with its defaults and the table of its options.
macro_rules! options {
    (
        $(#[$meta:meta])*
        pub struct $config:ident {
            $( $(#[doc = $doc:literal])+ $name:ident: $type:ty = $default:expr, )+
        }
        $( beside { $( $(#[$beside_meta:meta])+ $beside:ident: $beside_type:ty, )+ } )?
    ) => {
        $(#[$meta])*
        pub struct $config {
            $( $(#[doc = $doc])+ pub $name: $type, )+
            $( $( $(#[$beside_meta])+ pub $beside: $beside_type, )+ )?
        }

        impl Default for $config {
            fn default() -> Self {
                Self { $( $name: $default, )+ $( $( $beside: Default::default(), )+ )? }
            }
        }

        /// All options of this configuration, in the order of the documentation.
        pub(in crate::config) const OPTIONS: &[$crate::config::table::Entry] = &[
            $( $crate::config::table::Entry {
                name: stringify!($name),
                doc: &[$($doc),+],
                form: <$type as $crate::config::table::Held>::FORM,
                optional: <$type as $crate::config::table::Held>::OPTIONAL,
            }, )+
        ];
    };
}
pub(super) use options;

/// Returns the options of all modes, without duplicates.
pub(super) fn all() -> impl Iterator<Item = &'static Entry> {
    super::OPTIONS.iter().chain(of_agent_sandbox_alone())
}

/// Returns the options of agent-sandbox mode that raw mode does not have.
pub(super) fn of_agent_sandbox_alone() -> impl Iterator<Item = &'static Entry> {
    agent_sandbox::OPTIONS.iter().filter(|option| !has(super::OPTIONS, option.name))
}

/// Whether one of the options has this name.
pub(super) fn has(options: &[Entry], name: &str) -> bool {
    options.iter().any(|option| option.name == name)
}

/// Returns the option with this name.
pub(super) fn find(name: &str) -> Option<&'static Entry> {
    all().find(|option| option.name == name)
}

/// Returns the name of the option that is most similar to `name`, if one is similar enough.
pub(super) fn nearest(name: &str) -> Option<&'static str> {
    let name = name.to_lowercase().replace('-', "_");
    sandpod_text::nearest(&name, all().map(|option| option.name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{OPTIONS, agent_sandbox};
    use crate::{AgentSandboxConfig, RawConfig};

    #[test]
    fn tables_match_the_fields_of_the_configurations() {
        for (defaults, options) in [
            (serde_json::to_value(RawConfig::default()), OPTIONS),
            (serde_json::to_value(AgentSandboxConfig::default()), agent_sandbox::OPTIONS),
        ] {
            let defaults = defaults.unwrap();
            let mut fields: Vec<_> = defaults.as_object().unwrap().keys().map(String::as_str).collect();
            let mut names: Vec<_> = options.iter().map(|option| option.name).collect();
            fields.sort_unstable();
            names.sort_unstable();
            assert_eq!(names, fields);
        }
    }

    #[test]
    fn shared_options_have_the_same_type_and_default() {
        // Agent-sandbox mode has no default, because a template can have its own working directory.
        let differs = "workdir";
        let raw = serde_json::to_value(RawConfig::default()).unwrap();
        let agent_sandbox = serde_json::to_value(AgentSandboxConfig::default()).unwrap();
        for option in agent_sandbox::OPTIONS.iter().filter(|option| has(OPTIONS, option.name)) {
            assert_eq!(find(option.name).unwrap().form, option.form, "{}", option.name);
            if option.name == differs {
                continue;
            }
            assert_eq!(raw[option.name], agent_sandbox[option.name], "{}", option.name);
        }
    }

    #[test]
    fn dissimilar_name_has_no_suggestion() {
        assert_eq!(nearest("quantum_entanglement"), None);
        assert_eq!(nearest("IMAGE"), Some("image"));
        assert_eq!(nearest("network"), Some("block_network"));
    }
}
