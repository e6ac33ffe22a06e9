//! `uvala nf run`: a function of the box, in one thread or in several, or several in one.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::builder::{PossibleValue, PossibleValuesParser};
use client::control::Connection;
use client::nf::{CpuList, Failed, Instance, Metrics, MetricsReport, TOGETHER_MAX, Threads};
use client::{Options, Stop};
use protocol::name::PortName;
use protocol::{ErrorCode, Failure, parse};

use super::functions;
use super::part::{Part, present};
use super::place::{self, Role};
use super::sandbox;
use crate::cli::Global;
use crate::cli::target::code_of;
use functions::requests::Requests;
use functions::{Function, NAMES, Others};
use terminal::{Usage, say};

#[derive(Debug, clap::Args)]
pub struct Run {
    /// Name of the function
    #[arg(value_parser = names())]
    function: String,
    /// Port of the function, such as vale0:fw; a port that is missing is added permanently, as an
    /// instance of the service. In a guest with a ptnet: its device, such as netmap:0000:00:04.0
    port: String,
    /// Configuration file of the function, TOML
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Service of the port, if it has none yet [default: the function's name]
    #[arg(long, value_name = "NAME")]
    service: Option<String>,
    /// Instance number of the port, if it has none yet; with several threads, the first number
    /// [default: the lowest free numbers]
    #[arg(long, value_name = "N")]
    instance: Option<u16>,
    /// Number of instances, each with a thread and a port of its own: vale0:fw, vale0:fw_1,
    /// vale0:fw_2, ... [default: one for each of --cores]
    #[arg(long, value_name = "N", value_parser = parse::within(1..=u16::MAX))]
    threads: Option<u16>,
    /// CPU core of each thread, such as 0,2-3
    #[arg(long, value_name = "LIST")]
    cores: Option<CpuList>,
    /// Another function in the same thread: its name, its port, and its file, or - for none; may
    /// be repeated. A new port gets a service with the function's name. A function calls the one
    /// that follows it in a chain
    #[arg(long, num_args = 3, value_names = ["FUNCTION", "PORT", "FILE"])]
    with: Vec<String>,
    /// Trust group: its members exchange frames without a copy. It is this user's own, or one that
    /// the daemon's configuration declares for several users
    #[arg(long, value_name = "NAME", default_value = "nf")]
    group: String,
    /// Memory of the trust group if this port creates it, such as 64MiB: all of it counts against
    /// the user's quota, and further ports of the group are not charged [default: the daemon's]
    #[arg(long, value_name = "SIZE", value_parser = parse::bytes)]
    group_memory: Option<u64>,
    /// Sandbox after the start: on, log (the kernel only logs) or off
    ///
    /// A function in a sandbox has its ports and the daemon's socket, and may read the directories
    /// of its files. Where the kernel refuses a call that it should not, a line on stderr names it.
    #[arg(
        long, value_name = "MODE", default_value = "on", default_missing_value = "on",
        num_args = 0..=1, require_equals = true
    )]
    sandbox: confine::Mode,
    /// End after SECS seconds
    #[arg(short = 'T', long, value_name = "SECS", value_parser = parse::seconds)]
    duration: Option<Duration>,
}

fn names() -> PossibleValuesParser {
    let value = |(name, what)| {
        let value = PossibleValue::new(name).help(what);
        if name == "exporter" { value.alias("monitor") } else { value }
    };
    NAMES.map(value).into()
}

/// Runs a function until it is to end, in one thread or in several; or several in one.
pub fn run(global: &Global, run: &Run) -> anyhow::Result<()> {
    let parts = run.parts()?;
    let mut functions = parts.iter().map(Part::start).collect::<Result<Vec<_>, _>>()?;
    run.check_place(global, &parts, &functions)?;
    let alone = run.alone(global, &parts, &functions)?;
    while functions.len() < run.count() {
        functions.push(parts[0].function()?);
    }
    let part_of = |at: usize| parts.get(at).unwrap_or(&parts[0]);
    for (at, function) in functions.iter_mut().enumerate() {
        part_of(at).introduce(global, function)?;
    }
    if run.count() > 1 {
        Function::join(&mut functions);
    }
    sandbox::enter(run.sandbox, &parts)?;
    let stop = Stop::new().context("cannot make an eventfd")?;
    let has_file = parts.iter().any(|part| part.file.is_some());
    let requests =
        Requests::by_signals(has_file, run.count(), &stop).context("cannot catch signals")?;
    let end = run.duration.and_then(|limit| Instant::now().checked_add(limit));
    // Those of each thread: all of the only one, or one of each.
    let per_thread = functions.len() / run.count();
    let threads: Vec<_> = functions.chunks_mut(per_thread).map(Mutex::new).collect();
    let each = |instance: Instance| {
        let at = usize::from(instance.thread);
        let mut functions = threads[at].lock().unwrap_or_else(PoisonError::into_inner);
        handle(global, &parts, instance, &mut functions, &requests[at], &stop, end)
    };
    run.threads(global, &parts, alone).each(&stop, each).map_err(|failed| run.told(failed))
}

/// The functions of a thread, in it.
fn handle(
    global: &Global,
    parts: &[Part],
    instance: Instance,
    functions: &mut [Function],
    requests: &Requests,
    stop: &Stop,
    end: Option<Instant>,
) -> anyhow::Result<()> {
    let mut ports: Vec<_> = [instance.port].into_iter().chain(instance.others).collect();
    let names: Vec<_> = ports.iter().map(|port| port.name().clone()).collect();
    let mut shown: Vec<_> = ports.iter().map(MetricsReport::of).collect();
    functions::run(&mut ports, functions, |functions| {
        let (reload, show) = (requests.reload(), requests.show());
        for (at, function) in functions.iter_mut().enumerate() {
            if reload && parts[at].file.is_some() {
                parts[at].reload(global, &names[at], function);
            }
            if show {
                // A stdout that is not read does not end the function.
                let _ = parts[at].show(&names[at], function);
            }
            if shown[at].is_due() {
                show_numbers(&mut shown[at], function);
            }
        }
        let goes_on = !stop.is_said() && end.is_none_or(|end| Instant::now() < end);
        goes_on.then(|| functions.iter().map(Function::tick).min()).flatten()
    })?;
    let all = functions.iter_mut().zip(parts).zip(&names).map(|((function, part), name)| {
        function.finish();
        part.show(name, function)
    });
    all.fold(Ok(()), Result::and)
}

impl Run {
    /// How many instances.
    fn count(&self) -> usize {
        let cores = || self.cores.as_ref().map(CpuList::count);
        self.threads.map(usize::from).or_else(cores).unwrap_or(1)
    }

    /// What is to run; of several threads, each has the first.
    fn parts(&self) -> anyhow::Result<Vec<Part>> {
        let (with, count) = (Part::of(&self.with)?, self.count());
        if with.len() >= TOGETHER_MAX {
            let why = format!("a thread has {TOGETHER_MAX} functions at most: name fewer --with");
            return Err(Usage(why).into());
        }
        if count > 1 && !with.is_empty() {
            let why = "functions that share a thread have one instance each: leave out --threads, \
                       and name one core";
            return Err(Usage(why.to_owned()).into());
        }
        let (name, old) = present(&self.function);
        let (file, port) = (self.config.clone(), self.port.parse()?);
        let service = self.service.clone().or_else(|| old.map(str::to_owned));
        let (name, has_others) = (name.to_owned(), !with.is_empty());
        let parts = [Part { name, port, file, service, count, has_others }];
        let parts: Vec<_> = parts.into_iter().chain(with).collect();
        let is_twice =
            |(at, part): &(usize, &Part)| parts[..*at].iter().any(|p| p.port == part.port);
        match parts.iter().enumerate().find(is_twice) {
            Some((_, part)) => Err(Usage(format!("{} is named twice", part.port)).into()),
            None => Ok(parts),
        }
    }

    /// The functions may run at these ports. Of a guest's own devices no daemon knows here: it was
    /// asked when `uvala-device` opened their ports.
    fn check_place(
        &self,
        global: &Global,
        parts: &[Part],
        functions: &[Function],
    ) -> anyhow::Result<()> {
        let devices = parts.iter().filter(|part| part.port.pci_address().is_some()).count();
        if devices == parts.len() && self.count() == 1 {
            for (part, function) in parts.iter().zip(functions) {
                if let Some(why) = function.why_alone(Others::Processes) {
                    let name = &part.name;
                    say::remark(format_args!("uvala: run no other {name} of this service: {why}"));
                }
            }
            return Ok(());
        }
        if devices > 0 {
            let why = "a device has one port: leave out --threads, and name devices for all --with";
            return Err(Usage(why.to_owned()).into());
        }
        let connection = global.connect()?;
        for (at, function) in functions.iter().enumerate() {
            place::check_switch(&connection, parts[at].port.switch())?;
            self.check_alone(&connection, parts, at, function)?;
        }
        self.assign(global, &connection, parts)
    }

    /// Ports that are there are what they are to be.
    fn assign(
        &self,
        global: &Global,
        connection: &Connection,
        parts: &[Part],
    ) -> anyhow::Result<()> {
        let names = self.threads(global, parts, Vec::new()).names()?;
        let role = Role { service: self.service.as_deref(), first: self.instance };
        role.assign(connection, &names)?;
        let others: Vec<_> = parts[1..].iter().map(|part| part.port.clone()).collect();
        Role { service: None, first: None }.assign(connection, &others)
    }

    /// Ports of functions whose services no other process may be in.
    fn alone(
        &self,
        global: &Global,
        parts: &[Part],
        functions: &[Function],
    ) -> anyhow::Result<Vec<PortName>> {
        let mut alone = Vec::new();
        for (at, part) in parts.iter().enumerate() {
            match functions[at].why_alone(Others::Processes) {
                None => {}
                Some(_) if at == 0 => {
                    alone.extend(self.threads(global, parts, Vec::new()).names()?);
                }
                Some(_) => alone.push(part.port.clone()),
            }
        }
        Ok(alone)
    }

    /// Threads at the ports of the first part, the first of which runs the other parts; `alone`:
    /// see [`Options::alone_at`].
    fn threads(&self, global: &Global, parts: &[Part], alone: Vec<PortName>) -> Threads {
        let options =
            Options::new().alone_at(alone).rings(1).group(&self.group).client(&self.function);
        let options = self.group_memory.into_iter().fold(options, Options::group_memory);
        let options = options.reconnect(true);
        let options = match &global.dir {
            Some(dir) => options.dir(dir),
            None => options,
        };
        let threads = Threads::new(parts[0].port.clone()).options(options);
        let first = self.instance.unwrap_or_default();
        let threads = threads.service(parts[0].service(), first);
        let and = |threads: Threads, part: &Part| threads.and(part.port.clone(), part.service());
        let threads = parts[1..].iter().fold(threads, and);
        let threads = match &self.cores {
            Some(cores) => threads.cores(cores.clone()),
            None => threads,
        };
        self.threads.into_iter().fold(threads, Threads::count)
    }

    /// Which of several instances it was.
    fn told(&self, failed: Failed<anyhow::Error>) -> anyhow::Error {
        match failed {
            Failed::Start(error) => error,
            Failed::Instance { error, .. } if self.count() == 1 && self.with.is_empty() => error,
            Failed::Instance { port, thread, error } => {
                error.context(format!("thread {thread}, at {port}"))
            }
            Failed::Cores(error) => Usage(error.to_string()).into(),
            failed @ Failed::Thread(_) => failed.into(),
        }
    }

    /// A function that can have one instance only has one, here and in its service.
    fn check_alone(
        &self,
        connection: &Connection,
        parts: &[Part],
        at: usize,
        function: &Function,
    ) -> anyhow::Result<()> {
        let part = &parts[at];
        let port = &part.port;
        let refuse = |why: String, what: String| {
            let why = format!("{} has one instance only: {why}; {what}", part.name);
            Err(Failure::new(ErrorCode::Unsupported, why).into())
        };
        let alone = function.why_alone(Others::Threads).filter(|_| part.count > 1);
        if let Some(why) = alone {
            return refuse(why, format!("run it in one thread, not {}", part.count));
        }
        let Some(why) = function.why_alone(Others::Processes) else { return Ok(()) };
        let all = match functions(connection, Some(port.switch())) {
            // A user that may not list the switch may still be allowed to attach.
            Err(error) if is_permission(&error) => return Ok(()),
            all => all?,
        };
        let service = |part: &Part| {
            let own = all.iter().find(|info| info.port == part.port);
            own.map_or_else(|| part.service().to_owned(), |info| info.service.clone())
        };
        let same = |other: &Part| {
            let beside = other.port != *port && other.port.switch() == port.switch();
            beside && service(other) == service(part)
        };
        if let Some(other) = parts.iter().find(|other| same(other)) {
            return refuse(why, format!("take another service for {}", other.port));
        }
        let service = service(part);
        let mut others = all.iter().filter(|info| info.service == service && info.port != *port);
        match others.find(|info| info.pid.is_some()) {
            Some(other) => refuse(why, format!("end the one at {} first", other.port)),
            None => Ok(()),
        }
    }
}

/// Publishes the function's counters to listings; a function without counters needs no thread.
fn show_numbers(shown: &mut MetricsReport, function: &Function) {
    let mut numbers = Metrics::default();
    for (name, number) in function.numbers() {
        // Those that there is no room for are not shown.
        numbers.put(&name, number);
    }
    if numbers != Metrics::default() {
        // The function goes on without the thread, and its counters stay unseen.
        let _ = shown.update(|last| *last = numbers);
    }
}

fn is_permission(error: &anyhow::Error) -> bool {
    code_of(error) == Some(ErrorCode::Permission)
}
