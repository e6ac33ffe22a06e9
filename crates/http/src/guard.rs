//! Access: which requests are let in.
//!
//! A web page can make its reader's browser ask a server on the reader's own machine. The browser
//! says so: in `Host` stands the name of the page, even if its owner has pointed that here (DNS
//! rebinding), in `Origin` the page. Neither is enough to do anything, for there are no cookies and
//! a foreign page has no token; but a server that does not answer cannot be wrong.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::extract::{Request, State};
use axum::http::header::{
    AUTHORIZATION, CACHE_CONTROL, CONTENT_SECURITY_POLICY, HOST, HeaderName, ORIGIN,
    REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use terminal::place::{host_name, is_own};

use crate::page;
use crate::problem::Problem;
use crate::tokens::{Right, Tokens};

/// The other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caller {
    /// This process's user or root, by a UNIX socket.
    Own,
    /// Another user, by a UNIX socket.
    Foreign(u32),
    /// Any user of this machine, by TCP.
    Unknown,
}

/// A connection, as requests know it.
#[derive(Debug)]
pub struct Visitor {
    /// The other end.
    pub caller: Caller,
    /// Whether a request was let in. Written here, read when connections are too many; no other
    /// memory depends on it.
    pub known: AtomicBool,
}

/// The rules.
#[derive(Debug)]
pub struct Guard {
    tokens: Tokens,
    /// Names of a reverse proxy.
    hosts: Vec<String>,
}

/// What every answer says: a page may load and ask nothing but what is here.
const HEADERS: [(HeaderName, &str); 6] = [
    (
        CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src \
         'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (CACHE_CONTROL, "no-store"),
    (REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
];

/// Checks a request before all else.
pub async fn check(State(guard): State<Arc<Guard>>, mut request: Request, next: Next) -> Response {
    let mut response = match guard.judge(&request) {
        Ok(right) => {
            if let Some(right) = right {
                request.extensions_mut().insert(right);
            }
            next.run(request).await
        }
        Err(problem) => problem.into_response(),
    };
    for (name, value) in HEADERS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

impl Guard {
    /// Rules for callers with these tokens.
    pub fn new(tokens: Tokens, hosts: &[String]) -> Self {
        Self { tokens, hosts: hosts.to_vec() }
    }

    /// What the caller may do. `None`: what all may read.
    fn judge(&self, request: &Request) -> Result<Option<Right>, Problem> {
        let visitor = request.extensions().get::<Arc<Visitor>>();
        let caller = visitor.map_or(Caller::Unknown, |visitor| visitor.caller);
        if let Caller::Foreign(user) = caller {
            let detail = format!(
                "user {user} may not use this socket: it has the rights of another user; run a \
                 server of your own: uvala-http"
            );
            return Err(Problem::new(StatusCode::FORBIDDEN, "permission", detail));
        }
        let host = host(request)?;
        // No browser reaches a UNIX socket under a name, so there it may be any.
        if caller == Caller::Unknown && !self.is_host(host) {
            let detail = "this server has another name; if a reverse proxy has this one, start it \
                          with --host NAME";
            return Err(Problem::new(StatusCode::MISDIRECTED_REQUEST, "host", detail));
        }
        if is_public(request.uri().path()) {
            return Ok(None);
        }
        check_origin(request, host)?;
        let right = match caller {
            Caller::Own => Right::Write,
            Caller::Foreign(_) | Caller::Unknown => self.check_token(request)?,
        };
        if let Some(visitor) = visitor {
            visitor.known.store(true, Ordering::Relaxed);
        }
        Ok(Some(right))
    }

    fn is_host(&self, host: &str) -> bool {
        is_own(host) || self.hosts.iter().any(|own| own.eq_ignore_ascii_case(host_name(host)))
    }

    fn check_token(&self, request: &Request) -> Result<Right, Problem> {
        let refused = |detail| Err(Problem::new(StatusCode::UNAUTHORIZED, "token", detail));
        let Some(shown) = one(request, &AUTHORIZATION)?.and_then(bearer) else {
            return refused("this needs a token: send the header Authorization: Bearer TOKEN");
        };
        let is_look = matches!(*request.method(), Method::GET | Method::HEAD);
        match self.tokens.right(shown) {
            None => refused(
                "no such token; make one (uvala-http token NAME FILE), and start uvala-http again",
            ),
            Some(Right::Read) if !is_look => {
                let detail =
                    "this token may only look; make one with: uvala-http token NAME --write FILE";
                Err(Problem::new(StatusCode::FORBIDDEN, "token", detail))
            }
            Some(right) => Ok(right),
        }
    }
}

/// What all may read: it says nothing of the switches.
fn is_public(path: &str) -> bool {
    path == page::DOCUMENT || page::FILES.iter().any(|(name, ..)| *name == path)
}

/// The only value of a header; two are a trick.
fn one<'a>(request: &'a Request, name: &HeaderName) -> Result<Option<&'a str>, Problem> {
    let mut values = request.headers().get_all(name).iter();
    let value = values.next().map(HeaderValue::to_str).transpose();
    match (value, values.next()) {
        (Ok(value), None) => Ok(value),
        _ => Err(Problem::bad_request(format!("send one header {name}, in ASCII"))),
    }
}

/// The host that the caller means.
fn host(request: &Request) -> Result<&str, Problem> {
    if request.uri().authority().is_some() {
        return Err(Problem::bad_request("this is no proxy: ask for a path"));
    }
    one(request, &HOST)?.ok_or_else(|| Problem::bad_request("send the header Host"))
}

/// Refuses requests of pages of other servers.
fn check_origin(request: &Request, host: &str) -> Result<(), Problem> {
    let own = |origin: &str| {
        let name = origin.strip_prefix("http://").or(origin.strip_prefix("https://"));
        name.is_some_and(|name| name.eq_ignore_ascii_case(host))
    };
    let origin = one(request, &ORIGIN)?;
    let site = one(request, &HeaderName::from_static("sec-fetch-site"))?;
    match origin.is_none_or(own) && !matches!(site, Some("cross-site" | "same-site")) {
        true => Ok(()),
        false => {
            let detail = "pages of other servers may not ask this one";
            Err(Problem::new(StatusCode::FORBIDDEN, "origin", detail))
        }
    }
}

fn bearer(value: &str) -> Option<&str> {
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}
