//! DPDK vhost-user: a testpmd that forwards between two vhost ports (no address lookup), and the
//! client of every switch of virtual machines.
//!
//! The client is one testpmd with two virtio-user devices, which speak vhost-user as the monitor
//! of a machine does. It returns whatever comes, so that packets go round; the switch has a core,
//! the client the other.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::dpdk::Pages;
use super::testpmd::{Options, Testpmd};
use super::{Scratch, await_file};
use crate::sample::Reading;
use crate::work::{Forwarding, Work};

/// Megabytes of a testpmd.
pub const MEGABYTES: u32 = 256;
/// Bursts of each device that go round.
const BURSTS: u32 = 15;

/// Million frames a second that pass the switch, counted by the client that receives them.
pub fn measure(work: &Work, time: Duration) -> Result<f64> {
    let scratch = Scratch::new("vhost")?;
    let pages = Pages::get(&[MEGABYTES; 2]);
    let (sockets, mut switch) = start_switch(&scratch, &pages, work)?;
    let mut client = Client::start(&pages, &sockets, Role::Connects, work)?;
    switch.forward("io")?;
    switch.tell("start")?;
    // The switch drops what comes before it forwards and both its links are up.
    switch.expect("io packet forwarding - ports=2")?;
    std::thread::sleep(Duration::from_millis(300));
    let rate = client.rate(time);
    client.0.quit();
    switch.quit();
    rate
}

/// Starts a testpmd with two vhost ports, which does not forward yet.
fn start_switch(scratch: &Scratch, pages: &Pages, work: &Work) -> Result<([String; 2], Testpmd)> {
    let sockets = [scratch.path("0.sock"), scratch.path("1.sock")];
    let devices = sockets.iter().enumerate();
    let devices: Vec<String> =
        devices.map(|(i, socket)| format!("net_vhost{i},iface={socket},queues=1")).collect();
    let options = Options {
        name: "vhost-switch",
        cpu: work.placement.switch,
        main_cpu: work.placement.sender,
        megabytes: MEGABYTES,
        devices: &devices,
        eal: &[],
        app: &[],
        burst: work.batch.sender.min(64),
    };
    let switch = Testpmd::start(pages, &options)?;
    // A client that finds no socket starts without that port.
    for socket in &sockets {
        await_file(socket)?;
    }
    Ok((sockets, switch))
}

/// The rate with a sender and a receiver that are separate programs on one core.
pub fn measure_one_way(work: &Work, time: Duration) -> Result<Reading> {
    let scratch = Scratch::new("vhost")?;
    let pages = Pages::get(&[MEGABYTES; 3]);
    let (sockets, mut switch) = start_switch(&scratch, &pages, work)?;
    switch.forward("io")?;
    switch.tell("start")?;
    let reading = one_way(&pages, &sockets, work, time);
    switch.quit();
    reading
}

/// Frames from one testpmd to another: what the receiver counts, and what of it is lost.
pub fn one_way(
    pages: &Pages,
    sockets: &[String; 2],
    work: &Work,
    time: Duration,
) -> Result<Reading> {
    let start = |name: &str, number: usize| {
        let device = device(number, &sockets[number], Role::Connects);
        Testpmd::start(
            pages,
            &Options {
                name,
                cpu: work.placement.sender,
                main_cpu: work.placement.switch,
                megabytes: MEGABYTES,
                devices: &[device],
                eal: &["--single-file-segments"],
                app: &[format!("--eth-peer=0,{}", address(1 - number))],
                burst: work.batch.sender.min(64),
            },
        )
    };
    let (mut sender, mut receiver) = (start("vhost-tx", 0)?, start("vhost-rx", 1)?);
    receiver.forward("rxonly")?;
    receiver.tell("start")?;
    sender.forward("txonly")?;
    sender.tell(&format!("set txpkts {}", work.frame_len))?;
    sender.tell("start")?;
    receiver.await_traffic(1)?;
    let sent_before: u64 = sender.sent(1)?.iter().sum();
    let begin = Instant::now();
    let rate = receiver.receive_rate(1, time)?;
    let sent = sender.sent(1)?.iter().sum::<u64>().saturating_sub(sent_before);
    let sent = f64::from(u32::try_from(sent).unwrap_or(u32::MAX)) / 1e6;
    let sent = sent / begin.elapsed().as_secs_f64();
    receiver.quit();
    sender.quit();
    Ok(Reading { lost_percent: Some((100.0 * (1.0 - rate / sent)).max(0.0)), ..rate.into() })
}

/// Which side connects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The client, to sockets of the switch.
    Connects,
    /// The switch, to sockets of the client.
    Listens,
}

/// The ends of both machines.
pub struct Client(pub Testpmd);

impl Client {
    /// Starts it; it does not send yet.
    pub fn start(pages: &Pages, sockets: &[String; 2], door: Role, work: &Work) -> Result<Client> {
        let devices = sockets.iter().enumerate();
        let devices: Vec<String> = devices.map(|(i, socket)| device(i, socket, door)).collect();
        let peers = [0, 1].map(|i| format!("--eth-peer={i},{}", address(1 - i)));
        let options = Options {
            name: "vhost-client",
            cpu: work.placement.sender,
            main_cpu: work.placement.switch,
            megabytes: MEGABYTES,
            devices: &devices,
            // The switch maps the client's memory, which must be few pieces for that.
            eal: &["--single-file-segments"],
            app: &peers,
            burst: work.batch.sender.min(64),
        };
        let mut client = Testpmd::start(pages, &options)?;
        // A switch that looks addresses up wants them changed on the way back.
        let mode = if work.forwarding == Forwarding::Patch { "io" } else { "mac" };
        client.forward(mode)?;
        client.tell(&format!("set txpkts {}", work.frame_len))?;
        Ok(Client(client))
    }

    /// Lets packets go round; million a second that its devices receive together.
    pub fn rate(&mut self, time: Duration) -> Result<f64> {
        self.0.tell(&format!("start tx_first {BURSTS}"))?;
        self.0.await_traffic(2)?;
        self.0.receive_rate(2, time)
    }
}

/// A virtio-user device.
fn device(number: usize, socket: &str, door: Role) -> String {
    let server = if door == Role::Listens { ",server=1" } else { "" };
    let ring = format!("queue_size=1024,packed_vq=0,mac={}", address(number));
    format!("net_virtio_user{number},path={socket},{ring}{server}")
}

/// The address of a device.
fn address(number: usize) -> String {
    format!("02:00:00:00:01:{number:02}")
}
