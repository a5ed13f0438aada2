//! The error type of the library.

use std::fmt;

use sandpod_client::{ErrorCase, ErrorKind, Retry};
use sandpod_kube::kube;

/// [`std::result::Result`] with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Manifest with the role that raw mode needs.
const RAW_ROLE: &str = "deploy/rbac/raw.yaml";
/// Manifest with the role that `namespace_per_sandbox` needs.
const NAMESPACES_ROLE: &str = "deploy/rbac/raw-namespaces.yaml";

/// Advice for a sandbox that has lost its place. It names no function, because the names differ between the bindings
/// and the command.
pub(crate) const CREATE_AGAIN: &str = "Create it again.";

/// Returns the names in quotes, for the advice of an error: `'a', 'b' or 'c'`.
pub(crate) fn any_of(names: &[&str]) -> String {
    let quoted: Vec<_> = names.iter().map(|name| format!("'{name}'")).collect();
    match quoted.split_last() {
        Some((last, others)) if !others.is_empty() => format!("{} or {last}", others.join(", ")),
        _ => quoted.concat(),
    }
}

/// An error: what happened, and what to do next.
///
/// ```
/// use sandpod::{Error, ErrorKind};
///
/// let error = Error::new(ErrorKind::NotFound, "There is no sandbox 'x'.", "Create it first.");
/// assert_eq!(error.to_string(), "There is no sandbox 'x'. Create it first.");
/// assert_eq!(error.kind(), ErrorKind::NotFound);
/// ```
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Error {
    kind: ErrorKind,
    case: Option<ErrorCase>,
    message: String,
    next: String,
    /// Whether a permission is missing in a namespace.
    lacks_right: bool,
    /// Whether the API server did not respond or was overloaded. The request may have taken effect.
    outage: bool,
}

impl Error {
    /// Creates an error from two sentences: what happened, and what to do next.
    pub fn new(kind: ErrorKind, message: impl Into<String>, next: impl Into<String>) -> Self {
        let (message, next) = (message.into(), next.into());
        Self { kind, case: None, message, next, lacks_right: false, outage: false }
    }

    /// Creates an error of a case that has its own code or JavaScript class.
    pub(crate) fn of_case(case: ErrorCase, message: impl Into<String>, next: impl Into<String>) -> Self {
        Self { case: Some(case), ..Self::new(case.kind(), message, next) }
    }

    /// The named case within the kind, if there is one.
    #[must_use]
    pub fn case(&self) -> Option<ErrorCase> {
        self.case
    }

    /// Whether the call may be repeated.
    #[must_use]
    pub fn retry(&self) -> Retry {
        self.kind.retry()
    }

    /// The machine-readable code: that of the case, or else of the kind.
    #[must_use]
    pub fn code(&self) -> &'static str {
        self.case.map_or(self.kind.as_str(), ErrorCase::code)
    }

    /// The class of the JavaScript error.
    #[must_use]
    pub fn javascript_class(&self) -> &'static str {
        self.case.map_or(self.kind.javascript_class(), ErrorCase::javascript_class)
    }

    /// The kind of failure.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// What happened.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    /// What to do next.
    #[must_use]
    pub fn next_step(&self) -> &str {
        &self.next
    }

    /// Whether a permission is missing in a namespace, and the advice does not name a specific role yet.
    pub(crate) fn lacks_right(&self) -> bool {
        self.lacks_right
    }

    /// Replaces the advice with `next` if [`lacks_right`](Self::lacks_right) is true.
    pub(crate) fn or_grant(self, next: impl FnOnce() -> String) -> Self {
        if self.lacks_right { Self { next: next(), lacks_right: false, ..self } } else { self }
    }

    /// Whether the API server could not be reached, or was overloaded.
    pub(crate) fn is_outage(&self) -> bool {
        self.outage
    }

    pub(crate) fn invalid(message: impl Into<String>, next: impl Into<String>) -> Self {
        Self::new(ErrorKind::InvalidInput, message, next)
    }

    /// Converts the error of a failed request to the API server. `what` completes "Can't …".
    pub(crate) fn api(what: &str, cause: &kube::Error) -> Self {
        let kube::Error::Api(status) = cause else {
            let reason = chain(cause);
            let next = connection_advice(&reason);
            let error = Self::new(ErrorKind::Unavailable, format!("Can't {what}: {reason}."), next);
            return Self { outage: is_temporary(cause, &reason), ..error };
        };
        let reason = status.message.trim_end_matches('.');
        let lacks_right =
            status.code == 403 && reason.contains(" cannot ") && !reason.contains("at the cluster scope");
        let (kind, next) = match status.code {
            401 => {
                (ErrorKind::Denied, "Log in again: the cluster does not accept the credentials.".to_owned())
            }
            403 if reason.contains("exceeded quota") => {
                (ErrorKind::QuotaExceeded, "Delete sandboxes, ask for less, or raise the quota.".to_owned())
            }
            403 if reason.contains(" cannot ") && reason.contains("at the cluster scope") => (
                ErrorKind::Denied,
                format!("Apply {NAMESPACES_ROLE}, or set namespace_per_sandbox to false."),
            ),
            403 if lacks_right => {
                (ErrorKind::Denied, format!("Apply {RAW_ROLE} in that namespace and use its ServiceAccount."))
            }
            403 => (
                ErrorKind::Denied,
                "Change the configuration so that the cluster admits it, or the cluster's policy.".to_owned(),
            ),
            400 | 422 => {
                (ErrorKind::InvalidInput, "Change the field of the configuration that it names.".to_owned())
            }
            404 => (ErrorKind::NotFound, "Check that the namespace exists.".to_owned()),
            409 => (ErrorKind::AlreadyExists, "Try again: another client changed it.".to_owned()),
            _ => (ErrorKind::Unavailable, "Try again, and look at the API server if it stays so.".to_owned()),
        };
        let outage =
            matches!(status.code, 429 | 503 | 504) || status.code == 500 && reason.contains("etcdserver");
        Self {
            lacks_right,
            outage,
            ..Self::new(kind, format!("Can't {what}: {reason} ({}).", status.code), next)
        }
    }
}

/// Whether a request that got no response may succeed later. A wrong server or a failed login is permanent.
fn is_temporary(cause: &kube::Error, reason: &str) -> bool {
    let lost =
        matches!(cause, kube::Error::Service(_) | kube::Error::HyperError(_) | kube::Error::ReadEvents(_));
    lost && !reason.contains("invalid peer certificate")
}

/// Advice for a request that got no response.
fn connection_advice(reason: &str) -> &'static str {
    if reason.contains("invalid peer certificate") {
        "The server has no certificate that the kubeconfig trusts: check its certificate-authority, and whether \
         something in between answers in the cluster's place."
    } else if ["tunnel", "proxy", "SOCKS"].iter().any(|word| reason.contains(word)) {
        "Check the proxy: the kubeconfig's proxy-url or HTTPS_PROXY, with user and password if it wants them."
    } else {
        "Check that the cluster of your kubeconfig can be reached, for example with kubectl version."
    }
}

/// Formats an error with its causes, because the text of `kube::Error` names only the failed service.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.message, self.next)
    }
}

impl std::error::Error for Error {}

impl From<sandpod_kube::Error> for Error {
    fn from(error: sandpod_kube::Error) -> Self {
        let (kind, next) = match error {
            sandpod_kube::Error::Pod { .. } => (ErrorKind::Unavailable, "Apply it and restart the Pod."),
            sandpod_kube::Error::Insecure { .. } => (
                ErrorKind::Denied,
                "Use https with a certificate that the kubeconfig trusts, or set allow_insecure_api_server \
                 (SANDPOD_ALLOW_INSECURE_API_SERVER=true).",
            ),
            _ => (ErrorKind::Unavailable, "Check it with kubectl, which reads the same files."),
        };
        Self::new(kind, format!("Can't connect to a cluster: {error}."), next)
    }
}

#[cfg(test)]
mod tests {
    use sandpod_kube::kube::core::Status;

    use super::*;

    fn refused(code: u16, message: &str) -> Error {
        let status = Status::failure(message, "Forbidden").with_code(code);
        Error::api("create Pod 'p'", &kube::Error::Api(status.boxed()))
    }

    #[test]
    fn missing_permission_names_the_role_file() {
        let error = refused(403, "pods is forbidden: User \"u\" cannot create resource \"pods\"");
        assert_eq!(error.kind(), ErrorKind::Denied);
        assert!(error.to_string().contains("deploy/rbac/raw.yaml"), "{error}");
    }

    #[test]
    fn admission_error_shows_the_policy_text_without_rbac_advice() {
        let error = refused(403, "pods \"p\" is forbidden: violates PodSecurity \"restricted:latest\": x");
        assert_eq!(error.kind(), ErrorKind::Denied);
        assert!(error.to_string().contains("violates PodSecurity"), "{error}");
        assert!(!error.to_string().contains("deploy/rbac"), "{error}");
    }

    #[test]
    fn only_an_unavailable_api_server_counts_as_an_outage() {
        let unanswered = |reason: &str| Error::api("create Pod 'p'", &kube::Error::Service(reason.into()));
        assert!(unanswered("connection refused").is_outage());
        assert!(!unanswered("invalid peer certificate: UnknownIssuer").is_outage());
        assert!(refused(503, "apiserver is shutting down").is_outage());
        assert!(refused(500, "etcdserver: leader changed").is_outage());
        assert!(!refused(500, "failed calling webhook \"w\"").is_outage());
        assert!(!refused(403, "pods \"p\" is forbidden: exceeded quota: q").is_outage());
    }

    #[test]
    fn exceeded_quota_has_its_own_error_kind() {
        let error = refused(403, "pods \"p\" is forbidden: exceeded quota: q, requested: pods=1");
        assert_eq!(error.kind(), ErrorKind::QuotaExceeded);
    }
}
