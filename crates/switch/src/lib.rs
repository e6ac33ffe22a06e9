//! uvala: switch.
