//! `sandpod doctor`: what keeps sandboxes from working here, and what to do about it.

use std::mem;
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
use crate::output::{Output, cell};
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

/// How wide the names of checks are; the longest are rights.
const CHECK_WIDTH: usize = 24;

/// Examines everything and prints what was found.
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
    // It says itself if the mode can't be used.
    let provider = target.provider(Stay::WithUs).await?;
    findings.extend(examine_machine(Path::new("/")));
    if probe {
        findings.probe = Probe::Made;
        examine_sandbox(&provider, findings).await;
    }
    Ok(())
}

async fn cluster(target: &Target, probe: bool, findings: &mut Findings<'_>) -> Result<()> {
    let config = target.raw()?;
    let role = if config.namespace_per_sandbox { NAMESPACES_ROLE } else { RAW_ROLE };
    examine_cluster(&config, &rights(role)?, findings).await;
    // What keeps sandboxes from being made is known already, and better said.
    if probe && !findings.is_bad() {
        findings.probe = Probe::Made;
        examine_sandbox(&target.provider(Stay::WithUs).await?, findings).await;
        if !findings.is_bad() {
            findings.extend([examine_network(&config).await]);
        }
    }
    Ok(())
}

async fn agent_sandbox(target: &Target, probe: bool, findings: &mut Findings<'_>) -> Result<()> {
    examine_agent_sandbox(&target.agent_sandbox()?, &rights(AGENT_SANDBOX_ROLE)?, findings).await;
    if probe && !findings.is_bad() {
        let provider = target.maker(Stay::WithUs).await?;
        findings.probe = Probe::Made;
        examine_sandbox(&provider, findings).await;
        if !findings.is_bad() {
            findings.extend([examine_isolation(&provider).await]);
        }
    }
    Ok(())
}

/// Whether a sandbox is made, for what only one shows.
#[derive(Clone, Copy)]
enum Probe {
    /// The caller wants none.
    Unwanted,
    /// Not yet, or never because something is bad.
    Missing,
    Made,
}

impl Probe {
    fn new(arguments: &Arguments) -> Self {
        if arguments.no_probe { Self::Unwanted } else { Self::Missing }
    }

    /// What there is to say of that in the end.
    fn outcome(self) -> &'static str {
        match self {
            Self::Unwanted => "Without --no-probe one is made.",
            Self::Missing => "None was made, because something is bad: mend that first.",
            Self::Made => "One was made: see the checks after this one.",
        }
    }
}

/// What was found so far. People see each at once, for to make sandboxes takes a while; programs get one value at the end.
struct Findings<'a> {
    output: &'a Output,
    all: Vec<Finding>,
    /// Whether people still see them. What was begun is ended in any case: a sandbox would stay.
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

    /// A line of the table, after its head if it is the first.
    fn print(&self, finding: &Finding) -> Result<()> {
        if self.all.is_empty() {
            self.output.text(&line("CHECK", "VERDICT", "FOUND"))?;
        }
        self.output.text(&line(&finding.check, finding.verdict.as_str(), &finding.found))
    }

    /// Prints what is to be done, or all of it for programs.
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
        // No role of ours names more than one.
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
    fn what_was_found_stands_in_columns_whatever_the_role_is() {
        for role in [RAW_ROLE, NAMESPACES_ROLE, AGENT_SANDBOX_ROLE] {
            for right in rights(role).unwrap() {
                assert!(format!("rights: {}", right.resource).len() <= CHECK_WIDTH, "{right}");
            }
        }
        let shown = line("clock", "good", "one\nline");
        assert_eq!(shown, "clock                     good     one\\nline");
    }

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
        let secret = rights.iter().find(|right| right.resource == "secrets").unwrap();
        assert_eq!(secret.name.as_deref(), Some("sandpod-guest-token"));
    }
}
