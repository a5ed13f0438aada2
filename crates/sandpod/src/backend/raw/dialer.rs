//! Streams to the guest in one Pod.

use futures::FutureExt as _;
use futures::future::BoxFuture;
use sandpod_client::{ByteStream, DialError, Dialer};
use sandpod_kube::exec::{self, PodRef};
use sandpod_kube::k8s_openapi::api::core::v1::Pod;
use sandpod_kube::kube::{self, Api, Client};

use super::api::within;
use super::guest::BOOT;
use super::loss::loss;
use crate::config::{CONTAINER, GUEST_DIR};
use crate::{Error, ErrorKind, SandboxId};

/// Opens streams to the guest in the Pod with this UID, and in no other of its name.
pub(super) struct PodDialer {
    pub(super) client: Client,
    pub(super) pods: Api<Pod>,
    pub(super) pod: PodRef,
    pub(super) uid: String,
    pub(super) id: SandboxId,
}

impl Dialer for PodDialer {
    fn dial(&self) -> BoxFuture<'_, Result<Box<dyn ByteStream>, DialError>> {
        self.open().boxed()
    }
}

impl PodDialer {
    async fn open(&self) -> Result<Box<dyn ByteStream>, DialError> {
        let pod = within(self.pods.get_opt(&self.pod.name)).await;
        let pod = pod.map_err(|cause| refused(&format!("read Pod '{}'", self.pod.name), &cause))?;
        if let Some(reason) = loss(pod.as_ref(), &self.pod.namespace, &self.pod.name, &self.uid) {
            return Err(DialError::Gone(format!("{reason} Sandbox '{}' may have been deleted", self.id)));
        }
        let pipe = [format!("{GUEST_DIR}/{BOOT}"), "pipe".to_owned()];
        match exec::stream(&self.client, &self.pod, CONTAINER, pipe).await {
            Ok(stream) => Ok(Box::new(stream)),
            Err(sandpod_kube::Error::Open { cause, .. }) => {
                Err(refused(&format!("exec in Pod '{}'", self.pod.name), &cause))
            }
            Err(error) => Err(DialError::Unreachable(error.to_string())),
        }
    }
}

fn refused(what: &str, cause: &kube::Error) -> DialError {
    let error = Error::api(what, cause);
    match error.kind() {
        ErrorKind::Denied => DialError::Denied(error.to_string()),
        // The next dial finds out whether the Pod is gone or only its container.
        _ => DialError::Unreachable(error.message().to_owned()),
    }
}
