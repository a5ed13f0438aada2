//! The policies of a sandbox's handle, one within the other.

use sandpod_client::{Command, Error, ErrorCode, Failure, PathBounds, Policy};

use super::commands::CommandRules;
use super::operation::Operation;
use super::paths::{Root, intersection};
use super::policy::SandboxPolicy;
use crate::Result;

/// What a command that is refused prints.
pub(super) const BLOCKED: &str = "Policy denied: command blocked by policy";

/// One policy, made ready.
#[derive(Clone, Debug)]
pub(crate) struct Layer {
    policy: SandboxPolicy,
    root: Option<Root>,
    commands: CommandRules,
    /// The sandbox is bound to it, so its commands need not be told.
    is_bound: bool,
}

/// All of them: what one refuses is refused.
#[derive(Clone, Debug, Default)]
pub(super) struct Rules(Vec<Layer>);

impl Layer {
    pub(crate) fn new(policy: SandboxPolicy, is_bound: bool) -> Result<Self> {
        policy.check()?;
        let (root, commands) = (policy.root(), policy.command_rules()?);
        Ok(Self { policy, root, commands, is_bound })
    }
}

impl Rules {
    pub(super) fn of(layer: Option<Layer>) -> Self {
        Self(layer.into_iter().collect())
    }

    /// These and one policy more. Its root is within theirs.
    pub(super) fn narrowed(&self, policy: SandboxPolicy) -> Result<Self> {
        let mut layer = Layer::new(policy, false)?;
        if let (Some(root), Some(dir)) = (self.root(), &mut layer.policy.root_dir) {
            *dir = root.inner(dir);
            layer.root = layer.policy.root();
        }
        Ok(Self(self.0.iter().cloned().chain([layer]).collect()))
    }

    /// What callers see as `/`, if it is not that: the innermost root.
    pub(super) fn root(&self) -> Option<&Root> {
        self.roots().next_back()
    }

    fn roots(&self) -> impl DoubleEndedIterator<Item = &Root> {
        self.0.iter().filter_map(|layer| layer.root.as_ref())
    }

    /// Refuses a path or a pattern by its text, if one of the roots does.
    pub(super) fn check_traversal(&self, path: &str) -> Result<(), Error> {
        self.roots()
            .find_map(|root| root.refusal(path))
            .map_or(Ok(()), |refusal| Err(Error::PathEscapes(refusal)))
    }

    /// Where a path is, if an operation on it is not refused.
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

    /// Where a call of this kind may lead.
    pub(super) fn bounds(&self, operation: Operation) -> Result<PathBounds, Error> {
        let allowed = self.0.iter().filter_map(|layer| layer.policy.within(operation));
        let within = allowed.reduce(|one, other| intersection(&one, &other));
        // To the guest no places are no bounds.
        if within.as_ref().is_some_and(Vec::is_empty) {
            let message =
                format!("the policies of this sandbox have nothing in common that {operation} may touch");
            return Err(denied(message, "/"));
        }
        let denied = self.0.iter().flat_map(|layer| layer.policy.denied(operation)).collect();
        Ok(PathBounds { within: within.unwrap_or_default(), denied })
    }

    /// Why a command is refused, if it is.
    pub(super) fn refused(&self, command: &Command) -> Option<Error> {
        let rule = self.0.iter().find_map(|layer| layer.commands.denies(command))?;
        tracing::debug!(rule, "a command is refused");
        Some(Error::Failure(Failure::new(ErrorCode::Policy, BLOCKED)))
    }

    /// What a command is held to besides what the sandbox is bound to.
    pub(super) fn narrowing(&self, own: Option<Policy>) -> Result<Option<Policy>, Error> {
        let unbound = self.0.iter().filter(|layer| !layer.is_bound).filter_map(|layer| layer.policy.bound());
        let mut all = unbound.chain(own);
        let first = all.next();
        if all.next().is_some() {
            let message = "this sandbox was narrowed, and a command has one policy: leave out its own";
            return Err(Error::InvalidArgument(message.to_owned()));
        }
        Ok(first)
    }

    /// Whether something of paths is asked at all, so that an owner may wonder why one can't be written.
    pub(super) fn ask_paths(&self) -> bool {
        self.0.iter().any(|layer| layer.root.is_some() || layer.policy.allow_prefixes.is_some())
    }
}

fn denied(message: String, path: &str) -> Error {
    Error::Failure(Failure::new(ErrorCode::Policy, message).at(path))
}
