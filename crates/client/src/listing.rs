//! Listings, which the daemon answers page by page.

use protocol::{
    ChainInfo, FdbEntry, FunctionInfo, GroupAudit, MdbEntry, NeighEntry, Page, PortInfo,
    ProgramEntry, Reply, Request, RuleInfo, SwitchInfo, UserUsage, WorkerInfo,
};

use crate::control::{ControlError, unexpected};

/// What is listed.
pub trait Listed: Sized {
    /// The page that a reply is.
    ///
    /// # Errors
    /// The reply is of another kind.
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
    Switches: SwitchInfo, Ports: PortInfo, Fdb: FdbEntry, Neigh: NeighEntry, Mdb: MdbEntry,
    Chains: ChainInfo, Rules: RuleInfo, Functions: FunctionInfo, Audit: GroupAudit,
    Workers: WorkerInfo, Users: UserUsage, ProgramEntries: ProgramEntry
}

/// All of it. `call` makes a call, and `ask` says which: it asks for what comes behind a page.
///
/// # Errors
/// The error of the first call that fails.
pub fn all<T: Listed>(
    call: impl Fn(Request) -> Result<Reply, ControlError>,
    ask: impl Fn(Option<String>) -> Request,
) -> Result<Vec<T>, ControlError> {
    let mut items = Vec::new();
    each(call, ask, |page| items.extend(page))?;
    Ok(items)
}

/// Gives all of it to `take`, page by page: the memory of one is enough.
///
/// # Errors
/// As [`all`].
pub fn each<T: Listed>(
    call: impl Fn(Request) -> Result<Reply, ControlError>,
    ask: impl Fn(Option<String>) -> Request,
    mut take: impl FnMut(Vec<T>),
) -> Result<(), ControlError> {
    let mut from = None;
    loop {
        let page = T::page(call(ask(from))?)?;
        take(page.items);
        from = page.next;
        if from.is_none() {
            return Ok(());
        }
    }
}
