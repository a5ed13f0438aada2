//! Binding of a guest, repeated after a restart of the guest because commands can change the guest's own record of it.

use std::time::Duration;

use bytes::Bytes;
use sandpod_protocol::Failure;
use sandpod_protocol::v1::{BindRequest, BindResponse, ErrorCode};
use tokio::time::Instant;

use super::attempts::Attempts;
use super::channel::Lost;
use super::stream::{OpenError, Stream, within};
use super::{Connection, check_size};
use crate::error::Error;

/// Time limit for binding a guest again.
const BIND_LIMIT: Duration = Duration::from_secs(30);

/// A Bind that was answered.
pub(super) struct Bound {
    /// Boot id of the guest that was bound.
    boot_id: String,
    /// The request for the next boot.
    request: BindRequest,
    at: Instant,
}

impl Bound {
    /// Keeps the request for a restart, without its files: commands may have changed them since.
    fn new(boot_id: String, request: BindRequest, holds: &BindResponse) -> Self {
        let request =
            BindRequest { files: Vec::new(), policy_sha256: holds.policy_sha256.clone(), ..request };
        Self { boot_id, request, at: Instant::now() }
    }

    /// Returns the request for a restarted guest, with the remaining time to live.
    fn again(&self) -> BindRequest {
        let left = self.request.ttl_seconds.saturating_sub(self.at.elapsed().as_secs()).max(1);
        let ttl_seconds = if self.request.ttl_seconds == 0 { 0 } else { left };
        BindRequest { ttl_seconds, ..self.request.clone() }
    }
}

impl Connection {
    /// Binds the guest now, and again after each restart.
    pub(crate) async fn bind(&self, request: BindRequest) -> Result<BindResponse, Error> {
        check_size(&request)?;
        let mut attempts = Attempts::ask(self, "setting the sandbox up");
        loop {
            let slot = attempts.next().await?;
            let answer = Box::pin(async { slot.channel.session().bind(request.clone()).await });
            if let Some(response) = attempts.answer(answer).await? {
                let response = response.into_inner();
                check_policy(&request.policy_sha256, &response)?;
                let bound = Bound::new(slot.greeting.boot_id.clone(), request, &response);
                self.state().bound = Some(bound);
                self.0.dialer.bound();
                return Ok(response);
            }
        }
    }

    /// Binds a guest that has restarted since it was bound. Runs before any call is sent on `stream`.
    pub(super) async fn bind_again(&self, stream: &Stream) -> Result<(), OpenError> {
        let boot_id = &stream.greeting.boot_id;
        let request = {
            let state = self.state();
            let bound = state.bound.as_ref().filter(|bound| bound.boot_id != *boot_id);
            let Some(bound) = bound else { return Ok(()) };
            bound.again()
        };
        let _active_call = stream.begin_call();
        let session = stream.channel.session();
        let known = request.policy_sha256.clone();
        let bind = async { { session }.bind(request).await };
        let answer = within(BIND_LIMIT, "the restarted guest was not bound", bind).await?;
        let response = answer.map_err(|status| match Lost::reason(&status) {
            Some(reason) => {
                OpenError::Transient(format!("the stream broke before the guest was bound: {reason}"))
            }
            None => OpenError::Permanent(Error::Failure(Failure::from(&status))),
        })?;
        check_policy(&known, response.get_ref()).map_err(OpenError::Permanent)?;
        if let Some(bound) = &mut self.state().bound {
            bound.boot_id.clone_from(boot_id);
        }
        self.0.dialer.bound();
        Ok(())
    }
}

/// Fails if the guest is bound to another policy than before.
fn check_policy(known: &Bytes, response: &BindResponse) -> Result<(), Error> {
    if known.is_empty() || *known == response.policy_sha256 {
        return Ok(());
    }
    let message = "the sandbox's guest has restarted and is bound to another policy than before, so no call is sent to \
                   it: delete the sandbox";
    Err(Error::Failure(Failure::new(ErrorCode::NotYours, message)))
}
