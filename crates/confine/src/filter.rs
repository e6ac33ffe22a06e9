//! Filters of system calls: a list of calls becomes a program, which the kernel runs for each call.
//!
//! For a call that the list allows whatever its arguments, Linux 5.11 and later remembers the
//! answer and does not run the program.

#![allow(unsafe_code)] // UNSAFETY: seccomp(2) is in no safe wrapper that knows all its flags.

use std::collections::BTreeMap;
use std::io;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};

use crate::calls::{Allowed, Check, NEWEST};

/// What the kernel does with a call that is not in the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Refuses it, and tells the process by SIGSYS.
    Refuse,
    /// Allows and logs it.
    Log,
}

/// Filters the calls of this thread, and of threads that it starts.
pub(crate) fn install(allowed: &[Allowed], action: Action) -> io::Result<()> {
    let mut program = match action {
        Action::Refuse => [absent()?, refused_quietly(allowed)?].concat(),
        Action::Log => Vec::new(),
    };
    let own = compile(allowed, action)?.into_iter();
    program.extend(own.map(|it| step(it.code, it.jt, it.jf, it.k)));
    let len = u16::try_from(program.len()).map_err(io::Error::other)?;
    let program_at = libc::sock_fprog { len, filter: program.as_mut_ptr() };
    // Without that flag, kernels before 5.16 slow a filtered thread down against Spectre, which
    // protects a process from itself.
    let flags = libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW;
    let mode = libc::SECCOMP_SET_MODE_FILTER;
    // SAFETY: the kernel reads the program, which lives longer than the call.
    let done = unsafe { libc::syscall(libc::SYS_seccomp, mode, flags, &raw const program_at) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Whether this kernel has filters that tell the process what they refuse.
pub(crate) fn is_there() -> bool {
    let action = libc::SECCOMP_RET_TRAP;
    let ask = libc::SECCOMP_GET_ACTION_AVAIL;
    // SAFETY: the kernel reads a number.
    unsafe { libc::syscall(libc::SYS_seccomp, ask, 0, &raw const action) == 0 }
}

const LOAD: u16 = 0x20;
const IS: u16 = 0x15;
const ABOVE: u16 = 0x25;
const RETURN: u16 = 0x06;

fn step(code: u16, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter { code, jt, jf, k }
}

fn number_of(call: libc::c_long) -> io::Result<u32> {
    u32::try_from(call).map_err(io::Error::other)
}

/// Calls that are refused without a signal, unless they are allowed. `malloc` opens a file of
/// `/proc` before it gives memory back, in any thread, and goes on without an answer. Without
/// capabilities, the kernel refuses to enter a namespace, too.
fn refused_quietly(allowed: &[Allowed]) -> io::Result<Vec<libc::sock_filter>> {
    const REFUSED: u32 = libc::SECCOMP_RET_ERRNO | libc::EPERM.cast_unsigned();
    let mut program = Vec::new();
    for call in [libc::SYS_openat, libc::SYS_setns] {
        if !allowed.iter().any(|&(number, _)| number == call) {
            program.extend([step(IS, 0, 1, number_of(call)?), step(RETURN, 0, 0, REFUSED)]);
        }
    }
    Ok(program)
}

/// The beginning of a program: calls that the kernel is to lack, without a signal. The C library
/// blocks signals while it makes a thread: by clone3, or, if there is none, by clone, whose flags a
/// filter can see.
fn absent() -> io::Result<Vec<libc::sock_filter>> {
    const LACKS: u32 = libc::SECCOMP_RET_ERRNO | libc::ENOSYS.cast_unsigned();
    Ok(vec![
        // The number of the call is the first word that a filter sees.
        step(LOAD, 0, 0, 0),
        step(IS, 1, 0, number_of(libc::SYS_clone3)?),
        step(ABOVE, 0, 1, number_of(NEWEST)?),
        step(RETURN, 0, 0, LACKS),
    ])
}

fn compile(allowed: &[Allowed], action: Action) -> io::Result<BpfProgram> {
    let mut rules = BTreeMap::<i64, Vec<SeccompRule>>::new();
    for &(number, check) in allowed {
        rules.entry(number).or_default().extend(rules_of(check)?);
    }
    // A call that one row allows with every argument stays so.
    for &(number, _) in allowed.iter().filter(|(_, check)| *check == Check::Any) {
        rules.insert(number, Vec::new());
    }
    let otherwise = match action {
        Action::Refuse => SeccompAction::Trap,
        Action::Log => SeccompAction::Log,
    };
    let arch = TargetArch::try_from(std::env::consts::ARCH).map_err(io::Error::other)?;
    let filter = SeccompFilter::new(rules, otherwise, SeccompAction::Allow, arch);
    filter.and_then(TryInto::try_into).map_err(io::Error::other)
}

/// The rules of which one must hold; none: every call is allowed.
fn rules_of(check: Check) -> io::Result<Vec<SeccompRule>> {
    let rule = |all| SeccompRule::new(all).map_err(io::Error::other);
    conditions_of(check)?.into_iter().map(rule).collect()
}

/// The ways in which a check can hold: for each, the conditions that hold then.
fn conditions_of(check: Check) -> io::Result<Vec<Vec<SeccompCondition>>> {
    use SeccompCmpOp::{Eq, MaskedEq};
    let (arg, choices): (u8, Vec<(SeccompCmpOp, u64)>) = match check {
        Check::Any => return Ok(Vec::new()),
        Check::Both(first, second) => {
            let (first, second) = (conditions_of(*first)?, conditions_of(*second)?);
            assert!(!first.is_empty() && !second.is_empty(), "each restricts something");
            let with = |one: &Vec<_>| {
                let one = one.clone();
                second.iter().map(move |other| [&one[..], other].concat()).collect::<Vec<_>>()
            };
            return Ok(first.iter().flat_map(with).collect());
        }
        Check::Is(arg, values) => (arg, values.iter().map(|&value| (Eq, value)).collect()),
        Check::Masked(arg, pairs) => {
            (arg, pairs.iter().map(|&(mask, value)| (MaskedEq(mask), value)).collect())
        }
        Check::OwnProcess => (0, vec![(Eq, u64::from(std::process::id()))]),
    };
    let condition = |(op, value)| {
        let condition = SeccompCondition::new(arg, SeccompCmpArgLen::Dword, op, value);
        Ok(vec![condition.map_err(io::Error::other)?])
    };
    choices.into_iter().map(condition).collect()
}
