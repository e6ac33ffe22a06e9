// SPDX-License-Identifier: MIT OR Apache-2.0
//! A load balancer: IPv4 TCP and UDP for a service's network goes to one of its servers, by a hash
//! of addresses and ports, so that a connection stays with its server. All else is learned.
//!
//! ```sh
//! uvala program map set vale0 services 192.0.2.80/32 3      # it has three servers
//! uvala program map set vale0 servers 0 port:web0           # ... and so on
//! ```
#![no_std]

mod uvala;

use uvala::{DROP, Frame, Hash, LEARNING, Lpm, Prefix, hash, map, to};

map!(services: Lpm<[u8; 4], u32>, 64);
map!(servers: Hash<u32, u32>, 64);

#[unsafe(no_mangle)]
#[unsafe(link_section = "forward/packet")]
extern "C" fn forward(frame: &Frame) -> u32 {
    server(frame).unwrap_or(LEARNING)
}

/// Where a frame for a service goes.
fn server(frame: &Frame) -> Option<u32> {
    let ip = &frame.bytes[14..];
    if frame.u16_at(12) != 0x0800 || !matches!(ip[9], 6 | 17) {
        return None;
    }
    let address = [ip[16], ip[17], ip[18], ip[19]];
    let count = services.get(&Prefix { bits: 32, address })?;
    let ports = usize::from(ip[0] & 15) * 4;
    let mut flow = [ip[9]; 13];
    flow[..8].copy_from_slice(&ip[12..20]);
    flow[8..12].copy_from_slice(&ip[ports..ports + 4]);
    let server = hash(&flow, 0).checked_rem(count.into())? as u32;
    Some(servers.get(&server).map_or(DROP, to))
}
