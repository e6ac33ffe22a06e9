//! DPDK vhost-user: a testpmd that forwards between two vhost ports (no address lookup), and one
//! with a virtio-user port at each end that returns whatever comes, so that packets go round.

use std::time::Duration;

use anyhow::Result;

use super::dpdk::Pages;
use super::testpmd::{Options, Testpmd};
use super::{Scratch, await_file};
use crate::bench::scenario::Work;

/// Million frames a second that pass the switch, counted by the client that receives them.
pub fn measure(work: &Work, time: Duration) -> Result<f64> {
    let scratch = Scratch::new("vhost")?;
    let pages = Pages::get();
    let sockets = [scratch.path("0.sock"), scratch.path("1.sock")];
    let burst = work.batch.sender.min(64);
    let ports = |kind: &dyn Fn(usize, &str) -> String| -> Vec<String> {
        sockets.iter().enumerate().map(|(i, socket)| kind(i, socket)).collect()
    };
    let vhost = ports(&|i, socket| format!("net_vhost{i},iface={socket},queues=1"));
    let virtio =
        ports(&|i, socket| format!("net_virtio_user{i},path={socket},queue_size=1024,packed_vq=0"));

    let mut options =
        Options { name: "vhost-switch", cpu: 1, main_cpu: 0, devices: &vhost, eal: &[], burst };
    let mut switch = Testpmd::start(&pages, &options)?;
    // A client that finds no socket starts without that port.
    for socket in &sockets {
        await_file(socket)?;
    }
    options = Options {
        name: "vhost-client",
        cpu: 0,
        main_cpu: 1,
        devices: &virtio,
        // The switch maps the client's memory, which must be few pieces for that.
        eal: &["--single-file-segments"],
        burst,
    };
    let mut client = Testpmd::start(&pages, &options)?;
    switch.forward("io")?;
    switch.tell("start")?;
    client.forward("io")?;
    client.tell(&format!("set txpkts {}", work.frame_len))?;
    // The switch drops what comes before it forwards and both its links are up.
    switch.expect("io packet forwarding - ports=2")?;
    std::thread::sleep(Duration::from_millis(300));
    client.tell("start tx_first 15")?;
    client.await_traffic(2)?;
    let rate = client.receive_rate(2, time);
    client.quit();
    switch.quit();
    rate
}
