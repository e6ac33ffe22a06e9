//! A client that takes every buffer it gets out of its slots and keeps it.

use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::time::Duration;

use client::Error;
use client::control::Connection;
use harness::frames::announcement;
use harness::role::{Hoard, Report};
use protocol::{Attach, Attached};
use ring::Region;
use ring::cursor::RingSize;
use ring::extra::ExtraBufs;
use ring::layout::{FIRST_BLOCK, PortLayout, RegionLayout, RingCounts};
use ring::user::{RxRing, TxRing};

/// Attaches, makes its station known, and hoards until stdin ends.
pub fn run(hoard: &Hoard) -> Result<Report, Error> {
    let ended = super::end_of_stdin();
    let connection = Connection::open(Some(&hoard.at.dir))?;
    let (extra_bufs, group) = (Some(hoard.extra_bufs), hoard.at.group.clone());
    let attach = Attach { extra_bufs, group, ..Attach::new(hoard.at.port.parse()?) };
    let (attached, fds) = connection.attach(attach)?;
    let (region, port) = layouts(&attached);
    let region = Region::attach(fds.region.as_fd(), region).map_err(Error::Map)?;
    let extra = ExtraBufs::new(&region, &port);
    let kept: Vec<_> = std::iter::from_fn(|| extra.take()).collect();
    assert_eq!(kept.len(), hoard.extra_bufs as usize);
    let (mut tx, mut rx) = (TxRing::new(&region, &port, 0), RxRing::new(&region, &port, 0));
    let frame = announcement(hoard.station);
    tx.frame(0, u16::try_from(frame.len()).expect("short")).copy_from_slice(&frame);
    let _ = tx.submit(1);
    // Whether the switch sleeps or not: once too often does no harm.
    let _ = rustix::io::write(&fds.kick, &1_u64.to_ne_bytes());
    super::say(&Report::Ready);
    let mut held = 0;
    while !ended.load(Ordering::Relaxed) {
        // No buffer has the number 0.
        held = tx.refresh() + rx.refresh();
        (0..tx.owned()).for_each(|i| tx.set_buffer_index(i, 0));
        (0..rx.owned()).for_each(|i| rx.set_buffer_index(i, 0));
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(Report::Sent(u64::from(held)))
}

fn layouts(attached: &Attached) -> (RegionLayout, PortLayout) {
    let inside = |offset| usize::try_from(offset).expect("inside");
    let usable = attached.buffers - ring::abi::FIRST_BUFFER;
    let region = RegionLayout::new(inside(attached.pool) - FIRST_BLOCK, attached.stride, usable);
    let span = |slots| RingSize::new(slots).expect("what the daemon says");
    let counts = RingCounts {
        tx_rings: attached.tx_rings,
        rx_rings: attached.rx_rings,
        tx_slots: span(attached.tx_slots),
        rx_slots: span(attached.rx_slots),
    };
    (region.expect("what the daemon says"), PortLayout::new(inside(attached.block), counts))
}
