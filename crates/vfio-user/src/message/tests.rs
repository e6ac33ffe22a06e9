//! Headers and bodies: good ones, short ones, long ones, and what VMMs really send.

use super::*;
use rustix::event::{EventfdFlags, eventfd};

fn fds(count: usize) -> Vec<OwnedFd> {
    (0..count).map(|_| eventfd(0, EventfdFlags::CLOEXEC).expect("descriptors")).collect()
}

fn header(size: u32, flags: u32) -> Result<Header, Malformed> {
    let mut bytes = [0; HEADER];
    bytes[..2].copy_from_slice(&7u16.to_ne_bytes());
    bytes[2..4].copy_from_slice(&command::REGION_READ.to_ne_bytes());
    bytes[4..8].copy_from_slice(&size.to_ne_bytes());
    bytes[8..12].copy_from_slice(&flags.to_ne_bytes());
    Header::parse(bytes)
}

fn body(words: &[u32]) -> Vec<u8> {
    super::words(words)
}

#[test]
fn headers_of_replies_dwarfs_and_giants_are_refused() {
    let good = header(32, 0x10).expect("good");
    let expected = Header { id: 7, command: command::REGION_READ, body: 16, no_reply: true };
    assert_eq!(good, expected);
    let longest = u32::try_from(HEADER + BODY_MAX).expect("small");
    assert_eq!(header(longest, 0).expect("good").body, BODY_MAX);
    for (size, flags) in [(0, 0), (15, 0), (longest + 1, 0), (u32::MAX, 0)] {
        assert!(matches!(header(size, flags), Err(Malformed::Size(_))), "{size}");
    }
    for flags in [1, 2, 0x20, 0x11, u32::MAX] {
        assert!(matches!(header(32, flags), Err(Malformed::Flags(_))), "{flags:#x}");
    }
}

/// A good body of each command, and the descriptors beside it.
fn good() -> Vec<(u16, Vec<u8>, usize)> {
    let json = [&[0, 0, 1, 0][..], br#"{"capabilities":{"max_msg_fds":8,"more":[]},"x":1}"#, &[0]];
    vec![
        (command::VERSION, json.concat(), 0),
        (command::VERSION, vec![0; 4], 0),
        (command::DMA_MAP, body(&[32, 3, 0, 0, 0, 0, 4096, 0]), 1),
        (command::DMA_MAP, body(&[32, 3, 0, 0, 0, 0, 4096, 0]), 0),
        (command::DMA_UNMAP, body(&[24, 0, 0, 0, 4096, 0]), 0),
        (command::DEVICE_GET_INFO, body(&[16, 0, 0, 0]), 0),
        (command::DEVICE_GET_REGION_INFO, body(&[32, 0, 7, 0, 0, 0, 0, 0]), 0),
        (command::DEVICE_GET_IRQ_INFO, body(&[16, 0, 2, 0]), 0),
        (command::DEVICE_SET_IRQS, body(&[20, 0x24, 2, 0, 2]), 2),
        (command::DEVICE_SET_IRQS, body(&[20, 0x24, 2, 0, 2]), 0),
        (command::DEVICE_SET_IRQS, body(&[20, 0x11, 0, 0, 1]), 0),
        (command::DEVICE_SET_IRQS, body(&[24, 0x22, 2, 0, 4, 0x0100]), 0),
        (command::REGION_READ, body(&[0, 0, 0, 4]), 0),
        (command::REGION_WRITE, body(&[0, 0, 0, 4, 1]), 0),
        (command::DEVICE_RESET, Vec::new(), 0),
    ]
}

#[test]
fn each_command_has_bodies_of_its_length_and_no_other() {
    for (command, body, count) in good() {
        let request = Request::parse(command, &body, fds(count)).expect("good");
        assert!(!matches!(request, Request::Unknown), "{command}");
        if !body.is_empty() {
            let short = Request::parse(command, &body[..body.len() - 1], fds(count));
            assert!(short.is_err(), "{command}");
        }
        let long = [&body[..], &[0]].concat();
        // A second zero is no part of JSON.
        let long = Request::parse(command, &long, fds(count));
        assert_eq!(long.is_ok(), GROWING.contains(&command), "{command}");
    }
}

#[test]
fn descriptors_that_belong_to_nothing_are_refused() {
    for (command, body, count) in good() {
        let parsed = Request::parse(command, &body, fds(count + 1));
        let takes_one = command == command::DMA_MAP && count == 0;
        assert_eq!(parsed.is_ok(), takes_one, "{command}");
    }
}

#[test]
fn what_is_not_served_is_said_to_be_unknown() {
    for command in [0, 6, 11, 12, 14, u16::MAX] {
        let request = Request::parse(command, &[0; 40], fds(1)).expect("an answer");
        assert!(matches!(request, Request::Unknown), "{command}");
    }
    for flags in [0, 1, 0x20, 0x27, 0x38, 0x61, u32::MAX] {
        let body = body(&[20, flags, 0, 0, 0]);
        let request = Request::parse(command::DEVICE_SET_IRQS, &body, Vec::new());
        assert!(matches!(request, Ok(Request::Unknown) | Err(Malformed::Body { .. })), "{flags}");
    }
    let dirty = body(&[24, 1, 0, 0, 0, 0]);
    let request = Request::parse(command::DMA_UNMAP, &dirty, Vec::new());
    assert!(matches!(request, Ok(Request::Unknown)));
    let by_address = body(&[32, 7, 0, 0, 0, 0, 4096, 0]);
    let request = Request::parse(command::DMA_MAP, &by_address, fds(1));
    assert!(matches!(request, Ok(Request::Unknown)));
}

#[test]
fn a_vmm_hears_of_the_capabilities_that_it_knows() {
    let proposed = Capabilities { max_msg_fds: Some(99), ..Capabilities::default() };
    let reply = version_reply(7, &proposed, 5);
    let expected = [&[0, 0, 1, 0][..], br#"{"capabilities":{"max_msg_fds":16}}"#, &[0]].concat();
    assert_eq!(reply, expected);
}

#[test]
fn capabilities_that_are_no_json_say_so() {
    for text in ["{", "[]", "{\"capabilities\":1}\0", "{}{\0", "\u{1}\0"] {
        let body = [&[0; 4], text.as_bytes()].concat();
        let error = Request::parse(command::VERSION, &body, Vec::new()).expect_err(text);
        assert!(matches!(error, Malformed::Capabilities(_)), "{text}: {error}");
    }
}

#[test]
fn a_region_with_memory_says_how_much_room_its_areas_need() {
    let areas = vec![Area { offset: 0, size: 4096 }, Area { offset: 8192, size: 4096 }];
    let mappable = Some(crate::Mappable { fd: fds(1).remove(0), offset: 4096, areas });
    let region = Region { size: 1 << 16, mappable };
    let word = |body: &[u8], at: usize| {
        u32::from_ne_bytes(body[4 * at..4 * at + 4].try_into().expect("a word"))
    };
    let (small, fd) = region_reply(32, 2, &region);
    assert!(fd.is_some() && small.len() == 32);
    assert_eq!([0, 1, 2, 3, 4].map(|at| word(&small, at)), [80, 15, 2, 32, 1 << 16]);
    let (whole, _) = region_reply(80, 2, &region);
    assert_eq!(whole.len(), 80);
    assert_eq!([10, 12, 14, 16, 18].map(|at| word(&whole, at)), [2, 0, 4096, 8192, 4096]);
    let absent = Region::default();
    let (none, fd) = region_reply(80, 3, &absent);
    assert!(fd.is_none() && none.len() == 32 && word(&none, 1) == 0);
}
