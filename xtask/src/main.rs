//! The project's rules as programs.

fn main() {}
