//! Sends frames without a copy: `send PORT [COUNT]`. Each is a broadcast of 60 bytes with its
//! number in it.

use client::{Error, Port};

/// Frames handed over at once.
const BATCH: u32 = 64;
const LEN: u16 = 60;

fn send(name: &str, count: u32) -> Result<(), Error> {
    let mut port = Port::open(name)?;
    let tx = port.tx(0);
    let mut number = 0;
    while number < count {
        tx.wait(1, None)?;
        let batch = tx.owned().min(BATCH).min(count - number);
        for i in 0..batch {
            write_frame(tx.frame(i, LEN), number + i);
        }
        tx.submit(batch)?;
        number += batch;
    }
    // The port goes away with this program: first let the switch take what it holds.
    tx.drain(None)?;
    println!("sent {count} frames to {name}");
    Ok(())
}

fn write_frame(frame: &mut [u8], number: u32) {
    frame[..6].fill(0xff);
    frame[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
    // An EtherType for experiments, IEEE 802.
    frame[12..14].copy_from_slice(&0x88b5u16.to_be_bytes());
    frame[14..18].copy_from_slice(&number.to_be_bytes());
    frame[18..].fill(0);
}

fn main() {
    let mut args = std::env::args().skip(1);
    let name = args.next().unwrap_or_else(|| "vale0:send".to_owned());
    let count = args.next().and_then(|count| count.parse().ok()).unwrap_or(1000);
    if let Err(error) = send(&name, count) {
        eprintln!("send: {error}");
        std::process::exit(error.exit_code().into());
    }
}
