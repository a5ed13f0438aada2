//! `sandpod doctor`: checks whether sandboxes work here, and prints fixes.

use std::mem;
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
use crate::output::{Output, cell};
use crate::target::{Lifetime, Target};

const EXAMPLES: &str = "\
The exit code is 1 if a check is bad. Unless --no-probe is given, the checks create sandboxes and delete them again.

Examples:
  sandpod doctor
  sandpod doctor --mode raw --namespace agents
  sandpod doctor --mode agent-sandbox --namespace agents --template python
  sandpod doctor --mode raw --no-probe --output json";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Create no sandboxes
    #[arg(long)]
    no_probe: bool,
}

/// The column width of check names; the longest are permissions.
const CHECK_WIDTH: usize = 24;

/// Runs all checks of the mode and prints their findings.
pub(crate) async fn run(arguments: Arguments, context: &Context) -> Result<ExitCode> {
    let target = context.target()?;
    let mut findings =
        Findings { output: &context.output, all: Vec::new(), printed: Ok(()), probe: Probe::new(&arguments) };
    match target.mode {
        Mode::Local => machine(&target, !arguments.no_probe, &mut findings).await?,
        Mode::Raw => cluster(&target, !arguments.no_probe, &mut findings).await?,
        Mode::AgentSandbox => agent_sandbox(&target, !arguments.no_probe, &mut findings).await?,
    }
    let code = ExitCode::from(u8::from(findings.is_bad()));
    findings.finish().map(|()| code)
}

async fn machine(target: &Target, probe: bool, findings: &mut Findings<'_>) -> Result<()> {
    // Opening fails with its own message where the mode cannot be used.
    let provider = target.provider(Lifetime::Process).await?;
    if probe {
        findings.probe = Probe::Created;
    }
    examine_machine(&provider, probe, findings).await;
    Ok(())
}

async fn cluster(target: &Target, probe: bool, findings: &mut Findings<'_>) -> Result<()> {
    let config = target.raw()?;
    let role = if config.namespace_per_sandbox { NAMESPACES_ROLE } else { RAW_ROLE };
    examine_cluster(&config, &rights(role)?, findings).await;
    // After a bad finding the probe would fail with a less precise message.
    if probe && !findings.is_bad() {
        findings.probe = Probe::Created;
        examine_sandbox(&target.provider(Lifetime::Process).await?, findings).await;
        if !findings.is_bad() {
            findings.extend([examine_network(&config).await]);
        }
    }
    Ok(())
}

async fn agent_sandbox(target: &Target, probe: bool, findings: &mut Findings<'_>) -> Result<()> {
    examine_agent_sandbox(&target.agent_sandbox()?, &rights(AGENT_SANDBOX_ROLE)?, findings).await;
    if probe && !findings.is_bad() {
        let provider = target.creating_provider(Lifetime::Process).await?;
        findings.probe = Probe::Created;
        examine_sandbox(&provider, findings).await;
        if !findings.is_bad() {
            findings.extend([examine_isolation(&provider).await]);
        }
    }
    Ok(())
}

/// Whether the probe sandbox was created.
#[derive(Clone, Copy)]
enum Probe {
    /// `--no-probe` is given.
    Disabled,
    /// Not yet, or never because of a bad finding.
    NotCreated,
    Created,
}

impl Probe {
    fn new(arguments: &Arguments) -> Self {
        if arguments.no_probe { Self::Disabled } else { Self::NotCreated }
    }

    /// The sentence about the probe for a finding that depends on it.
    fn outcome(self) -> &'static str {
        match self {
            Self::Disabled => "Run without --no-probe to check it.",
            Self::NotCreated => "The probe was skipped: fix the bad checks first.",
            Self::Created => "See the checks of the probe sandbox.",
        }
    }
}

/// The findings so far. A table is printed line by line, because probes take a while; JSON is printed at the end.
struct Findings<'a> {
    output: &'a Output,
    all: Vec<Finding>,
    /// The result of printing. After an error the checks continue, so that their sandboxes are deleted.
    printed: Result<()>,
    probe: Probe,
}

impl Extend<Finding> for Findings<'_> {
    fn extend<T: IntoIterator<Item = Finding>>(&mut self, found: T) {
        for finding in found {
            if !self.output.is_json() && self.printed.is_ok() {
                self.printed = self.print(&finding);
            }
            self.all.push(finding);
        }
    }
}

impl Findings<'_> {
    fn is_bad(&self) -> bool {
        self.all.iter().any(|finding| finding.verdict == Verdict::Bad)
    }

    /// Prints a line of the table, and the header before the first.
    fn print(&self, finding: &Finding) -> Result<()> {
        if self.all.is_empty() {
            self.output.text(&line("CHECK", "VERDICT", "FOUND"))?;
        }
        self.output.text(&line(&finding.check, finding.verdict.as_str(), &finding.found))
    }

    /// Prints the fixes, or all findings as JSON.
    fn finish(mut self) -> Result<()> {
        mem::replace(&mut self.printed, Ok(()))?;
        if self.output.is_json() {
            return self.output.json(&self.all.iter().map(|finding| self.value(finding)).collect::<Vec<_>>());
        }
        for finding in &self.all {
            if let Some(fix) = self.fix(finding) {
                self.output.text(&format!("\n{} ({}): {fix}", finding.check, finding.verdict.as_str()))?;
            }
        }
        Ok(())
    }

    fn fix(&self, finding: &Finding) -> Option<String> {
        let fix = finding.fix.clone()?;
        Some(if finding.needs_sandbox { format!("{fix} {}", self.probe.outcome()) } else { fix })
    }

    fn value(&self, finding: &Finding) -> Value {
        json!({
            "check": finding.check,
            "verdict": finding.verdict.as_str(),
            "found": finding.found,
            "fix": self.fix(finding),
        })
    }
}

fn line(check: &str, verdict: &str, found: &str) -> String {
    format!("{check:CHECK_WIDTH$}  {verdict:7}  {}", cell(found))
}

/// The permissions of a role in `deploy/rbac`, one per verb.
fn rights(role: &str) -> Result<Vec<Right>> {
    let wrong = |cause: &dyn std::fmt::Display| {
        Failure::new(
            ErrorKind::Internal,
            format!("Cannot parse the built-in RBAC manifest: {cause}."),
            "Report this bug.",
        )
    };
    let objects: Vec<Value> = serde_saphyr::from_multiple(role).map_err(|cause| wrong(&cause))?;
    let mut rights = Vec::new();
    for rule in objects.iter().filter_map(|object| object["rules"].as_array()).flatten() {
        let words = |field: &str| {
            let words = rule[field].as_array().into_iter().flatten();
            words.filter_map(Value::as_str).map(str::to_owned).collect::<Vec<_>>()
        };
        // Our roles have at most one resource name per rule.
        let name = words("resourceNames").into_iter().next();
        for group in words("apiGroups") {
            for resource in words("resources") {
                for verb in words("verbs") {
                    let (group, resource, name) = (group.clone(), resource.clone(), name.clone());
                    rights.push(Right { group, resource, name, verb });
                }
            }
        }
    }
    Ok(rights)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permissions_of_every_role_fit_the_column() {
        for role in [RAW_ROLE, NAMESPACES_ROLE, AGENT_SANDBOX_ROLE] {
            for right in rights(role).unwrap() {
                assert!(format!("rights: {}", right.resource).len() <= CHECK_WIDTH, "{right}");
            }
        }
        let shown = line("clock", "good", "one\nline");
        assert_eq!(shown, "clock                     good     one\\nline");
    }

    #[test]
    fn every_verb_of_a_role_is_checked() {
        let rights = rights(RAW_ROLE).unwrap();
        let has = |right: &str| rights.iter().any(|one| one.to_string() == right);
        assert!(has("create pods") && has("get pods/exec") && has("delete leases") && has("list events"));
        assert!(rights.len() > 20, "{rights:?}");

        let rights = super::rights(AGENT_SANDBOX_ROLE).unwrap();
        let has = |right: &str| rights.iter().any(|one| one.to_string() == right);
        assert!(has("create sandboxclaims") && has("delete sandboxwarmpools") && has("get pods/portforward"));
        let secret = rights.iter().find(|right| right.resource == "secrets").unwrap();
        assert_eq!(secret.name.as_deref(), Some("sandpod-guest-token"));
    }
}
