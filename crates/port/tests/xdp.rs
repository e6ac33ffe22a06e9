//! A queue that another socket has, in a namespace of the test.

mod namespace;

use std::process::Command;

use hostif::HostError;
use hostif::namespace::within;
use hostif::netlink::Netlink;
use hostif::xdp::XdpSpec;
use namespace::Namespace;
use port::host::bell;
use port::host::xdp::open;
use port::sys::xdp::{self, Place, XdpSocket};
use ring::umem::Umem;

fn story() -> Result<(), HostError> {
    let words = "link add red type veth peer name blue";
    let made = Command::new("ip").args(words.split(' ')).status().expect("iproute2");
    assert!(made.success());
    let index = Netlink::open().expect("netlink").find("red").expect("an answer").expect("red");
    let (_bell, ringer) = bell().expect("descriptors");
    let spec = XdpSpec { name: "red".to_owned(), ..XdpSpec::default() };
    let umem = Umem::new(2048, 8).expect("memory");
    let Ok(socket) = hostif::sys::packet::open_xdp() else {
        eprintln!("SKIPPED: AF_XDP needs root");
        return Ok(());
    };
    xdp::register(&socket, &umem).expect("memory");
    let taken = XdpSocket::new(socket, &umem).expect("rings");
    taken
        .bind(&Place { index: index.index, queue: 0, first: None, copies: true })
        .expect("a queue");
    let refused = open(&spec, &ringer, None).err().expect("it is taken");
    assert!(matches!(refused, HostError::QueueTaken(_, 0)) && refused.passes(), "{refused}");
    assert!(refused.to_string().contains("queue 0 of interface red is in use"), "{refused}");
    drop(taken);
    // The kernel gives it back in its own time, which is waited for.
    let opened = open(&spec, &ringer, None)?;
    drop(opened);
    open(&spec, &ringer, None).map(drop)
}

#[test]
fn a_queue_that_another_socket_has_is_named_and_taken_after_it() {
    let Some(namespace) = Namespace::new() else { return };
    match within(Some(("the test's", &namespace.file())), story) {
        Err(error @ (HostError::MayNotXdp(_) | HostError::NoXdp(_))) => {
            eprintln!("SKIPPED: {error}");
        }
        result => result.expect("every interface"),
    }
}
