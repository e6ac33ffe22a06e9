//! Switches, as the workers run them.

use switch::SwitchConfig;

use crate::model::error::DatapathError;
use crate::model::keys::SwitchKey;

/// Switches, as the workers run them.
pub trait Switches {
    /// The number of workers.
    fn workers(&self) -> u32;

    /// The number of the worker that runs a switch.
    fn worker_of(&self, switch: SwitchKey) -> u32;

    /// Adds a switch without ports: on the worker of switch `beside`, or on the one with the fewest
    /// switches.
    fn add_switch(
        &mut self,
        switch: SwitchKey,
        config: SwitchConfig,
        beside: Option<SwitchKey>,
    ) -> Result<(), DatapathError>;

    /// Changes the settings of a switch.
    fn set_switch(&mut self, switch: SwitchKey, config: SwitchConfig) -> Result<(), DatapathError>;

    /// Removes a switch that has no ports left.
    fn del_switch(&mut self, switch: SwitchKey);
}

#[cfg(test)]
mod fake {
    use switch::SwitchConfig;

    use super::Switches;
    use crate::control::fake::Fake;
    use crate::model::error::DatapathError;
    use crate::model::keys::SwitchKey;

    impl Switches for Fake {
        fn workers(&self) -> u32 {
            1
        }

        fn worker_of(&self, _: SwitchKey) -> u32 {
            0
        }

        fn add_switch(
            &mut self,
            key: SwitchKey,
            config: SwitchConfig,
            beside: Option<SwitchKey>,
        ) -> Result<(), DatapathError> {
            self.allocate()?;
            assert!(beside.is_none_or(|other| self.switches.contains_key(&other)));
            assert!(self.switches.insert(key, config).is_none());
            Ok(())
        }

        fn set_switch(
            &mut self,
            key: SwitchKey,
            config: SwitchConfig,
        ) -> Result<(), DatapathError> {
            *self.switches.get_mut(&key).expect("known") = config;
            Ok(())
        }

        fn del_switch(&mut self, key: SwitchKey) {
            assert!(self.ports.values().all(|(switch, _)| *switch != key), "ports go first");
            self.switches.remove(&key).expect("known");
        }
    }
}
