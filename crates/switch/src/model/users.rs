//! The users of ports, and what is counted of each.

use std::ops::{Index, IndexMut};

/// Users with ports. Each has a place, which stays the same while the user has a port.
#[derive(Debug)]
pub struct Users<T>(Vec<User<T>>);

#[derive(Debug)]
struct User<T> {
    uid: u32,
    /// 0: the place is free.
    ports: u32,
    counted: T,
}

impl<T: Default> Users<T> {
    /// Counts a new port of a user; returns the user's place.
    pub fn join(&mut self, uid: u32) -> usize {
        let of = |user: &User<T>| user.ports > 0 && user.uid == uid;
        let at = self.0.iter().position(of).unwrap_or_else(|| self.begin(uid));
        self.0[at].ports += 1;
        at
    }

    fn begin(&mut self, uid: u32) -> usize {
        let user = User { uid, ports: 0, counted: T::default() };
        let free = self.0.iter().position(|user| user.ports == 0);
        match free {
            Some(at) => self.0[at] = user,
            None => self.0.push(user),
        }
        free.unwrap_or(self.0.len() - 1)
    }

    /// A port of the user at this place is gone.
    pub fn leave(&mut self, at: usize) {
        debug_assert!(self.0[at].ports > 0, "it has joined");
        self.0[at].ports -= 1;
    }
}

impl<T> Default for Users<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> Index<usize> for Users<T> {
    type Output = T;

    #[inline]
    fn index(&self, at: usize) -> &T {
        &self.0[at].counted
    }
}

impl<T> IndexMut<usize> for Users<T> {
    #[inline]
    fn index_mut(&mut self, at: usize) -> &mut T {
        &mut self.0[at].counted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_place_of_a_user_without_ports_is_free() {
        let mut users = Users::<u32>::default();
        let (one, other) = (users.join(1000), users.join(1001));
        users[one] = 7;
        assert_eq!(users.join(1000), one, "a second port");
        users.leave(one);
        assert_eq!((users.join(1000), users[one]), (one, 7));
        users.leave(one);
        users.leave(one);
        assert_eq!((users.join(1002), users[one]), (one, 0), "a newcomer begins anew");
        assert_eq!(users.join(1001), other);
    }
}
