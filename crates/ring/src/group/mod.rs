//! Trust groups: ports that share a region, and whose the buffers in it are.

pub mod audit;
pub mod holder;
pub mod leaver;
pub mod owners;
