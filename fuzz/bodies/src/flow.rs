//! Whatever a frame begins with, it has a flow; whatever a function writes, it is in range.

use packet::fields::{Fields, Matcher};
use packet::flow::{FlowKey, PREFIX, Prefix};
use packet::metadata::{HOPS_MAX, Metadata, POSITIONS};
use packet::{MAX_PORTS, PortId, VlanId};

use crate::Input;

/// Classifies a frame, and reads what a function says of it.
pub fn flow(data: &[u8]) {
    let mut input = Input(data);
    let mark = u64::from_le_bytes(input.bytes());
    let mut frame = [0; PREFIX];
    let len = input.0.len().min(PREFIX);
    frame[..len].copy_from_slice(&input.0[..len]);
    let port = PortId::new(usize::from(input.u16()) % MAX_PORTS).expect("bounded");
    let key = FlowKey::read(Prefix::new(&frame, len), VlanId::DEFAULT, port);
    assert_ne!(key.hash(mark), 0);
    assert!(Matcher::from(&Fields::default()).matches(&key), "it asks for nothing");
    let mine = Fields { port: Some(port), ..Fields::default() };
    assert!(Matcher::from(&mine).matches(&key));
    if let Some(meta) = Metadata::read(mark) {
        let moved = meta.moved(meta.chain());
        assert!(moved.position() < POSITIONS && moved.hops() <= HOPS_MAX);
        assert_eq!((moved.hash(), moved.chain()), (meta.hash(), meta.chain()));
    }
}
