//! What a request says, as types of the control API.

use std::time::Duration;

use axum::body::to_bytes;
use axum::extract::{FromRequest, FromRequestParts, RawPathParams, Request};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::http::request::Parts;
use protocol::MAX_MESSAGE;
use protocol::name::{NameError, PortName, SwitchName};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::problem::Problem;

/// The time that a caller has to send a body.
const PATIENCE: Duration = Duration::from_secs(10);

/// What the path and the query ask for, both by the names of the type's fields.
#[derive(Debug)]
pub struct Parameters<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Parameters<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let path = RawPathParams::from_request_parts(parts, state).await;
        let path = path.map_err(|error| Problem::bad_request(error.body_text()))?;
        let path: Vec<(&str, &str)> = path.iter().collect();
        let named = serde_urlencoded::to_string(&path).unwrap_or_default();
        let text = [&named, parts.uri.query().unwrap_or_default()].join("&");
        serde_urlencoded::from_str(text.trim_matches('&')).map(Self).map_err(|error| {
            let value = |key: &str| Some(path.iter().find(|(name, _)| *name == key)?.1);
            refused(value, error.to_string())
        })
    }
}

/// The body, which is JSON.
#[derive(Debug)]
pub struct JsonBody<T>(pub T);

impl<S: Sync, T: DeserializeOwned> FromRequest<S> for JsonBody<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        let kind = request.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        // A form of a foreign page can send text, but not this type.
        if kind.and_then(|kind| kind.split(';').next()) != Some("application/json") {
            let detail = "send JSON, with the header Content-Type: application/json";
            return Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "bad_request", detail));
        }
        let body = tokio::time::timeout(PATIENCE, to_bytes(request.into_body(), MAX_MESSAGE)).await;
        let late =
            |_| Problem::new(StatusCode::REQUEST_TIMEOUT, "timeout", "the body came too slowly");
        let long = |_| {
            let detail = format!("the body is longer than {MAX_MESSAGE} bytes, or broke off");
            Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "bad_request", detail)
        };
        let bytes = body.map_err(late)?.map_err(long)?;
        let value: Value = serde_json::from_slice(&bytes)
            .map_err(|error| Problem::bad_request(format!("the body is no JSON: {error}")))?;
        // An error of a value has the daemon's own words, without a line and a column.
        T::deserialize(&value).map(Self).map_err(|error| {
            refused(|key| value.get(key).and_then(Value::as_str), error.to_string())
        })
    }
}

/// Why values are refused: a wrong name first.
fn refused<'a>(value: impl Fn(&str) -> Option<&'a str>, error: String) -> Problem {
    let wrong = |error: NameError| Problem::from(error);
    let switch = value("switch").and_then(|name| name.parse::<SwitchName>().err());
    let port = || value("port").and_then(|name| name.parse::<PortName>().err());
    switch.or_else(port).map_or_else(|| Problem::bad_request(error), wrong)
}
