//! `uvala nf run`: a function of the box, in one thread or in several.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::builder::{PossibleValue, PossibleValuesParser};
use client::api::{ErrorCode, Failure};
use client::control::{Connection, ControlError};
use client::name::PortName;
use client::nf::{Cores, Failed, Instance, Numbers, Shown, Threads};
use client::{Options, Stop};
use daemon::config::parse_bytes;

use super::functions;
use super::place::{self, Role};
use crate::cli::{Global, Usage, chain};
use crate::nf::wishes::Wishes;
use crate::nf::{self, Function, NAMES, Names, Others};
use crate::say;

#[derive(Debug, clap::Args)]
pub struct Run {
    /// Which
    #[arg(value_parser = names())]
    function: String,
    /// Its port, such as vale0:fw; made, if it is not there, as an instance of the service
    port: String,
    /// What it is to do; TOML
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Service that the port is an instance of, if it is of none yet [new: the function's name]
    #[arg(long, value_name = "NAME")]
    service: Option<String>,
    /// Which instance it is then; of several threads, the first [new: those that are free]
    #[arg(long, value_name = "N")]
    instance: Option<u16>,
    /// Instances to run, each in a thread of its own with a port of its own: vale0:fw, vale0:fw_1,
    /// vale0:fw_2, ... [new: one for each of --cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,
    /// A core for each thread, as in 0,2-3
    #[arg(long, value_name = "LIST")]
    cores: Option<Cores>,
    /// Trust group: functions of one exchange frames without a copy; this user's own, or one that
    /// the daemon's file declares for several
    #[arg(long, value_name = "NAME", default_value = "nf")]
    group: String,
    /// Memory of the trust group, if the port is its first, as in 64MiB: all of it counts in the
    /// user's quota, and no port of the group does [default: the daemon's]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    group_memory: Option<u64>,
    /// End after so many seconds
    #[arg(short = 'T', long, value_name = "SECS")]
    duration: Option<u64>,
}

fn names() -> PossibleValuesParser {
    NAMES.map(|(name, what)| PossibleValue::new(name).help(what)).into()
}

/// The file of a function is wrong.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct BadFile(String);

/// Runs a function until it is to end.
pub fn run(global: &Global, run: &Run) -> anyhow::Result<()> {
    let (port, function) = (run.port.parse::<PortName>()?, run.function()?);
    function.check_start().map_err(|error| run.blames(&error))?;
    let connection = global.connect()?;
    place::check_switch(&connection, port.switch())?;
    run.check_alone(&connection, &port, &function)?;
    let names = run.threads(global, port.clone()).names()?;
    let role = Role { service: run.service.as_deref(), first: run.instance };
    role.settle(&connection, &names)?;
    let mut functions = vec![function];
    while functions.len() < run.count() {
        functions.push(run.function()?);
    }
    for function in &mut functions {
        run.introduce(&connection, &port, function)?;
    }
    if functions.len() > 1 {
        Function::join(&mut functions);
    }
    drop(connection);
    let stop = Stop::new().context("cannot make an eventfd")?;
    let wishes = Wishes::by_signals(run.config.is_some(), functions.len(), &stop)
        .context("cannot catch signals")?;
    let functions: Vec<_> = functions.into_iter().map(|one| Mutex::new(Some(one))).collect();
    let limit = run.duration.map(Duration::from_secs);
    let end = limit.and_then(|limit| Instant::now().checked_add(limit));
    let each = |instance: Instance| {
        let at = usize::from(instance.thread);
        let mut function = functions[at].lock().unwrap_or_else(PoisonError::into_inner);
        let function = function.as_mut().expect("one for each");
        run.handle(global, instance, function, (&wishes[at], &stop, end))
    };
    run.threads(global, port).each(&stop, each).map_err(|failed| run.told(failed))
}

impl Run {
    /// How many instances.
    fn count(&self) -> usize {
        let cores = || self.cores.as_ref().map(Cores::count);
        self.threads.map(usize::from).or_else(cores).unwrap_or(1)
    }

    fn service(&self) -> &str {
        self.service.as_deref().unwrap_or(&self.function)
    }

    fn threads(&self, global: &Global, port: PortName) -> Threads {
        let options = Options::new().rings(1).group(&self.group).client(&self.function);
        let options = self.group_memory.into_iter().fold(options, Options::group_memory);
        let options = options.reconnect(true);
        let options = match &global.dir {
            Some(dir) => options.dir(dir),
            None => options,
        };
        let threads = Threads::new(port).options(options);
        let threads = threads.service(self.service(), self.instance.unwrap_or_default());
        let threads = match &self.cores {
            Some(cores) => threads.cores(cores.clone()),
            None => threads,
        };
        self.threads.into_iter().fold(threads, Threads::count)
    }

    /// An instance, in its thread.
    fn handle(
        &self,
        global: &Global,
        Instance { mut port, .. }: Instance,
        function: &mut Function,
        (wishes, stop, end): (&Wishes, &Stop, Option<Instant>),
    ) -> anyhow::Result<()> {
        let name = port.name().clone();
        let mut shown = Shown::of(&port);
        nf::run(&mut port, function, |function| {
            if wishes.reload() {
                self.reload(global, &name, function);
            }
            if wishes.show() {
                // Who does not read it does not end the function.
                let _ = self.show(&name, function);
            }
            if shown.is_due() {
                show_numbers(&mut shown, function);
            }
            let goes_on = !stop.is_said() && end.is_none_or(|end| Instant::now() < end);
            goes_on.then(|| function.tick())
        })?;
        function.finish();
        self.show(&name, function)
    }

    /// What to call an instance.
    fn title(&self, port: &PortName) -> String {
        if self.count() == 1 { self.function.clone() } else { format!("{} {port}", self.function) }
    }

    /// Which of several instances it was.
    fn told(&self, failed: Failed<anyhow::Error>) -> anyhow::Error {
        match failed {
            Failed::Start(error) => error,
            Failed::Instance { error, .. } if self.count() == 1 => error,
            Failed::Instance { port, thread, error } => {
                error.context(format!("thread {thread}, at {port}"))
            }
            Failed::Cores(error) => Usage(error.to_string()).into(),
            failed @ Failed::Thread(_) => failed.into(),
        }
    }

    /// The function, as its file says.
    fn function(&self) -> Result<Function, BadFile> {
        let read = |path| std::fs::read_to_string(path).map_err(anyhow::Error::from);
        let text = self.config.as_ref().map_or(Ok(String::new()), read);
        let function = text.and_then(|text| Function::new(&self.function, &text));
        function.map_err(|error| self.blames(&error))
    }

    /// Who is wrong: the file.
    fn blames(&self, error: &anyhow::Error) -> BadFile {
        let file = self.config.as_ref().map(|path| format!(", {}", path.display()));
        BadFile(format!("{}{}: {error:#}", self.function, file.unwrap_or_default()))
    }

    /// A function that can have one instance only has one, here and in its service.
    fn check_alone(
        &self,
        connection: &Connection,
        port: &PortName,
        function: &Function,
    ) -> anyhow::Result<()> {
        let refuse = |why: String, what: String| {
            let why = format!("{} has one instance only: {why}; {what}", self.function);
            Err(Failure::new(ErrorCode::Unsupported, why).into())
        };
        let alone = function.why_alone(Others::Threads).filter(|_| self.count() > 1);
        if let Some(why) = alone {
            return refuse(why, format!("run it in one thread, not {}", self.count()));
        }
        let Some(why) = function.why_alone(Others::Processes) else { return Ok(()) };
        let all = match functions(connection, Some(port.switch())) {
            // Who may not look at the switch may be allowed to attach.
            Err(error) if is_permission(&error) => return Ok(()),
            all => all?,
        };
        let own = all.iter().find(|info| info.port == *port);
        let service = own.map_or(self.service(), |info| &info.service);
        let mut others = all.iter().filter(|info| info.service == service && info.port != *port);
        match others.find(|info| info.pid.is_some()) {
            Some(other) => refuse(why, format!("end the one at {} first", other.port)),
            None => Ok(()),
        }
    }

    /// Tells a function that speaks of services or chains which there are.
    fn introduce(
        &self,
        connection: &Connection,
        port: &PortName,
        function: &mut Function,
    ) -> anyhow::Result<()> {
        if !function.asks_for_names() {
            return Ok(());
        }
        let switch = port.switch();
        let services = functions(connection, Some(switch))?.into_iter();
        let chains = chain::chains(connection, switch)?.into_iter();
        let names = Names {
            services: services.map(|info| (info.service, info.number)).collect(),
            chains: chains.map(|info| (info.chain.name.to_string(), info.number)).collect(),
        };
        Ok(function.know(&names).map_err(|error| self.blames(&error))?)
    }

    fn reload(&self, global: &Global, port: &PortName, function: &mut Function) {
        let read = || {
            let mut new = self.function()?;
            if let Some(why) = new.why_alone(Others::Threads).filter(|_| self.count() > 1) {
                anyhow::bail!("not with {} instances: {why}", self.count());
            }
            self.introduce(&global.connect()?, port, &mut new)?;
            anyhow::Ok(new)
        };
        let title = self.title(port);
        match read().map(|new| function.replace(new)) {
            Ok(()) => say::remark(format_args!("uvala: {title} has read its file")),
            Err(error) => say::remark(format_args!("uvala: {error:#}; it goes on as before")),
        }
    }

    fn show(&self, port: &PortName, function: &Function) -> anyhow::Result<()> {
        let counts = function.counts();
        if counts.is_empty() {
            return Ok(());
        }
        let counts: Vec<_> = counts.iter().map(|(name, count)| format!("{name} {count}")).collect();
        say::out(format_args!("{}: {}\n", self.title(port), counts.join(", ")))
    }
}

/// Has listings show what a function counts; one that counts nothing needs no thread for that.
fn show_numbers(shown: &mut Shown, function: &Function) {
    let mut numbers = Numbers::default();
    for (name, number) in function.numbers() {
        // Those that there is no room for are not shown.
        numbers.put(&name, number);
    }
    if numbers != Numbers::default() {
        // Without a thread nobody is told, and the function goes on.
        let _ = shown.update(|last| *last = numbers);
    }
}

fn is_permission(error: &anyhow::Error) -> bool {
    let code = error.downcast_ref().and_then(ControlError::code);
    code == Some(ErrorCode::Permission)
}
