//! What each user may take of a worker's round: a pure function of the turns.
//!
//! A turn has a bound, but a user may have thousands of ports, and each a turn that floods. In one
//! round the ports of a user together get [`SHARE`] work, and the turn that exceeds it. The others
//! wait, and come first in the next round. So a round has a bound for each user, whatever the
//! ports do, and so have the waiting times of other users' ports and of control.

use switch::Users;

/// Work of a user's ports in a round, in frames of 60 bytes: as much as a turn of floods.
pub const SHARE: u32 = 32_768;

/// The users with ports at a worker.
#[derive(Debug, Default)]
pub struct Shares {
    users: Users<Taken>,
    round: u32,
}

/// What a user has taken.
#[derive(Debug, Default)]
struct Taken {
    /// The last round with a turn of the user.
    round: u32,
    /// The work in that round.
    work: u32,
}

impl Shares {
    /// Counts a new port of a user; returns the user's place.
    pub fn join(&mut self, uid: u32) -> usize {
        self.users.join(uid)
    }

    /// A port of the user at this place is gone.
    pub fn leave(&mut self, at: usize) {
        self.users.leave(at);
    }

    /// Begins a round.
    #[inline]
    pub fn begin_round(&mut self) {
        self.round = self.round.wrapping_add(1);
    }

    /// Whether the user at this place has had its share of the round.
    #[inline]
    #[must_use]
    pub fn is_over(&self, at: usize) -> bool {
        let Taken { round, work } = self.users[at];
        work >= SHARE && round == self.round
    }

    /// Charges a turn to the user at this place.
    #[inline]
    pub fn charge(&mut self, at: usize, work: u32) {
        let taken = &mut self.users[at];
        let before = if taken.round == self.round { taken.work } else { 0 };
        *taken = Taken { round: self.round, work: before.saturating_add(work) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_gets_a_share_of_each_round_whatever_its_ports() {
        let mut shares = Shares::default();
        let (one, other) = (shares.join(1000), shares.join(1001));
        assert_eq!(shares.join(1000), one, "a second port");
        shares.begin_round();
        shares.charge(one, SHARE - 1);
        assert!(!shares.is_over(one));
        shares.charge(one, u32::MAX);
        assert!(shares.is_over(one) && !shares.is_over(other));
        shares.begin_round();
        assert!(!shares.is_over(one), "a debt ends with its round");
        shares.charge(one, SHARE);
        shares.leave(one);
        shares.leave(one);
        assert_eq!(shares.join(1002), one);
        assert!(!shares.is_over(one), "a newcomer owes nothing");
        assert_eq!(shares.join(1001), other);
    }
}
