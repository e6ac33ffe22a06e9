//! Forwarding programs: made here, run by the workers of their switch, and freed elsewhere.
//!
//! Where all workers run the switch, the home replaces the program first, and its maps are those of
//! the old one and the new one until the last worker has done so.

use program::{Counts, Image, MapError, Program};
use switch::UserFunction;

use super::Workers;
use super::system::random_seed;
use super::worker::Worker;
use crate::control::datapath::programs::{MapChange, MapRow, ProgramReport, Programs};
use crate::model::keys::SwitchKey;

/// Why a switch has a program here.
const LOADED: &str = "control has loaded it";

impl Programs for Workers {
    fn set_program(&mut self, switch: SwitchKey, image: Option<Image>) {
        let Some(image) = image else {
            let old = self.on_replicas(switch, |worker, at| {
                worker.switch(at).bridge_mut().set_function(None)
            });
            return self.reclaimer.run(move || drop(old));
        };
        let program = Program::new(&image, random_seed()).expect("control has checked it");
        if !self.place(switch).is_spread {
            let function = UserFunction::new(program);
            let old = self.on_switch(switch, move |worker, at| {
                worker.switch(at).bridge_mut().set_function(Some(function))
            });
            return self.reclaimer.run(move || drop(old));
        }
        let function = UserFunction::new(program.into_common());
        let (old, first) = self.on_switch(switch, move |worker, at| {
            let bridge = worker.switch(at).bridge_mut();
            let old = bridge.set_function(Some(function));
            (old, bridge.function().expect(LOADED).handle())
        });
        let others = self.on_others(switch, || {
            let function = first.handle();
            move |worker: &mut Worker, at| {
                worker.switch(at).bridge_mut().set_function(Some(function))
            }
        });
        let maps = self.on_switch(switch, |worker, at| {
            worker.switch(at).bridge_mut().program_mut().expect(LOADED).sweep()
        });
        self.reclaimer.run(move || drop((old, others, maps)));
    }

    fn program_report(&mut self, switch: SwitchKey) -> ProgramReport {
        let entries = self.on_program(switch, |program| {
            (0..program.defs().len()).map(|map| program.count(map)).collect()
        });
        let counts = self.on_replicas(switch, |worker, at| {
            worker.switch(at).bridge().function().expect(LOADED).program().counts()
        });
        let sum = |mut sum: Counts, more: &Counts| {
            sum.add(more);
            sum
        };
        ProgramReport { counts: counts.iter().fold(Counts::default(), sum), entries }
    }

    fn program_page(
        &mut self,
        switch: SwitchKey,
        map: usize,
        from: u32,
        max: usize,
    ) -> Vec<MapRow> {
        self.on_program(switch, move |program| program.entries(map, from, max))
    }

    fn program_get(
        &mut self,
        switch: SwitchKey,
        map: usize,
        key: Vec<u8>,
    ) -> Result<Vec<u8>, MapError> {
        self.on_program(switch, move |program| program.get(map, &key))
    }

    fn program_set(
        &mut self,
        switch: SwitchKey,
        changes: Vec<MapChange>,
    ) -> Vec<Result<(), MapError>> {
        self.on_switch(switch, move |worker, at| {
            let program = worker.switch(at).bridge_mut().program_mut().expect(LOADED);
            changes.iter().map(|change| change.apply(program)).collect()
        })
    }
}

impl Workers {
    fn on_program<T: Send + 'static>(
        &self,
        switch: SwitchKey,
        look: impl FnOnce(&Program) -> T + Send + 'static,
    ) -> T {
        self.on_switch(switch, move |worker, at| {
            look(worker.switch(at).bridge().function().expect(LOADED).program())
        })
    }
}
