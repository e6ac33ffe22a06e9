//! The one binary: `uvala daemon`, `demo`, `gen`, `bridge`, `bench`, and the listings.

fn main() {}
