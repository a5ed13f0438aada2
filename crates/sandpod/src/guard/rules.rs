//! The policies of a sandbox handle, as nested layers.

use sandpod_client::{Command, Error, ErrorCode, Failure, PathBounds, Policy};

use super::commands::CommandRules;
use super::operation::Operation;
use super::paths::{Root, intersection};
use super::policy::SandboxPolicy;
use crate::Result;

/// The beginning of the output of a denied command.
const BLOCKED: &str = "Policy denied: command blocked by policy";

/// One policy, prepared for checks.
#[derive(Clone, Debug)]
pub(crate) struct PolicyLayer {
    policy: SandboxPolicy,
    root: Option<Root>,
    commands: CommandRules,
    /// Whether the sandbox is bound to the policy. If not, each command carries it.
    is_bound: bool,
}

/// All layers of a handle. An operation is denied if one layer denies it.
#[derive(Clone, Debug, Default)]
pub(super) struct Rules(Vec<PolicyLayer>);

impl PolicyLayer {
    pub(crate) fn new(policy: SandboxPolicy, is_bound: bool) -> Result<Self> {
        policy.check()?;
        let (root, commands) = (policy.root(), policy.command_rules()?);
        Ok(Self { policy, root, commands, is_bound })
    }
}

impl Rules {
    pub(super) fn new(layers: Vec<PolicyLayer>) -> Self {
        Self(layers)
    }

    /// Returns these rules with one more layer, whose root is within the present one.
    pub(super) fn narrowed(&self, policy: SandboxPolicy) -> Result<Self> {
        let mut layer = PolicyLayer::new(policy, false)?;
        if let (Some(root), Some(dir)) = (self.root(), &mut layer.policy.root_dir) {
            *dir = root.inner(dir);
            layer.root = layer.policy.root();
        }
        Ok(Self(self.0.iter().cloned().chain([layer]).collect()))
    }

    /// Returns the innermost root, which callers see as `/`. None if no layer has a root.
    pub(super) fn root(&self) -> Option<&Root> {
        self.roots().next_back()
    }

    fn roots(&self) -> impl DoubleEndedIterator<Item = &Root> {
        self.0.iter().filter_map(|layer| layer.root.as_ref())
    }

    /// Rejects a path or pattern if one of the roots rejects its text.
    pub(super) fn check_traversal(&self, path: &str) -> Result<(), Error> {
        self.roots()
            .find_map(|root| root.refusal(path))
            .map_or(Ok(()), |refusal| Err(Error::PathEscapes(refusal)))
    }

    /// Returns the real path, or an error if a layer denies the operation on it.
    pub(super) fn real(&self, operation: Operation, path: &str) -> Result<String, Error> {
        self.check_traversal(path)?;
        let real = match self.root() {
            Some(root) => root.real(path).map_err(Error::PathEscapes)?,
            None => path.to_owned(),
        };
        match self.0.iter().find_map(|layer| layer.policy.refusal(operation, &real, path)) {
            Some(refusal) => Err(denied(refusal, path)),
            None => Ok(real),
        }
    }

    /// Returns the bounds for calls of this kind.
    pub(super) fn bounds(&self, operation: Operation) -> Result<PathBounds, Error> {
        let allowed = self.0.iter().filter_map(|layer| layer.policy.within(operation));
        let within = allowed.reduce(|one, other| intersection(&one, &other));
        // The guest takes an empty list as no bounds.
        if within.as_ref().is_some_and(Vec::is_empty) {
            let message =
                format!("the policies of this sandbox have nothing in common that {operation} may touch");
            return Err(denied(message, "/"));
        }
        let denied = self.0.iter().flat_map(|layer| layer.policy.denied(operation)).collect();
        Ok(PathBounds { within: within.unwrap_or_default(), denied })
    }

    /// Returns the error for a denied command.
    pub(super) fn refused(&self, command: &Command) -> Option<Error> {
        let rule = self.0.iter().find_map(|layer| layer.commands.denies(command))?;
        Some(Error::Failure(Failure::new(ErrorCode::Policy, format!("{BLOCKED} (rule '{rule}')"))))
    }

    /// Returns the policy that a command carries besides the one that the sandbox is bound to.
    pub(super) fn narrowing(&self, own: Option<Policy>) -> Result<Option<Policy>, Error> {
        let unbound =
            self.0.iter().filter(|layer| !layer.is_bound).filter_map(|layer| layer.policy.enforced());
        let mut all = unbound.chain(own);
        let first = all.next();
        if all.next().is_some() {
            let message = "this sandbox was narrowed, and a command has one policy: leave out its own";
            return Err(Error::InvalidArgument(message.to_owned()));
        }
        Ok(first)
    }

    /// Returns whether a layer has a root or allowed prefixes.
    pub(super) fn ask_paths(&self) -> bool {
        self.0.iter().any(|layer| layer.root.is_some() || layer.policy.allow_prefixes.is_some())
    }
}

fn denied(message: String, path: &str) -> Error {
    Error::Failure(Failure::new(ErrorCode::Policy, message).at(path))
}
