//! An operator moves a port to another worker of its switch.

use protocol::{PortKind, PortSet, PortSettings, PortWorker, Reply, WorkerMove};

use crate::control::Control;
use crate::control::datapath::Datapath;
use crate::control::ports::refusal::PortRefusal;
use crate::control::refusal::Refusal;
use crate::control::switches::refusal::SwitchRefusal;
use crate::model::keys::PortKey;
use crate::model::policy::{Access, Caller};

/// The move that a change of settings asks for.
pub(in crate::control) fn wanted_worker(set: &PortSet) -> Option<WorkerMove> {
    match set.settings.worker? {
        PortWorker::Auto => None,
        PortWorker::Number(worker) => Some(WorkerMove { port: set.port.clone(), worker }),
    }
}

impl<D: Datapath> Control<D> {
    pub(in crate::control) fn worker_move(
        &mut self,
        caller: &Caller,
        wanted: &WorkerMove,
    ) -> Result<Reply, Refusal> {
        let port = self.movable(caller, wanted)?;
        self.move_to(wanted, port).map(|()| Reply::Done)
    }

    /// Moves a port that [can be moved](Self::movable).
    pub(in crate::control) fn move_to(
        &mut self,
        wanted: &WorkerMove,
        port: PortKey,
    ) -> Result<(), Refusal> {
        Ok(self.datapath.move_port(port, wanted.worker)?)
    }

    /// Refuses settings that ask for a worker which the daemon does not have.
    pub(in crate::control) fn check_worker(&self, settings: &PortSettings) -> Result<(), Refusal> {
        match settings.worker {
            Some(PortWorker::Number(number)) => self.check_number(number),
            None | Some(PortWorker::Auto) => Ok(()),
        }
    }

    fn check_number(&self, worker: u32) -> Result<(), Refusal> {
        let workers = self.datapath.workers();
        if worker < workers {
            return Ok(());
        }
        Err(Refusal::bad_value(format!(
            "worker: {worker} is not the number of a worker: the daemon has {workers}, from 0 on; \
             see: uvala worker list"
        )))
    }

    /// The port that can be moved so.
    pub(in crate::control) fn movable(
        &self,
        caller: &Caller,
        wanted: &WorkerMove,
    ) -> Result<PortKey, Refusal> {
        let WorkerMove { port: name, worker } = wanted;
        let port = self.state.port(caller, name, Access::Manage)?;
        self.check_number(*worker)?;
        let switch = self.state.find_switch(name.switch());
        if !switch.is_some_and(|it| it.config.is_spread) {
            return Err(SwitchRefusal::OneWorker(name.switch().clone()).into());
        }
        if port.kind == PortKind::Pipe || port.is_bound() {
            return Err(PortRefusal::Stays(name.clone()).into());
        }
        if !port.is_live() {
            return Err(PortRefusal::Idle(name.clone()).into());
        }
        Ok(port.key)
    }
}
