//! uvala: port.
