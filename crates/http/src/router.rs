//! Everything that the server answers to.

use std::sync::Arc;

use axum::Router;
use axum::http::StatusCode;
use axum::middleware::from_fn_with_state;
use axum::routing::get;

use crate::api::{Shared, document, json, operations};
use crate::guard::{self, Guard};
use crate::page;
use crate::problem::Problem;
use crate::{frames, streams};

/// A router for a daemon.
pub fn router(api: Shared, guard: Guard) -> Router {
    let operations = operations().merge(streams::operations()).merge(frames::operations());
    let (router, document) = operations.split_for_parts();
    let document = document::complete(document);
    page::add(router)
        .route(page::DOCUMENT, get(move || async move { json(&document) }))
        .fallback(async || Problem::new(StatusCode::NOT_FOUND, "not_found", "no such page"))
        .method_not_allowed_fallback(async || {
            let detail = "this path has other methods: see /openapi.json";
            Problem::new(StatusCode::METHOD_NOT_ALLOWED, "bad_request", detail)
        })
        .with_state(api)
        .layer(from_fn_with_state(Arc::new(guard), guard::check))
}
