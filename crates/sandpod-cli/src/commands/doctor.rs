//! `sandpod doctor`: what keeps sandboxes from working here, and what to do about it.

use std::path::Path;
use std::process::ExitCode;

use clap::Args;
use sandpod::doctor::{
    Finding, Right, Verdict, examine_agent_sandbox, examine_cluster, examine_isolation, examine_machine,
    examine_network, examine_sandbox,
};
use sandpod::{ErrorKind, Mode};
use serde_json::{Value, json};

use super::Context;
use super::manifests::{AGENT_SANDBOX_ROLE, NAMESPACES_ROLE, RAW_ROLE};
use crate::exit::{Failure, Result};
use crate::target::{Stay, Target};

const EXAMPLES: &str = "\
The exit code is 1 if something has to be mended. Sandboxes are made to see what they really do, unless --no-probe \
is given; they are deleted again.

Examples:
  sandpod doctor
  sandpod doctor --mode raw --namespace agents
  sandpod doctor --mode agent-sandbox --namespace agents --template python
  sandpod doctor --mode raw --no-probe --output json";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Make no sandboxes: only look
    #[arg(long)]
    no_probe: bool,
}

/// Examines everything and prints what was found.
pub(crate) async fn run(arguments: Arguments, context: &Context) -> Result<ExitCode> {
    let target = context.target()?;
    let findings = match target.mode {
        Mode::Local => machine(&target, !arguments.no_probe).await?,
        Mode::Raw => cluster(&target, !arguments.no_probe).await?,
        Mode::AgentSandbox => agent_sandbox(&target, !arguments.no_probe).await?,
    };
    if context.output.is_json() {
        context.output.json(&findings.iter().map(value).collect::<Vec<_>>())?;
    } else {
        context
            .output
            .table(&["CHECK", "VERDICT", "FOUND"], &findings.iter().map(row).collect::<Vec<_>>())?;
        for finding in &findings {
            if let Some(fix) = &finding.fix {
                context.output.text(&format!("\n{} ({}): {fix}", finding.check, finding.verdict.as_str()))?;
            }
        }
    }
    Ok(ExitCode::from(u8::from(is_bad(&findings))))
}

async fn machine(target: &Target, probe: bool) -> Result<Vec<Finding>> {
    // It says itself if the mode can't be used.
    let provider = target.provider(Stay::WithUs).await?;
    let mut findings = examine_machine(Path::new("/"));
    if probe {
        findings.extend(examine_sandbox(&provider).await);
    }
    Ok(findings)
}

async fn cluster(target: &Target, probe: bool) -> Result<Vec<Finding>> {
    let config = target.raw()?;
    let role = if config.namespace_per_sandbox { NAMESPACES_ROLE } else { RAW_ROLE };
    let mut findings = examine_cluster(&config, &rights(role)?).await;
    // What keeps sandboxes from being made is known already, and better said.
    if probe && !is_bad(&findings) {
        findings.extend(examine_sandbox(&target.provider(Stay::WithUs).await?).await);
        if !is_bad(&findings) {
            findings.push(examine_network(&config).await);
        }
    }
    Ok(findings)
}

async fn agent_sandbox(target: &Target, probe: bool) -> Result<Vec<Finding>> {
    let mut findings = examine_agent_sandbox(&target.agent_sandbox()?, &rights(AGENT_SANDBOX_ROLE)?).await;
    if probe && !is_bad(&findings) {
        let provider = target.maker(Stay::WithUs).await?;
        findings.extend(examine_sandbox(&provider).await);
        if !is_bad(&findings) {
            findings.push(examine_isolation(&provider).await);
        }
    }
    Ok(findings)
}

fn is_bad(findings: &[Finding]) -> bool {
    findings.iter().any(|finding| finding.verdict == Verdict::Bad)
}

/// What a role of `deploy/rbac` grants, verb by verb.
fn rights(role: &str) -> Result<Vec<Right>> {
    let wrong = |cause: &dyn std::fmt::Display| {
        Failure::new(
            ErrorKind::Internal,
            format!("The role of this version can't be read: {cause}."),
            "Report this.",
        )
    };
    let objects: Vec<Value> = serde_saphyr::from_multiple(role).map_err(|cause| wrong(&cause))?;
    let mut rights = Vec::new();
    for rule in objects.iter().filter_map(|object| object["rules"].as_array()).flatten() {
        let words = |field: &str| {
            let words = rule[field].as_array().into_iter().flatten();
            words.filter_map(Value::as_str).map(str::to_owned).collect::<Vec<_>>()
        };
        for group in words("apiGroups") {
            for resource in words("resources") {
                for verb in words("verbs") {
                    rights.push(Right { group: group.clone(), resource: resource.clone(), verb });
                }
            }
        }
    }
    Ok(rights)
}

fn row(finding: &Finding) -> Vec<String> {
    vec![finding.check.clone(), finding.verdict.as_str().to_owned(), finding.found.clone()]
}

fn value(finding: &Finding) -> Value {
    json!({
        "check": finding.check,
        "verdict": finding.verdict.as_str(),
        "found": finding.found,
        "fix": finding.fix,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_verb_of_the_role_is_asked_for() {
        let rights = rights(RAW_ROLE).unwrap();
        let says = |right: &str| rights.iter().any(|one| one.to_string() == right);
        assert!(says("create pods") && says("get pods/exec") && says("delete leases") && says("list events"));
        assert!(rights.len() > 20, "{rights:?}");

        let rights = super::rights(AGENT_SANDBOX_ROLE).unwrap();
        let says = |right: &str| rights.iter().any(|one| one.to_string() == right);
        assert!(
            says("create sandboxclaims") && says("delete sandboxwarmpools") && says("get pods/portforward")
        );
    }
}
