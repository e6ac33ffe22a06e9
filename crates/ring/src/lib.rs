//! uvala: ring.
