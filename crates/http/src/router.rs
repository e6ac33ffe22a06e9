//! Everything that the server answers to.

use std::path::PathBuf;
use std::sync::Arc;

use axum::Router;
use axum::http::StatusCode;
use axum::middleware::from_fn_with_state;
use axum::routing::get;

use crate::api::{Api, document, json, operations};
use crate::guard::{self, Guard};
use crate::page;
use crate::problem::Problem;
use crate::streams;

/// A router for a daemon, whose socket may be in a directory that was chosen.
pub fn router(dir: Option<PathBuf>, guard: Guard) -> Router {
    let (router, document) = operations().merge(streams::operations()).split_for_parts();
    let document = document::complete(document);
    page::add(router)
        .route(page::DOCUMENT, get(move || async move { json(&document) }))
        .fallback(async || Problem::new(StatusCode::NOT_FOUND, "not_found", "no such page"))
        .method_not_allowed_fallback(async || {
            let detail = "this path has other methods: see /openapi.json";
            Problem::new(StatusCode::METHOD_NOT_ALLOWED, "bad_request", detail)
        })
        .with_state(Arc::new(Api::new(dir)))
        .layer(from_fn_with_state(Arc::new(guard), guard::check))
}
