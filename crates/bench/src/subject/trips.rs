//! Round trips: one frame there and back.

use std::time::Instant;

use anyhow::{Result, ensure};
use client::{Rx, Tx};

use super::Part;
use super::ends::introduce;
use crate::machine;
use crate::role::{median_us, nanoseconds};
use crate::stamp::{self, address, header};

const PING: u8 = 1;
const PONG: u8 = 2;

/// Measures, with a [`pong`] at the other end. Reports the median.
pub fn ping(part: &Part) -> Result<()> {
    machine::pin(part.work.placement.sender);
    let mut port = part.options().open(&part.sender_port())?;
    part.ready()?;
    let (sender, receiver) = port.halves();
    let (tx, rx) = (sender.tx(0), receiver.rx(0));
    let out = header(address(PONG), address(PING));
    measure(part, |sequence| {
        send(part, tx, &out, sequence)?;
        await_frame(rx)?;
        take(rx, sequence)
    })
}

/// Answers until it is ended.
pub fn pong(part: &Part) -> Result<()> {
    machine::pin(part.work.placement.receiver);
    let mut port = part.options().open(&part.receiver_port(0))?;
    introduce(part, &mut port, PONG)?;
    part.ready()?;
    let (sender, receiver) = port.halves();
    let (tx, rx) = (sender.tx(0), receiver.rx(0));
    let back = header(address(PING), address(PONG));
    loop {
        await_frame(rx)?;
        let sequence = stamp::read(rx.frame(0)).unwrap_or(0);
        rx.release(1)?;
        send(part, tx, &back, sequence)?;
    }
}

/// Both ends in one process, so that the switch has the other core for itself.
pub fn ping_pong(part: &Part) -> Result<()> {
    machine::pin(part.work.placement.sender);
    let mut left = part.options().open(&part.sender_port())?;
    let mut right = part.options().open(&part.receiver_port(0))?;
    introduce(part, &mut right, PONG)?;
    part.ready()?;
    let ((left_tx, left_rx), (right_tx, right_rx)) = (left.halves(), right.halves());
    let (out, back) = (header(address(PONG), address(PING)), header(address(PING), address(PONG)));
    measure(part, |sequence| {
        send(part, left_tx.tx(0), &out, sequence)?;
        await_frame(right_rx.rx(0))?;
        take(right_rx.rx(0), sequence)?;
        send(part, right_tx.tx(0), &back, sequence)?;
        await_frame(left_rx.rx(0))?;
        take(left_rx.rx(0), sequence)
    })
}

fn measure(part: &Part, mut trip: impl FnMut(u64) -> Result<()>) -> Result<()> {
    let (begin, mut trips) = (Instant::now(), Vec::new());
    let mut sequence = 0;
    while begin.elapsed() < part.warm_up() + part.time() {
        sequence += 1;
        let start = Instant::now();
        trip(sequence)?;
        if start.duration_since(begin) >= part.warm_up() {
            trips.push(nanoseconds(start.elapsed()));
        }
    }
    part.report(median_us(&mut trips)?)
}

fn send(part: &Part, tx: &mut Tx, header: &[u8; 16], sequence: u64) -> Result<()> {
    if tx.space() == 0 {
        tx.wait(1, None)?;
    }
    stamp::write(tx.frame(0, part.work.frame_len), header, sequence);
    Ok(tx.submit(1)?)
}

fn await_frame(rx: &mut Rx) -> Result<()> {
    while rx.available() == 0 {
        rx.wait(None)?;
    }
    Ok(())
}

/// Takes the frame that must be the one on its way.
fn take(rx: &mut Rx, sequence: u64) -> Result<()> {
    let got = stamp::read(rx.frame(0));
    ensure!(got == Some(sequence), "frame {got:?} came back instead of {sequence}");
    Ok(rx.release(1)?)
}
