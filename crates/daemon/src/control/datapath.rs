//! What `control` needs of the workers: one trait for each subject.
//!
//! `control` has checked names, permissions, quotas and ranges before it calls one of these
//! methods. So a method fails only when memory or descriptors run out, and then leaves nothing
//! behind. The engine carries each call to the worker that owns the switch, which runs it between
//! two batches.
//!
//! Tests use a fake of each trait, which stands beside it and moves no frames.

pub mod chains;
pub mod closings;
pub mod fdb;
pub mod groups;
pub mod hand_over;
pub mod interfaces;
pub mod machines;
pub mod mdb;
pub mod mirrors;
pub mod moves;
pub mod netmap;
pub mod pipes;
pub mod ports;
pub mod programs;
pub mod regions;
pub mod security;
pub mod switches;
pub mod traces;
pub mod unswitched;
pub mod vxlan;
pub mod workers;

use chains::Chains;
use closings::Closings;
use fdb::Fdb;
use groups::Groups;
use hand_over::HandOver;
use interfaces::Interfaces;
use machines::Machines;
use mdb::Mdb;
use mirrors::Mirrors;
use moves::Moves;
use netmap::NetmapPorts;
use pipes::Pipes;
use ports::Ports;
use programs::Programs;
use regions::Regions;
use security::Security;
use switches::Switches;
use traces::Traces;
use unswitched::Unswitched;
use vxlan::VxlanPorts;
use workers::WorkerWatch;

/// All of the datapath.
pub trait Datapath:
    Switches
    + Chains
    + Closings
    + Groups
    + Ports
    + Programs
    + Pipes
    + NetmapPorts
    + Regions
    + Unswitched
    + Machines
    + Mirrors
    + VxlanPorts
    + Interfaces
    + Fdb
    + Mdb
    + Moves
    + WorkerWatch
    + HandOver
    + Security
    + Traces
{
}

impl<T> Datapath for T where
    T: Switches
        + Chains
        + Closings
        + Groups
        + Ports
        + Programs
        + Pipes
        + NetmapPorts
        + Regions
        + Unswitched
        + Machines
        + Mirrors
        + VxlanPorts
        + Interfaces
        + Fdb
        + Mdb
        + Moves
        + WorkerWatch
        + HandOver
        + Security
        + Traces
{
}
