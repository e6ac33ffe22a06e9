//! Forwarding programs: made here, run by the worker of their switch, and freed elsewhere.

use program::{Image, Map, MapError, Program};
use switch::UserFunction;

use super::Workers;
use super::system::random_seed;
use crate::control::datapath::programs::{MapChange, MapRow, ProgramReport, Programs};
use crate::model::keys::SwitchKey;

/// Why a switch has a program here.
const LOADED: &str = "control has loaded it";

impl Programs for Workers {
    fn set_program(&mut self, switch: SwitchKey, image: Option<Image>) {
        let new =
            |image: Image| Program::new(&image, random_seed()).expect("control has checked it");
        let function = image.map(|image| UserFunction::new(new(image)));
        let old = self.on_switch(switch, move |worker, at| {
            worker.switch(at).bridge_mut().set_function(function)
        });
        self.reclaimer.run(move || drop(old));
    }

    fn program_report(&mut self, switch: SwitchKey) -> ProgramReport {
        self.on_program(switch, |program| ProgramReport {
            counts: program.counts(),
            entries: program.maps().iter().map(Map::count).collect(),
        })
    }

    fn program_page(
        &mut self,
        switch: SwitchKey,
        map: usize,
        from: u32,
        max: usize,
    ) -> Vec<MapRow> {
        self.on_program(switch, move |program| program.entries(map, from).take(max).collect())
    }

    fn program_get(
        &mut self,
        switch: SwitchKey,
        map: usize,
        key: Vec<u8>,
    ) -> Result<Vec<u8>, MapError> {
        self.on_program(switch, move |program| program.get(map, &key).map(<[u8]>::to_vec))
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
