//! The options of new sandboxes: network, limits, mounts and policy.

use std::path::{Path, PathBuf};

use clap::{Args, ValueHint};
use sandpod::{LocalMount, Mode};
use serde_json::{Map, Value, json};

use crate::exit::{Failure, Result};
use crate::files::join;

/// The directory in which commands start.
const WORKING_DIR: &str = "/workspace";
/// Units of Kubernetes quantities.
const UNITS: [(&str, f64); 9] = [
    ("Ki", 1024.0),
    ("Mi", 1_048_576.0),
    ("Gi", 1_073_741_824.0),
    ("Ti", 1_099_511_627_776.0),
    ("k", 1e3),
    ("M", 1e6),
    ("G", 1e9),
    ("T", 1e12),
    ("m", 1e-3),
];
/// Docker's units of memory, and those of Kubernetes.
const DOCKER_UNITS: [(&str, &str); 4] = [("mb", "Mi"), ("gb", "Gi"), ("m", "Mi"), ("g", "Gi")];

// The properties of a new sandbox. No doc comment: it would replace the help of the command.
#[derive(Args, Clone, Debug, Default, PartialEq)]
#[command(next_help_heading = "New sandbox")]
pub(crate) struct Creation {
    /// Network: none, open, or the TCP ports that commands may connect to; --network alone means open [default: none]
    #[arg(
        long,
        value_name = "none|open|PORTS",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "open",
        value_parser = parse_network
    )]
    pub(crate) network: Option<Access>,
    /// Memory limit, for example 512Mi or 2g
    #[arg(long, short = 'm', value_parser = parse_memory)]
    pub(crate) memory: Option<String>,
    /// CPU limit, for example 500m or 1.5
    #[arg(long, alias = "cpus", value_parser = parse_cpu)]
    pub(crate) cpu: Option<String>,
    /// File or directory of this machine to mount, read-only unless rw is given; may be repeated [default GUEST: /workspace/NAME]
    #[arg(long = "mount", alias = "volume", value_name = "HOST[:GUEST][:ro|rw]", value_parser = parse_mount)]
    pub(crate) mounts: Vec<LocalMount>,
    /// Policy in a TOML or JSON file, as in docs/policy.md
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) policy: Option<PathBuf>,
}

/// The network of a new sandbox.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Access {
    None,
    Open,
    /// TCP connections to these ports.
    Ports(Vec<u16>),
}

impl Creation {
    /// Adds the options of the configuration. `configured` returns the value of an option from the other sources.
    pub(crate) fn add_to(
        &self,
        given: &mut Map<String, Value>,
        mode: Mode,
        configured: impl Fn(&str) -> Option<Value>,
    ) -> Result<()> {
        if let Some(network) = &self.network {
            given.insert("block_network".to_owned(), json!(*network == Access::None));
        }
        let limits = [("memory", &self.memory, "256Mi"), ("cpu", &self.cpu, "100m")];
        for (resource, limit, default) in limits {
            let Some(limit) = limit else { continue };
            given.insert(format!("{resource}_limit"), json!(limit));
            let name = format!("{resource}_request");
            let request = configured(&name).and_then(|value| value.as_str().map(str::to_owned));
            let request = request.unwrap_or_else(|| default.to_owned());
            // Kubernetes rejects a request above the limit.
            if mode == Mode::Raw && amount(limit) < amount(&request) {
                given.insert(name, json!(limit));
            }
        }
        let read = self.policy.as_deref().map(read_policy).transpose()?;
        let ports = match &self.network {
            Some(Access::Ports(ports)) => Some(json!({ "connect": ports, "listen": [] })),
            _ => None,
        };
        let mut policy = match (read, &ports) {
            (Some(policy), _) => policy,
            (None, Some(_)) => configured("policy").filter(Value::is_object).unwrap_or_else(|| json!({})),
            (None, None) => return Ok(()),
        };
        if let Some(ports) = ports {
            policy["network"] = ports;
            // A kernel that cannot limit ports would leave the network open.
            policy["policy_required"] = json!(true);
        }
        given.insert("policy".to_owned(), policy);
        Ok(())
    }

    /// Reports whether no option is given.
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Rejects the options for a sandbox that exists, on which they have no effect.
    pub(crate) fn check_unused(&self) -> Result<()> {
        if self.is_empty() {
            return Ok(());
        }
        Err(Failure::usage(
            "Network, limits, mounts and policy belong to a new sandbox; this one exists.",
            "Omit the id for a new sandbox, or create one with `sandpod create`.",
        ))
    }

    /// Notes a mistake in the words of a command: the value of `--network` needs an equals sign.
    pub(crate) fn check_first_word(&self, first: &str) -> Result<()> {
        let is_value = parse_network(first).is_ok() || first == "host";
        match self.network {
            Some(Access::Open) if is_value => Err(Failure::usage(
                format!("'{first}' after --network is taken for the command."),
                format!("Write --network={}.", if first == "host" { "open" } else { first }),
            )),
            _ => Ok(()),
        }
    }
}

fn parse_network(text: &str) -> Result<Access, String> {
    let ports = || text.split(',').map(|port| port.parse::<u16>().ok().filter(|port| *port > 0)).collect();
    match text {
        "none" => Ok(Access::None),
        "open" => Ok(Access::Open),
        _ => Option::<Vec<u16>>::map(ports(), Access::Ports)
            .ok_or_else(|| format!("'{text}' is not none, open or a list of ports such as 443,8080")),
    }
}

/// Returns the number of a Kubernetes quantity.
fn amount(text: &str) -> Option<f64> {
    let (number, unit) =
        UNITS.iter().find_map(|(unit, size)| Some((text.strip_suffix(unit)?, *size))).unwrap_or((text, 1.0));
    let is_plain = number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    number.parse::<f64>().ok().filter(|number| is_plain && *number > 0.0).map(|number| number * unit)
}

/// Parses an amount of memory to a quantity of Kubernetes. Docker's `512m` means 512 MiB.
fn parse_memory(text: &str) -> Result<String, String> {
    let lower = text.to_lowercase();
    let docker =
        DOCKER_UNITS.iter().find_map(|(theirs, ours)| Some(format!("{}{ours}", lower.strip_suffix(theirs)?)));
    let is_ours = UNITS[..8].iter().any(|(unit, _)| text.ends_with(unit));
    let quantity = docker.filter(|_| !is_ours).unwrap_or_else(|| text.to_owned());
    let bytes = amount(&quantity)
        .filter(|bytes| *bytes >= 1.0)
        .ok_or_else(|| format!("'{text}' is not an amount of memory such as 512Mi or 2g"))?;
    Ok(if quantity.contains('.') { format!("{bytes:.0}") } else { quantity })
}

/// Parses an amount of CPU to a quantity in thousandths, or whole CPUs.
fn parse_cpu(text: &str) -> Result<String, String> {
    let is_amount = !text.ends_with(|unit: char| unit.is_ascii_alphabetic() && unit != 'm');
    let cpus = amount(text)
        .filter(|_| is_amount)
        .ok_or_else(|| format!("'{text}' is not an amount of CPU such as 500m, 1.5 or 2"))?;
    Ok(if text.contains('.') { format!("{:.0}m", cpus * 1000.0) } else { text.to_owned() })
}

fn parse_mount(text: &str) -> Result<LocalMount, String> {
    let parts: Vec<&str> = text.split(':').collect();
    let (host, guest, access) = match parts[..] {
        [host] => (host, None, "ro"),
        [host, access @ ("ro" | "rw")] => (host, None, access),
        [host, guest] => (host, Some(guest), "ro"),
        [host, guest, access @ ("ro" | "rw")] => (host, Some(guest), access),
        _ => return Err(format!("'{text}' is not a mount such as HOST, HOST:GUEST or HOST:GUEST:rw")),
    };
    let host =
        Path::new(host).canonicalize().map_err(|cause| format!("'{host}' cannot be mounted: {cause}"))?;
    let name = host.file_name().map(|name| name.to_string_lossy().into_owned());
    let guest = match (guest, name) {
        (Some(guest), _) if guest.starts_with('/') => guest.to_owned(),
        (Some(guest), _) if !guest.is_empty() => join(WORKING_DIR, guest),
        (_, Some(name)) => join(WORKING_DIR, &name),
        (_, None) => return Err("name the directory in the sandbox: HOST:GUEST".to_owned()),
    };
    Ok(LocalMount { host, guest: guest.into(), writable: access == "rw" })
}

/// Reads a policy: its fields, or a table `policy` of a configuration file.
fn read_policy(path: &Path) -> Result<Value> {
    let text = std::fs::read_to_string(path)
        .map_err(|cause| Failure::local(&format!("read the policy {}", path.display()), &cause))?;
    let is_json = path.extension().is_some_and(|extension| extension == "json");
    let fields = if is_json {
        serde_json::from_str::<Map<String, Value>>(&text).map_err(|cause| cause.to_string())
    } else {
        toml::from_str::<Map<String, Value>>(&text).map_err(|cause| cause.to_string())
    };
    let mut fields = fields.map_err(|cause| {
        Failure::usage(
            format!("The policy {} cannot be read: {}.", path.display(), cause.trim_end()),
            "Write it as TOML, or as JSON in a file whose name ends with .json; docs/policy.md has an example.",
        )
    })?;
    let is_table = fields.get("policy").is_some_and(Value::is_object);
    Ok(if is_table { fields.remove("policy").unwrap_or_default() } else { Value::Object(fields) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_and_cpu_are_accepted_as_kubernetes_and_docker_write_them() {
        let memory =
            ["512Mi", "512m", "2g", "2GB", "1.5g", "1G", "64Ki"].map(|text| parse_memory(text).unwrap());
        assert_eq!(memory, ["512Mi", "512Mi", "2Gi", "2Gi", "1610612736", "1G", "64Ki"]);
        assert_eq!(["500m", "1.5", "2"].map(|text| parse_cpu(text).unwrap()), ["500m", "1500m", "2"]);
        for wrong in ["", "much", "-1", "0", "1e9", "inf"] {
            assert!(parse_memory(wrong).is_err() && parse_cpu(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_network_is_a_word_or_a_list_of_ports() {
        let read = |text| parse_network(text).ok();
        assert_eq!(read("443,8080"), Some(Access::Ports(vec![443, 8080])));
        assert_eq!((read("none"), read("open")), (Some(Access::None), Some(Access::Open)));
        assert_eq!([read("host"), read("0"), read("")], [None, None, None]);
        let open = Creation { network: Some(Access::Open), ..Creation::default() };
        assert!(open.check_first_word("none").unwrap_err().to_string().contains("--network=none"));
        open.check_first_word("ls").unwrap();
        assert!(open.check_unused().is_err() && Creation::default().check_unused().is_ok());
    }

    #[test]
    fn a_mount_is_read_only_and_in_the_working_directory_by_default() {
        let shown = |text: &str| {
            let mount = parse_mount(text).unwrap();
            (mount.host.display().to_string(), mount.guest.display().to_string(), mount.writable)
        };
        let entry = |host: &str, guest: &str, writable| (host.to_owned(), guest.to_owned(), writable);
        assert_eq!(shown("/usr"), entry("/usr", "/workspace/usr", false));
        assert_eq!(shown("/usr:rw"), entry("/usr", "/workspace/usr", true));
        assert_eq!(shown("/usr:/data:ro"), entry("/usr", "/data", false));
        assert_eq!(shown("/usr:data"), entry("/usr", "/workspace/data", false));
        assert!(parse_mount("/nowhere-at-all").unwrap_err().contains("cannot be mounted"));
        for wrong in ["/usr:/data:r0", "/usr:/data:rw,z", "/usr:/data:rw:ro", "/usr:/a:/b"] {
            assert!(parse_mount(wrong).unwrap_err().contains("HOST:GUEST:rw"), "{wrong}");
        }
    }

    #[test]
    fn a_limit_below_the_request_lowers_the_request_in_raw_mode() {
        let creation = Creation { memory: Some("64Mi".to_owned()), ..Creation::default() };
        let options = |mode| {
            let mut given = Map::new();
            creation.add_to(&mut given, mode, |_| None).unwrap();
            Value::Object(given)
        };
        assert_eq!(options(Mode::Raw), json!({ "memory_limit": "64Mi", "memory_request": "64Mi" }));
        assert_eq!(options(Mode::Local), json!({ "memory_limit": "64Mi" }));
    }

    #[test]
    fn ports_are_added_to_the_configured_policy() {
        let creation = Creation { network: Some(Access::Ports(vec![443])), ..Creation::default() };
        let mut given = Map::new();
        let configured = |name: &str| (name == "policy").then(|| json!({ "deny_commands": ["git"] }));
        creation.add_to(&mut given, Mode::Local, configured).unwrap();
        let network = json!({ "connect": [443], "listen": [] });
        let policy = json!({ "deny_commands": ["git"], "network": network, "policy_required": true });
        assert_eq!(Value::Object(given), json!({ "block_network": false, "policy": policy }));
    }
}
