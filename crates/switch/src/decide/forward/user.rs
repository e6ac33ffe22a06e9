//! The user's function: a [program](program::Program) says where a frame goes.
//!
//! # Theory of operation
//!
//! The bridge asks the program about a frame as it asks any forwarding function, once for frames
//! of a port with one key, and keeps the verdict as it keeps others
//! (`decide::lookup`). What the program remembers changes verdicts: a run that changes a map makes
//! a new generation of the bridge, and so does a change by control. The verdict of such a run
//! holds until the end of the turn, so that its frames are asked about once. The source of a frame
//! is learned unless the program drops the frame, so that a program may leave the way back to
//! learning.
//!
//! Where all workers run the switch, each of them has a function with the same program and maps
//! (`program::store`), and the maps' changes by any of them are part of the generation of each
//! replica. Sets, steps and counts are each worker's own.
//!
//! The turn of the sender pays for the program: when its steps are `STEPS_TURN`, the frames
//! behind wait in their rings, as behind a large flood.
//!
//! A program that looks into packets is shown the first bytes of each, which no key holds. The
//! frames of such a switch are all staged, and their verdicts are not kept.
//!
//! *Sets.* A verdict is a few bytes, and a set of ports is more. So a set has a number, and the
//! table holds the last `SETS` sets. Where it is full, all numbers end, with a new generation.

use packet::PortId;
use packet::flow::PREFIX;
use program::{Decision, Fault, Frame, Looks, PORTS_MAX, Program};

use super::{FloodClass, Ingress, Verdict};
use crate::model::stats::DropReason;

/// Steps of a turn, about a millisecond: a turn ends with the batch that takes them.
const STEPS_TURN: u64 = 1 << 18;
/// Sets of ports that are known at once.
const SETS: usize = 64;

const _: () = assert!(PREFIX == program::PACKET_BYTES, "a program sees what a flow is made of");

/// Ports that a frame goes to, ascending.
#[derive(Clone, Copy)]
struct PortSet {
    ports: [PortId; PORTS_MAX],
    count: usize,
}

impl PortSet {
    /// The set of ports that a program has added, in any order and any number of times.
    fn of(added: &[u16]) -> Self {
        let mut set = Self { ports: [PortId::from_low_bits(0); PORTS_MAX], count: 0 };
        let mut numbers = [0; PORTS_MAX];
        let numbers = &mut numbers[..added.len()];
        numbers.copy_from_slice(added);
        numbers.sort_unstable();
        for port in numbers.iter().filter_map(|&number| PortId::new(number.into())) {
            if set.ports().last() != Some(&port) {
                set.ports[set.count] = port;
                set.count += 1;
            }
        }
        set
    }

    fn ports(&self) -> &[PortId] {
        &self.ports[..self.count]
    }
}

/// A user's program as the forwarding function of a switch.
pub struct UserFunction {
    program: Program,
    sets: Vec<PortSet>,
    /// The first bytes of the frame in hand, if the program looks at them.
    packet: [u8; PREFIX],
    packet_len: usize,
    /// Steps of the program before the turn.
    steps_before: u64,
}

impl UserFunction {
    /// A function that asks this program.
    #[must_use]
    pub fn new(program: Program) -> Box<Self> {
        let sets = Vec::with_capacity(SETS);
        Self { program, sets, packet: [0; PREFIX], packet_len: 0, steps_before: 0 }.into()
    }

    /// A handle of the function for another worker: see [`Program::handle`].
    #[must_use]
    pub fn handle(&self) -> Box<Self> {
        Self::new(self.program.handle())
    }

    /// The program.
    #[must_use]
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// The program, to change its maps.
    pub(crate) fn program_mut(&mut self) -> &mut Program {
        &mut self.program
    }

    /// Shows the first bytes of the frame that the program is asked about next.
    pub(crate) fn show_packet(&mut self, bytes: &[u8]) {
        self.packet_len = bytes.len().min(PREFIX);
        debug_assert!(self.looks_into_packets() || bytes.len() <= PREFIX, "the first bytes");
        self.packet[..self.packet_len].copy_from_slice(&bytes[..self.packet_len]);
    }

    /// Whether the program looks at more of a frame than its key.
    #[inline]
    pub(crate) fn looks_into_packets(&self) -> bool {
        self.program.looks() == Looks::Packet
    }

    /// From here on, the program's steps are those of another turn.
    #[inline]
    pub(crate) fn begin_turn(&mut self) {
        self.steps_before = self.program.counts().steps;
    }

    /// Whether the program has taken the time that a turn has for it.
    #[inline]
    pub(crate) fn has_spent_turn(&self) -> bool {
        let steps = self.program.counts().steps;
        debug_assert!(steps >= self.steps_before, "steps only grow");
        steps - self.steps_before >= STEPS_TURN
    }

    /// The ports of a set.
    pub(crate) fn ports(&self, set: u16) -> &[PortId] {
        self.sets.get(usize::from(set)).map_or(&[], PortSet::ports)
    }

    /// What the program would say of a frame, and the ports of its set. It learns and remembers
    /// nothing.
    pub(crate) fn peek(&self, frame: &Ingress) -> (Option<Verdict>, Vec<PortId>) {
        let key = frame.header.key().to_le_bytes();
        let packet = &self.packet[..self.packet_len];
        let (decided, added) = self.program.peek(&shown(self.program.looks(), packet, frame, &key));
        let set = PortSet::of(&added);
        let class = FloodClass::of(frame.header.dst());
        let choose = || match set.ports() {
            &[only] => Verdict::To(only),
            // The number is of no table: the ports are at hand.
            _ => Verdict::Set(class, 0),
        };
        (verdict(decided, class, choose), set.ports().to_vec())
    }

    /// What the program says of a frame, and whether the numbers of older sets hold no more.
    /// `None`: where learning would send it.
    pub(crate) fn decide(&mut self, frame: &Ingress) -> (Option<Verdict>, bool) {
        let key = frame.header.key().to_le_bytes();
        let packet = &self.packet[..self.packet_len];
        let decided = self.program.run(&shown(self.program.looks(), packet, frame, &key));
        let class = FloodClass::of(frame.header.dst());
        let mut is_full = false;
        debug_assert!(self.program.ports().len() <= PORTS_MAX, "a set is bounded");
        let chosen = || {
            let chosen;
            (chosen, is_full) = self.choose(class);
            chosen
        };
        (verdict(decided, class, chosen), is_full)
    }

    /// The verdict for the ports that the program has added, and whether old sets had to go.
    fn choose(&mut self, class: FloodClass) -> (Verdict, bool) {
        let set = PortSet::of(self.program.ports());
        if let &[only] = set.ports() {
            return (Verdict::To(only), false);
        }
        debug_assert!(set.ports().is_sorted(), "equal sets are equal lists");
        debug_assert!(self.sets.len() <= SETS, "the table does not grow");
        let known = self.sets.iter().position(|known| known.ports() == set.ports());
        let is_full = known.is_none() && self.sets.len() == SETS;
        if is_full {
            self.sets.clear();
        }
        let number = known.unwrap_or_else(|| {
            self.sets.push(set);
            self.sets.len() - 1
        });
        debug_assert!(number < SETS, "a set has one of the numbers");
        (Verdict::Set(class, u16::try_from(number).unwrap_or(u16::MAX)), is_full)
    }
}

/// A frame as its program sees it.
fn shown<'a>(looks: Looks, packet: &'a [u8], frame: &Ingress, key: &'a [u8; 16]) -> Frame<'a> {
    let bytes = match looks {
        Looks::Packet => packet,
        Looks::Header if frame.header.tag().is_some() => key,
        Looks::Header => &key[..packet::ethernet::ETHERNET_HEADER],
    };
    let (port, vlan) = (frame.src.number(), frame.vlan.get());
    Frame { now_us: frame.now.as_us(), port, vlan, bytes }
}

/// The verdict of a decision; `choose` gives that for a set. `None`: where learning would send the
/// frame.
fn verdict(
    decided: Result<Decision, Fault>,
    class: FloodClass,
    choose: impl FnOnce() -> Verdict,
) -> Option<Verdict> {
    Some(match decided {
        Err(_) => Verdict::Drop(DropReason::ProgramFault),
        Ok(Decision::Drop) => Verdict::Drop(DropReason::Program),
        Ok(Decision::Learning) => return None,
        Ok(Decision::Flood) => Verdict::Flood(class),
        Ok(Decision::To(port)) => {
            PortId::new(port.into()).map_or(Verdict::Drop(DropReason::DeadPort), Verdict::To)
        }
        Ok(Decision::Set) => choose(),
    })
}
