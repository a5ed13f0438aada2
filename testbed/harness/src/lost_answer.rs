//! A client whose call succeeds on the server but loses its response, because the network fails at that moment.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use http::{Method, Request};
use sandpod_kube::kube::Client;
use sandpod_kube::kube::client::Body;
use tokio::sync::oneshot;
use tower::{BoxError, service_fn};

use crate::proxy::FaultProxy;

/// Wraps `client`, which connects through `proxy`. After its first creation of an object of the kind `plural`, the response is
/// lost, all connections are reset and new ones refused. Then the receiver resolves.
///
/// # Panics
///
/// When that creation is refused.
#[must_use]
pub fn lose_first_answer(
    client: Client,
    proxy: Arc<FaultProxy>,
    plural: &'static str,
) -> (Client, oneshot::Receiver<()>) {
    let namespace = client.default_namespace().to_owned();
    let (lost, is_lost) = oneshot::channel();
    let lost = Arc::new(Mutex::new(Some(lost)));
    let service = service_fn(move |request: Request<Body>| {
        let (client, proxy) = (client.clone(), proxy.clone());
        let creates =
            request.method() == Method::POST && request.uri().path().rsplit('/').next() == Some(plural);
        let loses = if creates { lost.lock().unwrap_or_else(PoisonError::into_inner).take() } else { None };
        async move {
            let answer = client.send(request).await?;
            let Some(lost) = loses else { return Ok(answer) };
            assert!(answer.status().is_success(), "{plural} can be created: {answer:?}");
            proxy.set_refusing(true);
            proxy.reset_all();
            let _ = lost.send(());
            Err(BoxError::from(io::Error::from(io::ErrorKind::ConnectionReset)))
        }
    });
    (Client::new(service, namespace), is_lost)
}
