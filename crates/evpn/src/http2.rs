//! HTTP/2 (RFC 9113) without encryption, as far as a gRPC client needs it: requests of this side,
//! one at a time or beside one that goes on, over a socket that blocks for a bounded time.
//!
//! ```text
//!   request ─► HEADERS, DATA ──►            │ what arrives:
//!   frame   ◄─ HEADERS, DATA ◄── server     │ SETTINGS, PING are answered here,
//!              WINDOW_UPDATE ──►            │ other frames are an Event or passed over
//! ```
//!
//! The server may send [`FRAME_MAX`] bytes in a frame and [`BLOCK_MAX`] in headers, and take
//! [`CALL_MAX`] for a request; more ends the connection. What it sends is credited back at once, so
//! the window is what may be under way.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use crate::hpack;

/// How long the server may keep the client waiting.
pub const TIMEOUT: Duration = Duration::from_secs(10);
/// How long a request may take with its answer, however much of it comes.
const CALL_MAX: Duration = Duration::from_secs(30);
/// The longest frame that a client accepts unless it says otherwise.
const FRAME_MAX: usize = 16_384;
/// The longest header block.
const BLOCK_MAX: usize = 32_768;
/// What a side may send before it is credited more.
const WINDOW: i64 = 65_535;
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;

const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;
const PRIORITY: u8 = 0x20;

const HEADER_TABLE_SIZE: u16 = 1;
const ENABLE_PUSH: u16 = 2;
const INITIAL_WINDOW_SIZE: u16 = 4;

/// What has arrived for a request.
#[derive(Debug)]
pub enum Event {
    /// Headers whose names are not in the standard's table; of a stream that ends, the trailers.
    Headers { stream: u32, headers: Vec<(String, String)>, ends: bool },
    /// Bytes of the response.
    Data { stream: u32, bytes: Vec<u8>, ends: bool },
    /// The server gives the request up.
    Reset { stream: u32, code: u32 },
}

/// A connection.
#[derive(Debug)]
pub struct Connection {
    socket: TcpStream,
    authority: String,
    next_stream: u32,
    /// What may still be sent: on the connection, and at first on a stream.
    window: i64,
    stream_window: i64,
    /// When what goes on now has to be over.
    deadline: Instant,
}

struct Frame {
    kind: u8,
    flags: u8,
    stream: u32,
    payload: Vec<u8>,
}

impl Connection {
    /// Connects.
    ///
    /// # Errors
    /// No server listens there.
    pub fn open(address: SocketAddr) -> io::Result<Self> {
        let mut socket = TcpStream::connect_timeout(&address, TIMEOUT)?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(TIMEOUT))?;
        socket.set_write_timeout(Some(TIMEOUT))?;
        socket.write_all(PREFACE)?;
        let deadline = Instant::now() + CALL_MAX;
        let mut connection = Self {
            socket,
            authority: address.to_string(),
            next_stream: 1,
            window: WINDOW,
            stream_window: WINDOW,
            deadline,
        };
        let none = |name: u16| [&name.to_be_bytes()[..], &[0; 4]].concat();
        let settings = [none(HEADER_TABLE_SIZE), none(ENABLE_PUSH)].concat();
        connection.write(SETTINGS, 0, 0, &settings)?;
        Ok(connection)
    }

    /// Begins to count [`CALL_MAX`] again.
    pub fn begin(&mut self) {
        self.deadline = Instant::now() + CALL_MAX;
    }

    /// Sends a request with this body, and returns the number of its stream.
    ///
    /// # Errors
    /// The connection is over; the body is longer than a window.
    pub fn request(&mut self, path: &str, body: &[u8]) -> io::Result<u32> {
        self.begin();
        let stream = self.next_stream;
        self.next_stream += 2;
        let length = i64::try_from(body.len()).unwrap_or(i64::MAX);
        if length > self.stream_window {
            return Err(protocol("a request does not fit into the server's window"));
        }
        let block = hpack::encode(&[
            (":method", "POST"),
            (":scheme", "http"),
            (":path", path),
            (":authority", &self.authority),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
        ]);
        self.write(HEADERS, END_HEADERS, stream, &block)?;
        while self.window < length {
            self.event()?;
        }
        self.window -= length;
        let last = body.len().saturating_sub(1) / FRAME_MAX;
        for (at, part) in body.chunks(FRAME_MAX).enumerate() {
            self.write(DATA, if at == last { END_STREAM } else { 0 }, stream, part)?;
        }
        Ok(stream)
    }

    /// Waits for the next frame; `None`: it was not for a request.
    ///
    /// # Errors
    /// The connection is over, nothing came in time, or what came is not HTTP/2.
    pub fn event(&mut self) -> io::Result<Option<Event>> {
        let Frame { kind, flags, stream, payload } = self.read()?;
        let ends = flags & END_STREAM != 0;
        match kind {
            DATA => {
                let credit = u32::try_from(payload.len()).expect("a frame has 24 bits");
                self.credit(stream, credit, ends)?;
                let bytes = unpadded(flags, &payload)?.to_vec();
                return Ok(Some(Event::Data { stream, bytes, ends }));
            }
            HEADERS => {
                let block = self.block(flags, stream, &payload)?;
                let headers =
                    hpack::decode(&block).map_err(|error| protocol(&error.to_string()))?;
                return Ok(Some(Event::Headers { stream, headers, ends }));
            }
            RST_STREAM => {
                return Ok(Some(Event::Reset { stream, code: number(&payload)? }));
            }
            SETTINGS if flags & ACK == 0 => self.settings(&payload)?,
            PING if flags & ACK == 0 => self.write(PING, ACK, 0, &payload)?,
            GOAWAY => return Err(io::ErrorKind::ConnectionAborted.into()),
            WINDOW_UPDATE if stream == 0 => self.window += i64::from(number(&payload)?),
            _ => {}
        }
        Ok(None)
    }

    fn settings(&mut self, payload: &[u8]) -> io::Result<()> {
        let (settings, _) = payload.as_chunks::<6>();
        for [high, low, value @ ..] in settings {
            if u16::from_be_bytes([*high, *low]) == INITIAL_WINDOW_SIZE {
                self.stream_window = i64::from(u32::from_be_bytes(*value));
            }
        }
        self.write(SETTINGS, ACK, 0, &[])
    }

    /// Lets the server send as many bytes again.
    fn credit(&mut self, stream: u32, bytes: u32, ends: bool) -> io::Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        self.write(WINDOW_UPDATE, 0, 0, &bytes.to_be_bytes())?;
        match ends {
            true => Ok(()),
            false => self.write(WINDOW_UPDATE, 0, stream, &bytes.to_be_bytes()),
        }
    }

    /// A header block, of which further frames may bring more.
    fn block(&mut self, flags: u8, stream: u32, payload: &[u8]) -> io::Result<Vec<u8>> {
        let mut first = unpadded(flags, payload)?;
        if flags & PRIORITY != 0 {
            first = first.get(5..).ok_or_else(|| protocol("a frame is too short"))?;
        }
        let (mut block, mut flags) = (first.to_vec(), flags);
        while flags & END_HEADERS == 0 {
            let more = self.read()?;
            if (more.kind, more.stream) != (CONTINUATION, stream) || block.len() > BLOCK_MAX {
                return Err(protocol("headers without end"));
            }
            block.extend(more.payload);
            flags = more.flags;
        }
        Ok(block)
    }

    fn read(&mut self) -> io::Result<Frame> {
        let mut header = [0; 9];
        self.fill(&mut header)?;
        let [a, b, c, kind, flags, stream @ ..] = header;
        let length = u32::from_be_bytes([0, a, b, c]) as usize;
        if length > FRAME_MAX {
            return Err(protocol("a frame is too long"));
        }
        let mut payload = vec![0; length];
        self.fill(&mut payload)?;
        Ok(Frame { kind, flags, stream: u32::from_be_bytes(stream) & 0x7fff_ffff, payload })
    }

    /// A server that sends a byte now and then does not hold the process for ever.
    fn fill(&mut self, mut space: &mut [u8]) -> io::Result<()> {
        while !space.is_empty() {
            self.check_time()?;
            match self.socket.read(space) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => space = &mut space[count..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn send(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            self.check_time()?;
            match self.socket.write(bytes) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => bytes = &bytes[count..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn check_time(&self) -> io::Result<()> {
        match Instant::now() < self.deadline {
            true => Ok(()),
            false => Err(io::Error::new(io::ErrorKind::TimedOut, "the server takes too long")),
        }
    }

    fn write(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> io::Result<()> {
        let length = u32::try_from(payload.len()).map_err(|_| protocol("a frame is too long"))?;
        let [_, a, b, c] = length.to_be_bytes();
        let head = [&[a, b, c, kind, flags][..], &stream.to_be_bytes()].concat();
        self.send(&[&head, payload].concat())
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The payload of a frame without its padding.
fn unpadded(flags: u8, payload: &[u8]) -> io::Result<&[u8]> {
    if flags & PADDED == 0 {
        return Ok(payload);
    }
    let padded = payload
        .split_first()
        .and_then(|(padding, rest)| rest.get(..rest.len().checked_sub(usize::from(*padding))?));
    padded.ok_or_else(|| protocol("a frame is shorter than its padding"))
}

/// The number in a frame that is one.
fn number(payload: &[u8]) -> io::Result<u32> {
    let bytes = payload.first_chunk().ok_or_else(|| protocol("a frame is too short"))?;
    Ok(u32::from_be_bytes(*bytes) & 0x7fff_ffff)
}

fn protocol(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why.to_owned())
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// A client, and the server's end of its socket after the preface and the settings.
    fn pair() -> (Connection, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = Connection::open(listener.local_addr().unwrap()).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        let mut start = [0; PREFACE.len() + 9 + 12];
        server.read_exact(&mut start).unwrap();
        assert!(start.starts_with(PREFACE));
        (client, server)
    }

    fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let [_, a, b, c] = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&[a, b, c, kind, flags][..], &stream.to_be_bytes(), payload].concat()
    }

    #[test]
    fn a_response_arrives_and_what_came_is_credited() {
        let (mut client, mut server) = pair();
        assert_eq!(client.request("/a/b", b"question").unwrap(), 1);
        let block = hpack::encode(&[("grpc-status", "0")]);
        server.write_all(&frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 1, 0])).unwrap();
        server.write_all(&frame(DATA, PADDED, 1, &[2, b'h', b'i', 0, 0])).unwrap();
        server.write_all(&frame(HEADERS, END_STREAM, 1, &block[..3])).unwrap();
        server.write_all(&frame(CONTINUATION, END_HEADERS, 1, &block[3..])).unwrap();
        assert!(client.event().unwrap().is_none());
        assert_eq!(client.stream_window, 256);
        let Event::Data { bytes, ends: false, .. } = client.event().unwrap().unwrap() else {
            panic!("no data");
        };
        assert_eq!(bytes, b"hi");
        let Event::Headers { headers, ends: true, .. } = client.event().unwrap().unwrap() else {
            panic!("no trailers");
        };
        assert_eq!(headers, [("grpc-status".to_owned(), "0".to_owned())]);
        drop(client);
        let mut sent = Vec::new();
        server.read_to_end(&mut sent).unwrap();
        let credit = frame(WINDOW_UPDATE, 0, 1, &5u32.to_be_bytes());
        assert!(sent.windows(credit.len()).any(|part| part == credit));
    }

    #[test]
    fn frames_that_cannot_be_right_end_the_connection() {
        let long = frame(DATA, 0, 1, &vec![0; FRAME_MAX + 1]);
        let endless = [frame(HEADERS, 0, 1, &[0; 100]), frame(DATA, 0, 1, &[])].concat();
        for bytes in [
            long,
            endless,
            frame(DATA, PADDED, 1, &[9, 1]),
            frame(DATA, PADDED, 1, &[]),
            frame(HEADERS, END_HEADERS | PRIORITY, 1, &[0; 4]),
            frame(RST_STREAM, 0, 1, &[0; 3]),
            frame(GOAWAY, 0, 0, &[0; 8]),
            frame(HEADERS, END_HEADERS, 1, &[0x40, 0x7f]),
        ] {
            let (mut client, mut server) = pair();
            server.write_all(&bytes).unwrap();
            assert!(client.event().is_err(), "{:?}", &bytes[..9]);
        }
    }

    #[test]
    fn a_server_that_sends_something_all_the_time_does_not_hold_the_process() {
        let (mut client, mut server) = pair();
        let ping = frame(PING, 0, 0, &[0; 8]);
        server.write_all(&ping.repeat(2)).unwrap();
        assert!(client.event().unwrap().is_none());
        client.deadline = Instant::now();
        assert_eq!(client.event().unwrap_err().kind(), io::ErrorKind::TimedOut);
        // The next request has its own time.
        client.request("/a/b", b"question").unwrap();
        assert!(client.event().unwrap().is_none());
    }

    #[test]
    fn a_request_that_no_window_has_room_for_is_not_sent() {
        let (mut client, _server) = pair();
        assert!(client.request("/a/b", &vec![0; 70_000]).is_err());
    }
}
