//! Calls of the control API as they stand in its messages.

use axum::extract::State;
use protocol::Request;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{Answer, Shared};
use crate::extract::JsonBody;

/// The operation that makes any call of the control API.
pub fn operations() -> OpenApiRouter<Shared> {
    OpenApiRouter::new().routes(routes!(call))
}

/// Makes any call of the control API, such as `{"switch_compare": {"switch": "vale0"}}`.
///
/// The answer is the reply without its name in front, or status 204 if the daemon is done and has
/// nothing to say. Calls that attach ports or listen belong to a connection, and are refused.
#[utoipa::path(
    post, path = "/v1/calls", tag = "calls",
    request_body(content = serde_json::Value, description = "docs/spec/control-api.md"),
    responses(
        (status = 200, body = serde_json::Value, description = "The reply"),
        (status = 204, description = "Done"),
    )
)]
async fn call(State(api): State<Shared>, JsonBody(request): JsonBody<Request>) -> Answer {
    api.answer(request).await
}
