//! The peer of a `stream` or `dgram` port that registers its socket in very many epoll sets.

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use harness::frames::announcement;
use harness::role::{Report, SocketAttack};

/// How long it waits for a frame before it looks whether it is to end.
const PATIENCE: Duration = Duration::from_millis(100);
/// After so long, the switch has taken a frame in a turn of its own.
const TURN: Duration = Duration::from_micros(300);

/// Receives, or sends, until the port hangs up or stdin ends.
pub fn run(attack: &SocketAttack) -> Report {
    let ended = super::end_of_stdin();
    let attacked = match &attack.peer {
        None => by_stream(attack, &ended),
        Some(peer) => by_datagrams(attack, peer, &ended),
    };
    attacked.expect("the port is there");
    Report::Ready
}

fn by_stream(attack: &SocketAttack, ended: &AtomicBool) -> io::Result<()> {
    let mut socket = UnixStream::connect(&attack.socket)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    let frame = announcement(attack.station);
    let length = u32::try_from(frame.len()).expect("short").to_be_bytes();
    let framed = [&length[..], &frame].concat();
    socket.write_all(&framed)?;
    let _held = super::doorbells::watch(socket.as_fd(), attack.watches);
    super::say(&Report::Ready);
    let mut bytes = [0; 1 << 16];
    while !ended.load(Ordering::Relaxed) {
        let has_ended = match attack.sends {
            Some(bytes) => framed.chunks(bytes).any(|piece| socket.write_all(piece).is_err()),
            None => matches!(socket.read(&mut bytes), Ok(0)),
        };
        if has_ended {
            break;
        }
    }
    Ok(())
}

fn by_datagrams(attack: &SocketAttack, peer: &Path, ended: &AtomicBool) -> io::Result<()> {
    let socket = UnixDatagram::bind(peer)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.set_write_timeout(Some(PATIENCE))?;
    let frame = announcement(attack.station);
    socket.send_to(&frame, &attack.socket)?;
    let _held = super::doorbells::watch(socket.as_fd(), attack.watches);
    let quick = UnixDatagram::unbound()?;
    quick.set_write_timeout(Some(PATIENCE))?;
    super::say(&Report::Ready);
    while !ended.load(Ordering::Relaxed) {
        for _ in 0..attack.quick {
            let _ = quick.send_to(&frame, &attack.socket);
            std::thread::sleep(TURN);
        }
        // A full queue, or none to receive: it tries again.
        let _ = match attack.sends {
            Some(_) => socket.send_to(&frame, &attack.socket),
            None => socket.recv(&mut [0; 1 << 16]),
        };
        if attack.quick > 0 {
            // Frames behind this one would be taken together.
            std::thread::sleep(PATIENCE);
        }
    }
    Ok(())
}
