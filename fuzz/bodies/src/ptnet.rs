//! What a guest may do to a ptnet device: registers and doorbells.

use device::ptnet::{Effect, Geometry, IO_LEN, KICK, Ptnet, command, feature};

use crate::Input;

const PTFEAT: u32 = 0x00;
const PTCTL: u32 = 0x04;
const STATUS: u32 = 0x44;
const EPOCH: u32 = 0x48;

/// Whatever a guest writes, the rings start and stop in turns, no kick comes of rings that do not
/// run, and what the device says of the port stays as it is.
pub fn ptnet(data: &[u8]) {
    let mut input = Input(data);
    let rings = [1 + u16::from(input.u8() % 16), 1 + u16::from(input.u8() % 16)];
    let geometry = Geometry { rings, nifp: 4096, ..Geometry::default() };
    let mut device = Ptnet::new([2; 6], &geometry);
    let (first, mut epoch, mut status) = (words(&device), 0, 0);
    while !input.is_empty() {
        let (what, at) = (input.u8(), u32::from(input.u8()));
        let value = u32::from_le_bytes(input.bytes());
        match what % 8 {
            0 => device.reset(),
            1 => {
                device.lose_rings();
                epoch += 1;
            }
            2 => {
                let changes = device.set_status(value & 3);
                assert_eq!(changes, status != value & 3);
                status = value & 3;
            }
            3 => obey(&mut device, value, |device| device.kick(value)),
            4 => obey(&mut device, value, |device| device.write(PTCTL, 4, value % 4)),
            5 => obey(&mut device, value, |device| device.write(PTFEAT, 4, feature::REGION)),
            _ => {
                let width = [4, 1, 2, 8][usize::from(what >> 6)];
                let _ = device.read(at, width);
                obey(&mut device, value, |device| device.write(at, width, value));
            }
        }
        assert_eq!([STATUS, EPOCH].map(|at| device.read(at, 4)), [status, epoch]);
        assert_eq!(words(&device), first, "the port's geometry");
    }
}

/// Carries out a write, and checks what it asks for.
fn obey(device: &mut Ptnet, value: u32, write: impl FnOnce(&mut Ptnet) -> Effect) {
    let was_running = device.is_running();
    match write(device) {
        Effect::Start => {
            assert!(!was_running && device.is_running());
            if value & 0x80 != 0 {
                device.refuse_start(12);
                assert!(!device.is_running());
            }
        }
        Effect::Stop => assert!(was_running && !device.is_running()),
        Effect::Kick => assert!(was_running && device.is_running()),
        Effect::None => assert_eq!(was_running, device.is_running()),
    }
}

/// Registers that say where everything is.
fn words(device: &Ptnet) -> Vec<u32> {
    let offsets = (8..IO_LEN).step_by(4).filter(|at| ![STATUS, EPOCH].contains(at));
    offsets.map(|at| device.read(at, 4)).collect()
}

/// Inputs that get somewhere: start, kick, stop; a start that fails; a port that goes.
pub fn ptnet_samples() -> Vec<Vec<u8>> {
    let step = |what: u8, value: u32| [&[what, 0][..], &value.to_le_bytes()].concat();
    let write = |at: u32, value: u32| {
        [&[6, u8::try_from(at).expect("few")][..], &value.to_le_bytes()].concat()
    };
    let start = [step(5, 0), write(PTCTL, command::CREATE)].concat();
    let stop = write(PTCTL, command::DELETE);
    vec![
        [&[0, 0][..], &start, &write(KICK, 0), &step(3, 1), &stop, &start].concat(),
        [&[3, 3][..], &step(5, 0), &step(4, 0x81), &start, &step(0, 0), &start].concat(),
        [&[0, 0][..], &step(2, 1), &start, &step(1, 0), &step(2, 0), &start].concat(),
    ]
}
