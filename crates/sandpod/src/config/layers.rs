//! Sources of options. A [`Layer`] holds the options of one source, and [`ProcessLayers`] those of this process.
//!
//! Each option is resolved from: arguments, `SANDPOD_*` variables, the configuration file, the default. Files and
//! variables are read only on request.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::table::{self, Entry, Form};
use super::{AgentSandboxConfig, RawConfig};
use crate::{Error, ErrorKind, Mode, Result};

/// Prefix of sandpod's variables.
const PREFIX: &str = "SANDPOD_";
/// Variable with the path of the configuration file.
const FILE_VARIABLE: &str = "SANDPOD_CONFIG";
/// Variables with [`PREFIX`] that are not options. A name that ends with `_` is itself a prefix.
const OTHERS: [&str; 8] =
    ["CONFIG", "GUEST_DIR", "STATE_DIR", "UPDATE", "XTASK", "TEST_", "FAULT_", "BENCH_"];

const ENVIRONMENT: &str = "the environment";
/// Key of the mode in files and variables. It is not a field of any mode's configuration.
const MODE: &str = "mode";

/// Options from one source. Layers are merged option by option, and later layers win.
///
/// ```
/// use sandpod::{Layer, RawConfig};
///
/// let variables = Layer::variables([("SANDPOD_IMAGE".to_owned(), "busybox".to_owned())])?;
/// let arguments = serde_json::json!({ "namespace": "agents" });
/// let arguments = Layer::arguments(arguments.as_object().cloned().unwrap_or_default())?;
/// let config = RawConfig::from_layers([variables, arguments])?;
/// assert_eq!((config.namespace.as_str(), config.image.as_str()), ("agents", "busybox"));
/// # Ok::<(), sandpod::Error>(())
/// ```
#[derive(Clone, Default)]
pub struct Layer {
    options: Map<String, Value>,
    mode: Option<Mode>,
}

/// The options of this process by source: the configuration file and the variables.
#[derive(Clone, Default)]
pub struct ProcessLayers {
    /// Path of the file that was read, if one exists.
    pub path: Option<PathBuf>,
    /// Options of the file.
    pub file: Layer,
    /// Options of the `SANDPOD_*` variables.
    pub variables: Layer,
}

impl ProcessLayers {
    /// Reads the variables of this process and the configuration file: `path`, or else the file that `SANDPOD_CONFIG`
    /// names, or else `$XDG_CONFIG_HOME/sandpod/config.toml` if it exists.
    pub fn read(path: Option<&Path>) -> Result<Self> {
        let named = path.map(Path::to_owned).or_else(|| env::var_os(FILE_VARIABLE).map(PathBuf::from));
        let (path, file) = match named {
            Some(named) => (Some(named.clone()), Layer::file(&named)?),
            None => usual_file().map_or_else(|| Ok(Default::default()), file_if_any)?,
        };
        Ok(Self { path, file, variables: Layer::variables(env::vars_os())? })
    }
}

impl Layer {
    /// Reads the options of a TOML file.
    pub fn file(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path).map_err(|cause| unreadable(path, &cause.to_string()))?;
        Self::toml(&text, path)
    }

    fn toml(text: &str, path: &Path) -> Result<Self> {
        let options: Map<String, Value> =
            toml::from_str(text).map_err(|cause| unreadable(path, cause.to_string().trim_end()))?;
        Self::checked(options, &format!("the file {}", path.display()))
    }

    /// Reads the options among these variables. Pass [`std::env::vars_os`] to read those of this process.
    ///
    /// Texts are written without quotes and all other values as JSON. `none` unsets an optional number or object.
    pub fn variables(
        variables: impl IntoIterator<Item = (impl Into<OsString>, impl Into<OsString>)>,
    ) -> Result<Self> {
        let mut options = Map::new();
        for (variable, value) in variables {
            let (variable, value) = (variable.into(), value.into());
            // Variables that are not UTF-8 are an error only if they are options.
            let shown = variable.to_string_lossy();
            if let Some(name) = option_name(&shown, &value.to_string_lossy()) {
                let (Some(variable), Ok(value)) = (variable.to_str(), value.into_string()) else {
                    return Err(not_text(&shown));
                };
                if name == MODE {
                    options.insert(name, Value::String(value));
                    continue;
                }
                let option = table::find(&name).ok_or_else(|| {
                    let meant = table::nearest(&name).map(|name| format!("{PREFIX}{}", name.to_uppercase()));
                    unknown(ENVIRONMENT, variable, meant)
                })?;
                options.insert(name, parsed(option, variable, value)?);
            }
        }
        Self::checked(options, ENVIRONMENT)
    }

    /// Merges the variables of this process over the configuration file, as [`ProcessLayers::read`] reads them.
    pub fn of_process(path: Option<&Path>) -> Result<Self> {
        let ProcessLayers { file, variables, .. } = ProcessLayers::read(path)?;
        Ok(variables.over(file))
    }

    /// Merges both layers. The values of `self` win.
    #[must_use]
    pub fn over(self, below: Self) -> Self {
        let mode = self.mode.or(below.mode);
        Self { options: below.options.into_iter().chain(self.options).collect(), mode }
    }

    /// The mode, if it is set.
    #[must_use]
    pub fn mode(&self) -> Option<Mode> {
        self.mode
    }

    /// The options that are set, by name.
    #[must_use]
    pub fn options(&self) -> &Map<String, Value> {
        &self.options
    }

    /// Creates a layer from the arguments of a caller. A null is a value and overrides earlier layers.
    pub fn arguments(options: Map<String, Value>) -> Result<Self> {
        Self::checked(options, "the configuration")
    }

    /// Rejects unknown options and values of the wrong type.
    fn checked(mut options: Map<String, Value>, source: &str) -> Result<Self> {
        let mode = options.remove(MODE).map(|value| read_mode(&value, source)).transpose()?;
        for (name, value) in &mut options {
            let option = table::find(name)
                .ok_or_else(|| unknown(source, name, table::nearest(name).map(str::to_owned)))?;
            if option.is_none(value) {
                *value = Value::Null;
            }
            let alone = Map::from_iter([(name.clone(), value.clone())]);
            let read = if table::has(super::OPTIONS, name) {
                serde_json::from_value::<RawConfig>(alone.into()).map(drop)
            } else {
                serde_json::from_value::<AgentSandboxConfig>(alone.into()).map(drop)
            };
            if let Err(cause) = read {
                return Err(wrong_value(name, source, &cause.to_string(), option));
            }
        }
        Ok(Self { options, mode })
    }
}

fn read_mode(value: &Value, source: &str) -> Result<Mode> {
    let mode = value.as_str().unwrap_or_default().parse::<Mode>();
    mode.map_err(|error| {
        super::refused(
            &format!("mode in {source}: {}", error.message().trim_end_matches('.')),
            error.next_step(),
        )
    })
}

impl Entry {
    /// Whether the value is `none`, which replaces null in files and variables.
    fn is_none(&self, value: &Value) -> bool {
        self.optional && self.form != Form::Text && value == "none"
    }
}

impl RawConfig {
    /// Merges the layers over the defaults. Later layers win. Call [`RawConfig::check`] to check the result.
    pub fn from_layers(layers: impl IntoIterator<Item = Layer>) -> Result<Self> {
        read_own(layers, super::OPTIONS)
    }

    /// Same as [`from_layers`](Self::from_layers), but rejects an option that raw mode does not have by name.
    pub fn from_arguments(arguments: Layer) -> Result<Self> {
        refuse_others(&arguments, super::OPTIONS, "raw")?;
        Self::from_layers([arguments])
    }

    /// Merges the `SANDPOD_*` variables of this process over the defaults.
    pub fn from_env() -> Result<Self> {
        Self::from_layers([Layer::variables(env::vars_os())?])
    }

    /// Resolves each option from: `SANDPOD_*` variables, the configuration file, the default. The file is the one that
    /// `SANDPOD_CONFIG` names, or else `$XDG_CONFIG_HOME/sandpod/config.toml` if it exists.
    pub fn load() -> Result<Self> {
        Self::from_layers([Layer::of_process(None)?])
    }

    /// Resolves each option from: `SANDPOD_*` variables, the file `path`, the default.
    pub fn load_from(path: &Path) -> Result<Self> {
        Self::from_layers([Layer::of_process(Some(path))?])
    }
}

/// Builds a configuration from the options in `own`. Others are ignored, because several modes may share a file.
pub(super) fn read_own<T: DeserializeOwned>(
    layers: impl IntoIterator<Item = Layer>,
    own: &[Entry],
) -> Result<T> {
    let options = layers.into_iter().flat_map(|layer| layer.options);
    let options: Map<_, _> = options.filter(|(name, _)| table::has(own, name)).collect();
    serde_json::from_value(options.into())
        .map_err(|cause| super::refused(&cause.to_string(), "See docs/configuration.md."))
}

/// Rejects options that this mode does not have, because they would have no effect.
pub(super) fn refuse_others(arguments: &Layer, own: &[Entry], mode: &str) -> Result<()> {
    match arguments.options.keys().find(|name| !table::has(own, name)) {
        None => Ok(()),
        Some(other) => Err(super::refused(
            &format!("{other} is not an option of mode '{mode}'"),
            "Leave it out, or use the mode that has it: see docs/configuration.md.",
        )),
    }
}

fn usual_file() -> Option<PathBuf> {
    let named = env::var_os("XDG_CONFIG_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let dir = named.or_else(|| env::home_dir().map(|home| home.join(".config")))?;
    Some(dir.join("sandpod/config.toml"))
}

fn file_if_any(path: PathBuf) -> Result<(Option<PathBuf>, Layer)> {
    match fs::read_to_string(&path) {
        Ok(text) => Layer::toml(&text, &path).map(|layer| (Some(path), layer)),
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(Default::default()),
        // After a change of users, the home directory may belong to another user and be inaccessible.
        Err(cause) if cause.kind() == io::ErrorKind::PermissionDenied && fs::metadata(&path).is_err() => {
            tracing::warn!("The configuration in {} is left out: {cause}.", path.display());
            Ok(Default::default())
        }
        Err(cause) => Err(unreadable(&path, &cause.to_string())),
    }
}

/// Returns the name of the option that a variable sets, if it sets one.
fn option_name(variable: &str, value: &str) -> Option<String> {
    let name = variable.strip_prefix(PREFIX)?;
    let other = OTHERS.iter().any(|own| name == *own || (own.ends_with('_') && name.starts_with(own)));
    (!other && !is_of_service(variable, value)).then(|| name.to_lowercase())
}

/// Whether Kubernetes sets this variable for a Service named `sandpod` or `sandpod-…`, as it does in every Pod of the
/// Service's namespace.
fn is_of_service(variable: &str, value: &str) -> bool {
    let address = ["tcp://", "udp://", "sctp://"].iter().any(|scheme| value.starts_with(scheme));
    let numbered = |after: &str| after.starts_with(|first: char| first.is_ascii_digit());
    variable.ends_with("_SERVICE_HOST")
        || variable.ends_with("_SERVICE_PORT")
        || variable.contains("_SERVICE_PORT_")
        || variable.ends_with("_PORT") && address
        || variable.split("PORT_").skip(1).any(numbered)
}

fn parsed(option: &Entry, variable: &str, value: String) -> Result<Value> {
    if option.form == Form::Text || value == "none" {
        return Ok(Value::String(value));
    }
    serde_json::from_str(&value).map_err(|cause| {
        let next = format!("It is {}, written as in JSON.", option.form.with_article());
        super::refused(&format!("the variable {variable} can't be read: {cause}"), &next)
    })
}

/// Returns the error for a value that the option does not take. A mistyped field of an object gets a suggestion.
fn wrong_value(name: &str, source: &str, cause: &str, option: &Entry) -> Error {
    // serde's message: unknown field `a`, expected one of `b`, `c`
    let mut quoted = cause.split('`').skip(1).step_by(2);
    let Some(given) = quoted.next().filter(|_| cause.starts_with("unknown field ")) else {
        let next = format!("It is {}.", option.form.with_article());
        return super::refused(&format!("{name} in {source}: {cause}"), &next);
    };
    let fields: Vec<_> = quoted.collect();
    let next = match sandpod_text::nearest(given, fields.iter().copied()) {
        Some(meant) => format!("Did you mean '{meant}'?"),
        None => format!("Its fields are {}.", fields.join(", ")),
    };
    super::refused(&format!("{name} in {source} has '{given}', which is not one of its fields"), &next)
}

fn not_text(variable: &str) -> Error {
    super::refused(&format!("the variable {variable} is not UTF-8"), "Write it in UTF-8, or unset it.")
}

fn unknown(source: &str, given: &str, meant: Option<String>) -> Error {
    let next = meant.map_or_else(
        || "See docs/configuration.md for all options.".to_owned(),
        |meant| format!("Did you mean '{meant}'?"),
    );
    super::refused(&format!("{source} has '{given}', which is not an option"), &next)
}

fn unreadable(path: &Path, cause: &str) -> Error {
    Error::new(
        ErrorKind::InvalidInput,
        format!("The configuration can't be read from {}: {cause}.", path.display()),
        "Write it as TOML, one option per line; docs/configuration.md has all of them.",
    )
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt as _;

    use serde_json::json;

    use super::*;

    fn toml(text: &str) -> Result<Layer> {
        Layer::toml(text, "config.toml".as_ref())
    }

    fn variables(variables: &[(&str, &str)]) -> Result<Layer> {
        Layer::variables(variables.iter().copied())
    }

    fn arguments(options: Value) -> Result<Layer> {
        Layer::arguments(serde_json::from_value(options).unwrap())
    }

    fn error_of(layer: Result<Layer>) -> String {
        layer.err().expect("the layer is rejected").to_string()
    }

    #[test]
    fn arguments_override_variables_which_override_the_file() {
        let file = toml("image = 'file'\nworkdir = '/file'\narch = 'arm64'").unwrap();
        let variables =
            variables(&[("SANDPOD_IMAGE", "variable"), ("SANDPOD_WORKDIR", "/variable")]).unwrap();
        let arguments = arguments(json!({ "image": "argument" })).unwrap();

        let config = RawConfig::from_layers([file, variables, arguments]).unwrap();

        let found = [&config.image, &config.workdir, &config.arch, &config.cpu_limit];
        assert_eq!(found, ["argument", "/variable", "arm64", "1000m"]);
    }

    #[test]
    fn file_supports_every_option_type() {
        let file = toml(
            r#"
            read_only_root = true
            ttl_seconds = 60
            run_as_user = "none"
            image_pull_secrets = ["one"]
            tolerations = [{ key = "gpu", operator = "Exists" }]
            [node_selector]
            "disk/kind" = "ssd"
            [pod_template_overrides]
            dnsPolicy = "Default"
            "#,
        );
        let config = RawConfig::from_layers([file.unwrap()]).unwrap();
        config.check().unwrap();
        assert!(config.read_only_root);
        assert_eq!((config.ttl_seconds, config.run_as_user), (Some(60), None));
        assert_eq!(config.node_selector["disk/kind"], "ssd");
        assert_eq!(config.tolerations[0]["key"], "gpu");
        assert_eq!(config.pod_template_overrides, Some(json!({ "dnsPolicy": "Default" })));
    }

    #[test]
    fn variables_support_every_option_type() {
        let layer = variables(&[
            ("SANDPOD_READ_ONLY_ROOT", "true"),
            ("SANDPOD_TTL_SECONDS", "60"),
            ("SANDPOD_RUN_AS_USER", "none"),
            ("SANDPOD_SERVICE_ACCOUNT", "none"),
            ("SANDPOD_COMMAND", r#"["sh", "-c", "true"]"#),
            ("SANDPOD_NODE_SELECTOR", r#"{"disk": "ssd"}"#),
        ]);
        let config = RawConfig::from_layers([layer.unwrap()]).unwrap();
        assert!(config.read_only_root);
        assert_eq!((config.ttl_seconds, config.run_as_user), (Some(60), None));
        assert_eq!(config.service_account.as_deref(), Some("none"), "a text is not parsed");
        assert_eq!(config.command, ["sh", "-c", "true"]);
        assert_eq!(config.node_selector["disk"], "ssd");
    }

    #[test]
    fn unknown_option_error_suggests_the_nearest_name() {
        for (given, meant) in [
            ("imgae", "image"),
            ("name_space", "namespace"),
            ("ttl-seconds", "ttl_seconds"),
            ("runtime_clas", "runtime_class"),
            ("run_as_usr", "run_as_user"),
        ] {
            let from_file = error_of(toml(&format!("{given} = 1")));
            assert!(from_file.contains(given) && from_file.contains(&format!("'{meant}'?")), "{from_file}");
            assert!(from_file.contains("config.toml"), "{from_file}");
            let from_arguments = error_of(arguments(json!({ given: 1 })));
            assert!(from_arguments.contains(&format!("'{meant}'?")), "{from_arguments}");
        }
        let from_variable = error_of(variables(&[("SANDPOD_IMGAE", "x")]));
        assert!(from_variable.contains("'SANDPOD_IMGAE'"), "{from_variable}");
        assert!(from_variable.contains("'SANDPOD_IMAGE'?"), "{from_variable}");
        let far = error_of(toml("quantum = 1"));
        assert!(far.contains("docs/configuration.md"), "{far}");
    }

    #[test]
    fn mistyped_field_of_a_policy_gets_a_suggestion() {
        let error = error_of(toml("[policy]\nallow_prefxes = ['/x']"));
        assert!(
            error.contains("has 'allow_prefxes', which is not one of its fields")
                && error.contains("Did you mean 'allow_prefixes'?"),
            "{error}"
        );
        let far = error_of(toml("[policy]\nquantum = 1"));
        assert!(far.contains("Its fields are root_dir, ") && far.contains("deny_commands"), "{far}");
        let no_object = error_of(toml("policy = 1"));
        assert!(no_object.contains("It is an object."), "{no_object}");
        let no_flag = error_of(toml("read_only_root = 1"));
        assert!(no_flag.contains("It is true or false."), "{no_flag}");
    }

    #[test]
    fn wrong_type_error_names_the_option_and_its_type() {
        let error = error_of(toml("cpu_limit = 1"));
        assert!(
            error.contains("cpu_limit in the file config.toml") && error.contains("It is a text."),
            "{error}"
        );
        let error = error_of(variables(&[("SANDPOD_TTL_SECONDS", "soon")]));
        assert!(error.contains("SANDPOD_TTL_SECONDS") && error.contains("number"), "{error}");
        let error = error_of(toml("image = "));
        assert!(error.contains("config.toml"), "{error}");
    }

    #[test]
    fn variables_that_are_not_options_are_ignored() {
        let layer =
            variables(&[("PATH", "/bin"), ("SANDPOD_GUEST_DIR", "/x"), ("SANDPOD_TEST_KUBECONFIG", "/x")]);
        assert!(layer.unwrap().options.is_empty());
    }

    #[test]
    fn service_variables_of_kubernetes_are_ignored() {
        for service in ["SANDPOD", "SANDPOD_ROUTER", "SANDPOD_SERVER", "SANDPOD_PORT"] {
            for (of, value) in [
                ("SERVICE_HOST", "10.0.0.1"),
                ("SERVICE_PORT", "80"),
                ("SERVICE_PORT_HTTP", "80"),
                ("PORT", "tcp://10.0.0.1:80"),
                ("PORT_80_TCP", "tcp://10.0.0.1:80"),
                ("PORT_80_TCP_PROTO", "tcp"),
                ("PORT_80_TCP_PORT", "80"),
                ("PORT_80_TCP_ADDR", "10.0.0.1"),
                ("PORT_53_UDP", "udp://10.0.0.1:53"),
            ] {
                let variable = format!("{service}_{of}");
                let layer = variables(&[(&variable, value)]);
                assert!(layer.unwrap().options.is_empty(), "{variable}");
            }
        }
        let own = variables(&[("SANDPOD_SERVER_PORT", "8888"), ("SANDPOD_SERVICE_ACCOUNT", "agent")]);
        assert_eq!(own.unwrap().options.len(), 2, "these are options");
    }

    #[test]
    fn variables_that_are_not_utf8_are_rejected_only_if_options() {
        let not_text = || OsString::from_vec(vec![b'x', 0xff]);
        let others = ["FOO", "SANDPOD_GUEST_DIR", "SANDPOD_SERVICE_PORT_HTTP"];
        let layer = Layer::variables(others.map(|name| (OsString::from(name), not_text())));
        assert!(layer.unwrap().options.is_empty());
        assert!(Layer::variables([(not_text(), not_text())]).unwrap().options.is_empty());

        let error = error_of(Layer::variables([("SANDPOD_IMAGE", not_text())]));
        assert!(error.contains("SANDPOD_IMAGE is not UTF-8. Write it"), "{error}");
        let name = OsString::from_vec(b"SANDPOD_IMA\xffE".to_vec());
        let error = error_of(Layer::variables([(name, "x")]));
        assert!(error.contains("is not UTF-8"), "{error}");
    }

    #[test]
    fn files_and_variables_can_set_the_mode() {
        let file = toml("mode = 'raw'\nimage = 'x'").unwrap();
        assert_eq!((file.mode(), file.options().len()), (Some(Mode::Raw), 1));
        let variables = variables(&[("SANDPOD_MODE", "local")]).unwrap();
        assert_eq!(variables.over(file).mode(), Some(Mode::Local));
        let error = error_of(toml("mode = 'docker'"));
        assert!(error.contains("mode in the file config.toml") && error.contains("'local'"), "{error}");
    }

    #[test]
    fn missing_file_is_an_error_only_if_it_was_named() {
        assert!(file_if_any("/no/such/config.toml".into()).unwrap().1.options.is_empty());
        let error = error_of(Layer::file("/no/such/config.toml".as_ref()));
        assert!(error.contains("/no/such/config.toml"), "{error}");
    }
}
