//! A function as it is to run: which one, at which port, and its configuration.

use std::path::PathBuf;

use protocol::file::read_text;
use protocol::name::PortName;

use super::functions;
use crate::cli::{Global, chain};
use functions::{Function, NAMES, Names, Others};
use terminal::Usage;
use terminal::say;

/// One of those that a process runs.
#[derive(Debug)]
pub struct Part {
    /// Name of the function.
    pub name: String,
    /// Port of the function; of several instances, the first port.
    pub port: PortName,
    /// What it is to do.
    pub file: Option<PathBuf>,
    /// Service of the port, if it is of none yet; else the one of its name.
    pub service: Option<String>,
    /// Instances of it.
    pub count: usize,
    /// Others run in the same process.
    pub has_others: bool,
}

/// The file of a function is wrong.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct BadFile(String);

/// The present name of a function. Under the old name, which is accepted for this release, its
/// service has the old name, too, unless the command names one.
pub fn present(name: &str) -> (&str, Option<&str>) {
    match name {
        "monitor" => {
            say::remark("uvala: the function monitor is now called exporter; use that name");
            ("exporter", Some(name))
        }
        name => (name, None),
    }
}

impl Part {
    /// Functions that the values of `--with` name: three values each.
    pub fn of(words: &[String]) -> anyhow::Result<Vec<Self>> {
        let part = |[name, port, file]: &[String; 3]| {
            let (name, old) = present(name);
            if !NAMES.iter().any(|(known, _)| *known == name) {
                let why = format!("--with {name}: there is no such function");
                return Err(Usage(why).into());
            }
            let (port, file) = (port.parse()?, (file != "-").then(|| file.into()));
            let (name, service) = (name.to_owned(), old.map(str::to_owned));
            Ok(Self { name, port, file, service, count: 1, has_others: true })
        };
        words.as_chunks().0.iter().map(part).collect()
    }

    /// Service of the port, if it has none yet.
    pub fn service(&self) -> &str {
        self.service.as_deref().unwrap_or(&self.name)
    }

    /// What to call the instance at a port.
    pub fn title(&self, port: &PortName) -> String {
        let is_single = self.count == 1 && !self.has_others;
        if is_single { self.name.clone() } else { format!("{} {port}", self.name) }
    }

    /// The function, if it makes sense to begin with what its file says.
    pub fn start(&self) -> Result<Function, BadFile> {
        let function = self.function()?;
        function.check_start().map_err(|error| self.blames(&error))?;
        Ok(function)
    }

    /// The function, as its file says.
    pub fn function(&self) -> Result<Function, BadFile> {
        let read = |path: &PathBuf| read_text(path).map_err(anyhow::Error::from);
        let text = self.file.as_ref().map_or(Ok(String::new()), read);
        let function = text.and_then(|text| Function::new(&self.name, &text));
        function.map_err(|error| self.blames(&error))
    }

    /// Blames the file for the error.
    fn blames(&self, error: &anyhow::Error) -> BadFile {
        let file = self.file.as_ref().map(|path| format!(", {}", path.display()));
        BadFile(format!("{}{}: {error:#}", self.name, file.unwrap_or_default()))
    }

    /// Tells a function that speaks of services or chains which there are.
    pub fn introduce(&self, global: &Global, function: &mut Function) -> anyhow::Result<()> {
        if !function.asks_for_names() {
            return Ok(());
        }
        if self.port.pci_address().is_some() {
            let why = "its rules name services or chains, which only the daemon knows: run it \
                       outside of this virtual machine";
            return Err(Usage(format!("{}: {why}", self.name)).into());
        }
        let (connection, switch) = (global.connect()?, self.port.switch());
        let services = functions(&connection, Some(switch))?.into_iter();
        let chains = chain::chains(&connection, switch)?.into_iter();
        let names = Names {
            services: services.map(|info| (info.service, info.number)).collect(),
            chains: chains.map(|info| (info.chain.name.to_string(), info.number)).collect(),
        };
        Ok(function.know(&names).map_err(|error| self.blames(&error))?)
    }

    /// Reads the file again, for the instance at a port; one with an error changes nothing.
    pub fn reload(&self, global: &Global, port: &PortName, function: &mut Function) {
        let read = || {
            let mut new = self.function()?;
            if let Some(why) = new.why_alone(Others::Threads).filter(|_| self.count > 1) {
                anyhow::bail!("not with {} instances: {why}", self.count);
            }
            self.introduce(global, &mut new)?;
            anyhow::Ok(new)
        };
        let title = self.title(port);
        match read().map(|new| function.replace(new)) {
            Ok(()) => say::remark(format_args!("uvala: {title} has read its file")),
            Err(error) => say::remark(format_args!("uvala: {error:#}; it goes on as before")),
        }
    }

    /// Says what the instance at a port has counted.
    pub fn show(&self, port: &PortName, function: &Function) -> anyhow::Result<()> {
        let counts = function.counts();
        if counts.is_empty() {
            return Ok(());
        }
        let counts: Vec<_> = counts.iter().map(|(name, count)| format!("{name} {count}")).collect();
        say::out(format_args!("{}: {}\n", self.title(port), counts.join(", ")))
    }
}
