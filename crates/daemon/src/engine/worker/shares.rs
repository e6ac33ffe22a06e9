//! What each user may take of a worker's round: a pure function of the turns.
//!
//! A turn has a bound, but a user may have thousands of ports, and each a turn that floods. In one
//! round the ports of a user together get [`SHARE`] work, and the turn that exceeds it. The others
//! wait, and come first in the next round. So a round has a bound for each user, whatever the
//! ports do, and so have the waiting times of other users' ports and of control.

/// Work of a user's ports in a round, in frames of 60 bytes: as much as a turn of floods.
pub const SHARE: u32 = 32_768;

/// The users with ports at a worker.
#[derive(Debug, Default)]
pub struct Shares {
    users: Vec<User>,
    round: u32,
}

#[derive(Clone, Copy, Debug)]
struct User {
    uid: u32,
    /// The user's ports at this worker; 0: the place is free.
    ports: u32,
    /// The last round with a turn of the user.
    round: u32,
    /// The work in that round.
    work: u32,
}

impl Shares {
    /// Counts a new port of a user; returns the user's place.
    pub fn join(&mut self, uid: u32) -> usize {
        let of = |user: &User| user.ports > 0 && user.uid == uid;
        let at = self.users.iter().position(of).unwrap_or_else(|| self.free_place(uid));
        self.users[at].ports += 1;
        at
    }

    fn free_place(&mut self, uid: u32) -> usize {
        let user = User { uid, ports: 0, round: self.round, work: 0 };
        let free = self.users.iter().position(|user| user.ports == 0);
        match free {
            Some(at) => self.users[at] = user,
            None => self.users.push(user),
        }
        free.unwrap_or(self.users.len() - 1)
    }

    /// A port of the user at this place is gone.
    pub fn leave(&mut self, at: usize) {
        debug_assert!(self.users[at].ports > 0, "it has joined");
        self.users[at].ports -= 1;
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
        let user = &self.users[at];
        user.work >= SHARE && user.round == self.round
    }

    /// Charges a turn to the user at this place.
    #[inline]
    pub fn charge(&mut self, at: usize, work: u32) {
        let user = &mut self.users[at];
        let before = if user.round == self.round { user.work } else { 0 };
        (user.round, user.work) = (self.round, before.saturating_add(work));
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
    }

    #[test]
    fn the_place_of_a_user_without_ports_is_free() {
        let mut shares = Shares::default();
        let (one, other) = (shares.join(1000), shares.join(1001));
        shares.charge(one, SHARE);
        shares.leave(one);
        assert_eq!(shares.join(1002), one);
        assert!(!shares.is_over(one), "a newcomer owes nothing");
        assert_eq!(shares.join(1001), other);
    }
}
