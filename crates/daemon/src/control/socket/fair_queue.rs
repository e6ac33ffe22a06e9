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

    /// The connection that is served next.
    pub fn pop(&mut self) -> Option<u64> {
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

    /// Whether no request waits.
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
        let mut queue = FairQueue::default();
        (0..4000).for_each(|key| queue.push(1, key));
        (4000..4100).for_each(|key| queue.push(2, key));
        assert_eq!(queue.pop(), Some(0));
        queue.push(3, 9000);
        queue.push(1, 0);
        let next: Vec<u64> = (0..6).filter_map(|_| queue.pop()).collect();
        assert_eq!(next, [4000, 1, 9000, 4001, 2, 4002]);
        let left = std::iter::from_fn(|| queue.pop()).count();
        assert_eq!(left, 4000 + 100 + 2 - 7);
        assert!(queue.is_empty() && queue.lines.is_empty());
    }
}
