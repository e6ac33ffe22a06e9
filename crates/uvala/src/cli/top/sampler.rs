//! The thread that takes samples, so that keys are answered while the daemon is not there.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use client::control::Connection;
use protocol::name::SwitchName;

use super::Update;
use super::sample::{self, Sample};
use super::state::Link;
use crate::cli::Global;
use crate::cli::output::{connect_again, is_gone};
use crate::cli::target::is_missing;

/// The first rates should come soon.
const SOON: Duration = Duration::from_millis(500);

/// What is sampled, and how often.
pub struct Sampler {
    pub global: Global,
    pub only: Option<SwitchName>,
    pub interval: Duration,
}

impl Sampler {
    /// Takes a sample of a daemon that answers.
    pub fn take(&self, connection: &Connection) -> anyhow::Result<Sample> {
        sample::take(connection, self.only.as_ref())
    }

    /// Takes samples until the program ends, also those that are asked for in between.
    pub fn run(&self, connection: Connection, asked: &Receiver<()>, to: &Sender<Update>) {
        if let Err(error) = self.sample(connection, asked, to) {
            // Without a receiver the program has ended.
            let _ = to.send(Update::Failed(error));
        }
    }

    fn sample(
        &self,
        mut connection: Connection,
        asked: &Receiver<()>,
        to: &Sender<Update>,
    ) -> anyhow::Result<()> {
        let (mut wait, mut is_first) = (self.interval.min(SOON), false);
        loop {
            if asked.recv_timeout(wait) == Err(RecvTimeoutError::Disconnected) {
                return Ok(());
            }
            // One sample answers all that was asked meanwhile.
            asked.try_iter().for_each(drop);
            let update = match self.take(&connection) {
                Ok(sample) => {
                    let update = if is_first { Update::First } else { Update::Sample };
                    wait = if is_first { self.interval.min(SOON) } else { self.interval };
                    is_first = false;
                    update(sample.into())
                }
                Err(error) if is_gone(&error) => {
                    to.send(Update::Lost(Link::Down(format!("{error:#}"))))?;
                    connection = connect_again(&self.global)?;
                    (wait, is_first) = (Duration::ZERO, true);
                    continue;
                }
                Err(error) if is_missing(&error) && self.only.is_some() => {
                    (wait, is_first) = (self.interval, true);
                    Update::Lost(Link::Missing(self.only.clone().expect("looked at just now")))
                }
                Err(error) => return Err(error),
            };
            to.send(update)?;
        }
    }
}
