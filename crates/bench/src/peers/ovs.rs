//! OVS-DPDK: Open vSwitch as a learning switch of virtual machines.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::programs::dpdk::Pages;
use crate::programs::ovs::{MEGABYTES, Ovs, PATIENCE};
use crate::programs::vhost::{self, Client, Role};
use crate::work::{Forwarding, Work};

/// Where Debian has the daemon that is built with DPDK.
const WITH_DPDK: &str = "/usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk";

/// OVS-DPDK as a learning switch between the two devices of the client, which connects to it.
pub fn measure(work: &Work, time: Duration) -> Result<f64> {
    let program = PathBuf::from(WITH_DPDK);
    if !program.exists() {
        bail!("{WITH_DPDK} not found: apt install openvswitch-switch-dpdk");
    }
    let pages = Pages::get(&[MEGABYTES, vhost::MEGABYTES]);
    let mut ovs = Ovs::new()?;
    ovs.use_dpdk(&pages, work)?;
    ovs.run(&program)?;
    ovs.add_bridge()?;
    let sockets = [0, 1].map(|i| ovs.path(&format!("vm{i}.sock")));
    for (i, path) in sockets.iter().enumerate() {
        let (name, path) = (format!("vm{i}"), format!("options:vhost-server-path={path}"));
        let interface = ["--", "set", "Interface", &name, "type=dpdkvhostuserclient", &path];
        ovs.tell(&[&["add-port", "br0", &name], &interface[..]].concat())?;
    }
    let work = Work { forwarding: Forwarding::Learning, ..*work };
    let mut client = Client::start(&pages, &sockets, Role::Listens, &work)?;
    let rate = client.rate_when_up(time);
    client.0.quit();
    rate
}

impl Client {
    /// The rate once both links are up; the switch connects when it finds the time.
    fn rate_when_up(&mut self, time: Duration) -> Result<f64> {
        let begin = Instant::now();
        while !self.0.links_are_up(2)? {
            if begin.elapsed() > PATIENCE {
                bail!("Open vSwitch did not connect to its machines");
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        self.rate(time)
    }
}
