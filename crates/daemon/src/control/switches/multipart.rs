//! Chains and rules that do not fit one message: the first parts wait for the last.
//!
//! A draft is its connection's, and goes with it. What it may waste is bounded: parts of one draft,
//! rules and chains in them, and drafts of a user. A rule takes far more memory than its shortest
//! text, so the parts alone are no bound. What else is wrong with them is said when the last part
//! comes, of all together.

use packet::metadata::POSITIONS;
use protocol::check::steering::{check_chain_count, check_rule_count};
use protocol::name::SwitchName;
use protocol::{ChainSpec, Reply, RuleSpec, SwitchSettings, SwitchSpec};

use crate::control::datapath::Datapath;
use crate::control::refusal::{QuotaRefusal, Refusal};
use crate::control::{Client, Control};
use crate::model::keys::ConnKey;
use crate::model::policy::Access;

/// Messages before the last: twice as many as the longest rules of a switch need.
const PARTS_MAX: usize = 64;
/// Drafts of a user at a time.
const DRAFTS_MAX: usize = 4;

/// What has come so far.
#[derive(Debug)]
pub(in crate::control) struct PartialPlan {
    uid: u32,
    switch: SwitchName,
    parts: usize,
    chains: Option<Vec<ChainSpec>>,
    rules: Option<Vec<RuleSpec>>,
}

impl<D: Datapath> Control<D> {
    /// Keeps a part until its connection sets this switch.
    pub(in crate::control) fn switch_draft(
        &mut self,
        client: &Client,
        spec: SwitchSpec,
    ) -> Result<Reply, Refusal> {
        let SwitchSpec { switch, mut settings } = spec;
        self.state.switch(&client.caller, &switch, Access::Manage)?;
        let (chains, rules) = (settings.chains.take(), settings.rules.take());
        if settings != SwitchSettings::default() {
            return Err(bad("only chains and rules are drafted"));
        }
        let draft = self.draft(client, &switch)?;
        if let Err(why) = draft.admit(chains.as_deref(), rules.as_deref()) {
            self.pending.drafts.remove(&client.conn);
            return Err(bad(&format!("{why}; what came is forgotten")));
        }
        draft.parts += 1;
        extend(&mut draft.chains, chains);
        extend(&mut draft.rules, rules);
        Ok(Reply::Done)
    }

    /// The draft of a connection.
    fn draft(&mut self, client: &Client, switch: &SwitchName) -> Result<&mut PartialPlan, Refusal> {
        let uid = client.caller.uid;
        let others = self.pending.drafts.iter().filter(|(conn, _)| **conn != client.conn);
        let have = others.filter(|(_, draft)| draft.uid == uid).count() as u64;
        QuotaRefusal::count(uid, "drafts", have, DRAFTS_MAX as u64)?;
        let new =
            || PartialPlan { uid, switch: switch.clone(), parts: 0, chains: None, rules: None };
        let draft = self.pending.drafts.entry(client.conn).or_insert_with(new);
        match draft.switch == *switch {
            true => Ok(draft),
            false => Err(bad("this connection has a draft of another switch")),
        }
    }

    /// What a connection sets, behind what it has drafted of that switch.
    pub(in crate::control) fn with_draft(
        &mut self,
        conn: ConnKey,
        mut spec: SwitchSpec,
    ) -> SwitchSpec {
        if self.pending.drafts.get(&conn).is_some_and(|draft| draft.switch == spec.switch)
            && let Some(PartialPlan { mut chains, mut rules, .. }) =
                self.pending.drafts.remove(&conn)
        {
            extend(&mut chains, spec.settings.chains.take());
            extend(&mut rules, spec.settings.rules.take());
            (spec.settings.chains, spec.settings.rules) = (chains, rules);
        }
        spec
    }
}

impl PartialPlan {
    /// Whether the draft may have this part, too. It may have no more than a switch may.
    fn admit(
        &self,
        chains: Option<&[ChainSpec]>,
        rules: Option<&[RuleSpec]>,
    ) -> Result<(), String> {
        if self.parts == PARTS_MAX {
            return Err(format!("more than {PARTS_MAX} parts"));
        }
        check_rule_count(count(self.rules.as_deref()) + count(rules))?;
        check_chain_count(count(self.chains.as_deref()) + count(chains))?;
        let is_long = |chain: &&ChainSpec| chain.services.len() > POSITIONS;
        match chains.into_iter().flatten().find(is_long) {
            Some(_) => Err(format!("a chain has at most {POSITIONS} services")),
            None => Ok(()),
        }
    }
}

fn count<T>(list: Option<&[T]>) -> usize {
    list.map_or(0, <[T]>::len)
}

fn extend<T>(list: &mut Option<Vec<T>>, more: Option<Vec<T>>) {
    match (list.as_mut(), more) {
        (Some(list), Some(more)) => list.extend(more),
        (None, more) => *list = more,
        (Some(_), None) => {}
    }
}

fn bad(why: &str) -> Refusal {
    Refusal::bad_value(format!("switch_draft: {why}"))
}
