//! Listings, which the daemon answers page by page.

use client::api::{
    ChainInfo, FdbEntry, FunctionInfo, GroupAudit, Page, PortInfo, Reply, Request, RuleInfo,
    SwitchInfo,
};
use client::control::{Connection, ControlError, unexpected};

/// What is listed.
pub trait Listed: Sized {
    /// The page that a reply is.
    fn page(reply: Reply) -> Result<Page<Self>, ControlError>;
}

macro_rules! listed {
    ($($reply:ident: $item:ty),*) => {$(
        impl Listed for $item {
            fn page(reply: Reply) -> Result<Page<Self>, ControlError> {
                match reply {
                    Reply::$reply(page) => Ok(page),
                    other => Err(unexpected(&other)),
                }
            }
        }
    )*};
}

listed! {
    Switches: SwitchInfo, Ports: PortInfo, Fdb: FdbEntry, Chains: ChainInfo, Rules: RuleInfo,
    Functions: FunctionInfo, Audit: GroupAudit
}

/// All of it. `ask` asks for what comes behind a page.
pub fn all<T: Listed>(
    connection: &Connection,
    ask: impl Fn(Option<String>) -> Request,
) -> Result<Vec<T>, ControlError> {
    let (mut items, mut from) = (Vec::new(), None);
    loop {
        let page = T::page(connection.call(ask(from))?)?;
        items.extend(page.items);
        from = page.next;
        if from.is_none() {
            return Ok(items);
        }
    }
}
