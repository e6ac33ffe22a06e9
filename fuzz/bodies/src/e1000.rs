//! What a guest may do to an e1000: registers, descriptors, frames, and time.

use device::e1000::{Config, E1000, Received, Sent, TxFrame};
use packet::offload::PendingOffload;
use ring::guest::{GuestMemory, Writer};

use crate::Input;
use crate::machine::memory;

/// Registers that do something, by their offset: all of chapter 13.4, and the shared page's.
const OFFSETS: [u32; 36] = [
    0x0000, 0x0008, 0x0010, 0x0014, 0x0018, 0x0020, 0x0038, 0x00c0, 0x00c4, 0x00c8, 0x00d0, 0x00d8,
    0x0100, 0x0400, 0x1000, 0x2800, 0x2804, 0x2808, 0x2810, 0x2818, 0x2820, 0x282c, 0x2830, 0x2834,
    0x3800, 0x3804, 0x3808, 0x3810, 0x3818, 0x3820, 0x382c, 0x5000, 0x5200, 0x5400, 0x5404, 0x5604,
];
/// Where the rings are, and how many bytes they have.
const TX_RING: u64 = 0;
const RX_RING: u64 = 128;
const RING_LEN: u32 = 128;
/// A shared page would lie here.
const PAGE: u32 = 4096;

/// Both rings set up, everything on.
const SET_UP: [(u32, u32); 8] = [
    (0x2800, 128),
    (0x2808, RING_LEN),
    (0x3808, RING_LEN),
    (0x2818, 7),
    (0x0100, 0x8002),
    (0x0400, 2),
    (0x00d0, u32::MAX),
    (0x2830, PAGE),
];

/// Whatever a guest writes, frames come out whole, with offloads that the switch accepts; a call
/// keeps within its budget; and the interrupt line is high only with a cause, and never lost.
pub fn e1000(data: &[u8]) {
    let mut input = Input(data);
    let [mac, usecs, csb] = [input.u8(), input.u8(), input.u8() & 1];
    let config = Config { mac: [mac & !1; 6], coalesce_usecs: usecs.into(), csb: csb != 0 };
    let mut guest = Guest { device: E1000::new(&config), memory: memory(), now_ns: 0 };
    guest.device.set_link(true, 0);
    for (offset, value) in SET_UP {
        guest.write(offset, value);
    }
    while !input.is_empty() {
        guest.step(&mut input);
        guest.check_line();
    }
}

/// Inputs that get somewhere: frames with a checksum, a run of segments and a tag, and received
/// ones with delayed interrupts.
pub fn e1000_samples() -> Vec<Vec<u8>> {
    const BUFFER: u16 = 1024;
    let write = |register: u8, value: u32| {
        let at = OFFSETS.iter().position(|offset| *offset == u32::from(register) << 8);
        [&[0, 0, u8::try_from(at.expect("listed")).expect("few")][..], &value.to_le_bytes()]
            .concat()
    };
    let descriptor = |index: u8, first: u64, second: u64| {
        [&[index, 3][..], &first.to_le_bytes(), &second.to_le_bytes()].concat()
    };
    let put = |at: u16, bytes: &[u8; 4]| [&[0, 8][..], &at.to_le_bytes(), bytes].concat();
    // EtherType and first octets of IPv4; its protocol; TCP's data offset.
    let headers = [
        put(BUFFER + 12, &[8, 0, 0x45, 0]),
        put(BUFFER + 20, &[0, 0, 64, 6]),
        put(BUFFER + 46, &[0x50, 0x19, 0, 0]),
    ]
    .concat();
    let context = 14 | 24 << 8 | 33 << 16 | 34 << 32 | 50 << 40;
    let run = 1000 | 0x27 << 24 | 54 << 40 | 300 << 48;
    let data = 1 << 20 | 0x2b << 24 | 3 << 40;
    let buffer = u64::from(BUFFER);
    let send = |tail: u8| vec![0, 4, tail, 0x7e];
    let receive = |len: u16| {
        let to = [0xff; 18];
        [&[0, 6][..], &len.to_le_bytes(), &[0], &to].concat()
    };
    let pass = |time: u16| [&[0, 7][..], &time.to_le_bytes(), &[0]].concat();
    let begin = |csb: u8| vec![2, 10, csb];
    vec![
        [
            begin(0),
            headers.clone(),
            descriptor(0, context, 0x20 << 24),
            descriptor(1, buffer, data | 600),
            send(2),
        ]
        .concat(),
        [
            begin(0),
            write(0, 1 << 30),
            headers,
            descriptor(0, context, run),
            descriptor(1, buffer, data | 1054 | 0x46 << 24 | 5 << 48),
            send(2),
            pass(9999),
        ]
        .concat(),
        [begin(0), descriptor(0, buffer, 90 | 0x0d << 24 | 20 << 16), send(1), pass(20_000)]
            .concat(),
        [begin(1), receive(60), pass(900), receive(1514), receive(9000), vec![0, 10, 3]].concat(),
        [begin(1), put(4096 + 12, &[1; 4]), put(4096, &[1, 0, 0, 0]), vec![0, 10, 4], send(1)]
            .concat(),
    ]
}

struct Guest {
    device: E1000,
    memory: GuestMemory,
    now_ns: u64,
}

impl Guest {
    fn step(&mut self, input: &mut Input<'_>) {
        let index = u64::from(input.u8() % 8);
        match input.below(11) {
            0 => {
                let (at, value) = (input.below(OFFSETS.len()), u32::from_le_bytes(input.bytes()));
                self.write(OFFSETS[at], value);
            }
            1 => {
                let (offset, width) = (4 * u32::from(input.u16()), input.u8());
                let value = u64::from_le_bytes(input.bytes());
                self.device.write(offset, width, value, self.now_ns);
            }
            2 => {
                let (offset, width) = (u32::from(input.u16()), input.u8());
                self.device.read(offset, width, self.now_ns);
            }
            3 => self.put(TX_RING + 16 * index, &input.bytes::<16>()),
            4 => {
                self.write(0x3818, input.u8().into());
                self.transmit(input.u8());
            }
            5 => {
                self.put(RX_RING + 16 * index, &u64::from(input.u16()).to_le_bytes());
                self.write(0x2818, input.u8().into());
            }
            6 => self.receive(input),
            7 => self.pass_time(input),
            8 => self.put(input.u16().into(), &input.bytes::<4>()),
            9 => {
                let (offset, value) =
                    (u32::from(input.u8() % 12), u32::from_le_bytes(input.bytes()));
                self.device.write_io(offset, 4, value.into(), self.now_ns);
                self.device.read_io(offset, 4, self.now_ns);
            }
            _ => self.change(input.u8()),
        }
    }

    fn write(&mut self, offset: u32, value: u32) {
        self.device.write(offset, 4, value.into(), self.now_ns);
    }

    fn put(&self, at: u64, bytes: &[u8]) {
        let (mut slices, len) = (Vec::new(), u32::try_from(bytes.len()).expect("short"));
        if self.memory.slices(at, len, &mut slices, 2) {
            Writer::new(&self.memory, &slices).write(bytes);
        }
    }

    fn transmit(&mut self, how: u8) {
        let budget = u32::from(how >> 1);
        let progress = self.device.transmit(&self.memory, self.now_ns, budget, |frame| {
            check_frame(frame);
            if how & 1 == 0 { Sent::Taken } else { Sent::Later }
        });
        assert!(progress.descriptors <= budget);
        assert_eq!(self.device.pending(&self.memory), progress.more);
    }

    fn receive(&mut self, input: &mut Input<'_>) {
        let (len, good) = (usize::from(input.u16()) % 17_000, input.u8() & 1 == 0);
        let mut frame = vec![0; len];
        if let Some(head) = frame.first_chunk_mut::<18>() {
            *head = input.bytes();
        }
        let has_buffers = self.device.has_buffers(&self.memory);
        let received = self.device.receive(&self.memory, self.now_ns, &frame, good);
        assert_eq!(received == Received::Disabled, !self.device.is_receiving());
        assert!(received != Received::Stored || has_buffers && (14..=16_384).contains(&len));
    }

    fn pass_time(&mut self, input: &mut Input<'_>) {
        self.now_ns += u64::from(input.u16()) << (input.u8() % 16);
        self.device.expire(self.now_ns);
        assert!(self.device.deadline().is_none_or(|deadline| deadline > self.now_ns));
    }

    fn change(&mut self, how: u8) {
        match how % 6 {
            0 => self.device.reset(),
            1 | 2 => self.device.set_link(how & 1 == 0, self.now_ns),
            3 => self.device.want_kicks(&self.memory, how & 64 == 0),
            4 => self.device.want_none(&self.memory),
            _ => self.memory = if how & 64 == 0 { memory() } else { GuestMemory::default() },
        }
    }

    fn check_line(&mut self) {
        // ICS shows the causes and does not clear them.
        let [causes, mask] = [0xc8, 0xd0].map(|at| self.device.read(at, 4, self.now_ns));
        let (line, waits) = (self.device.interrupt(), self.device.deadline().is_some());
        assert!(if causes & mask == 0 { !line } else { line || waits });
    }
}

/// Checks what the switch relies on.
fn check_frame(mut frame: TxFrame<'_>) {
    assert!((14..=65_553).contains(&frame.bytes));
    assert_eq!(frame.head.len() + frame.rest.left(), frame.bytes);
    frame.rest.read(&mut vec![0; frame.bytes - frame.head.len()]);
    let left = PendingOffload::read(frame.left, frame.bytes).expect("nothing that is refused");
    assert!(left.is_none_or(|left| left.bytes() == frame.left && left.is_behind(frame.head)));
}
