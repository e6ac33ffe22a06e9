//! Ports of virtual machines.

use std::time::Duration;

use port::queue::QueueMemory;
use protocol::MachineInfo;

use crate::model::error::MakeMachineError;
use crate::model::keys::PortKey;
use crate::model::specs::MachineSpec;

/// Ports of virtual machines.
pub trait Machines {
    /// Adds the port of a virtual machine, with its socket.
    fn add_machine(&mut self, spec: &MachineSpec) -> Result<(), MakeMachineError>;

    /// Adds the port without a socket, and remembers why: no VMM can connect.
    fn add_machine_without_socket(
        &mut self,
        spec: &MachineSpec,
        why: String,
    ) -> Result<(), MakeMachineError>;

    /// Disconnects the VMM of a port, and admits none for so long. At the return, the worker serves
    /// the VMM no more. [`Machines::machine_info`] says why as soon as the port's thread knows,
    /// which the VMM can block.
    fn evict_machine(&mut self, port: PortKey, period: Duration, why: String);

    /// Replaces the memory for frames that wait in front of the ring of a machine. The worker
    /// copies those that wait, at most 4096, between two batches.
    fn set_queue(&mut self, port: PortKey, memory: QueueMemory);

    /// What `port show` says of the virtual machine behind a port.
    fn machine_info(&self, port: PortKey) -> Option<MachineInfo>;
}

#[cfg(test)]
mod fake {
    use std::time::Duration;

    use port::queue::QueueMemory;
    use protocol::MachineInfo;

    use super::Machines;
    use crate::control::datapath::ports::Ports;
    use crate::control::fake::Fake;
    use crate::model::error::MakeMachineError;
    use crate::model::keys::PortKey;
    use crate::model::specs::MachineSpec;

    impl Machines for Fake {
        fn add_machine(&mut self, spec: &MachineSpec) -> Result<(), MakeMachineError> {
            Ok(self.add_null(spec.key, spec.switch, spec.config.clone())?)
        }

        fn add_machine_without_socket(
            &mut self,
            spec: &MachineSpec,
            _: String,
        ) -> Result<(), MakeMachineError> {
            self.add_machine(spec)
        }

        fn evict_machine(&mut self, port: PortKey, _: Duration, why: String) {
            self.evicted.push((port, why));
        }

        fn set_queue(&mut self, _: PortKey, _: QueueMemory) {
            self.calls += 1;
        }

        fn machine_info(&self, _: PortKey) -> Option<MachineInfo> {
            None
        }
    }
}
