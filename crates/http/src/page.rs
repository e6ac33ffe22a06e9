//! The web page: files that are part of the program.

use axum::Router;
use axum::http::header::CONTENT_TYPE;
use axum::routing::get;

/// Where the description of the API is.
pub const DOCUMENT: &str = "/openapi.json";

/// Path, content type and content of each file.
pub const FILES: [(&str, &str, &str); 10] = [
    ("/", "text/html; charset=utf-8", include_str!("../page/index.html")),
    ("/style.css", "text/css; charset=utf-8", include_str!("../page/style.css")),
    ("/app.js", "text/javascript; charset=utf-8", include_str!("../page/app.js")),
    ("/api.js", "text/javascript; charset=utf-8", include_str!("../page/api.js")),
    ("/frames.js", "text/javascript; charset=utf-8", include_str!("../page/frames.js")),
    ("/html.js", "text/javascript; charset=utf-8", include_str!("../page/html.js")),
    ("/live.js", "text/javascript; charset=utf-8", include_str!("../page/live.js")),
    ("/map.js", "text/javascript; charset=utf-8", include_str!("../page/map.js")),
    ("/views.js", "text/javascript; charset=utf-8", include_str!("../page/views.js")),
    ("/icon.svg", "image/svg+xml", include_str!("../page/icon.svg")),
];

/// Adds the page to a router.
pub fn add<S: Clone + Send + Sync + 'static>(router: Router<S>) -> Router<S> {
    FILES.iter().fold(router, |router, &(path, kind, text)| {
        router.route(path, get(move || async move { ([(CONTENT_TYPE, kind)], text) }))
    })
}
