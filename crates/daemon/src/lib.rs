//! uvala: daemon.
