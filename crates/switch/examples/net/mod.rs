//! A switch and its clients in one thread: the examples play all of them.
#![allow(dead_code, reason = "each example uses some of it")]

use std::os::fd::AsFd;

use packet::PortId;
use ring::Region;
use ring::cursor::RingSize;
use ring::intake::{FRAMES, Intake, STANDARD_FRAME};
use ring::krings::Krings;
use ring::layout::{DEFAULT_STRIDE, FIRST_BLOCK, PortLayout, RegionLayout, RingCounts};
use ring::owners::Owner;
use ring::table::HugeTable;
use ring::user::{RxRing, TxRing};
use switch::{Moved, Now, Plug, PortConfig, Scratch, Switch, SwitchConfig, Wake};

/// Most frames of a turn.
pub const BATCH: u16 = 256;
const SLOTS: u32 = 1024;
pub const NOW: Now = Now::from_ms(1);

/// Port 0 sends, the others receive.
pub struct Net {
    pub switch: Switch,
    scratch: Scratch,
    pub clients: Vec<(TxRing, RxRing)>,
}

impl Net {
    /// So many ports that receive; in one region, or each in its own.
    pub fn new(config: SwitchConfig, receivers: u8, shared: bool) -> Self {
        let switch = Switch::new(config, 7, HugeTable::new);
        let scratch = Scratch::new(BATCH, Intake::new(FRAMES, STANDARD_FRAME).expect("memory"));
        let mut net = Self { switch, scratch, clients: Vec::new() };
        let ports = usize::from(receivers) + 1;
        if shared {
            net.add_group(ports);
        } else {
            (0..ports).for_each(|_| net.add_group(1));
        }
        net
    }

    /// Ports in one region.
    fn add_group(&mut self, ports: usize) {
        let slots = RingSize::new(SLOTS).expect("legal");
        let counts = RingCounts { tx_rings: 1, rx_rings: 1, tx_slots: slots, rx_slots: slots };
        let size = PortLayout::new(FIRST_BLOCK, counts).end() - FIRST_BLOCK;
        let buffers = counts.buffers() * u32::try_from(ports).expect("few");
        let layout = RegionLayout::new(size * ports, DEFAULT_STRIDE, buffers).expect("legal");
        let (region, fd) = Region::create_shared("bench", layout).expect("memory");
        let client = Region::attach(fd.as_fd(), layout).expect("sealed");
        let mut free = region.buffers();
        for i in 0..ports {
            let port = PortLayout::new(FIRST_BLOCK + i * size, counts);
            let own: Vec<_> = free.by_ref().take(counts.buffers() as usize).collect();
            for &buffer in &own {
                assert!(region.owners().pass(buffer, Owner::POOL, Owner::of(&port)));
            }
            region.format_port("bench", &port, own, false).expect("memory");
            let host = Plug::rings_with(Krings::new(&region, &port), NoDoorbell);
            self.switch.add_port(self::port(self.clients.len()), host, PortConfig::default());
            self.clients.push((TxRing::new(&client, &port, 0), RxRing::new(&client, &port, 0)));
        }
    }

    /// The switch learns where stations are.
    pub fn introduce(&mut self) {
        for number in 1..self.clients.len() {
            let station = u8::try_from(number).expect("few");
            self.send(number, 1, |_| frame(mac(0), mac(station), 0));
            self.turn(number);
            self.receive();
        }
    }

    /// A client writes up to so many frames; returns how many.
    pub fn send(&mut self, from: usize, count: u32, frame: impl Fn(u32) -> [u8; 60]) -> u32 {
        let (tx, _) = &mut self.clients[from];
        let count = tx.refresh().min(count);
        for slot in 0..count {
            tx.frame(slot, 60).copy_from_slice(&frame(slot));
        }
        let _ = tx.submit(count);
        count
    }

    /// The turn of a port.
    pub fn turn(&mut self, from: usize) -> Moved {
        self.switch.turn(port(from), NOW, &mut self.scratch)
    }

    /// All clients take what is there; returns how many frames.
    pub fn receive(&mut self) -> u32 {
        let take = |(_, rx): &mut (TxRing, RxRing)| {
            let count = rx.refresh();
            let _ = rx.release(count);
            count
        };
        self.clients.iter_mut().map(take).sum()
    }
}

/// Clients look at their rings themselves.
struct NoDoorbell;

impl Wake for NoDoorbell {
    fn wake(&self) {}
}

/// A UDP packet of a flow.
pub fn frame(dst: [u8; 6], src: [u8; 6], flow: u32) -> [u8; 60] {
    let mut bytes = [0; 60];
    bytes[..6].copy_from_slice(&dst);
    bytes[6..12].copy_from_slice(&src);
    (bytes[12], bytes[14], bytes[23]) = (8, 0x45, 17);
    bytes[26..30].copy_from_slice(&[10, 0, 1, 2]);
    bytes[30..34].copy_from_slice(&[10, 0, 2, 2]);
    bytes[34..38].copy_from_slice(&flow.rotate_left(16).to_be_bytes());
    bytes
}

pub fn mac(station: u8) -> [u8; 6] {
    [2, 0, 0, 0, 0, station]
}

pub fn port(number: usize) -> PortId {
    PortId::new(number).expect("few ports")
}
