//! Every index, and every table and ring of a few descriptors, that a driver can write: the device
//! takes what the specification says, or breaks the queue. Each test has the specification's text
//! as a model of its own, which knows neither masks nor counters.

use super::*;

/// The flags that decide where a chain goes.
const NEXT: u16 = flag::NEXT;
const WRITE: u16 = flag::WRITE;
const INDIRECT: u16 = flag::INDIRECT;
const FLAGS: [u16; 8] = [
    0,
    NEXT,
    WRITE,
    NEXT | WRITE,
    INDIRECT,
    NEXT | INDIRECT,
    WRITE | INDIRECT,
    NEXT | WRITE | INDIRECT,
];
/// The two flags that say which side owns a descriptor of a packed queue.
const OWNERS: [u16; 4] = [0, 1 << 7, 1 << 15, 1 << 7 | 1 << 15];
/// Bytes of what an indirect table has, which no sum of pieces is.
const IN_TABLE: u32 = 64;

/// Writes descriptor `at`. Its piece has `1 << at` bytes: a sum of bytes names its pieces.
fn describe(guest: &Guest, at: u16, flags: u16, next: u16) {
    let piece = if flags & INDIRECT == 0 { (DATA, 1 << at) } else { (TABLES, 16) };
    guest.describe(16 * u64::from(at), piece, flags, next);
}

#[test]
fn section_2_7_13_every_available_index_is_followed_or_breaks_the_queue() {
    let guest = Guest::new(0);
    for slot in 0..SIZE {
        guest.describe(16 * u64::from(slot), (DATA, 1), 0, 0);
        guest.whole.u16(Guest::at(PAGE + 4 + 2 * u64::from(slot))).store(slot, Relaxed);
    }
    let mut buffers = Buffers::default();
    for base in [0, 1, SIZE - 1, SIZE, 0x7fff, 0x8000, u16::MAX - SIZE, u16::MAX] {
        for index in 0..=u16::MAX {
            guest.avail().store(index, Relaxed);
            let mut queue = guest.queue_at(Direction::Read, SIZE, base.into());
            buffers.clear();
            let mut count = 0;
            let end = loop {
                match queue.next(&guest.memory, &mut buffers) {
                    Ok(Some(_)) => count += 1,
                    Ok(None) => break None,
                    Err(why) => break Some(why),
                }
            };
            let ahead = index.wrapping_sub(base);
            let expected = if ahead > SIZE { (0, Some(Broken::Index)) } else { (ahead, None) };
            assert_eq!((count, end), expected, "{index} after {base}");
        }
    }
}

/// What 2.7.5 says of the chain that begins at `id`: how many bytes it has, or why it has no end.
fn chain(table: &[(u16, u16); 4], id: u16, may_be_indirect: bool) -> Result<u64, Broken> {
    let (mut at, mut seen, mut bytes) = (id, Vec::new(), 0);
    while seen.len() < table.len() && !seen.contains(&at) {
        let &(flags, next) = table.get(usize::from(at)).ok_or(Broken::Descriptor)?;
        if flags & INDIRECT != 0 {
            let is_good = may_be_indirect && flags & NEXT == 0;
            return if is_good { Ok(bytes + u64::from(IN_TABLE)) } else { Err(Broken::Table) };
        }
        if flags & WRITE != 0 {
            return Err(Broken::Direction);
        }
        bytes += 1 << at;
        if flags & NEXT == 0 {
            return Ok(bytes);
        }
        seen.push(at);
        at = next;
    }
    Err(Broken::Loop)
}

#[test]
fn section_2_7_5_every_table_of_four_descriptors_is_followed_or_breaks_the_queue() {
    let mut buffers = Buffers::default();
    for features in [0, INDIRECT_DESC] {
        let guest = Guest::new(features);
        guest.describe(TABLES, (DATA, IN_TABLE), 0, 0);
        guest.avail().store(1, Relaxed);
        let mut queue = guest.queue_at(Direction::Read, 4, 0);
        let begin = queue.mark();
        let kinds = FLAGS.iter().flat_map(|&flags| (0..=4).map(move |next| (flags, next)));
        let kinds: Vec<(u16, u16)> = kinds.collect();
        for number in 0..kinds.len().pow(4) {
            let table = [0, 1, 2, 3].map(|at| kinds[number / kinds.len().pow(at) % kinds.len()]);
            (0..).zip(table).for_each(|(at, (flags, next))| describe(&guest, at, flags, next));
            for id in 0..=4 {
                guest.whole.u16(Guest::at(PAGE + 4)).store(id, Relaxed);
                buffers.clear();
                queue.rewind(begin);
                let taken = queue.next(&guest.memory, &mut buffers);
                let taken = taken.map(|taken| taken.expect("it is available").bytes);
                let expected = chain(&table, id, features & INDIRECT_DESC != 0);
                assert_eq!(taken, expected, "{table:?} from {id}");
            }
        }
    }
}

/// What 2.8.6 says of a ring of which the device is at a position: the chains that it takes, each
/// with its descriptors and bytes, and why it breaks the queue then, if it does.
fn chains(ring: &[u16; 3], mut at: (usize, bool)) -> (Vec<(u16, u64)>, Option<Broken>) {
    let (mut free, mut all) = (ring.len(), Vec::new());
    let owner = |wrap| if wrap { OWNERS[1] } else { OWNERS[2] };
    while ring[at.0] & OWNERS[3] == owner(at.1) {
        let (mut slots, mut bytes) = (0, 0);
        loop {
            if free == 0 {
                return (all, Some(Broken::Loop));
            }
            let flags = ring[at.0];
            (free, slots) = (free - 1, slots + 1);
            if flags & INDIRECT != 0 && flags & NEXT != 0 {
                return (all, Some(Broken::Table));
            }
            if flags & (INDIRECT | WRITE) == WRITE {
                return (all, Some(Broken::Direction));
            }
            bytes += if flags & INDIRECT == 0 { 1 << at.0 } else { u64::from(IN_TABLE) };
            at = if at.0 + 1 == ring.len() { (0, !at.1) } else { (at.0 + 1, at.1) };
            if flags & NEXT == 0 {
                break;
            }
        }
        all.push((slots, bytes));
    }
    (all, None)
}

#[test]
fn section_2_8_6_every_ring_of_three_descriptors_is_followed_or_breaks_the_queue() {
    let guest = Guest::new(RING_PACKED | INDIRECT_DESC);
    guest.describe(TABLES, (DATA, IN_TABLE), 0, 0);
    let kinds: Vec<u16> =
        OWNERS.iter().flat_map(|owner| FLAGS.iter().map(move |flags| owner | flags)).collect();
    let mut buffers = Buffers::default();
    for number in 0..kinds.len().pow(3) {
        let ring = [0, 1, 2].map(|at| kinds[number / kinds.len().pow(at) % kinds.len()]);
        for (slot, wrap) in [0, 1, 2].into_iter().flat_map(|slot| [(slot, false), (slot, true)]) {
            (0..).zip(ring).for_each(|(at, flags)| describe(&guest, at, flags, at));
            let base = u32::try_from(slot).expect("small") | if wrap { 0x8000 } else { 0 };
            let mut queue = guest.queue_at(Direction::Read, 3, base | base << 16);
            let (mut all, mut taken) = (Vec::new(), Vec::new());
            let end = loop {
                buffers.clear();
                queue.prefetch(&guest.memory);
                match queue.next(&guest.memory, &mut buffers) {
                    Ok(Some(one)) => taken.push(one),
                    Ok(None) => break None,
                    Err(why) => break Some(why),
                }
                let one = taken.last().expect("just now");
                all.push((one.slots(), one.bytes));
            };
            assert_eq!((all, end), chains(&ring, (slot, wrap)), "{ring:x?} at {slot}, {wrap}");
            assert_returned(&guest, &mut queue, taken, &ring, (slot, wrap));
        }
    }
}

/// Gives back what was taken: these descriptors are the driver's (2.8.1), and no others change.
fn assert_returned(
    guest: &Guest,
    queue: &mut Queue,
    taken: Vec<Taken>,
    ring: &[u16; 3],
    (slot, wrap): (usize, bool),
) {
    let count: u16 = taken.iter().map(|one| one.slots()).sum();
    taken.into_iter().for_each(|one| queue.give_back(one, 0));
    queue.publish();
    for ahead in 0..ring.len() {
        let (at, wrap) = ((slot + ahead) % 3, wrap != (slot + ahead >= 3));
        let owners = guest.whole.u16(16 * at + 14).load(Relaxed) & OWNERS[3];
        let returned = if wrap { OWNERS[3] } else { 0 };
        let is_taken = ahead < usize::from(count);
        assert_eq!(owners, if is_taken { returned } else { ring[at] & OWNERS[3] }, "{ring:x?}");
    }
}
