//! The way of a frame into and through chains, told without taking a step of it.

use packet::PortId;
use packet::flow::FlowKey;
use packet::metadata::Metadata;

use super::rule::Action;
use super::{NextHop, Steering};
use crate::model::stats::DropReason;

/// The way of a frame from an ordinary port, if each function passes it on unchanged.
pub(crate) struct Way {
    /// The number of the rule that matches.
    pub(crate) rule: Option<u32>,
    /// The number of the chain that the frame enters.
    pub(crate) chain: Option<u8>,
    /// The ports of the functions, in their order.
    pub(crate) functions: Vec<PortId>,
    /// Where the frame goes then: out, or nowhere.
    pub(crate) end: NextHop,
}

impl Steering {
    /// The way of a frame from an ordinary port.
    pub(crate) fn way(&self, src: PortId, key: &FlowKey) -> Way {
        let rule = self.rules.find(key).0.and_then(|at| self.rules.get(at));
        let (mut chain, mut functions) = (None, Vec::new());
        let end = match self.action(src, rule) {
            Action::Drop => NextHop::Drop(DropReason::Rule),
            Action::Port(port) => NextHop::Leave { from: src, out: Some(port) },
            Action::Forward => NextHop::Leave { from: src, out: None },
            Action::Chain(number) => {
                chain = Some(number);
                self.pass(number, key.hash(self.seed), src, &mut functions)
            }
        };
        debug_assert!(!matches!(end, NextHop::Function(..)), "a way ends behind its functions");
        Way { rule: rule.map(|rule| rule.id), chain, functions, end }
    }

    /// Notes the functions of a chain that get a frame with this hash.
    fn pass(&self, number: u8, hash: u32, src: PortId, functions: &mut Vec<PortId>) -> NextHop {
        let Some(Some(chain)) = self.chains.get(usize::from(number)) else {
            return NextHop::Drop(DropReason::NoInstance);
        };
        if let Some(reason) = self.closed(chain, hash) {
            return NextHop::Drop(reason);
        }
        let hash = Metadata::entering(hash, src, number, chain.order).hash();
        let instance = |&service: &u8| self.service(service)?.peek(hash);
        functions.extend(chain.services.iter().filter_map(instance));
        chain.out.leave(src)
    }
}
