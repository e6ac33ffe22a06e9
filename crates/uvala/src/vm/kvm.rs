//! Does KVM run a guest here?
//!
//! On machines that are virtual themselves `/dev/kvm` may open, and yet a kernel runs there as slow
//! as nobody would wait for: what it does with the processor's rights is emulated, instruction by
//! instruction. So the smallest guest is asked: some turns of a loop, which a processor goes
//! through within a millisecond or less, and an emulator in a hundred and more.

#![allow(unsafe_code)] // UNSAFETY: KVM is called by ioctls, which no library that we use wraps.

use std::ffi::c_ulong;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// How much of a processor's time the guest may take: many times what it takes a processor.
const LONGEST: Duration = Duration::from_millis(20);
/// How long it may take all in all.
const PATIENCE: Duration = Duration::from_secs(2);

/// Whether we may use KVM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// It opens.
    Opens,
    /// It is there, and not for this user.
    Closed,
    /// There is none.
    Missing,
}

/// Is there KVM, and may we open it?
pub fn access() -> Access {
    match open() {
        Ok(_) => Access::Opens,
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Access::Closed,
        Err(_) => Access::Missing,
    }
}

/// Does it run guests as fast as it should?
pub fn runs_guests() -> bool {
    static ANSWER: OnceLock<bool> = OnceLock::new();
    *ANSWER.get_or_init(|| {
        let Ok(_ticks) = Ticks::start() else { return false };
        run().is_ok_and(|time| time < LONGEST)
    })
}

/// Signals that get this thread out of the guest now and then, for a look at the clock. They go to
/// the process, which has no other thread when it asks.
struct Ticks(signal_hook::SigId);

impl Ticks {
    fn start() -> io::Result<Self> {
        // SAFETY: a handler that does nothing is safe in a signal.
        let id = unsafe { signal_hook::low_level::register(libc::SIGALRM, || {}) }?;
        tick(LONGEST);
        Ok(Self(id))
    }
}

impl Drop for Ticks {
    fn drop(&mut self) {
        tick(Duration::ZERO);
        signal_hook::low_level::unregister(self.0);
    }
}

fn tick(every: Duration) {
    let every = libc::timeval { tv_sec: 0, tv_usec: every.subsec_micros().into() };
    let timer = libc::itimerval { it_interval: every, it_value: every };
    // SAFETY: the structure outlives the call; the old one is not asked for. It cannot fail.
    unsafe { libc::setitimer(libc::ITIMER_REAL, &raw const timer, std::ptr::null_mut()) };
}

fn open() -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open("/dev/kvm")
}

/// Requests, by the names of linux/kvm.h.
mod request {
    use std::ffi::c_ulong;
    pub const CREATE_VM: c_ulong = 0xae01;
    pub const CREATE_VCPU: c_ulong = 0xae41;
    pub const SET_USER_MEMORY_REGION: c_ulong = 0x4020_ae46;
    pub const SET_TSS_ADDR: c_ulong = 0xae47;
    pub const RUN: c_ulong = 0xae80;
    pub const GET_REGS: c_ulong = 0x8090_ae81;
    pub const SET_REGS: c_ulong = 0x4090_ae82;
    pub const GET_SREGS: c_ulong = 0x8138_ae83;
    pub const SET_SREGS: c_ulong = 0x4138_ae84;
}

/// Where a processor without its own way to begin in real mode keeps three pages.
const TSS: c_ulong = 0xfffb_d000;
/// In 16 bits: a loop of 400,000 turns, then a halt.
const PROGRAM: [u8; 10] = [0x66, 0xb9, 0x80, 0x1a, 0x06, 0x00, 0x67, 0xe2, 0xfd, 0xf4];

/// `kvm_userspace_memory_region`
#[repr(C)]
struct Memory {
    slot: u32,
    flags: u32,
    guest: u64,
    size: u64,
    user: u64,
}

/// `kvm_regs`: sixteen registers, of which the third is the counter; then these.
#[repr(C)]
#[derive(Default)]
struct Registers {
    general: [u64; 16],
    instruction: u64,
    flags: u64,
}

/// `kvm_sregs`: the first words of the code segment, and the rest.
#[repr(C)]
struct Segments {
    base: u64,
    limit: u32,
    selector: u16,
    rest: [u8; 298],
}

const _: () = assert!(size_of::<Memory>() == 32 && size_of::<Registers>() == 144);
const _: () = assert!(size_of::<Segments>() == 312);

#[repr(C, align(4096))]
struct Page([u8; 4096]);

/// Runs the guest to its end; returns how long it took.
fn run() -> io::Result<Duration> {
    let kvm = open()?;
    let mut page = Box::new(Page([0; 4096]));
    page.0[..PROGRAM.len()].copy_from_slice(&PROGRAM);
    let machine = made(call(&kvm, request::CREATE_VM, 0)?);
    call(&machine, request::SET_TSS_ADDR, TSS)?;
    let user = (&raw mut *page).addr() as u64;
    let memory = Memory { slot: 0, flags: 0, guest: 0, size: 4096, user };
    pass(&machine, request::SET_USER_MEMORY_REGION, &mut { memory })?;
    let processor = made(call(&machine, request::CREATE_VCPU, 0)?);
    let mut segments = Segments { base: 0, limit: 0, selector: 0, rest: [0; 298] };
    pass(&processor, request::GET_SREGS, &mut segments)?;
    (segments.base, segments.selector) = (0, 0);
    pass(&processor, request::SET_SREGS, &mut segments)?;
    // A flag that is always set.
    let mut registers = Registers { flags: 2, ..Registers::default() };
    pass(&processor, request::SET_REGS, &mut registers)?;
    let (start, began) = (processor_time(), Instant::now());
    while let Err(error) = call(&processor, request::RUN, 0) {
        let time = processor_time().saturating_sub(start);
        let is_over = time >= LONGEST || began.elapsed() >= PATIENCE;
        if error.kind() != io::ErrorKind::Interrupted || is_over {
            return Err(error);
        }
    }
    let time = processor_time().saturating_sub(start);
    pass(&processor, request::GET_REGS, &mut registers)?;
    let is_done = registers.instruction == PROGRAM.len() as u64 && registers.general[2] == 0;
    if is_done { Ok(time) } else { Err(io::Error::other("it stopped halfway")) }
}

/// What this thread has had of a processor, the guest's time with it: others may have it meanwhile.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

/// A request with a number, or nothing.
fn call(file: &impl AsRawFd, request: c_ulong, value: c_ulong) -> io::Result<i32> {
    // SAFETY: requests with numbers neither read nor write memory of ours, but for RUN, whose guest
    // has a page that outlives it.
    match unsafe { libc::ioctl(file.as_raw_fd(), request, value) } {
        -1 => Err(io::Error::last_os_error()),
        answer => Ok(answer),
    }
}

/// A request with a structure, which the request's number holds the size of.
fn pass<T>(file: &impl AsRawFd, request: c_ulong, value: &mut T) -> io::Result<()> {
    assert_eq!(request >> 16 & 0x3fff, size_of::<T>() as c_ulong);
    // SAFETY: the kernel reads or writes as many bytes as the request says, and so many there are,
    // plain ones.
    match unsafe { libc::ioctl(file.as_raw_fd(), request, &raw mut *value) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// The descriptor that a request has made.
fn made(number: i32) -> OwnedFd {
    // SAFETY: it was made for us just now, and nobody else knows it.
    unsafe { OwnedFd::from_raw_fd(number) }
}
