//! `uvala-http`, and callers of it that speak HTTP themselves.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::chown;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStderr, Command, Stdio};

use serde_json::{Value, json};

use crate::daemon::Daemon;
use crate::process::{Owned, Scratch, for_everybody, uvala_path};
use crate::wait;

/// A `uvala-http` of a daemon, at a socket and at an address.
#[derive(Debug)]
pub struct Http {
    /// The process.
    pub process: Owned,
    /// What it says after its places.
    pub log: BufReader<ChildStderr>,
    /// Where its UNIX socket is.
    pub socket: PathBuf,
    /// Address and port.
    pub address: String,
    /// A directory, with the file `tokens`.
    pub place: Scratch,
    /// A token that may look.
    pub read: String,
    /// A token that may change things.
    pub write: String,
}

/// What a server answered.
#[derive(Debug)]
pub struct Answer {
    /// The status; 0: there was no answer.
    pub status: u16,
    /// The first lines.
    pub head: String,
    /// What follows them.
    pub body: String,
}

impl Answer {
    /// The body.
    ///
    /// # Panics
    /// If it is no JSON.
    #[must_use]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The words of a problem of this status and code.
    ///
    /// # Panics
    /// If it is another answer.
    pub fn problem(&self, status: u16, code: &str) -> String {
        let problem = self.json();
        assert!(self.head.contains("application/problem+json"), "{self:?}");
        assert_eq!((self.status, &problem["code"]), (status, &json!(code)), "{self:?}");
        assert_eq!(problem["status"], status);
        problem["detail"].as_str().expect("words").to_owned()
    }
}

/// The program.
#[must_use]
pub fn program() -> Command {
    Command::new(uvala_path().with_file_name("uvala-http"))
}

/// Makes a token.
///
/// # Panics
/// If the program fails.
#[must_use]
pub fn token(file: &Path, words: &[&str]) -> String {
    let output = program().arg("token").args(words).arg(file).output().expect("a program");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).expect("text").trim().to_owned()
}

impl Http {
    /// Starts one.
    #[must_use]
    pub fn start(daemon: &Daemon) -> Self {
        Self::start_with(daemon, None, &[])
    }

    /// Starts one as another user, with more arguments.
    ///
    /// # Panics
    /// If it does not say where it listens.
    #[must_use]
    pub fn start_with(daemon: &Daemon, user: Option<u32>, more: &[&str]) -> Self {
        let place = Scratch::new("http");
        let tokens = place.path().join("tokens");
        let [read, write] = [&["a"][..], &["b", "--write"]].map(|words| token(&tokens, words));
        let socket = place.path().join("http.sock");
        let mut command = program();
        if let Some(user) = user {
            for path in [place.path(), &tokens] {
                chown(path, Some(user), Some(user)).expect("root");
            }
            command = Command::new(for_everybody(Path::new(command.get_program())));
            command.uid(user).gid(user).current_dir("/");
        }
        command.arg("--dir").arg(daemon.dir()).arg("--tokens").arg(&tokens).args(more);
        command.args(["--listen=127.0.0.1:0", &format!("--listen=unix:{}", socket.display())]);
        let mut process = Owned::spawn(command.stdin(Stdio::null()).stderr(Stdio::piped()));
        let mut log = BufReader::new(process.stderr());
        let mut line = || {
            let mut line = String::new();
            log.read_line(&mut line).expect("text");
            line.trim().strip_prefix("uvala-http: listens at ").expect(&line).to_owned()
        };
        let address = line().strip_prefix("http://").expect("an address").to_owned();
        assert_eq!(line(), format!("unix:{}", socket.display()));
        Self { process, log, socket, address, place, read, write }
    }

    /// Asks at the socket.
    ///
    /// # Panics
    /// If there is no server.
    pub fn ask(&self, method: &str, path: &str, body: Option<Value>) -> Answer {
        exchange(
            UnixStream::connect(&self.socket).expect("a server"),
            &request(method, path, "", body),
        )
    }

    /// Asks at the socket for what is there.
    pub fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, None)
    }

    /// Asks at the address, with more lines in the head.
    pub fn ask_tcp(&self, method: &str, path: &str, lines: &str, body: Option<Value>) -> Answer {
        self.send(request(method, path, lines, body))
    }

    /// Sends bytes to the address.
    ///
    /// # Panics
    /// If there is no server.
    pub fn send(&self, bytes: impl AsRef<[u8]>) -> Answer {
        exchange(TcpStream::connect(&self.address).expect("a server"), bytes.as_ref())
    }

    /// Reads a stream of the API.
    ///
    /// # Panics
    /// If there is no server.
    #[must_use]
    pub fn listen(&self, path: &str) -> Messages {
        let mut stream = UnixStream::connect(&self.socket).expect("a server");
        stream.set_read_timeout(Some(wait::PATIENCE)).unwrap();
        stream.write_all(&request("GET", path, "", None)).unwrap();
        Messages(BufReader::new(stream))
    }

    /// The line of the head for a token.
    #[must_use]
    pub fn bearer(token: &str) -> String {
        format!("Authorization: Bearer {token}\r\n")
    }
}

/// A stream of messages.
#[derive(Debug)]
pub struct Messages(BufReader<UnixStream>);

impl Messages {
    /// The first line of the answer.
    ///
    /// # Panics
    /// If it does not come.
    pub fn status(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).expect("a status");
        line
    }

    /// The data of the next message.
    ///
    /// # Panics
    /// If the stream has ended.
    pub fn data(&mut self) -> Value {
        self.message().expect("a message").1
    }

    /// Type and data of the next message; `None`: the stream has ended.
    ///
    /// # Panics
    /// If the data is no JSON.
    pub fn message(&mut self) -> Option<(String, Value)> {
        let (mut kind, mut data) = ("message".to_owned(), None);
        loop {
            let mut line = String::new();
            if self.0.read_line(&mut line).expect("a message") == 0 {
                return None;
            }
            if let Some(name) = line.strip_prefix("event: ") {
                name.trim().clone_into(&mut kind);
            } else if let Some(text) = line.strip_prefix("data: ") {
                data = Some(serde_json::from_str(text).expect(text));
            } else if line == "\n"
                && let Some(data) = data.take()
            {
                return Some((kind, data));
            }
        }
    }
}

/// The bytes of a request.
#[must_use]
pub fn request(method: &str, path: &str, lines: &str, body: Option<Value>) -> Vec<u8> {
    let host = if lines.contains("Host:") { "" } else { "Host: localhost\r\n" };
    let (kind, text) = match body {
        Some(body) => ("Content-Type: application/json\r\n", body.to_string()),
        None => ("", String::new()),
    };
    let length = text.len();
    format!(
        "{method} {path} HTTP/1.1\r\n{host}{lines}{kind}Content-Length: {length}\r\n\
         Connection: close\r\n\r\n{text}"
    )
    .into_bytes()
}

/// Sends a request, and reads the answer to its end.
pub fn exchange(mut stream: impl Read + Write, request: &[u8]) -> Answer {
    // A server that refuses a request may close before it has read all of it.
    let _ = stream.write_all(request);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    Answer { status, head: head.to_owned(), body: body.to_owned() }
}
