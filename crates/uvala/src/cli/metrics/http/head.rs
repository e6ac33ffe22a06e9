//! The head of a request, as far as it matters (RFC 9112).

use std::fmt;

/// The longest head.
pub const HEAD_MAX: usize = 8 * 1024;

/// The first line of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status(u16, &'static str);

impl Status {
    pub const OK: Self = Self(200, "OK");
    pub const BAD: Self = Self(400, "Bad Request");
    pub const NOT_FOUND: Self = Self(404, "Not Found");
    pub const NOT_ALLOWED: Self = Self(405, "Method Not Allowed");
    pub const TIMEOUT: Self = Self(408, "Request Timeout");
    pub const MISDIRECTED: Self = Self(421, "Misdirected Request");
    pub const TOO_LARGE: Self = Self(431, "Request Header Fields Too Large");
    pub const UNAVAILABLE: Self = Self(503, "Service Unavailable");
    pub const WRONG_VERSION: Self = Self(505, "HTTP Version Not Supported");
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.0, self.1)
    }
}

/// What a client asks for.
#[derive(Debug, PartialEq, Eq)]
pub struct Head<'a> {
    /// The path, without a query.
    pub path: &'a str,
    /// The host that the client means.
    pub host: Option<&'a str>,
}

impl<'a> Head<'a> {
    /// Reads a head; what follows it is not looked at.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Status> {
        let end = bytes.windows(4).position(|bytes| bytes == b"\r\n\r\n").ok_or(Status::BAD)?;
        let text = std::str::from_utf8(&bytes[..end]).map_err(|_| Status::BAD)?;
        let mut lines = text.split("\r\n");
        let words: Vec<&str> = lines.next().unwrap_or_default().split(' ').collect();
        let [method, target, version] = words[..] else { return Err(Status::BAD) };
        match version {
            "HTTP/1.0" | "HTTP/1.1" => {}
            other if other.starts_with("HTTP/") => return Err(Status::WRONG_VERSION),
            _ => return Err(Status::BAD),
        }
        if method != "GET" && method != "HEAD" {
            return Err(Status::NOT_ALLOWED);
        }
        if !target.starts_with('/') {
            return Err(Status::BAD);
        }
        let fields: Option<Vec<_>> = lines.map(|line| line.split_once(':')).collect();
        let fields = fields.ok_or(Status::BAD)?;
        let mut hosts = fields.iter().filter(|(name, _)| name.eq_ignore_ascii_case("host"));
        let host = hosts.next().map(|(_, value)| value.trim());
        // One of two hosts is a trick.
        if hosts.next().is_some() {
            return Err(Status::BAD);
        }
        Ok(Self { path: target.split('?').next().unwrap_or_default(), host })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Head<'_>, Status> {
        Head::parse(text.as_bytes())
    }

    #[test]
    fn test_a_request_has_a_path_and_a_host() {
        let head = parse("GET /metrics?x=1 HTTP/1.1\r\nHOST: localhost:9776 \r\nA: b\r\n\r\nbody");
        assert_eq!(head, Ok(Head { path: "/metrics", host: Some("localhost:9776") }));
        assert_eq!(parse("HEAD / HTTP/1.0\r\n\r\n"), Ok(Head { path: "/", host: None }));
    }

    #[test]
    fn test_what_is_no_request_has_a_status_of_its_own() {
        for (text, status) in [
            ("", Status::BAD),
            ("\r\n\r\n", Status::BAD),
            ("GET /\r\n\r\n", Status::BAD),
            ("GET  / HTTP/1.1\r\n\r\n", Status::BAD),
            ("GET http://x/ HTTP/1.1\r\n\r\n", Status::BAD),
            ("GET / HTTP/1.1\r\nno field\r\n\r\n", Status::BAD),
            ("GET / HTTP/1.1\r\nHost: a\r\nhost: b\r\n\r\n", Status::BAD),
            ("GET / SMTP\r\n\r\n", Status::BAD),
            ("GET / HTTP/2.0\r\n\r\n", Status::WRONG_VERSION),
            ("POST / HTTP/1.1\r\n\r\n", Status::NOT_ALLOWED),
        ] {
            assert_eq!(parse(text), Err(status), "{text:?}");
        }
        assert_eq!(Head::parse(b"GET /\xff HTTP/1.1\r\n\r\n"), Err(Status::BAD));
    }
}
