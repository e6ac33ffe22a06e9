//! Why an interface cannot be opened or changed.

use std::io;

use rustix::io::Errno;

/// Why an interface cannot be a port. Each message tells an operator what to do.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// The name cannot be the name of an interface.
    #[error(
        "{0:?} is not a name of an interface: 1 to 15 letters, without '/', ':', '%' and spaces; \
         choose such an ifname"
    )]
    Name(String),
    /// No interface has this name.
    #[error("no interface {0}; see: ip link")]
    Missing(String),
    /// The interface exists and is not a TAP.
    #[error("interface {0} exists and is not a TAP; choose another ifname, or --kind packet")]
    NotTap(String),
    /// A TUN carries IP packets, not Ethernet frames.
    #[error(
        "interface {0} is a TUN, which carries no Ethernet frames; choose another ifname, or make \
         it with: ip tuntap add dev {0} mode tap"
    )]
    IsTun(String),
    /// The target namespace has an interface of this name already.
    #[error("there is an interface {0} in {1} already; choose another ifname, or delete it")]
    Taken(String, String),
    /// Another program has the TAP open.
    #[error("interface {0} is in use by another program; end it, or choose another ifname")]
    Busy(String),
    /// The interface is a port of the same switch already.
    #[error(
        "interface {0} is port {1} of this switch already, and a second port would duplicate its \
         frames or loop them; use that port, or delete it first: uvala port del {1}"
    )]
    Duplicate(String, String),
    /// A packet port and a stack port of one interface, of which the host would get each frame
    /// twice.
    #[error(
        "the host's side of interface {0} and port {1} of this switch would give the host each \
         frame twice; give one of them up, or add the packet port with --alone"
    )]
    Beside(String, String),
    /// The TAP was made with one queue, and several are wanted.
    #[error(
        "interface {0} was made with one queue; leave --queues out, or make it with: \
         ip tuntap add dev {0} mode tap multi_queue"
    )]
    OneQueue(String),
    /// The number of queues of a TAP is out of range.
    #[error("a TAP has 1 to {0} queues; set --queues in that range")]
    TapQueues(u16),
    /// A descriptor that a client passed is not an open TAP.
    #[error("the descriptor is not an open TAP: pass /dev/net/tun after TUNSETIFF")]
    NotGivenTap,
    /// The descriptors that a client passed belong to different TAPs.
    #[error("the descriptors belong to different TAPs; add a port for each TAP")]
    GivenTaps,
    /// The client opened its TAP with flags that a port cannot use.
    #[error(
        "{0} was opened with flags that a port cannot use: open it with IFF_TAP (not IFF_TUN), \
         IFF_NO_PI and IFF_VNET_HDR"
    )]
    GivenOtherwise(String),
    /// The client passed no descriptor.
    #[error("no descriptor of TAP {0} came with the call; add the port again, with --fd")]
    NotGiven(String),
    /// The interface is a loopback or a tunnel.
    #[error("interface {0} carries no Ethernet frames (loopback, tunnel); choose another ifname")]
    NotEthernet(String),
    /// The daemon may not create or open a TAP.
    #[error(
        "no permission to {0}; give the daemon CAP_NET_ADMIN or a helper (docs/host.md), or make \
         the TAP for its user: ip tuntap add dev {1} mode tap user {2}"
    )]
    MayNotTap(&'static str, String, String),
    /// The daemon may not open the device file of all TAPs.
    #[error(
        "no permission to open /dev/net/tun; chmod 666 /dev/net/tun or, in the daemon's systemd \
         unit, DeviceAllow=/dev/net/tun rw (the daemon needs CAP_NET_ADMIN, too)"
    )]
    MayNotTun,
    /// The daemon may not open packet sockets.
    #[error(
        "no permission to open packet sockets; give the daemon CAP_NET_RAW or a helper \
         (docs/host.md)"
    )]
    MayNotPacket,
    /// The daemon may not configure the interface.
    #[error("no permission to {0} of {1}; give the daemon CAP_NET_ADMIN, or do it with: ip link")]
    MayNotChange(&'static str, String),
    /// The daemon may not switch off router advertisements, so every station of the switch could
    /// change the host's routes.
    #[error(
        "the host would accept routes from every station behind {0} ({1}); let the process that \
         makes {0} write /proc/sys/net, or set: sysctl net.ipv6.conf.default.accept_ra=0 (and \
         accept_redirects, autoconf)"
    )]
    AcceptsRoutes(String, io::Error),
    /// The daemon may not enter a network namespace.
    #[error(
        "no permission to enter network namespace {0}; give the daemon CAP_SYS_ADMIN and \
         CAP_NET_ADMIN, and CAP_SYS_PTRACE for one of a process (the helper opens nothing there), \
         or pass an open TAP: --fd (docs/host.md)"
    )]
    MayNotEnter(String),
    /// The daemon may not attach the programs that cut the host's stack off.
    #[error(
        "no permission to cut the host off from {0}; give the daemon CAP_BPF and CAP_NET_ADMIN \
         (uvala-helper does not do it)"
    )]
    MayNotCut(String),
    /// The kernel cannot attach the programs that cut the host's stack off.
    #[error(
        "this kernel cannot cut the host off from {0}: Linux 6.6 with BPF can; leave --alone out"
    )]
    CannotCut(String),
    /// The daemon may not open AF_XDP sockets.
    #[error(
        "no permission to open AF_XDP sockets on {0}; give the daemon CAP_NET_RAW, CAP_NET_ADMIN \
         and CAP_BPF or a helper (docs/host.md), or choose --kind packet"
    )]
    MayNotXdp(String),
    /// The kernel has no AF_XDP.
    #[error("interface {0}: this kernel has no AF_XDP; choose --kind packet")]
    NoXdp(String),
    /// Another XDP program is attached to the interface.
    #[error(
        "another XDP program is on interface {0}; end the program that holds it (bpftool net), or, \
         if none holds it, detach it: ip link set {0} xdp off"
    )]
    ProgramTaken(String),
    /// Another AF_XDP socket is bound to the queue.
    #[error("queue {1} of interface {0} is in use by another AF_XDP socket; end its program")]
    QueueTaken(String, u32),
    /// The interface has fewer queues.
    #[error(
        "interface {0} has {1} queues, numbered from 0; choose --queues among them, or leave it out"
    )]
    Queues(String, u32),
    /// The port's memory exceeds the limit of locked memory.
    #[error(
        "interface {0}: the daemon may not lock so much memory; raise LimitMEMLOCK in its unit \
         (ulimit -l), or choose fewer --queues"
    )]
    Locked(String),
    /// The trust group's memory exceeds the limit of locked memory.
    #[error(
        "interface {0}: the daemon may not lock the {2} MiB of trust group {1}'s memory that it is \
         to receive into; raise LimitMEMLOCK in its unit (ulimit -l), or leave --trust-group out"
    )]
    GroupLocked(String, String, usize),
    /// A TAP that the daemon before this one left is not used.
    #[error("the interface of the daemon before this one {0}")]
    NotResumed(&'static str),
    /// The helper reverted its changes before the daemon had made the port.
    #[error(
        "the helper reverted its change of interface {0}, because the daemon did not confirm the \
         port in time; add the port again"
    )]
    PutBack(String),
    /// The helper refused, in its own words.
    #[error("{0}")]
    Helper(String),
    /// No network namespace has this name.
    #[error(
        "no network namespace {0}; create it with: ip netns add {0}, or give another name, a PID \
         or a path"
    )]
    NoNamespace(String),
    /// No process has this number.
    #[error(
        "no network namespace of a process {0}: there is no such process, or it has ended; see: ps"
    )]
    NoProcess(String),
    /// The file does not exist, or is not a network namespace.
    #[error("no network namespace at {0}; those of ip netns are in /run/netns")]
    NoNamespaceAt(String),
    /// The kernel has no TAPs.
    #[error("no /dev/net/tun; load the kernel's module: modprobe tun")]
    NoTun,
    /// IPv6 is switched off on the interface.
    #[error("interface {0} has no IPv6; see: sysctl net.ipv6.conf.all.disable_ipv6")]
    NoIpv6(String),
    /// The interface does not accept the MTU.
    #[error("interface {0} takes no MTU of {1}; {2}")]
    Mtu(String, u32, &'static str),
    /// A system call failed for another reason.
    #[error("{doing} {name}: {error}")]
    System {
        /// The step that failed, such as "look up".
        doing: &'static str,
        /// The interface.
        name: String,
        /// The error of the system call.
        error: io::Error,
    },
}

impl HostError {
    /// Whether the daemon lacks a capability, so that the helper may succeed. In a sandbox, the
    /// kernel reports missing support instead of a missing permission.
    #[must_use]
    pub fn is_right(&self) -> bool {
        use HostError::{MayNotPacket, MayNotTap, MayNotTun, MayNotXdp, NoTun, NoXdp};
        let is_tap = matches!(self, MayNotTap(..) | MayNotTun | NoTun);
        is_tap || matches!(self, MayNotPacket | MayNotXdp(_) | NoXdp(_))
    }

    /// Whether the error can pass without a netlink event: another program holds the interface or
    /// queue, or a namespace does not exist yet.
    #[must_use]
    pub fn passes(&self) -> bool {
        use HostError::{Beside, Busy, Duplicate, NoNamespace, ProgramTaken, PutBack, QueueTaken};
        matches!(self, Busy(_) | ProgramTaken(_) | QueueTaken(..) | NoNamespace(_))
            || matches!(self, Duplicate(..) | Beside(..) | PutBack(_))
    }

    /// Wraps the error of a system call: `doing` is the step that failed, for interface `name`.
    pub fn system(doing: &'static str, name: &str) -> impl Fn(io::Error) -> Self {
        let name = name.to_owned();
        move |error| Self::System { doing, name: name.clone(), error }
    }

    /// Why a program could not be attached to interface `name`.
    pub(crate) fn attaching(name: &str, errno: Errno) -> Self {
        match errno {
            Errno::PERM | Errno::ACCESS => Self::MayNotCut(name.to_owned()),
            Errno::INVAL | Errno::NOSYS => Self::CannotCut(name.to_owned()),
            errno => Self::system("attach programs to", name)(errno.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_sandbox_hides_the_helper_may_open() {
        let eth1 = || "eth1".to_owned();
        assert!(HostError::NoTun.is_right() && HostError::NoXdp(eth1()).is_right());
        assert!(!HostError::Missing(eth1()).is_right() && !HostError::Busy(eth1()).is_right());
    }
}
