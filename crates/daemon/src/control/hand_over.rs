//! `uvala daemon --replace`: the next daemon asks this one for its interfaces, then for its end.
//!
//! The copies change nothing here: if the next daemon ends before it has asked for the end, this
//! one goes on. So it does while there are changes that it cannot save, which the next one would
//! not have.

use protocol::{HandedOver, PageFrom, Reply};

use super::refusal::{AccessRefusal, Refusal};
use super::{Answer, Control};
use crate::control::datapath::Datapath;
use crate::model::error::DatapathError;
use crate::model::keys::PortKey;
use crate::model::policy::{Caller, shown_process};
use crate::store::writer::Writer;

impl<D: Datapath> Control<D> {
    pub(super) fn hand_over(&self, caller: &Caller, page: &PageFrom) -> Answer {
        check(caller)?;
        self.check_saved()?;
        let number = page.from.as_deref().unwrap_or("0").parse();
        let number =
            number.map_err(|_| Refusal::bad_value("from: not a `next` of the last reply"))?;
        let copies = self.datapath.hand_over(PortKey(number)).map_err(DatapathError::from)?;
        Ok(match copies {
            None => (Reply::HandedOver(HandedOver { name: None, next: None }), Vec::new()),
            Some((PortKey(number), (name, fds))) => {
                let (name, next) = (Some(name), Some(number.saturating_add(1).to_string()));
                (Reply::HandedOver(HandedOver { name, next }), fds)
            }
        })
    }

    pub(super) fn end(&mut self, caller: &Caller) -> Result<Reply, Refusal> {
        check(caller)?;
        self.check_saved()?;
        tracing::info!("{} takes over", shown_process(caller.pid, caller.uid));
        self.pending.end = true;
        Ok(Reply::Done)
    }

    fn check_saved(&self) -> Result<(), Refusal> {
        let unsaved = self.writer().map(Writer::unsaved).unwrap_or_default();
        unsaved.into_values().next().map_or(Ok(()), |why| Err(Refusal::Unsaved(why)))
    }

    /// Whether it is time to end.
    pub fn is_ending(&self) -> bool {
        self.pending.end
    }
}

fn check(caller: &Caller) -> Result<(), Refusal> {
    if caller.privileged { Ok(()) } else { Err(AccessRefusal::Replace.into()) }
}
