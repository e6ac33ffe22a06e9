//! Frames that show what happened to them: every byte follows from address, stream and number.

use std::collections::BTreeMap;
use std::sync::Barrier;

use client::Port;
use packet::build::{ethernet, ethernet_header};
use packet::ethernet::ETHERNET_HEADER as ETHERNET;
use serde::{Deserialize, Serialize};

use crate::{Random, wait};

/// An Ethernet address.
pub type Mac = [u8; 6];

/// The broadcast address.
pub const BROADCAST: Mac = [0xff; 6];
/// Shortest frame that can name its stream and number: Ethernet header, stream, number.
pub const NAMED_MIN: usize = ETHERNET + 4 + 8;
/// IEEE 802 local experimental.
const NAMED: u16 = 0x88b5;
const ANNOUNCEMENT: u16 = 0x88b6;

/// The address of stream, or station, `number`.
#[must_use]
pub fn mac(number: u32) -> Mac {
    let [a, b, c, d] = number.to_be_bytes();
    [0x02, 0, a, b, c, d]
}

/// The frame number `seq` of a stream, `len` bytes long.
pub fn fill(frame: &mut Vec<u8>, to: Mac, stream: u32, seq: u64, len: usize) {
    frame.clear();
    frame.extend_from_slice(&ethernet_header(to, mac(stream), NAMED));
    if len >= NAMED_MIN {
        frame.extend_from_slice(&stream.to_be_bytes());
        frame.extend_from_slice(&seq.to_be_bytes());
    }
    let address = to.iter().fold(0, |all, &byte| all << 8 | u64::from(byte));
    let seeds = [address, stream.into(), seq, len as u64];
    let seed = seeds.into_iter().fold(0, |seed, more| Random::new(seed ^ more).any());
    let mut random = Random::new(seed);
    while frame.len() < len {
        frame.extend_from_slice(&random.any().to_le_bytes());
    }
    frame.truncate(len);
}

/// A frame by which a switch learns where station `number` is; receivers pass over it.
#[must_use]
pub fn announcement(number: u32) -> Vec<u8> {
    ethernet(BROADCAST, mac(number), ANNOUNCEMENT, &[0; 46])
}

/// Each of these ports sends its frames while the others do. Returns when the switch has taken all.
///
/// # Panics
/// If it does not.
pub fn send_at_once(ports: &mut [&mut Port], frames: impl Fn(usize) -> Vec<Vec<u8>>) {
    let start = Barrier::new(ports.len());
    std::thread::scope(|scope| {
        for (at, port) in ports.iter_mut().enumerate() {
            let (start, frames) = (&start, frames(at));
            scope.spawn(move || {
                start.wait();
                for frame in &frames {
                    assert!(port.send_timeout(frame, Some(wait::PATIENCE)).unwrap(), "room");
                }
                assert!(port.drain(Some(wait::PATIENCE)).unwrap(), "the switch takes them");
            });
        }
    });
}

/// Frames that follow one of another stream. One stream behind the other makes as many as there
/// are streams; more are those of senders that have sent at the same time.
#[must_use]
pub fn changes<'a>(frames: impl IntoIterator<Item = &'a Vec<u8>>) -> usize {
    let streams = frames.into_iter().map(|frame| named(frame).map(|(_, stream, _)| stream));
    let mut last = None;
    streams.filter(|stream| std::mem::replace(&mut last, *stream) != *stream).count()
}

/// What a receiver saw.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// By number of the stream.
    pub streams: BTreeMap<u32, Stream>,
    /// Frames of a stream whose bytes are not what they were.
    pub corrupt: u64,
    /// Frames of no known stream.
    pub foreign: u64,
}

/// What a receiver saw of one stream.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stream {
    /// Frames that arrived.
    pub frames: u64,
    /// The first number that arrived.
    pub first: u64,
    /// The number after the last that arrived.
    pub next: u64,
    /// Numbers that were passed over.
    pub missing: u64,
    /// Frames that came after a later one, or twice.
    pub disorder: u64,
}

impl Tally {
    /// Looks at a frame that has arrived. `Some`: it belongs to this stream.
    pub fn count(&mut self, frame: &[u8], scratch: &mut Vec<u8>) -> Option<u32> {
        let Some((to, stream, seq)) = named(frame) else {
            self.foreign += u64::from(frame.get(12..14) != Some(&ANNOUNCEMENT.to_be_bytes()));
            return None;
        };
        fill(scratch, to, stream, seq, frame.len());
        if scratch != frame {
            self.corrupt += 1;
            return None;
        }
        self.streams.entry(stream).or_default().count(seq);
        Some(stream)
    }

    /// Frames of all streams.
    #[must_use]
    pub fn frames(&self) -> u64 {
        self.streams.values().map(|stream| stream.frames).sum()
    }

    /// A stream; nothing, if none of it arrived.
    #[must_use]
    pub fn stream(&self, number: u32) -> Stream {
        self.streams.get(&number).cloned().unwrap_or_default()
    }

    /// Everything that arrived was intact and in order.
    ///
    /// # Panics
    /// If not.
    pub fn assert_intact(&self) {
        let order = self.streams.values().all(|stream| stream.disorder == 0);
        assert!(self.corrupt == 0 && order, "frames were damaged: {self:?}");
    }

    /// All of a stream has arrived: `count` frames, whole and in order.
    ///
    /// # Panics
    /// If not.
    pub fn assert_whole(&self, stream: u32, count: u64) {
        let whole = Stream { frames: count, next: count, ..Stream::default() };
        assert_eq!(self.stream(stream), whole, "stream {stream} of {self:?}");
        self.assert_intact();
    }
}

impl Stream {
    fn count(&mut self, seq: u64) {
        if self.frames == 0 {
            (self.first, self.next) = (seq, seq);
        }
        self.frames += 1;
        if seq < self.next {
            self.disorder += 1;
            return;
        }
        self.missing += seq - self.next;
        self.next = seq + 1;
    }
}

/// Destination, stream and number of a frame that says to be one of ours.
fn named(frame: &[u8]) -> Option<(Mac, u32, u64)> {
    let (ethernet, rest) = frame.split_at_checked(ETHERNET)?;
    let (stream, rest) = rest.split_first_chunk()?;
    let to = *ethernet.first_chunk()?;
    let stream = u32::from_be_bytes(*stream);
    let ours = ethernet[12..] == NAMED.to_be_bytes() && ethernet[6..12] == mac(stream);
    ours.then_some((to, stream, u64::from_be_bytes(*rest.first_chunk()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_byte_is_seen_wherever_it_is() {
        let (mut frame, mut scratch) = (Vec::new(), Vec::new());
        fill(&mut frame, mac(9), 3, 5, 64);
        for at in 0..frame.len() {
            let (mut tally, mut changed) = (Tally::default(), frame.clone());
            changed[at] ^= 1;
            tally.count(&changed, &mut scratch);
            assert_eq!(tally.stream(3).frames, 0, "byte {at}");
            assert_eq!(tally.corrupt + tally.foreign, 1, "byte {at}");
        }
    }

    #[test]
    fn loss_and_disorder_are_told_apart() {
        let (mut frame, mut scratch, mut tally) = (Vec::new(), Vec::new(), Tally::default());
        for seq in [0, 1, 4, 2, 5] {
            fill(&mut frame, mac(9), 3, seq, 60);
            assert_eq!(tally.count(&frame, &mut scratch), Some(3));
        }
        let seen = Stream { frames: 5, first: 0, next: 6, missing: 2, disorder: 1 };
        assert_eq!(tally.stream(3), seen);
        tally.count(&announcement(1), &mut scratch);
        assert_eq!(tally.foreign, 0);
    }
}
