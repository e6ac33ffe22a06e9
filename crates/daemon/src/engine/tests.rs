//! Places in switches, and pages of their forwarding databases.

use std::collections::BTreeSet;

use packet::{MacAddr, VlanId};
use switch::SwitchConfig;

use super::*;
use crate::control::datapath::fdb::Fdb;
use crate::control::datapath::ports::Ports;
use crate::control::datapath::switches::Switches;

fn workers() -> Workers {
    let mut config = Config::default();
    config.workers.count = 1;
    let mut workers = Workers::start(&config).expect("a thread");
    workers.add_switch(SwitchKey(0), SwitchConfig::default(), None).expect("a worker");
    workers
}

fn add_null(workers: &mut Workers, key: u32) -> Result<(), DatapathError> {
    workers.add_null(PortKey(key), SwitchKey(0), PortConfig::default())
}

#[test]
fn pages_of_the_forwarding_database_lose_nothing() {
    let mut workers = workers();
    add_null(&mut workers, 7).expect("room");
    for host in 0..600u32 {
        let [_, _, c, d] = host.to_be_bytes();
        let mac = MacAddr::new([2, 0, 0, 0, c, d]);
        workers.fdb_add(PortKey(7), mac, VlanId::DEFAULT).expect("room");
    }
    let (mut seen, mut cursor) = (BTreeSet::new(), Some(0));
    while let Some(from) = cursor {
        let (rows, next) = workers.fdb_page(SwitchKey(0), from, 100);
        assert!(rows.len() <= 100);
        seen.extend(rows.iter().map(|row| row.mac));
        cursor = next;
    }
    assert_eq!(seen.len(), 600);
}

#[test]
fn groups_that_begin_with_an_interface_are_as_the_configuration_says() {
    let text = "[new_group]\nmemory = \"5MiB\"\n[group.nf]\nowner = 7\nmemory = \"3MiB\"\n";
    let config = Config::parse(text, std::path::Path::new("test.toml")).expect("it is right");
    let workers = Workers::start(&config).expect("threads");
    assert_eq!(workers.new_group.bytes, 5 << 20);
    let declared = workers.declared.find(&(7, "nf".to_owned()));
    assert_eq!(declared.map(|group| group.memory), Some(3 << 20));
}

#[test]
fn a_switch_has_4096_ports_and_no_more() {
    let mut workers = workers();
    (0..4096).for_each(|key| add_null(&mut workers, key).expect("room"));
    assert!(matches!(add_null(&mut workers, 4096), Err(DatapathError::Full(_))));
    workers.detach(PortKey(17), &"vale0:x".parse().expect("a name"));
    add_null(&mut workers, 4096).expect("the place of the one that left");
}
