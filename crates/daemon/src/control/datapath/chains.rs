//! Chains of network functions, as a switch runs them.

use switch::chain::{Report, Tables};

use crate::model::keys::{PortKey, SwitchKey};

/// Chains of network functions, as a switch runs them.
pub trait Chains {
    /// Sends frames through chains as `tables` say; `None` switches chains off.
    fn set_chains(&mut self, switch: SwitchKey, tables: Option<Tables>);

    /// What the switch has counted of its chains; `None` without chains.
    fn chain_report(&mut self, switch: SwitchKey) -> Option<Report>;

    /// Asks the function behind a port to query its next functions again.
    fn prompt_function(&mut self, port: PortKey);
}

#[cfg(test)]
mod fake {
    use switch::chain::{Report, Tables};

    use super::Chains;
    use crate::control::fake::Fake;
    use crate::model::keys::{PortKey, SwitchKey};

    impl Chains for Fake {
        fn set_chains(&mut self, key: SwitchKey, tables: Option<Tables>) {
            match tables {
                Some(_) => self.steered.insert(key),
                None => self.steered.remove(&key),
            };
        }

        fn chain_report(&mut self, key: SwitchKey) -> Option<Report> {
            self.reports += 1;
            self.steered.get(&key).map(|_| Report::default())
        }

        fn prompt_function(&mut self, port: PortKey) {
            self.told.push(port);
        }
    }
}
