//! Forwarding programs, as switches run them.

use program::{Counts, Image, MapError, Program};

use crate::model::keys::SwitchKey;

/// An entry of a map: its place, its key and its value.
pub type MapRow = (u32, Vec<u8>, Vec<u8>);

/// A change of a map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapChange {
    /// Number of the map.
    pub map: usize,
    /// The key of the entry.
    pub key: Vec<u8>,
    /// What is done to it.
    pub what: MapDeed,
}

/// What is done to an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MapDeed {
    /// The entry gets this value.
    Set(Vec<u8>),
    /// The entry is deleted.
    Delete,
    /// The entry is deleted, or zeros where entries cannot be; it may be missing.
    Clear,
}

impl MapChange {
    /// Makes the change.
    pub fn apply(&self, program: &mut Program) -> Result<(), MapError> {
        match &self.what {
            MapDeed::Set(value) => program.set(self.map, &self.key, value),
            MapDeed::Delete => program.delete(self.map, &self.key),
            MapDeed::Clear => match program.delete(self.map, &self.key) {
                Err(MapError::Missing) => Ok(()),
                Err(MapError::Array) => {
                    let zeros = vec![0; program.defs()[self.map].value_bytes()];
                    program.set(self.map, &self.key, &zeros)
                }
                done => done,
            },
        }
    }
}

/// What a switch says of its program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProgramReport {
    /// What the program has done.
    pub counts: Counts,
    /// Entries of each map.
    pub entries: Vec<u32>,
}

/// Forwarding programs, as switches run them. Maps are named by their number, and exist.
pub trait Programs {
    /// Loads a program in place of the one that the switch has, or of none; `None` unloads it.
    /// Maps that both declare alike keep their entries.
    fn set_program(&mut self, switch: SwitchKey, image: Option<Image>);

    /// What the program has done.
    fn program_report(&mut self, switch: SwitchKey) -> ProgramReport;

    /// Up to `max` entries of a map from a place on.
    fn program_page(&mut self, switch: SwitchKey, map: usize, from: u32, max: usize)
    -> Vec<MapRow>;

    /// The value of a key.
    fn program_get(
        &mut self,
        switch: SwitchKey,
        map: usize,
        key: Vec<u8>,
    ) -> Result<Vec<u8>, MapError>;

    /// Makes these changes, in order, between two batches.
    fn program_set(
        &mut self,
        switch: SwitchKey,
        changes: Vec<MapChange>,
    ) -> Vec<Result<(), MapError>>;
}

#[cfg(test)]
mod fake {
    use program::{Image, MapError, Program};

    use super::{MapChange, MapRow, ProgramReport, Programs};
    use crate::control::fake::Fake;
    use crate::model::keys::SwitchKey;

    impl Programs for Fake {
        fn set_program(&mut self, switch: SwitchKey, image: Option<Image>) {
            let mut old = self.programs.remove(&switch);
            if let Some(image) = image {
                let mut new = Program::new(&image, 1).expect("control has checked it");
                old.iter_mut().for_each(|old| new.adopt(old));
                self.programs.insert(switch, new);
            }
        }

        fn program_report(&mut self, switch: SwitchKey) -> ProgramReport {
            let program = &self.programs[&switch];
            let entries = (0..program.defs().len()).map(|map| program.count(map)).collect();
            ProgramReport { counts: program.counts(), entries }
        }

        fn program_page(
            &mut self,
            switch: SwitchKey,
            map: usize,
            from: u32,
            max: usize,
        ) -> Vec<MapRow> {
            self.programs[&switch].entries(map, from, max)
        }

        fn program_get(
            &mut self,
            switch: SwitchKey,
            map: usize,
            key: Vec<u8>,
        ) -> Result<Vec<u8>, MapError> {
            self.programs[&switch].get(map, &key)
        }

        fn program_set(
            &mut self,
            switch: SwitchKey,
            changes: Vec<MapChange>,
        ) -> Vec<Result<(), MapError>> {
            self.map_changes += 1;
            let program = self.programs.get_mut(&switch).expect("control has loaded it");
            changes.iter().map(|change| change.apply(program)).collect()
        }
    }
}
