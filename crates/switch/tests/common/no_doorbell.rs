//! The doorbell of clients that sleep never: tests look at their rings themselves.

use switch::Wake;

pub struct NoDoorbell;

impl Wake for NoDoorbell {
    fn wake(&self) {}
}
