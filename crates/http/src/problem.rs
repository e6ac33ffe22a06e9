//! Errors, as problem details (RFC 9457).

use axum::body::Body;
use axum::http::header::{CONTENT_TYPE, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use client::control::ControlError;
use protocol::ErrorCode;
use protocol::name::NameError;
use serde::Serialize;
use utoipa::ToSchema;

/// An error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct Problem {
    /// What the status means.
    title: String,
    /// Status of the answer.
    status: u16,
    /// A word for programs: the code of the control API, or `no_daemon`, `timeout`, `token`,
    /// `host`, `origin`, `busy`.
    code: String,
    /// A line for people: what is wrong, and what to do. The command line says the same.
    detail: String,
}

impl Problem {
    /// A problem.
    pub fn new(status: StatusCode, code: &str, detail: impl Into<String>) -> Self {
        let title = status.canonical_reason().unwrap_or_default().to_owned();
        Self { title, status: status.as_u16(), code: code.to_owned(), detail: detail.into() }
    }

    /// What the caller sent means nothing.
    pub fn bad_request(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad_request", detail)
    }

    /// No more can be done at once.
    pub fn busy(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "busy", detail)
    }
}

impl From<NameError> for Problem {
    fn from(error: NameError) -> Self {
        Self::new(StatusCode::BAD_REQUEST, &word(ErrorCode::BadName), error.to_string())
    }
}

impl From<ControlError> for Problem {
    fn from(error: ControlError) -> Self {
        let detail = error.to_string();
        let (status, code) = match error {
            ControlError::Refused(failure) => (status(failure.code), word(failure.code)),
            ControlError::NoDaemon(_) | ControlError::Lost(_) => {
                (StatusCode::SERVICE_UNAVAILABLE, "no_daemon".to_owned())
            }
            ControlError::Timeout(_) => (StatusCode::GATEWAY_TIMEOUT, "timeout".to_owned()),
            ControlError::Permission(_) | ControlError::Untrusted { .. } => {
                (StatusCode::FORBIDDEN, word(ErrorCode::Permission))
            }
            ControlError::NoDescriptors => {
                (StatusCode::SERVICE_UNAVAILABLE, word(ErrorCode::NoMemory))
            }
            ControlError::Protocol(_) | ControlError::Io { .. } => {
                (StatusCode::BAD_GATEWAY, word(ErrorCode::Internal))
            }
        };
        Self::new(status, &code, detail)
    }
}

impl From<client::Error> for Problem {
    fn from(error: client::Error) -> Self {
        let detail = error.to_string();
        match error {
            client::Error::Control(error) => error.into(),
            client::Error::Lost(_) => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "no_daemon", detail)
            }
            client::Error::CaptureEnded(_) | client::Error::Deleted(_) => {
                Self::new(StatusCode::NOT_FOUND, &word(ErrorCode::NotFound), detail)
            }
            _ => Self::new(StatusCode::BAD_GATEWAY, &word(ErrorCode::Internal), detail),
        }
    }
}

/// The status for a code of the daemon.
fn status(code: ErrorCode) -> StatusCode {
    match code {
        ErrorCode::BadName => StatusCode::BAD_REQUEST,
        ErrorCode::NotFound => StatusCode::NOT_FOUND,
        ErrorCode::Exists | ErrorCode::InUse => StatusCode::CONFLICT,
        ErrorCode::Permission | ErrorCode::Quota => StatusCode::FORBIDDEN,
        ErrorCode::NoMemory | ErrorCode::NotKept => StatusCode::INSUFFICIENT_STORAGE,
        ErrorCode::BadRequest | ErrorCode::Unsupported => StatusCode::UNPROCESSABLE_ENTITY,
        ErrorCode::Internal => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// The word for a code, as messages of the control API have it.
fn word(code: ErrorCode) -> String {
    match serde_json::to_value(code) {
        Ok(serde_json::Value::String(word)) => word,
        other => unreachable!("a code is a word: {other:?}"),
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let text = serde_json::to_string(&self).unwrap_or_default();
        let mut response = Response::new(Body::from(text));
        *response.status_mut() = StatusCode::from_u16(self.status).unwrap_or_default();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use protocol::Failure;

    use super::*;

    #[test]
    fn a_refusal_keeps_its_code_and_its_words() {
        let refused = |code| Problem::from(ControlError::from(Failure::new(code, "do this")));
        let problem = refused(ErrorCode::NotFound);
        assert_eq!(
            (problem.status, &*problem.code, &*problem.detail),
            (404, "not_found", "do this")
        );
        assert_eq!(refused(ErrorCode::InUse).status, 409);
        let problem = Problem::from(ControlError::NoDaemon("/x/uvala.sock".into()));
        assert_eq!((problem.status, &*problem.code), (503, "no_daemon"));
        assert!(problem.detail.contains("start one with"), "{}", problem.detail);
    }
}
