//! The runtimes of agent-sandbox, without the guest.

use serde_json::{Value, json};

use crate::agent_sandbox::pod_spec;

/// A runtime of agent-sandbox that users have in their templates. `cargo xtask test` loads both images into the testbed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum StockRuntime {
    /// The first one: examples/python-runtime-sandbox.
    Legacy,
    /// sandboxd.
    Sandboxd,
}

impl StockRuntime {
    /// The directory of its files, in which commands start.
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

/// The Pod of agent-sandbox's example and of its users' documents: no volume, and a probe each second.
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
