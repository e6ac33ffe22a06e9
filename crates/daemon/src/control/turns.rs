//! Who is heard next: users take turns, and so do the connections of each.

use std::collections::{HashMap, VecDeque};

/// Connections that have something to say.
#[derive(Debug, Default)]
pub struct Turns {
    users: VecDeque<u32>,
    lines: HashMap<u32, VecDeque<u64>>,
}

impl Turns {
    /// A connection has something to say.
    pub fn push(&mut self, uid: u32, key: u64) {
        let line = self.lines.entry(uid).or_default();
        if line.is_empty() {
            self.users.push_back(uid);
        }
        line.push_back(key);
    }

    /// The connection that is heard next.
    pub fn pop(&mut self) -> Option<u64> {
        let uid = self.users.pop_front()?;
        let line = self.lines.get_mut(&uid).expect("a user who has a turn has a line");
        let key = line.pop_front().expect("lines are not empty");
        if line.is_empty() {
            self.lines.remove(&uid);
        } else {
            self.users.push_back(uid);
        }
        Some(key)
    }

    /// Whether nobody has anything to say.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.users.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_a_call_waits_for_one_of_each_other_user_however_many_they_have() {
        let mut turns = Turns::default();
        (0..4000).for_each(|key| turns.push(1, key));
        (4000..4100).for_each(|key| turns.push(2, key));
        assert_eq!(turns.pop(), Some(0));
        turns.push(3, 9000);
        turns.push(1, 0);
        let next: Vec<u64> = (0..6).filter_map(|_| turns.pop()).collect();
        assert_eq!(next, [4000, 1, 9000, 4001, 2, 4002]);
        let left = std::iter::from_fn(|| turns.pop()).count();
        assert_eq!(left, 4000 + 100 + 2 - 7);
        assert!(turns.is_empty() && turns.lines.is_empty());
    }
}
