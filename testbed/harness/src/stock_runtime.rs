//! agent-sandbox's own runtimes, without a guest of ours.

use serde_json::{Value, json};

use crate::agent_sandbox::pod_spec;

/// The stand-in for the first runtime, written from its API.
const STAND_IN: &str = include_str!("../../../crates/sandpod-dialect/tests/it/legacy_runtime.py");

/// A runtime that somebody else's template holds.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum StockRuntime {
    /// The first one, by a stand-in.
    Legacy,
    /// The real sandboxd: `cargo xtask test` gives it to the testbed.
    Sandboxd,
}

impl StockRuntime {
    /// Where it has its files and starts commands.
    #[must_use]
    pub fn dir(self) -> &'static str {
        match self {
            Self::Legacy => "/app",
            Self::Sandboxd => "/workspace",
        }
    }

    /// The Pod of its template.
    #[must_use]
    pub fn pod_spec(self) -> Value {
        match self {
            Self::Legacy => Self::legacy_at(8888),
            Self::Sandboxd => {
                self.spec("sandpod.test/sandboxd:1", &json!(["/sandboxd", "--root-dir", self.dir()]))
            }
        }
    }

    /// The Pod of a template with the first runtime at another port.
    #[must_use]
    pub fn legacy_at(port: u16) -> Value {
        let command = json!(["env", format!("SANDBOX_PORT={port}"), "python3", "-c", STAND_IN]);
        Self::Legacy.spec("sandpod.test/python:1", &command)
    }

    fn spec(self, image: &str, command: &Value) -> Value {
        let mut spec = pod_spec(&[]);
        let container = &mut spec["containers"][0];
        container["name"] = json!("runtime");
        container["image"] = json!(image);
        container["command"] = command.clone();
        container["env"] = json!([{ "name": "HOME", "value": self.dir() }]);
        container["volumeMounts"] =
            json!([{ "name": "files", "mountPath": self.dir() }, { "name": "tmp", "mountPath": "/tmp" }]);
        spec["volumes"] = json!([{ "name": "files", "emptyDir": {} }, { "name": "tmp", "emptyDir": {} }]);
        spec
    }
}
