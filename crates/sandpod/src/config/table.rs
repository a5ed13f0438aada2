//! The one list of options: from it come the fields, their defaults, the names that files and variables may use, and
//! docs/configuration.md.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde_json::Value;

use crate::audit::CommandsTold;
use crate::guard::SandboxPolicy;

/// How alike two names must be for one to be meant by the other.
const ALIKE: f64 = 0.75;

/// One option, as it is documented and read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) name: &'static str,
    /// Only the documentation, which a test writes, is made of it.
    #[cfg(test)]
    pub(super) doc: &'static [&'static str],
    pub(super) form: Form,
    /// It can be none.
    pub(super) optional: bool,
}

/// What an option holds, and so how a variable says it.
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
    /// For people.
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
}

/// A type that an option can have.
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
    u32 => Number,
    u64 => Number,
    Vec<String> => Texts,
    BTreeMap<String, String> => TextMap,
    Value => Object,
    Vec<Value> => Objects,
    SandboxPolicy => Object,
    CommandsTold => Text,
}

impl<T: Held> Held for Option<T> {
    const FORM: Form = T::FORM;
    const OPTIONAL: bool = true;
}

/// Declares the configuration: a struct with its defaults, and the table of its options.
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

        /// All options, in the order of the documentation.
        const OPTIONS: &[$crate::config::table::Entry] = &[
            $( $crate::config::table::Entry {
                name: stringify!($name),
                #[cfg(test)]
                doc: &[$($doc),+],
                form: <$type as $crate::config::table::Held>::FORM,
                optional: <$type as $crate::config::table::Held>::OPTIONAL,
            }, )+
        ];
    };
}
pub(super) use options;

/// The option of this name.
pub(super) fn find(name: &str) -> Option<&'static Entry> {
    super::OPTIONS.iter().find(|option| option.name == name)
}

/// The option whose name is most like `name`, if any is.
pub(super) fn nearest(name: &str) -> Option<&'static str> {
    let name = name.to_lowercase().replace('-', "_");
    let likeness = |option: &str| {
        let typo = strsim::normalized_damerau_levenshtein(&name, option);
        // `cpu` for `cpu_limit`, `network` for `block_network`: a part of the right name in full.
        let part = name.len() > 2 && option.split('_').any(|word| word == name);
        if part { typo.max(ALIKE) } else { typo }
    };
    super::OPTIONS
        .iter()
        .map(|option| (likeness(option.name), option.name))
        .filter(|(likeness, _)| *likeness >= ALIKE)
        .max_by(|(one, _), (other, _)| one.total_cmp(other))
        .map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;
    use std::fs;
    use std::path::Path;

    use super::*;
    use crate::RawConfig;
    use crate::config::OPTIONS;

    /// The page of all options, from the table.
    fn documentation() -> String {
        let defaults = serde_json::to_value(RawConfig::default()).unwrap();
        let mut page = include_str!("documentation.md").to_owned();
        for option in OPTIONS {
            let default = &defaults[option.name];
            let default = if default.is_null() { "none".to_owned() } else { format!("`{default}`") };
            let doc = option.doc.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ");
            writeln!(page, "| `{}` | {} | {default} | {doc} |", option.name, option.form.shown()).unwrap();
        }
        page
    }

    #[test]
    fn the_documentation_has_every_option_with_its_default() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/configuration.md");
        if std::env::var_os("SANDPOD_UPDATE").is_some() {
            fs::write(&path, documentation()).unwrap();
        }
        let found = fs::read_to_string(&path).unwrap_or_default();
        assert!(
            found == documentation(),
            "docs/configuration.md is stale: run `SANDPOD_UPDATE=1 cargo test -p sandpod --lib documentation`"
        );
    }

    #[test]
    fn the_table_has_exactly_the_fields_that_are_read() {
        let defaults = serde_json::to_value(RawConfig::default()).unwrap();
        let mut fields: Vec<_> = defaults.as_object().unwrap().keys().map(String::as_str).collect();
        let mut names: Vec<_> = OPTIONS.iter().map(|option| option.name).collect();
        fields.sort_unstable();
        names.sort_unstable();
        assert_eq!(names, fields);
    }

    #[test]
    fn a_name_that_is_like_none_has_no_nearest() {
        assert_eq!(nearest("quantum_entanglement"), None);
        assert_eq!(nearest("IMAGE"), Some("image"));
        assert_eq!(nearest("network"), Some("block_network"));
    }
}
