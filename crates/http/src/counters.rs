//! Counters of all ports: now, and kept for the last hour.

use std::time::Duration;

use client::control::{Connection, ControlError, unexpected};
use protocol::{PortRequest, Reply, Request, StatsPage, StatsQuery};
use tokio::time::{MissedTickBehavior, interval};

use crate::api::{CLIENT, Shared};
use crate::history::STEP_S;

/// Counters of all pages.
pub fn all(connection: &Connection, mut query: StatsQuery) -> Result<StatsPage, ControlError> {
    let mut items = Vec::new();
    loop {
        let page = match connection.call(Request::Port(PortRequest::Stats(query.clone())))? {
            Reply::Stats(page) => page,
            other => return Err(unexpected(&other)),
        };
        items.extend(page.items);
        query.from = page.next;
        if query.from.is_none() {
            return Ok(StatsPage { at_ns: page.at_ns, items, next: None });
        }
    }
}

/// Keeps the last hour, for ever.
pub async fn keep(api: Shared) {
    let mut ticks = interval(Duration::from_secs(STEP_S));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let look = |connection: &Connection| {
            let page = all(connection, StatsQuery::default())?;
            Ok((connection.hello(CLIENT)?.uptime_s, page))
        };
        let answer = api.connect(look).await.ok();
        api.history.take(answer.as_ref().map(|(uptime_s, page)| (*uptime_s, page)));
    }
}
