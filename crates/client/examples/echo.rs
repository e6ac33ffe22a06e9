//! Round trips with the copying calls: `echo pong PORT` sends everything back, `echo ping PORT`
//! measures. Both survive a restart of the daemon.

use std::time::{Duration, Instant};

use client::{Error, Options, Port};

const ROUNDS: u32 = 10_000;

fn pong(mut port: Port) -> Result<(), Error> {
    let mut frame = Vec::new();
    loop {
        port.recv(&mut frame)?;
        // Back to its sender; a broadcast address is none to send from.
        frame.copy_within(6..12, 0);
        frame[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 3]);
        port.send(&frame)?;
    }
}

fn ping(mut port: Port) -> Result<(), Error> {
    let mut frame = vec![0; 60];
    frame[..12].copy_from_slice(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 2]);
    frame[12..14].copy_from_slice(&0x88b5u16.to_be_bytes());
    let (mut answer, mut trips) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let start = Instant::now();
        port.send(&frame)?;
        if !port.recv_timeout(&mut answer, Some(Duration::from_secs(1)))? {
            break;
        }
        trips.push(start.elapsed());
    }
    trips.sort_unstable();
    match trips.get(trips.len() / 2) {
        Some(median) => println!("median round trip {median:?}, fastest {:?}", trips[0]),
        None => println!("no answer; run: echo pong vale0:pong"),
    }
    println!("{} of {ROUNDS} answered", trips.len());
    Ok(())
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (is_ping, name) = match &args[..] {
        [word, name] if word == "ping" || word == "pong" => (word == "ping", name),
        _ => {
            eprintln!("usage: echo ping|pong PORT, for example: echo pong vale0:pong");
            std::process::exit(2);
        }
    };
    let port = Options::new().reconnect(true).open(name);
    if let Err(error) = port.and_then(|port| if is_ping { ping(port) } else { pong(port) }) {
        eprintln!("echo: {error}");
        std::process::exit(error.exit_code().into());
    }
}
