//! agent-sandbox's own runtimes, without a guest of ours.

use serde_json::{Value, json};

use crate::agent_sandbox::pod_spec;

/// A runtime that a template of agent-sandbox's users holds. `cargo xtask test` gives the testbed both images.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum StockRuntime {
    /// The first one: examples/python-runtime-sandbox.
    Legacy,
    /// sandboxd.
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
            Self::Legacy => legacy(8888),
            Self::Sandboxd => sandboxd(self.dir()),
        }
    }

    /// The Pod of a template with the first runtime at another port.
    #[must_use]
    pub fn legacy_at(port: u16) -> Value {
        let mut spec = legacy(port);
        let serve = ["uvicorn", "main:app", "--host", "0.0.0.0", "--port"];
        let command: Vec<_> = serve.into_iter().map(str::to_owned).chain([port.to_string()]).collect();
        spec["containers"][0]["command"] = json!(command);
        spec
    }
}

/// As agent-sandbox's example and the documents of its users have it: no volume, and a probe each second.
fn legacy(port: u16) -> Value {
    let mut spec = pod_spec(&[]);
    spec["volumes"] = json!([]);
    let container = &mut spec["containers"][0];
    for field in ["command", "env", "volumeMounts"] {
        container[field] = Value::Null;
    }
    container["name"] = json!("python-runtime");
    container["image"] = json!("sandpod.test/stock-python:1");
    container["ports"] = json!([{ "containerPort": port }]);
    container["readinessProbe"] = json!({ "httpGet": { "path": "/", "port": port }, "periodSeconds": 1 });
    spec
}

fn sandboxd(dir: &str) -> Value {
    let mut spec = pod_spec(&[]);
    let container = &mut spec["containers"][0];
    container["name"] = json!("runtime");
    container["image"] = json!("sandpod.test/sandboxd:1");
    container["command"] = json!(["/sandboxd", "--root-dir", dir]);
    container["env"] = json!([{ "name": "HOME", "value": dir }]);
    container["volumeMounts"] =
        json!([{ "name": "files", "mountPath": dir }, { "name": "tmp", "mountPath": "/tmp" }]);
    spec["volumes"] = json!([{ "name": "files", "emptyDir": {} }, { "name": "tmp", "emptyDir": {} }]);
    spec
}
