//! What is written to a worker's doorbell: the number of a port.
//!
//! All clients of a worker write into one pipe. Writes of a few bytes are atomic, but nothing
//! keeps a client from writing half a message, so messages find their own beginning: the first
//! byte of each has its top bit set and the others have not. Whatever others write, an honest
//! message is four bytes in a row and is understood.

/// Bytes of a message.
pub const KICK: usize = 4;
/// Largest number: four times seven bits.
pub const NUMBER_MAX: u32 = (1 << 28) - 1;

const START: u8 = 0x80;

/// The message for port number `number`.
///
/// # Panics
/// If the number is larger than [`NUMBER_MAX`].
#[must_use]
pub fn encode(number: u32) -> [u8; KICK] {
    assert!(number <= NUMBER_MAX);
    let mut message = number.to_be_bytes();
    for (i, byte) in message.iter_mut().enumerate() {
        *byte = (number >> (7 * (KICK - 1 - i))).to_le_bytes()[0] & !START;
    }
    message[0] |= START;
    message
}

/// Reads messages out of a stream of bytes, which may be cut anywhere.
#[derive(Clone, Copy, Debug, Default)]
pub struct Decoder {
    number: u32,
    /// Bytes of the current message read so far; 0 outside of a message.
    read: usize,
    garbage: bool,
}

impl Decoder {
    /// Was there anything since the last call that no honest client writes?
    pub fn take_garbage(&mut self) -> bool {
        std::mem::take(&mut self.garbage)
    }

    /// Takes the next byte; returns a number at the end of each message.
    pub fn feed(&mut self, byte: u8) -> Option<u32> {
        let begins = byte & START != 0;
        self.garbage |= begins != (self.read == 0);
        if begins {
            (self.number, self.read) = (u32::from(byte & !START), 1);
            return None;
        }
        if self.read == 0 {
            return None;
        }
        self.number = self.number << 7 | u32::from(byte);
        self.read += 1;
        if self.read < KICK {
            return None;
        }
        self.read = 0;
        Some(self.number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn an_honest_message_survives_any_neighbours(
            before in proptest::collection::vec(any::<u8>(), 0..20),
            after in proptest::collection::vec(any::<u8>(), 0..20),
            number in 0..=NUMBER_MAX,
        ) {
            let stream = [&before[..], &encode(number), &after].concat();
            let mut decoder = Decoder::default();
            let found: Vec<u32> = stream.iter().filter_map(|&byte| decoder.feed(byte)).collect();
            prop_assert!(found.contains(&number));
        }
    }

    #[test]
    fn numbers_keep_their_order() {
        let mut decoder = Decoder::default();
        let stream = [encode(0), encode(5), encode(NUMBER_MAX)].concat();
        let found: Vec<u32> = stream.iter().filter_map(|&byte| decoder.feed(byte)).collect();
        assert_eq!(found, [0, 5, NUMBER_MAX]);
    }
}
