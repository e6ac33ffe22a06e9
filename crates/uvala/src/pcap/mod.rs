//! Frames in files and on terminals: reads pcap and pcapng, writes pcapng.

pub mod decode;
pub mod files;
pub mod read;
pub mod write;

/// A captured frame.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// The frame.
    pub bytes: &'a [u8],
    /// Nanoseconds since 1970.
    pub time_ns: u64,
    /// Whether it entered the switch by the port; else it left by it.
    pub is_entering: bool,
    /// For a frame that the switch dropped.
    pub lost: Option<Lost<'a>>,
}

/// Why and where a frame was dropped.
#[derive(Clone, Copy, Debug)]
pub struct Lost<'a> {
    /// Name of the reason.
    pub reason: &'a str,
    /// The port that counts the drop.
    pub at: &'a str,
    /// The port that the frame came from.
    pub from: &'a str,
}
