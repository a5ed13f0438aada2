//! A port that serves sandpod's stream in a WebSocket and nothing else, for connections that carry HTTP only.

use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use serde_json::json;
use tonic::body::Body;

use super::websocket;
use crate::Guest;
use crate::activity::Activity;
use crate::stock::http_error::HttpError;
use crate::stock::server::{Api, json};

/// Handles the port's requests.
pub(super) struct WebSocketPort(Guest);

impl WebSocketPort {
    pub(super) fn new(guest: Guest) -> Self {
        Self(guest)
    }
}

impl Api for WebSocketPort {
    const NO_ACTIVITY: &'static [&'static str] = &[websocket::PATH];

    fn activity(&self) -> &Activity {
        self.0.activity()
    }

    async fn answer(&self, request: Request<Incoming>) -> Result<Response<Body>, HttpError> {
        if request.uri().path() == websocket::PATH {
            return websocket::upgrade(request, &self.0).map_err(HttpError::bad_request);
        }
        let message = format!("only {} is answered here", websocket::PATH);
        Err(HttpError::new(StatusCode::NOT_FOUND, message))
    }

    fn error_response(&self, error: HttpError) -> Response<Body> {
        json(error.status, &json!({ "message": error.message }))
    }
}
