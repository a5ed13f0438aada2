//! Opens streams to the guest in one Pod.

use futures::FutureExt as _;
use futures::future::BoxFuture;
use sandpod_client::{ByteStream, DialError, Dialer};
use sandpod_kube::exec::{self, PodRef};
use sandpod_kube::kube;

use super::{Raw, push};
use crate::backend::GuestDelivery;
use crate::backend::kubernetes::api::within;
use crate::backend::kubernetes::guest::BOOT;
use crate::backend::kubernetes::loss::loss;
use crate::config::{CONTAINER, GUEST_DIR};
use crate::{Error, ErrorKind, SandboxId};

/// Opens streams to the guest in the Pod with this UID. A later Pod of the same name is refused.
pub(super) struct PodDialer {
    pub(super) raw: Raw,
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
        let pod = within(self.raw.0.pods.get_opt(&self.pod.name)).await;
        let pod = pod.map_err(|cause| refused(&format!("read Pod '{}'", self.pod.name), &cause))?;
        if let Some(reason) = loss(pod.as_ref(), &self.pod.namespace, &self.pod.name, &self.uid) {
            return Err(DialError::Gone(format!("{reason} Sandbox '{}' may have been deleted", self.id)));
        }
        let pushed = pod
            .as_ref()
            .and_then(GuestDelivery::of)
            .is_some_and(|(delivery, _)| delivery == GuestDelivery::Push);
        let dir = if pushed { push::start(&self.raw, &self.pod).await } else { Ok(GUEST_DIR) };
        let dir = dir.map_err(|error| DialError::Unreachable(error.to_string()))?;
        let pipe = [format!("{dir}/{BOOT}"), "pipe".to_owned()];
        match exec::stream(&self.raw.0.client, &self.pod, CONTAINER, pipe).await {
            Ok(stream) => Ok(Box::new(stream)),
            Err(sandpod_kube::Error::Open { cause, .. }) => {
                Err(refused(&format!("exec in Pod '{}'", self.pod.name), &cause))
            }
            Err(error) => Err(DialError::Unreachable(error.to_string())),
        }
    }
}

pub(super) fn refused(what: &str, cause: &kube::Error) -> DialError {
    let error = Error::api(what, cause);
    match error.kind() {
        ErrorKind::Denied => DialError::Denied(error.to_string()),
        // The next dial finds out whether the Pod is gone or only its container.
        _ => DialError::Unreachable(error.message().to_owned()),
    }
}
