//! Lists that are sent as far as there is room.

use super::*;

/// Sends so many frames of so many bytes.
fn send_until_full(machine: &mut Machine, bytes: u32, count: u16) -> (Sent, usize) {
    let mut intake = Intake::new(64, 1518).expect("memory");
    let mut batch = Batch::new(64);
    batch.restart(intake.region());
    let push = |frame| {
        let first = batch.frags().len();
        intake.push(&[&vec![0; bytes as usize]], batch.frags());
        batch.push_received(first, bytes);
        Delivery { frame, tag: TagAction::Keep }
    };
    let list: Vec<_> = (0..count).map(push).collect();
    machine.send_until_full(&batch, &list)
}

#[test]
fn a_list_stops_where_room_may_come_and_a_frame_that_never_fits_is_dropped() {
    let guest = Guest::new();
    let mut machine = guest.machine();
    (1..4).for_each(|queue| machine.rings[queue] = None);
    guest.load(0, 1526, 16);
    let (sent, done) = send_until_full(&mut machine, 1514, 20);
    assert_eq!((sent.delivered.frames, sent.drops.total(), done), (16, 0, 16));
    guest.make(0, 18);
    let (sent, done) = send_until_full(&mut machine, 1514, 4);
    assert_eq!((sent.delivered.frames, done), (2, 2));
    // 20 buffers, more than the driver has ever made available.
    guest.make(0, 18 + 16);
    let (sent, done) = send_until_full(&mut machine, 30_000, 1);
    assert_eq!((sent.delivered.frames, sent.drops.get(DropReason::NoRoom), done), (0, 1, 1));
    // 10 buffers of 16 are left: it waits for two more.
    assert_eq!(send_until_full(&mut machine, 1514, 6).1, 6);
    assert_eq!(send_until_full(&mut machine, 18_000, 1).1, 0);
    guest.make(0, 18 + 16 + 6);
    assert_eq!(send_until_full(&mut machine, 18_000, 1).0.delivered.frames, 1);
    machine.rings[0] = None;
    let (sent, done) = send_until_full(&mut machine, 60, 3);
    assert_eq!((sent.drops.get(DropReason::LinkDown), done), (3, 3));
}
