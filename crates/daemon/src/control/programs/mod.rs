//! Forwarding programs: loaded and unloaded with a switch's settings, listed, and their maps read
//! and written.

pub mod refusal;

use std::time::Instant;

use packet::PortId;
use program::MapError;
use program::image::to_hex;
use protocol::name::{PortName, SwitchName};
use protocol::{
    ErrorCode, Page, ProgramEntry, ProgramEntryRef, ProgramEntrySet, ProgramInfo, ProgramMap,
    ProgramMapQuery, ProgramRequest, Reply, SwitchSettings,
};
use switch::{Forwarding, SwitchConfig};

use super::{Control, page_from};
use crate::control::datapath::Datapath;
use crate::control::datapath::programs::{MapChange, MapDeed};
use crate::control::refusal::Refusal;
use crate::control::state::Switch;
use crate::model::keys::SwitchKey;
use crate::model::plan::SwitchPlan;
use crate::model::policy::{Access, Caller};
use crate::model::programs::{
    ENTRY_BYTES, LoadedProgram, SetEntry, bytes_of, canonical, check, names,
};
use crate::model::replies::count;
use refusal::ProgramRefusal;

/// Entries of a page; one takes at most 800 bytes.
const ROWS: usize = 64;
/// What `next` begins with where entries come that wait for a port.
const WAITS: &str = "waiting:";

impl<D: Datapath> Control<D> {
    /// Answers a call about programs.
    pub(super) fn program_call(
        &mut self,
        caller: &Caller,
        call: ProgramRequest,
    ) -> Result<Reply, Refusal> {
        match call {
            ProgramRequest::Show(of) => self.program_show(caller, &of.switch),
            ProgramRequest::MapList(query) => self.program_map_list(caller, &query),
            ProgramRequest::MapGet(of) => self.program_map_get(caller, &of),
            ProgramRequest::MapSet(set) => self.program_map_set(caller, set),
            ProgramRequest::MapDel(of) => self.program_map_del(caller, &of),
        }
    }

    /// A program that settings ask for, checked, for a switch that will have this configuration;
    /// `None`: they do not.
    pub(super) fn requested_program(
        &self,
        owner: u32,
        name: &SwitchName,
        config: SwitchConfig,
        settings: &SwitchSettings,
    ) -> Result<Option<LoadedProgram>, Refusal> {
        let old = self.state.find_switch(name).and_then(|switch| switch.program.as_ref());
        let is_asked = config.forwarding == Forwarding::Program;
        let before = self.state.find_switch(name).map(|switch| switch.config.forwarding);
        let Some(spec) = &settings.program else {
            // One that began with a program that was refused keeps what is left of it.
            let is_new = before != Some(Forwarding::Program);
            return match is_asked && is_new && old.is_none() {
                true => Err(ProgramRefusal::None(name.clone()).into()),
                false => Ok(None),
            };
        };
        if !is_asked {
            return Err(ProgramRefusal::NotForwarding(name.clone()).into());
        }
        if !spec.entries.is_empty() {
            return Err(Refusal::bad_value("entries: they are set one by one (program_map_set)"));
        }
        let mut new = LoadedProgram::new(spec)?;
        let more = new.memory().saturating_sub(old.map_or(0, LoadedProgram::memory));
        self.state.check_memory(owner, more)?;
        // What commands have set stays set, in maps that the new program has alike.
        old.into_iter().for_each(|old| new.carry(old));
        Ok(Some(new))
    }

    /// The program that a switch has and keeps with this configuration.
    pub(super) fn kept_program(
        &self,
        name: &SwitchName,
        config: SwitchConfig,
    ) -> Option<LoadedProgram> {
        let is_asked = config.forwarding == Forwarding::Program;
        self.state.find_switch(name)?.program.clone().filter(|_| is_asked)
    }

    /// Has a switch run a program.
    pub(super) fn load_program(&mut self, name: &SwitchName, program: LoadedProgram) {
        let switch = self.state.switch_mut(name).expect("it was there just now");
        let key = switch.key;
        let image = program.image.clone();
        // Entries that the new program takes over are in its maps, as the old one has left them.
        let entries = program.entries.iter().enumerate();
        let entries = entries.filter(|(_, set)| set.applied.is_none()).map(|(at, _)| at).collect();
        (switch.program, switch.refused_program) = (Some(program), None);
        self.datapath.set_program(key, Some(image));
        if let Err(error) = self.apply_entries(name, entries)
            && self.logs_program(name)
        {
            tracing::warn!("{name}: an entry of the program's maps is missing: {error}");
        }
    }

    /// Whether a line about a program is to be logged. It counts for the switch's owner: ports that
    /// come and go cause any number of such lines.
    fn logs_program(&mut self, name: &SwitchName) -> bool {
        let Some(switch) = self.state.find_switch(name) else { return false };
        self.call_log.logs_change(switch.permissions.owner, Instant::now())
    }

    /// Unloads the program of a switch that forwards in another way now.
    pub(super) fn tidy_program(&mut self, name: &SwitchName) {
        let Some(switch) = self.state.switch_mut(name) else { return };
        let is_other = switch.config.forwarding != Forwarding::Program;
        if is_other {
            switch.refused_program = None;
        }
        if is_other && switch.program.take().is_some() {
            let key = switch.key;
            self.datapath.set_program(key, None);
        }
    }

    /// Loads the program that a switch begins with. One that is refused leaves the switch without:
    /// it drops all frames, rather than forward them where the program would not.
    pub(super) fn plan_program(&mut self, plan: &SwitchPlan) {
        if plan.config.forwarding != Forwarding::Program {
            return;
        }
        let loaded = plan.program.as_ref().map(LoadedProgram::new);
        match loaded {
            Some(Ok(program)) => self.load_program(&plan.name, program),
            Some(Err(error)) => {
                tracing::error!("{}: {error}; it drops all frames", plan.name);
                // Kept for a daemon that accepts it.
                if let Some(switch) = self.state.switch_mut(&plan.name) {
                    switch.refused_program.clone_from(&plan.program);
                }
            }
            None => tracing::error!("{} has no program; it drops all frames", plan.name),
        }
    }

    /// After a port has come, gone, or changed: entries that name it.
    pub(super) fn refresh_programs(&mut self, port: &PortName) {
        let program = self.state.find_switch(port.switch()).and_then(|it| it.program.as_ref());
        let entries = program.map(|it| it.entries.iter()).into_iter().flatten().enumerate();
        let named = entries.filter(|(_, it)| names(&it.entry, port.port()));
        let named: Vec<usize> = named.map(|(at, _)| at).collect();
        if let Err(error) = self.apply_entries(port.switch(), named)
            && self.logs_program(port.switch())
        {
            tracing::warn!("an entry of a program's map for {port} is missing: {error}");
        }
    }

    /// Brings entries that commands have set into their maps, or out of them, where they name a
    /// port that has no number. One message for all: the worker answers between two batches. The
    /// error is the first.
    fn apply_entries(&mut self, name: &SwitchName, entries: Vec<usize>) -> Result<(), Refusal> {
        if entries.is_empty() {
            return Ok(());
        }
        let (key, program) = self.program_of(name)?;
        let mut changes = Vec::new();
        let mut wanted = Vec::new();
        for &at in &entries {
            let set = &program.entries[at];
            let (map, def) = (set.map, &program.image.maps[set.map]);
            let number = |port: &str| self.port_number(name, port);
            let key = bytes_of(&set.entry.key, def.key_bytes(), number);
            let entry = key.zip(bytes_of(&set.entry.value, def.value_bytes(), number));
            let is_other = |old: &&Vec<u8>| entry.as_ref().is_none_or(|(new, _)| new != *old);
            let old = set.applied.clone().as_ref().filter(is_other).cloned();
            changes.extend(old.map(|key| MapChange { map, key, what: MapDeed::Clear }));
            wanted.push((map, entry.as_ref().map(|(key, _)| (changes.len(), key.clone()))));
            let set = |(key, value)| MapChange { map, key, what: MapDeed::Set(value) };
            changes.extend(entry.map(set));
        }
        let done = self.datapath.program_set(key, changes);
        let program = self.state.switch_mut(name).and_then(|switch| switch.program.as_mut());
        let program = program.expect("it was there just now");
        let mut failed = Ok(());
        for (at, (map, entry)) in entries.into_iter().zip(wanted) {
            let result = entry.as_ref().map_or(Ok(()), |(at, _)| done[*at]);
            let applied = entry.map(|(_, key)| key).filter(|_| result.is_ok());
            program.entries[at].applied = applied;
            failed = failed.and(result.map_err(|error| (map, error)));
        }
        failed.or_else(|(map, error)| self.map_result(name, map, Err(error)))
    }

    /// Makes one change of a map.
    fn change_map(&mut self, name: &SwitchName, change: MapChange) -> Result<(), Refusal> {
        let (switch, _) = self.program_of(name)?;
        let map = change.map;
        let done = self.datapath.program_set(switch, vec![change]);
        self.map_result(name, map, done.into_iter().collect())
    }

    fn map_result<T>(
        &self,
        name: &SwitchName,
        map: usize,
        result: Result<T, MapError>,
    ) -> Result<T, Refusal> {
        result.map_err(|error| {
            let program = self.program_of(name).map(|(_, program)| program);
            let map = program.map_or_else(|_| String::new(), |it| it.image.maps[map].name.clone());
            ProgramRefusal::Map(name.clone(), map, error).into()
        })
    }

    /// The number of a port of a switch, while it carries frames.
    fn port_number(&self, switch: &SwitchName, port: &str) -> Option<u16> {
        let port = self.state.find_port(&switch.join(port).ok()?)?;
        self.id_of(port).map(PortId::number)
    }

    fn program_of(&self, name: &SwitchName) -> Result<(SwitchKey, &LoadedProgram), Refusal> {
        let switch = self.state.find_switch(name);
        let none = || Refusal::from(ProgramRefusal::None(name.clone()));
        let Switch { key, program, .. } = switch.ok_or_else(none)?;
        Ok((*key, program.as_ref().ok_or_else(none)?))
    }

    fn program_show(&mut self, caller: &Caller, name: &SwitchName) -> Result<Reply, Refusal> {
        self.state.switch(caller, name, Access::Look)?;
        let (key, _) = self.program_of(name)?;
        let report = self.datapath.program_report(key);
        let (_, LoadedProgram { image, .. }) = self.program_of(name)?;
        let map = |(def, &entries): (&program::MapDef, &u32)| ProgramMap {
            map: def.name.clone(),
            kind: def.kind.name().to_owned(),
            key_bytes: def.key,
            value_bytes: def.value,
            entries,
            max_entries: def.entries,
        };
        Ok(Reply::Program(ProgramInfo {
            switch: name.clone(),
            function: image.function.clone(),
            looks: image.looks.name().to_owned(),
            instructions: count(image.code.len() / program::code::INSN),
            memory: image.memory() as u64,
            runs: report.counts.runs,
            faults: report.counts.faults,
            last_fault: report.counts.fault.map(|fault| fault.to_string()),
            maps: image.maps.iter().zip(&report.entries).map(map).collect(),
        }))
    }

    fn program_map_list(
        &mut self,
        caller: &Caller,
        query: &ProgramMapQuery,
    ) -> Result<Reply, Refusal> {
        self.state.switch(caller, &query.switch, Access::Look)?;
        let (key, program) = self.program_of(&query.switch)?;
        let (map, _) = program.map(&query.map)?;
        let from = query.from.as_deref().unwrap_or("0");
        let (number, waits) = match from.strip_prefix(WAITS) {
            Some(number) => (number, true),
            None => (from, false),
        };
        let from = page_from(Some(number))?.unwrap_or(0_u32);
        if waits {
            let page = self.waiting_page(&query.switch, program, map, from);
            return Ok(Reply::ProgramEntries(page));
        }
        let mut rows = self.datapath.program_page(key, map, from, ROWS + 1);
        let next = (rows.len() > ROWS).then(|| rows.pop()).flatten();
        let (_, program) = self.program_of(&query.switch)?;
        let entry = |(_, key, value): &(u32, Vec<u8>, Vec<u8>)| {
            self.entry(&query.switch, program, map, key, value)
        };
        let items = rows.iter().map(entry).collect();
        let next = next.map(|(behind, ..)| behind.saturating_sub(1).to_string());
        let first =
            || self.waiting(&query.switch, program, map).next().map(|_| format!("{WAITS}0"));
        Ok(Reply::ProgramEntries(Page { items, next: next.or_else(first) }))
    }

    /// Entries that commands have set, and that a map does not have while the port that they name
    /// has no number.
    fn waiting<'a>(
        &'a self,
        switch: &'a SwitchName,
        program: &'a LoadedProgram,
        map: usize,
    ) -> impl Iterator<Item = &'a ProgramEntry> {
        let has_none =
            |text: &str| bytes_of(text, 0, |port| self.port_number(switch, port)).is_none();
        let all = program.entries.iter().filter(move |it| it.map == map).map(|it| &it.entry);
        all.filter(move |it| has_none(&it.key) || has_none(&it.value))
    }

    fn waiting_page(
        &self,
        switch: &SwitchName,
        program: &LoadedProgram,
        map: usize,
        from: u32,
    ) -> Page<ProgramEntry> {
        let mut left = self.waiting(switch, program, map).skip(from as usize);
        let items = left.by_ref().take(ROWS).cloned().collect();
        let next = from.saturating_add(count(ROWS));
        Page { items, next: left.next().map(|_| format!("{WAITS}{next}")) }
    }

    /// An entry as a command has set it, where that named a port and still holds, or in digits.
    fn entry(
        &self,
        switch: &SwitchName,
        program: &LoadedProgram,
        map: usize,
        key: &[u8],
        value: &[u8],
    ) -> ProgramEntry {
        let def = &program.image.maps[map];
        let is_now = |text: &str| {
            let number = |port: &str| self.port_number(switch, port);
            bytes_of(text, def.value_bytes(), number).as_deref() == Some(value)
        };
        let is_it = |it: &&SetEntry| it.map == map && it.applied.as_deref() == Some(key);
        let set = program.entries.iter().find(is_it).filter(|it| is_now(&it.entry.value));
        set.map_or_else(
            || ProgramEntry { map: def.name.clone(), key: to_hex(key), value: to_hex(value) },
            |set| set.entry.clone(),
        )
    }

    /// The switch, the map and the key of a request.
    fn program_key(&self, of: &ProgramEntryRef) -> Result<(SwitchKey, usize, Vec<u8>), Refusal> {
        let (switch, program) = self.program_of(&of.switch)?;
        let (map, def) = program.map(&of.map)?;
        check("key", &of.key, def.key_bytes())?;
        let number = |port: &str| self.port_number(&of.switch, port);
        match bytes_of(&of.key, def.key_bytes(), number) {
            Some(key) => Ok((switch, map, key)),
            None => self.map_result(&of.switch, map, Err(MapError::Missing)),
        }
    }

    fn program_map_get(&mut self, caller: &Caller, of: &ProgramEntryRef) -> Result<Reply, Refusal> {
        self.state.switch(caller, &of.switch, Access::Look)?;
        let found = self.found_entry(of).or_else(|why| match why.code() {
            ErrorCode::NotFound => self.waiting_entry(of).ok_or(why),
            _ => Err(why),
        });
        found.map(Reply::ProgramEntry)
    }

    /// The entry that a map has for a key.
    fn found_entry(&mut self, of: &ProgramEntryRef) -> Result<ProgramEntry, Refusal> {
        let (switch, map, key) = self.program_key(of)?;
        let value = self.datapath.program_get(switch, map, key.clone());
        let value = self.map_result(&of.switch, map, value)?;
        let (_, program) = self.program_of(&of.switch)?;
        Ok(self.entry(&of.switch, program, map, &key, &value))
    }

    /// The entry that a command has set for a key, while it waits for a port.
    fn waiting_entry(&self, of: &ProgramEntryRef) -> Option<ProgramEntry> {
        let (_, program) = self.program_of(&of.switch).ok()?;
        let (map, def) = program.map(&of.map).ok()?;
        let key = canonical(def, &of.key).ok()?;
        self.waiting(&of.switch, program, map).find(|entry| entry.key == key).cloned()
    }

    fn program_map_set(&mut self, caller: &Caller, set: ProgramEntrySet) -> Result<Reply, Refusal> {
        let ProgramEntrySet { switch: name, entry } = set;
        let owner = self.state.switch(caller, &name, Access::Manage)?.permissions.owner;
        self.program_of(&name)?;
        self.state.check_memory(owner, ENTRY_BYTES as u64)?;
        let switch = self.state.switch_mut(&name).expect("it was there just now");
        let program = switch.program.as_mut().expect("it was there just now");
        let (at, before) = program.put(entry)?;
        let done = self.apply_entries(&name, vec![at]);
        if done.is_err()
            && let Some(program) = self.state.switch_mut(&name).and_then(|it| it.program.as_mut())
        {
            match before {
                Some(before) => program.entries[at] = before,
                None => drop(program.entries.pop()),
            }
        }
        done.map(|()| Reply::Done)
    }

    fn program_map_del(&mut self, caller: &Caller, of: &ProgramEntryRef) -> Result<Reply, Refusal> {
        self.state.switch(caller, &of.switch, Access::Manage)?;
        let (_, program) = self.program_of(&of.switch)?;
        let (map, def) = program.map(&of.map)?;
        let text = canonical(def, &of.key)?;
        let at = program.entries.iter().position(|it| it.map == map && it.entry.key == text);
        let key = match at {
            None => Some(self.program_key(of)?.2),
            Some(at) => {
                let switch = self.state.switch_mut(&of.switch).expect("it was there just now");
                let program = switch.program.as_mut().expect("it was there just now");
                program.entries.remove(at).applied
            }
        };
        let what = if at.is_some() { MapDeed::Clear } else { MapDeed::Delete };
        let change = key.map(|key| MapChange { map, key, what });
        change.map_or(Ok(()), |change| self.change_map(&of.switch, change)).map(|()| Reply::Done)
    }
}
