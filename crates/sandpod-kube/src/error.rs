//! The one error type of this crate.

use std::path::PathBuf;

use crate::exec::PodRef;

/// [`std::result::Result`] with this crate's [`enum@Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, where, and what to do next. `Display` is the whole story in one line.
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
    /// No kubeconfig could be read, and this process isn't in a Pod either.
    #[error("can't find out how to reach a cluster{}: {cause}; give a kubeconfig that kubectl accepts", of(path.as_ref()))]
    Config {
        /// The file that was asked for, if one was.
        path: Option<PathBuf>,
        /// What kube says of it.
        cause: Box<kube::config::KubeconfigError>,
    },
    /// This process is in a Pod that has no token, and there is no kubeconfig either.
    #[error(
        "this Pod has no usable token of a ServiceAccount: {lacking}. There is no kubeconfig in its place: {cause}; set \
         serviceAccountName and automountServiceAccountToken: true in the Pod's specification, as deploy/agent.yaml does"
    )]
    Pod {
        /// What the Pod lacks.
        lacking: Box<kube::config::InClusterError>,
        /// What kube says of the kubeconfig.
        cause: Box<kube::config::KubeconfigError>,
    },
    /// The kubeconfig was read, but its credentials, CA or server name can't be used.
    #[error(
        "can't make a client for {cluster}: {}; check the user and the cluster of the kubeconfig's context",
        plain(cause)
    )]
    Client {
        /// The API server's address.
        cluster: String,
        /// What kube says of it.
        cause: Box<kube::Error>,
    },
    /// The URL of the API server is invalid.
    #[error("{url:?} is not the URL of an API server: give one such as https://kube.example.com:6443")]
    Url {
        /// What was given.
        url: String,
    },
    /// The server would not be verified, or credentials would be sent unencrypted.
    #[error("the connection to the API server {cluster} is not secure: {why}")]
    Insecure {
        /// The API server's address.
        cluster: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The kubeconfig's token file can't be used.
    #[error("can't use the token in {}: {cause}; check the tokenFile of the kubeconfig's user", path.display())]
    TokenFile {
        /// The file.
        path: PathBuf,
        /// What reading it said.
        cause: std::io::Error,
    },
    /// Creating the client was interrupted.
    #[error("making a client was interrupted: {cause}; report this unless the program was ending")]
    Interrupted {
        /// What tokio says of it.
        cause: tokio::task::JoinError,
    },
    /// The configured proxy can't be used.
    #[error("can't use the proxy {proxy}: give an http, https, socks5 or socks5h URL")]
    Proxy {
        /// The proxy's address, without its user and password.
        proxy: String,
    },
    /// The API server didn't open the exec stream.
    #[error("can't exec in pod {pod}: {}; {}", plain(cause), advice(cause, "pods/exec"))]
    Open {
        /// Where the command should have run.
        pod: PodRef,
        /// What kube says of it.
        cause: Box<kube::Error>,
    },
    /// The API server didn't open a connection to a port.
    #[error("can't reach port {port} of pod {pod}: {}; {}", plain(cause), advice(cause, "pods/portforward"))]
    Forward {
        /// Where the port is.
        pod: PodRef,
        /// Which one.
        port: u16,
        /// What kube says of it.
        cause: Box<kube::Error>,
    },
    /// The stream was opened, but the container runtime didn't run the command to an exit code.
    #[error(
        "no exit code for the command in pod {pod}: {message}; check that the program exists in the image and that the container is running"
    )]
    NotRun {
        /// Where the command should have run.
        pod: PodRef,
        /// What the kubelet or the container runtime says.
        message: String,
    },
    /// The connection ended before the exit code came.
    #[error(
        "lost the exec stream to pod {pod}: {reason}; the command may still be running, so look before you run it again"
    )]
    Lost {
        /// Where the command runs.
        pod: PodRef,
        /// What happened to the connection.
        reason: String,
    },
    /// Input was sent to a command that has ended.
    #[error("the command in pod {pod} has ended and takes no more input: read its exit code")]
    InputClosed {
        /// Where the command ran.
        pod: PodRef,
    },
    /// The API server can't tell a command that its input has ended.
    #[error(
        "can't close the input of the command in pod {pod}: the cluster speaks exec protocol v4 only (Kubernetes before 1.30), which has no end of input; tell the command the length instead"
    )]
    CloseUnsupported {
        /// Where the command runs.
        pod: PodRef,
    },
}

fn of(path: Option<&PathBuf>) -> String {
    path.map(|path| format!(" from {}", path.display())).unwrap_or_default()
}

/// The API server's own sentence where there is one: kube's `Display` repeats it as a debug print.
fn plain(cause: &kube::Error) -> String {
    match cause {
        kube::Error::Api(status) if !status.message.is_empty() => {
            format!("{} ({})", status.message, status.code)
        }
        other => other.to_string(),
    }
}

/// What to do when the API server refused the `resource`.
fn advice(cause: &kube::Error, resource: &str) -> String {
    let fixed = match cause {
        kube::Error::Api(status) if status.code == 401 => "log in again, the credentials are not accepted",
        kube::Error::Api(status) if status.code == 403 => {
            return format!(
                "allow get and create on {resource} in that namespace (deploy/rbac has roles that do)"
            );
        }
        kube::Error::Api(status) if status.code == 404 => {
            "the pod is gone, or its name or namespace is another"
        }
        kube::Error::Api(_) => "check with kubectl describe that the pod's container is running",
        _ => "check that the API server can be reached and that every proxy between lets WebSockets through",
    };
    fixed.to_owned()
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    #[test]
    fn a_refused_exec_says_what_the_api_server_said_and_what_to_allow() {
        let status = Status::failure("pods \"box\" is forbidden", "Forbidden").with_code(403);
        let error = Error::Open {
            pod: PodRef::new("agents", "box"),
            cause: Box::new(kube::Error::Api(status.boxed())),
        };
        assert_eq!(
            error.to_string(),
            "can't exec in pod agents/box: pods \"box\" is forbidden (403); \
             allow get and create on pods/exec in that namespace (deploy/rbac has roles that do)"
        );
    }
}
