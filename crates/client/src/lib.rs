//! uvala: client.
