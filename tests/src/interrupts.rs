//! A VMM that registers the eventfd of its machine's interrupts in very many epoll sets.

use std::os::fd::AsFd;

use harness::frames::announcement;
use harness::machine::Machine;
use harness::role::{InterruptAttack, Report};

/// Has its machine take all frames, and ask for an interrupt for each, until the switch hangs up or
/// stdin ends.
pub fn run(attack: &InterruptAttack) -> Report {
    let ended = super::end_of_stdin();
    let mut machine = Machine::boot(&attack.socket);
    let call = machine.queue(0).call.try_clone_to_owned().expect("descriptors");
    let held = super::doorbells::watch(call.as_fd(), attack.watches);
    machine.send(&announcement(attack.station));
    super::say(&Report::Ready);
    while !machine.is_cut_off() && !ended.load(std::sync::atomic::Ordering::Relaxed) {
        machine.receive();
    }
    drop(held);
    Report::Ready
}
