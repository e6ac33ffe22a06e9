//! Mirror ports.

use switch::MirrorPoint;

use crate::model::keys::PortKey;

/// Mirror ports.
pub trait Mirrors {
    /// Sets what a mirror port gets copies of, at most `rate` in a second (0: any number). All
    /// ports are in its switch, and carry frames. One that goes is forgotten.
    fn set_mirror(&mut self, port: PortKey, rate: u32, from: &[(PortKey, MirrorPoint)]);
}

#[cfg(test)]
mod fake {
    use switch::MirrorPoint;

    use super::Mirrors;
    use crate::control::fake::Fake;
    use crate::model::keys::PortKey;

    impl Mirrors for Fake {
        fn set_mirror(&mut self, port: PortKey, rate: u32, from: &[(PortKey, MirrorPoint)]) {
            let switch = self.ports[&port].0;
            assert!(from.iter().all(|(port, _)| self.ports[port].0 == switch));
            self.mirrors.insert(port, (rate, from.to_vec()));
        }
    }
}
