//! An event loop of one's own: `epoll PORT...` sleeps in one `epoll_wait` for all ports and counts
//! what arrives on each.

use client::{Error, Interest, Port};
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;

/// Takes what has arrived; returns the number of frames.
fn take(port: &mut Port) -> Result<usize, Error> {
    let rx = port.rx(0);
    let slots = rx.available();
    let frames = rx.frames().count();
    rx.release(slots)?;
    Ok(frames)
}

fn serve(ports: &mut [Port]) -> Result<(), Error> {
    let system = |error: Errno| Error::Doorbell(error.into());
    let loop_fd = epoll::create(CreateFlags::CLOEXEC).map_err(system)?;
    for (i, port) in (0..).zip(ports.iter()) {
        epoll::add(&loop_fd, port, EventData::new_u64(i), EventFlags::IN).map_err(system)?;
    }
    let mut totals = vec![0; ports.len()];
    let mut events = Vec::<Event>::with_capacity(ports.len());
    loop {
        for (port, total) in ports.iter_mut().zip(&mut totals) {
            // Arming fails where a frame is there already: take it, and try again.
            while !port.arm(Interest::Rx) {
                *total += take(port)?;
            }
        }
        println!("frames so far: {totals:?}");
        match epoll::wait(&loop_fd, rustix::buffer::spare_capacity(&mut events), None) {
            Err(Errno::INTR) => {}
            result => drop(result.map_err(system)?),
        }
        for event in events.drain(..) {
            let i = usize::try_from(event.data.u64()).expect("an index of `ports`");
            ports[i].disarm()?;
            totals[i] += take(&mut ports[i])?;
        }
    }
}

fn main() {
    let names: Vec<String> = std::env::args().skip(1).collect();
    if names.is_empty() {
        eprintln!("usage: epoll PORT..., for example: epoll vale0:a vale1:a");
        std::process::exit(2);
    }
    let open = || names.iter().map(|name| Port::open(name)).collect::<Result<Vec<_>, Error>>();
    if let Err(error) = open().and_then(|mut ports| serve(&mut ports)) {
        eprintln!("epoll: {error}");
        std::process::exit(error.exit_code().into());
    }
}
