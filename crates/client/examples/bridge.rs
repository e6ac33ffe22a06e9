//! Connects two ports: `bridge PORT PORT [GROUP]`. In a trust group frames change hands without a
//! copy. One thread serves each direction, and both may sleep.

use client::{Error, Options, Receiver, Sender};

/// Slots moved at once.
const BATCH: u32 = 64;

/// Moves what one port receives to the other one, for ever.
fn forward(mut from: Receiver, mut to: Sender) -> Result<(), Error> {
    let (rx, tx) = (from.rx(0), to.tx(0));
    loop {
        rx.wait(None)?;
        if rx.forward(tx, BATCH)? == 0 {
            // Not even the first frame found room: wait for as much as the longest one needs.
            tx.wait(tx.capacity(), None)?;
        }
    }
}

fn bridge(left: &str, right: &str, group: Option<String>) -> Result<(), Error> {
    let options = group.map_or_else(Options::new, |group| Options::new().group(group));
    let (left_tx, left_rx) = options.clone().open(left)?.split();
    let (right_tx, right_rx) = options.open(right)?.split();
    println!("bridging {left} and {right}");
    let back = std::thread::spawn(move || forward(right_rx, left_tx));
    forward(left_rx, right_tx)?;
    back.join().expect("the other direction does not panic")
}

fn main() {
    let mut args = std::env::args().skip(1);
    let (Some(left), Some(right)) = (args.next(), args.next()) else {
        eprintln!("usage: bridge PORT PORT [GROUP], for example: bridge vale0:x vale1:x");
        std::process::exit(2);
    };
    if let Err(error) = bridge(&left, &right, args.next()) {
        eprintln!("bridge: {error}");
        std::process::exit(error.exit_code().into());
    }
}
