//! What a process uses of the machine, as the kernel tells everybody.

/// Milliseconds on a core that a process has had, all its threads together; `None`: it is not to be
/// seen from here.
pub fn cpu_ms(pid: u32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    in_ticks(&text).map(|ticks| ticks * 1000 / rustix::param::clock_ticks_per_second().max(1))
}

/// Time in user and in kernel mode: the fourteenth and the fifteenth field.
fn in_ticks(text: &str) -> Option<u64> {
    // The second one is a name in brackets, in which anything may stand.
    let (_, rest) = text.rsplit_once(") ")?;
    let mut fields = rest.split(' ').skip(11).map(|field| field.parse::<u64>().ok());
    Some(fields.next()?? + fields.next()??)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_found_behind_any_name() {
        let text = "7 (a) b 9) S 1 7 7 0 -1 4194560 1 0 0 0 250 30 0 0 20 0 1 0 9 1 1 2";
        assert_eq!(in_ticks(text), Some(280));
        assert_eq!(in_ticks("7 (a"), None);
        assert!(cpu_ms(std::process::id()).is_some());
        assert_eq!(cpu_ms(u32::MAX), None);
    }
}
