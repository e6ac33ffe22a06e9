//! How to open a port.

use std::path::PathBuf;

use protocol::Attach;
use protocol::name::PortName;

use crate::Stop;
use crate::wait::WaitPolicy;

/// How to open a port. Options that are not set have the daemon's defaults.
///
/// ```no_run
/// let port = client::Options::new().slots(2048).group("chain1").open("vale0:fw")?;
/// # Ok::<(), client::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Options {
    pub(crate) dir: Option<PathBuf>,
    tx_rings: Option<u16>,
    rx_rings: Option<u16>,
    tx_slots: Option<u32>,
    rx_slots: Option<u32>,
    extra_bufs: Option<u32>,
    group: Option<String>,
    group_memory: Option<u64>,
    existing: bool,
    alone: bool,
    alone_at: Vec<PortName>,
    client: Option<String>,
    pub(crate) wait: WaitPolicy,
    pub(crate) reconnect: bool,
    pub(crate) stop: Option<Stop>,
    pub(crate) names_thread: bool,
    pub(crate) lends: bool,
}

impl Options {
    /// All defaults.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Directory of the daemon's socket. The default is found as [`protocol::paths`] says.
    #[must_use]
    pub fn dir(self, dir: impl Into<PathBuf>) -> Self {
        Self { dir: Some(dir.into()), ..self }
    }

    /// Number of rings of each direction.
    #[must_use]
    pub fn rings(self, count: u16) -> Self {
        self.tx_rings(count).rx_rings(count)
    }

    /// Number of transmit rings.
    #[must_use]
    pub fn tx_rings(self, count: u16) -> Self {
        Self { tx_rings: Some(count), ..self }
    }

    /// Number of receive rings.
    #[must_use]
    pub fn rx_rings(self, count: u16) -> Self {
        Self { rx_rings: Some(count), ..self }
    }

    /// Number of slots of every ring.
    #[must_use]
    pub fn slots(self, count: u32) -> Self {
        self.tx_slots(count).rx_slots(count)
    }

    /// Number of slots of each transmit ring.
    #[must_use]
    pub fn tx_slots(self, count: u32) -> Self {
        Self { tx_slots: Some(count), ..self }
    }

    /// Number of slots of each receive ring.
    #[must_use]
    pub fn rx_slots(self, count: u32) -> Self {
        Self { rx_slots: Some(count), ..self }
    }

    /// Number of [extra buffers](crate::ExtraBufs), for programs that keep frames.
    #[must_use]
    pub fn extra_bufs(self, count: u32) -> Self {
        Self { extra_bufs: Some(count), ..self }
    }

    /// Trust group: its ports share their memory, and [`Rx::pass`](crate::Rx::pass) swaps
    /// buffers. It is this user's own, or one that the daemon's configuration declares.
    #[must_use]
    pub fn group(self, name: impl Into<String>) -> Self {
        Self { group: Some(name.into()), ..self }
    }

    /// Bytes of memory of the trust group, if this port creates the group; ignored otherwise. All
    /// of it is charged to the user, however much its ports take.
    #[must_use]
    pub fn group_memory(self, bytes: u64) -> Self {
        Self { group_memory: Some(bytes), ..self }
    }

    /// Only open a port that exists already.
    #[must_use]
    pub fn existing(self, existing: bool) -> Self {
        Self { existing, ..self }
    }

    /// Fails if another process has an instance of the port's service, and prevents that while this
    /// port is open: for functions whose flows cannot be distributed over instances. This process
    /// may have several instances.
    #[must_use]
    pub fn alone(self, alone: bool) -> Self {
        Self { alone, ..self }
    }

    /// Limits an option to some ports, if these options are for several ports.
    #[must_use]
    pub fn alone_at(self, ports: impl IntoIterator<Item = PortName>) -> Self {
        Self { alone_at: ports.into_iter().collect(), ..self }
    }

    /// What the program is called in the daemon's listings and log. The default is the name of its
    /// file.
    #[must_use]
    pub fn client(self, name: impl Into<String>) -> Self {
        Self { client: Some(name.into()), ..self }
    }

    /// How the port's threads wait.
    #[must_use]
    pub fn wait(self, wait: WaitPolicy) -> Self {
        Self { wait, ..self }
    }

    /// Never sleep in a wait: for threads that own their cores.
    #[must_use]
    pub fn spin(self, spin: bool) -> Self {
        Self { wait: WaitPolicy { spin, ..self.wait }, ..self }
    }

    /// Whether the blocking calls of [`Port`](crate::Port) reconnect by themselves when the daemon
    /// is gone, and continue when it is back. Frames that it had not taken are lost.
    #[must_use]
    pub fn reconnect(self, reconnect: bool) -> Self {
        Self { reconnect, ..self }
    }

    /// Ends the port's waits, with [`Error::Stopped`](crate::Error::Stopped), also while they
    /// sleep; frames that have arrived before are returned first.
    #[must_use]
    pub fn stop(self, stop: &Stop) -> Self {
        Self { stop: Some(stop.clone()), ..self }
    }

    /// Whether the port's memory is for another party that drives its rings: see
    /// [`Port::memory`](crate::Port::memory).
    #[must_use]
    pub fn lends(self, lends: bool) -> Self {
        Self { lends, ..self }
    }

    /// Binds the port to the thread that opens it: listings show the CPU time of this thread.
    pub(crate) fn names_thread(self) -> Self {
        Self { names_thread: true, ..self }
    }

    /// The name under which the program introduces itself.
    pub(crate) fn introduction(&self) -> String {
        self.client.clone().unwrap_or_else(program_name)
    }

    /// The call to the daemon.
    pub(crate) fn request(&self, port: &PortName) -> Attach {
        Attach {
            port: port.clone(),
            tx_rings: self.tx_rings,
            rx_rings: self.rx_rings,
            tx_slots: self.tx_slots,
            rx_slots: self.rx_slots,
            extra_bufs: self.extra_bufs,
            group: self.group.clone(),
            group_memory: self.group_memory,
            existing: self.existing,
            thread: self.names_thread.then(thread_id),
            alone: self.alone || self.alone_at.contains(port),
        }
    }
}

/// The number of this thread, as the kernel counts here.
fn thread_id() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs()
}

/// The name of the program's file, as a user knows it.
#[must_use]
pub fn program_name() -> String {
    let exe = std::env::current_exe().ok();
    let path = exe.or_else(|| std::env::args_os().next().map(PathBuf::from)).unwrap_or_default();
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    // The kernel marks a file that was replaced while its program runs.
    name.strip_suffix(" (deleted)").unwrap_or(&name).to_owned()
}
