//! Who the guest works for, and what it has done for them.

pub(crate) mod binding;
pub(crate) mod records;

use std::sync::Arc;

use sandpod_protocol::v1::session_server::Session;
use sandpod_protocol::v1::{
    BindRequest, BindResponse, ErrorCode, ExtendRequest, ExtendResponse, HelloRequest, HelloResponse,
    StatsRequest, StatsResponse,
};
use sandpod_protocol::{Failure, VERSIONS};
use tonic::{Request, Response, Status};

use binding::Binding;
use records::Records;

/// The longest name of a session or claim.
const MAX_NAME_BYTES: usize = 256;

/// Greets clients and binds the guest to its owner.
pub(crate) struct SessionService {
    boot_id: String,
    records: Records,
    binding: Arc<Binding>,
}

impl SessionService {
    pub(crate) fn new(boot_id: String, records: Records, binding: Arc<Binding>) -> Self {
        Self { boot_id, records, binding }
    }
}

#[tonic::async_trait]
impl Session for SessionService {
    async fn hello(&self, request: Request<HelloRequest>) -> Result<Response<HelloResponse>, Status> {
        let request = request.into_inner();
        let version = common_version(request.min_version, request.max_version)?;
        check_name("session", &request.session)?;
        Ok(Response::new(HelloResponse {
            version,
            boot_id: self.boot_id.clone(),
            session_known: self.records.greet(&request.session),
            capabilities: Vec::new(),
            guest_version: env!("CARGO_PKG_VERSION").to_owned(),
            claim: self.binding.claim().unwrap_or_default(),
            enforced: None,
        }))
    }

    async fn bind(&self, request: Request<BindRequest>) -> Result<Response<BindResponse>, Status> {
        let request = request.into_inner();
        check_name("claim", &request.claim)?;
        self.binding.bind(request)?;
        Ok(Response::new(BindResponse::default()))
    }

    async fn stats(&self, _: Request<StatsRequest>) -> Result<Response<StatsResponse>, Status> {
        Err(Status::unimplemented("not yet"))
    }

    async fn extend(&self, request: Request<ExtendRequest>) -> Result<Response<ExtendResponse>, Status> {
        let ExtendRequest { claim, ttl_seconds } = request.into_inner();
        self.binding.extend(&claim, ttl_seconds)?;
        Ok(Response::new(ExtendResponse {}))
    }
}

/// The newest version that both speak.
fn common_version(min: u32, max: u32) -> Result<u32, Failure> {
    let (oldest, newest) = (*VERSIONS.start(), *VERSIONS.end());
    let common = max.min(newest);
    if min <= max && common >= min.max(oldest) {
        return Ok(common);
    }
    Err(Failure::new(
        ErrorCode::Unsupported,
        format!(
            "the client speaks protocol versions {min} to {max} and this guest {oldest} to {newest}: \
             use releases of sandpod that are closer together"
        ),
    ))
}

fn check_name(what: &str, name: &str) -> Result<(), Failure> {
    if (1..=MAX_NAME_BYTES).contains(&name.len()) {
        return Ok(());
    }
    let message = format!("a {what} is named by 1 to {MAX_NAME_BYTES} bytes, not by {}", name.len());
    Err(Failure::new(ErrorCode::InvalidArgument, message))
}
