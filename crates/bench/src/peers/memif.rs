//! DPDK memif: two testpmd over shared memory, one sends, one receives; no switch between them.

use std::time::Duration;

use anyhow::Result;

use crate::programs::dpdk::Pages;
use crate::programs::testpmd::{Options, Testpmd};
use crate::programs::{Scratch, await_file};
use crate::work::Work;

/// Million frames a second that the receiver counts.
pub fn measure(work: &Work, time: Duration, zero_copy: bool) -> Result<f64> {
    let scratch = Scratch::new("memif")?;
    let pages = Pages::get(&[256, 256]);
    let device = |role: &str, more: &str| {
        let socket = scratch.path("memif.sock");
        let rest = format!("id=0,bsize=2048,rsize=10,socket={socket},socket-abstract=no{more}");
        vec![format!("net_memif0,role={role},{rest}")]
    };
    // Zero-copy maps the sender's memory into the receiver, which must be one piece for that.
    let eal: &[&str] = if zero_copy { &["--single-file-segments"] } else { &[] };
    let burst = work.batch.sender.min(64);
    let (megabytes, app) = (256, &[]);
    let options = |name, cpu, devices| Options {
        name,
        cpu,
        main_cpu: 1 - cpu,
        megabytes,
        devices,
        eal,
        app,
        burst,
    };

    let server = device("server", "");
    let mut receiver = Testpmd::start(&pages, &options("memif-rx", 1, &server))?;
    await_file(&scratch.path("memif.sock"))?;
    let client = device("client", if zero_copy { ",zero-copy=yes" } else { ",zero-copy=no" });
    let mut sender = Testpmd::start(&pages, &options("memif-tx", 0, &client))?;
    receiver.forward("rxonly")?;
    receiver.tell("start")?;
    sender.forward("txonly")?;
    sender.tell(&format!("set txpkts {}", work.frame_len))?;
    sender.tell("start")?;
    receiver.await_traffic(1)?;
    let rate = receiver.receive_rate(1, time);
    // The sender last: a receiver may crash when its sender ends.
    receiver.quit();
    sender.quit();
    rate
}
