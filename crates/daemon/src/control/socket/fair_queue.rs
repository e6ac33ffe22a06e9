//! Which request is served next: users take turns, and so do the connections of each.

use std::collections::{HashMap, VecDeque};

/// Connections that have a request.
#[derive(Debug, Default)]
pub struct FairQueue {
    users: VecDeque<u32>,
    lines: HashMap<u32, VecDeque<u64>>,
}

impl FairQueue {
    /// A connection has a request.
    pub fn push(&mut self, uid: u32, key: u64) {
        let line = self.lines.entry(uid).or_default();
        if line.is_empty() {
            self.users.push_back(uid);
        }
        line.push_back(key);
    }

    /// The connection that is served next, of the users that may be.
    pub fn pop(&mut self, may_be: impl Fn(u32) -> bool) -> Option<u64> {
        let first = self.users.iter().position(|&uid| may_be(uid))?;
        self.users.rotate_left(first);
        let uid = self.users.pop_front()?;
        let line = self.lines.get_mut(&uid).expect("a user in the queue has a line");
        let key = line.pop_front().expect("lines are not empty");
        if line.is_empty() {
            self.lines.remove(&uid);
        } else {
            self.users.push_back(uid);
        }
        Some(key)
    }

    /// The users that have requests.
    pub fn users(&self) -> impl Iterator<Item = u32> {
        self.users.iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_a_call_waits_for_one_of_each_other_user_however_many_they_have() {
        let mut queue = FairQueue::default();
        (0..4000).for_each(|key| queue.push(1, key));
        (4000..4100).for_each(|key| queue.push(2, key));
        assert_eq!(queue.pop(|_| true), Some(0));
        queue.push(3, 9000);
        queue.push(1, 0);
        let next: Vec<u64> = (0..6).filter_map(|_| queue.pop(|_| true)).collect();
        assert_eq!(next, [4000, 1, 9000, 4001, 2, 4002]);
        let left = std::iter::from_fn(|| queue.pop(|_| true)).count();
        assert_eq!(left, 4000 + 100 + 2 - 7);
        assert!(queue.users.is_empty() && queue.lines.is_empty());
    }

    #[test]
    fn test_users_that_may_not_be_served_wait_while_others_take_turns() {
        let mut queue = FairQueue::default();
        let calls = [(1, 10), (2, 20), (1, 11), (3, 30), (2, 21)];
        calls.into_iter().for_each(|(uid, key)| queue.push(uid, key));
        let others = |uid| uid != 1;
        let next: Vec<u64> = (0..9).filter_map(|_| queue.pop(others)).collect();
        assert_eq!(next, [20, 30, 21]);
        assert_eq!(queue.users().collect::<Vec<_>>(), [1]);
        assert_eq!([queue.pop(|_| true), queue.pop(|_| true)], [Some(10), Some(11)]);
    }
}
