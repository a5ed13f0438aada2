//! The names of options in TypeScript.
//!
//! They are the library's in camel case. [`TYPESCRIPT_OPTIONS`] has the options whose name, unit or default is another
//! one in the documentation of `@bitkaio/langchain-kubernetes`, because its users change only an import.

/// An option that differs in TypeScript.
#[derive(Clone, Copy, Debug)]
pub struct TypescriptOption {
    /// Name in the library.
    pub option: &'static str,
    /// Name in TypeScript.
    pub name: &'static str,
    /// Whether TypeScript has milliseconds and the library seconds.
    pub in_milliseconds: bool,
    /// Default in TypeScript as JSON, if it differs.
    pub default: Option<&'static str>,
    /// Documentation, if it differs.
    pub doc: Option<&'static str>,
}

/// The options that differ in TypeScript.
pub const TYPESCRIPT_OPTIONS: [TypescriptOption; 5] = [
    TypescriptOption { name: "routerUrl", ..differing("api_url") },
    TypescriptOption { name: "kubeconfigPath", ..differing("kubeconfig") },
    TypescriptOption { default: Some("\"deepagents-sandboxes\""), ..differing("namespace") },
    TypescriptOption {
        name: "startupTimeoutMs",
        in_milliseconds: true,
        default: Some("120000"),
        doc: Some("Milliseconds in which a sandbox must be ready."),
        ..differing("startup_timeout_seconds")
    },
    TypescriptOption {
        name: "executeTimeoutMs",
        in_milliseconds: true,
        default: Some("300000"),
        doc: Some(
            "Milliseconds after which a command is killed, for calls without a `timeout` of their own. 0: no timeout.",
        ),
        ..differing("default_exec_timeout")
    },
];

const fn differing(option: &'static str) -> TypescriptOption {
    TypescriptOption { option, name: option, in_milliseconds: false, default: None, doc: None }
}

/// Converts an option's name to its name in TypeScript.
///
/// ```
/// assert_eq!(sandpod::typescript_name("ttl_idle_seconds"), "ttlIdleSeconds");
/// assert_eq!(sandpod::typescript_name("api_url"), "routerUrl");
/// ```
#[must_use]
pub fn typescript_name(option: &str) -> String {
    let other = TYPESCRIPT_OPTIONS.iter().find(|other| other.option == option && other.name != option);
    other.map_or_else(|| camel_case(option), |other| other.name.to_owned())
}

/// Converts a name to camel case.
///
/// ```
/// assert_eq!(sandpod::camel_case("ttl_idle_seconds"), "ttlIdleSeconds");
/// ```
#[must_use]
pub fn camel_case(name: &str) -> String {
    let mut words = name.split('_');
    let mut name = words.next().unwrap_or_default().to_owned();
    for word in words {
        let (initial, rest) = word.split_at(word.len().min(1));
        name += &initial.to_ascii_uppercase();
        name += rest;
    }
    name
}
