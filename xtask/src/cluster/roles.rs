//! Kubeconfigs of ServiceAccounts with only the RBAC that we ship.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::ValueEnum;
use serde_json::json;

use super::tools::Tools;
use super::{layout, pki, resources};
use crate::shell::output;
use crate::workspace::root;

/// A role from `deploy/rbac`.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Role {
    /// The permissions of `mode="raw"`.
    Raw,
    /// The permissions of `mode="agent-sandbox"`.
    AgentSandbox,
}

impl Role {
    fn name(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::AgentSandbox => "agent-sandbox",
        }
    }
}

/// Creates the role in `namespace`, which is created if needed, and writes a kubeconfig for it.
pub(super) fn kubeconfig(tools: &Tools, role: Role, namespace: &str) -> Result<PathBuf> {
    resources::apply(tools, &[restricted_namespace(namespace)])?;
    let file = root().join(format!("deploy/rbac/{}.yaml", role.name()));
    let text = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
    let mut rights = resources::parse(&text.replace("NAMESPACE", namespace))?;
    for right in &mut rights {
        right["metadata"]["namespace"] = json!(namespace);
    }
    resources::apply(tools, &rights)?;

    let account = format!("sandpod-{}", role.name());
    let token = output(
        &mut tools
            .kubectl("admin", ["create", "token", &account, "--namespace", namespace, "--duration=24h"]),
    )?;
    let user = format!("{}-{namespace}", role.name());
    pki::write_kubeconfig(&user, &json!({ "token": token.trim() }), namespace)?;
    Ok(layout::kubeconfig(&user))
}

/// A namespace as the tests use it: Pod Security admits only `restricted` Pods.
fn restricted_namespace(name: &str) -> serde_json::Value {
    json!({
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": { "name": name, "labels": { "pod-security.kubernetes.io/enforce": "restricted" } },
    })
}
