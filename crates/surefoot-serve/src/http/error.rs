//! Errors in the shape that OpenAI's clients expect.

use std::time::Duration;

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use surefoot::FaultKind;

use crate::engine::EngineError;

/// An answer that is an error.
#[derive(Clone, Debug)]
pub struct ApiError {
    status: StatusCode,
    kind: &'static str,
    message: String,
    code: Option<&'static str>,
    param: Option<String>,
}

const INVALID: &str = "invalid_request_error";
/// The code of errors because a device failed.
pub(super) const DEVICE_FAULT: &str = "device_fault";
/// The code of refusals by a process that ends.
pub(super) const SHUTTING_DOWN: &str = "shutting_down";
/// The code of errors because a thread panicked.
pub(super) const INTERNAL_ERROR: &str = "internal_error";

impl ApiError {
    fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        Self { status, kind, message: message.into(), code: None, param: None }
    }

    /// A value that can't be used.
    pub(super) fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, INVALID, message)
    }

    /// JSON that is not of the shape that is needed.
    pub(super) fn misshapen(message: impl Into<String>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, INVALID, message)
    }

    /// The same with a reason behind it.
    pub(super) fn because(mut self, reason: &str) -> Self {
        self.message = format!("{}: {reason}", self.message);
        self
    }

    pub(super) fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, INVALID, message).code("not_found")
    }

    pub(super) fn method_not_allowed() -> Self {
        Self::new(StatusCode::METHOD_NOT_ALLOWED, INVALID, "this path takes another method")
            .code("method_not_allowed")
    }

    pub(super) fn too_large(limit: usize) -> Self {
        let message = format!("the request is larger than {limit} bytes, the limit of this server");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, INVALID, message).code("request_too_large")
    }

    pub(super) fn not_json() -> Self {
        let message = "the body must be JSON: send the header 'Content-Type: application/json'";
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, INVALID, message).code("not_json")
    }

    pub(super) fn unauthorized() -> Self {
        let message = "the API key is missing or wrong: send 'Authorization: Bearer KEY'";
        Self::new(StatusCode::UNAUTHORIZED, INVALID, message).code("invalid_api_key")
    }

    pub(super) fn draining() -> Self {
        Self::unavailable("the server is shutting down").code(SHUTTING_DOWN)
    }

    pub(super) fn expired(limit: Duration) -> Self {
        let message = format!("the request was not done within {} s", limit.as_secs());
        Self::unavailable(message).code("timeout")
    }

    pub(super) fn slow(limit: Duration) -> Self {
        let message = format!("the body did not come within {} s", limit.as_secs());
        Self::new(StatusCode::REQUEST_TIMEOUT, INVALID, message).code("slow_request")
    }

    pub(super) fn gave_way() -> Self {
        let message = "the body came slowly while other requests waited for its memory";
        Self::new(StatusCode::REQUEST_TIMEOUT, INVALID, message).code("slow_request")
    }

    pub(super) fn unavailable(message: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", message)
    }

    pub(super) fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", message)
    }

    pub(super) fn code(mut self, code: &'static str) -> Self {
        self.code = Some(code);
        self
    }

    pub(super) fn param(mut self, param: impl Into<String>) -> Self {
        self.param = Some(param.into());
        self
    }

    #[cfg(test)]
    pub(super) fn status(&self) -> u16 {
        self.status.as_u16()
    }

    /// `{"error": {…}}`.
    pub(super) fn body(&self) -> Value {
        json!({"error": {
            "message": self.message,
            "type": self.kind,
            "param": self.param,
            "code": self.code,
        }})
    }
}

impl From<EngineError> for ApiError {
    fn from(error: EngineError) -> Self {
        let message = error.to_string();
        match error {
            EngineError::Full(_) => {
                Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", message)
                    .code("queue_full")
            }
            EngineError::Closed => Self::draining(),
            EngineError::Panicked => Self::internal(message).code(INTERNAL_ERROR),
            EngineError::Expired(_) => Self::unavailable(message).code("timeout"),
            EngineError::Request(_) => Self::invalid(message),
            EngineError::Constraint(_) => Self::invalid(message).code("invalid_format"),
            EngineError::NotFinite => Self::internal(message).code("not_finite"),
            EngineError::Model(_) => Self::internal(message).code("model_error"),
            EngineError::Fault(ref fault) if error.is_temporary() => {
                let code = match fault.kind {
                    FaultKind::OutOfMemory => "out_of_memory",
                    _ => DEVICE_FAULT,
                };
                Self::unavailable(message).code(code)
            }
            EngineError::Fault(_) => Self::internal(message).code(DEVICE_FAULT),
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.body())).into_response();
        let headers = response.headers_mut();
        if let Some("timeout" | "not_finite") = self.code {
            // OpenAI's clients would ask twice more, and wait as long for the same.
            headers.insert("x-should-retry", HeaderValue::from_static("false"));
            return response;
        }
        match self.status {
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
                headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
            }
            StatusCode::UNAUTHORIZED => {
                headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            _ => {}
        }
        response
    }
}
