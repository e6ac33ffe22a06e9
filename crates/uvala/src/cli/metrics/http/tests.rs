//! What the server does with clients of all kinds.

use std::net::SocketAddr;

use super::*;

/// A server at an address of its own, which says this.
fn server(says: &'static str) -> SocketAddr {
    let server = Server::bind(Place::Tcp("127.0.0.1:0".parse().unwrap())).unwrap();
    let Place::Tcp(address) = *server.place() else { panic!() };
    thread::spawn(move || server.run("text/plain", move || Ok(says.to_owned())));
    address
}

fn ask(address: SocketAddr, request: &[u8]) -> String {
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    stream.write_all(request).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn test_answers_have_a_length_and_an_end() {
    let address = server("numbers\n");
    let answer = ask(address, b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    assert!(answer.contains("Content-Length: 8\r\n") && answer.ends_with("\r\n\r\nnumbers\n"));
    let answer = ask(address, b"HEAD /metrics HTTP/1.0\r\n\r\n");
    assert!(answer.contains("Content-Length: 8\r\n") && answer.ends_with("\r\n\r\n"), "{answer}");
    for (request, status) in [
        (&b"GET /secret HTTP/1.1\r\n\r\n"[..], "404"),
        (b"GET /../metrics HTTP/1.1\r\n\r\n", "404"),
        (b"GET /metrics HTTP/1.1\r\nHost: evil.example\r\n\r\n", "421"),
        (b"PUT /metrics HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", "405"),
        (b"\x16\x03\x01 garbage\r\n\r\n", "400"),
        (&[b'a'; HEAD_MAX + 2048], "431"),
    ] {
        let answer = ask(address, request);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
    }
}

#[test]
fn test_a_socket_of_a_process_that_is_gone_is_replaced_and_no_other_file() {
    let dir = tempfile::tempdir().unwrap();
    let place = |name: &str| Place::Unix(dir.path().join(name));
    drop(Server::bind(place("socket")).unwrap());
    let server = Server::bind(place("socket")).unwrap();
    assert!(Server::bind(place("socket")).is_err(), "a server is there");
    drop(server);
    std::fs::write(dir.path().join("file"), "mine").unwrap();
    assert!(Server::bind(place("file")).is_err());
    assert_eq!(std::fs::read_to_string(dir.path().join("file")).unwrap(), "mine");
}

#[test]
fn test_many_slow_clients_do_not_keep_others_out() {
    let address = server("numbers\n");
    let slow: Vec<_> = (0..4 * OPEN_MAX)
        .map(|_| {
            let mut stream = std::net::TcpStream::connect(address).unwrap();
            stream.write_all(b"GET /metr").unwrap();
            stream
        })
        .collect();
    let answer = ask(address, b"GET /metrics HTTP/1.1\r\n\r\n");
    assert!(answer.ends_with("numbers\n"), "{answer}");
    drop(slow);
}

/// What happens to a connection when no thread can be started for it.
#[test]
fn test_a_connection_that_is_not_served_is_closed() {
    let open = Arc::new(Open::default());
    let (server, mut client) = UnixStream::pair().unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    let entry = Open::enter(&open, 0, &server);
    drop((entry, server));
    assert_eq!(client.read(&mut [0]).unwrap(), 0, "the end");
    assert_eq!(Arc::strong_count(&open), 1);
}

#[test]
fn test_clients_at_once_share_an_answer() {
    let asked = Arc::new(Mutex::new(0));
    let count = asked.clone();
    let source = Source {
        ask: move || {
            *lock(&count) += 1;
            Ok(String::new())
        },
        content_type: "",
        checks_host: false,
        last: Mutex::default(),
    };
    let first = Instant::now();
    source.page().unwrap();
    source.page().unwrap();
    let fresh = first.elapsed() < FRESH;
    assert!(!fresh || *lock(&asked) == 1);
    *lock(&source.last) = Instant::now().checked_sub(FRESH).map(|at| (at, Ok(Arc::default())));
    source.page().unwrap();
    assert!(*lock(&asked) >= 2);
}
