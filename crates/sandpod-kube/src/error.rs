//! The error type of this crate.

use std::path::PathBuf;

use crate::exec::PodRef;

/// [`std::result::Result`] with this crate's [`enum@Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What failed, why, and what to do next. `Display` has all of it in one line.
///
/// ```
/// use sandpod_kube::{Error, exec::PodRef};
///
/// let error = Error::InputClosed { pod: PodRef::new("agents", "box") };
/// assert_eq!(
///     error.to_string(),
///     "the command in pod agents/box has ended and takes no more input: read its exit code"
/// );
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No kubeconfig could be loaded, and this process is not in a Pod.
    #[error(
        "cannot load the configuration of a cluster{}: {}; set a kubeconfig that kubectl accepts",
        of(path.as_ref()), of_kubeconfig(cause)
    )]
    Config {
        /// The requested file, if any.
        path: Option<PathBuf>,
        /// kube's error.
        cause: Box<kube::config::KubeconfigError>,
    },
    /// This process is in a Pod without a token, and there is no kubeconfig.
    #[error(
        "this Pod has no usable token of a ServiceAccount: {lacking}. There is no kubeconfig in its place: {}; set \
         serviceAccountName and automountServiceAccountToken: true in the Pod's specification, as deploy/agent.yaml does",
        of_kubeconfig(cause)
    )]
    Pod {
        /// What the Pod lacks.
        lacking: Box<kube::config::InClusterError>,
        /// kube's error about the kubeconfig.
        cause: Box<kube::config::KubeconfigError>,
    },
    /// The kubeconfig's credentials, CA or server name cannot be used.
    #[error(
        "cannot make a client for {cluster}: {}; check the user and the cluster of the kubeconfig's context",
        plain(cause)
    )]
    Client {
        /// The API server's address.
        cluster: String,
        /// kube's error.
        cause: Box<kube::Error>,
    },
    /// The URL of the API server is invalid.
    #[error("{url:?} is not the URL of an API server: give one such as https://kube.example.com:6443")]
    Url {
        /// The invalid URL.
        url: String,
    },
    /// The server would not be verified, or credentials would be sent unencrypted.
    #[error("the connection to the API server {cluster} is not secure: {why}")]
    Insecure {
        /// The API server's address.
        cluster: String,
        /// The reason.
        why: &'static str,
    },
    /// The kubeconfig's token file cannot be read.
    #[error("cannot read the token in {}: {cause}; check the tokenFile of the kubeconfig's user", path.display())]
    TokenFile {
        /// The file.
        path: PathBuf,
        /// The error of the read.
        cause: std::io::Error,
    },
    /// Creating the client was interrupted.
    #[error(
        "the task that makes a client was cancelled: {cause}; report this unless the program was exiting"
    )]
    Interrupted {
        /// tokio's error.
        cause: tokio::task::JoinError,
    },
    /// The configured proxy is unusable.
    #[error("cannot use the proxy {proxy}: set an http, https, socks5 or socks5h URL")]
    Proxy {
        /// The proxy's address, without its user and password.
        proxy: String,
    },
    /// The API server refused the exec stream.
    #[error("cannot exec in pod {pod}: {}; {}", plain(cause), advice(cause, "pods/exec"))]
    Open {
        /// The Pod of the command.
        pod: PodRef,
        /// kube's error.
        cause: Box<kube::Error>,
    },
    /// The API server refused a connection to a port.
    #[error("cannot reach port {port} of pod {pod}: {}; {}", plain(cause), advice(cause, "pods/portforward"))]
    Forward {
        /// The Pod of the port.
        pod: PodRef,
        /// The port.
        port: u16,
        /// kube's error.
        cause: Box<kube::Error>,
    },
    /// The stream was opened, but the container runtime reported no exit code.
    #[error(
        "no exit code for the command in pod {pod}: {message}; check that the program exists in the image and that the container is running"
    )]
    NotRun {
        /// The Pod of the command.
        pod: PodRef,
        /// The message of the kubelet or the container runtime.
        message: String,
    },
    /// The connection was lost before the exit code arrived.
    #[error(
        "lost the exec stream to pod {pod}: {reason}; the command may still be running; check before you run it again"
    )]
    Lost {
        /// The Pod of the command.
        pod: PodRef,
        /// The error of the connection.
        reason: String,
    },
    /// Input was sent to a command that has ended.
    #[error("the command in pod {pod} has ended and takes no more input: read its exit code")]
    InputClosed {
        /// The Pod of the command.
        pod: PodRef,
    },
    /// The exec protocol of the API server cannot end a command's input.
    #[error(
        "cannot close the input of the command in pod {pod}: the cluster supports only exec protocol v4 (Kubernetes before 1.30), which has no end of input; pass the length of the input to the command instead"
    )]
    CloseUnsupported {
        /// The Pod of the command.
        pod: PodRef,
    },
}

fn of(path: Option<&PathBuf>) -> String {
    path.map(|path| format!(" from {}", path.display())).unwrap_or_default()
}

/// kube's message about a kubeconfig. It quotes the path of an unreadable file twice.
fn of_kubeconfig(cause: &kube::config::KubeconfigError) -> String {
    match cause {
        kube::config::KubeconfigError::ReadConfig(cause, path) => {
            format!("cannot read {}: {cause}", path.display())
        }
        other => other.to_string(),
    }
}

/// The API server's own message if there is one: kube's `Display` repeats it as a debug print.
fn plain(cause: &kube::Error) -> String {
    match cause {
        kube::Error::Api(status) if !status.message.is_empty() => {
            format!("{} ({})", status.message, status.code)
        }
        other => other.to_string(),
    }
}

/// The advice for a refused `resource`.
fn advice(cause: &kube::Error, resource: &str) -> String {
    let fixed = match cause {
        kube::Error::Api(status) if status.code == 401 => "log in again: the credentials were rejected",
        kube::Error::Api(status) if status.code == 403 => {
            return format!(
                "allow get and create on {resource} in that namespace (deploy/rbac has roles that do)"
            );
        }
        kube::Error::Api(status) if status.code == 404 => {
            "check the name and the namespace: the pod does not exist"
        }
        kube::Error::Api(_) => "check with kubectl describe that the pod's container is running",
        _ => "check that the API server is reachable and that each proxy in between permits WebSockets",
    };
    fixed.to_owned()
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    #[test]
    fn a_refused_exec_has_the_api_servers_message_and_the_missing_right() {
        let status = Status::failure("pods \"box\" is forbidden", "Forbidden").with_code(403);
        let error = Error::Open {
            pod: PodRef::new("agents", "box"),
            cause: Box::new(kube::Error::Api(status.boxed())),
        };
        assert_eq!(
            error.to_string(),
            "cannot exec in pod agents/box: pods \"box\" is forbidden (403); \
             allow get and create on pods/exec in that namespace (deploy/rbac has roles that do)"
        );
    }
}
