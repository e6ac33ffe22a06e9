//! `uvala-http`: an HTTP API and a web page for the switches of a daemon.
//!
//! # Theory of operation
//!
//! ```text
//!   browser, curl ── HTTP ──► guard ──► api ──┐ a connection for each call
//!      TCP on loopback, or    who, from        ▼
//!      a UNIX socket          where, token    control socket ──► daemon
//! ```
//!
//! The process is a client of the control socket like any other, so the daemon judges each call by
//! the user that runs this process. It therefore lends that user's rights only to callers that have
//! them already ([`serve`](mod@serve): the same user, by a UNIX socket) or that were given them
//! ([`tokens`]: by TCP). One thread serves all connections; calls, which block, are made by a few
//! others, and each capture has one ([`frames`]). After its start the process is confined: it opens
//! no file and connects to no network. It has no right in the directories of its sockets, where
//! those of others may be, so a second process removes them ([`remover`]).

#![deny(clippy::print_stdout, clippy::print_stderr)] // `terminal::say` does not panic

mod api;
mod counters;
mod extract;
mod frames;
mod guard;
mod history;
mod listen;
mod manual;
mod page;
mod problem;
mod router;
mod serve;
mod streams;
mod tokens;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use clap::Parser;
use confine::{Files, Mode, Thread};
use protocol::exit;
use protocol::paths::daemon_dir;
use terminal::place::Place;
use terminal::{remover, say};
use tokio::signal::unix::{SignalKind, signal};

use api::{Api, Shared};
use guard::Guard;
use listen::Socket;
use serve::Server;
use tokens::Tokens;

/// An HTTP API and a web page for the switches of a daemon
///
/// The program is a client of the daemon, and may do what its user may do. At a UNIX socket it
/// serves only that user and root. At a TCP address it serves callers with a token of the
/// file --tokens, which may look, or also change things, as the file says. It has no TLS, so it
/// listens at addresses of this machine only; for others, put a reverse proxy in front.
///
/// The page is at /, the API below /v1, its description (OpenAPI 3.1) at /openapi.json.
#[derive(Debug, Parser)]
#[command(
    name = "uvala-http",
    version,
    after_help = EXAMPLES,
    args_conflicts_with_subcommands = true
)]
struct Args {
    /// Listen at ADDRESS:PORT or unix:PATH; may be repeated [default: http.sock in the daemon's
    /// directory]
    #[arg(long, value_name = "PLACE")]
    listen: Vec<Place>,
    /// Tokens of those that may use the API by TCP; make them with `uvala-http token`
    #[arg(long, value_name = "FILE")]
    tokens: Option<PathBuf>,
    /// Name by which a reverse proxy is asked for this server; may be repeated
    #[arg(long, value_name = "NAME")]
    host: Vec<String>,
    /// Directory of the daemon's socket
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Sandbox after the start: on, log (the kernel only logs) or off
    #[arg(
        long, value_name = "MODE", default_value = "on", default_missing_value = "on",
        num_args = 0..=1, require_equals = true
    )]
    sandbox: Mode,
    /// Print the manual page
    #[arg(long, hide = true)]
    man: bool,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Token(tokens::Args),
}

const EXAMPLES: &str = "\
Examples:
  uvala-http
  curl --unix-socket $XDG_RUNTIME_DIR/uvala/http.sock http://localhost/v1/ports
  uvala-http token laptop --write tokens            prints the token
  uvala-http --listen 127.0.0.1:9777 --tokens tokens";

fn main() -> ExitCode {
    if remover::is_done() {
        return ExitCode::SUCCESS;
    }
    let args = Args::parse();
    let done = match &args.command {
        Some(Command::Token(token)) => tokens::make(token),
        None if args.man => manual::print(),
        None => run(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say::remark(format_args!("uvala-http: {error:#}"));
            ExitCode::from(exit::FAILURE)
        }
    }
}

fn run(args: &Args) -> Result<()> {
    let tokens = args.tokens.as_deref().map(Tokens::read).transpose()?;
    let sockets: Vec<Socket> =
        places(args, tokens.is_some())?.into_iter().map(Socket::bind).collect::<Result<_>>()?;
    for socket in &sockets {
        say::remark(format_args!("uvala-http: listens at {}", socket.place()));
    }
    // While files may be opened.
    if let Err(why) = client::filter::load() {
        say::remark(format_args!("uvala-http: {why}, and start uvala-http again"));
    }
    enter_sandbox(args.sandbox)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(api::CALLS_MAX + api::CAPTURES_MAX)
        .build()
        .context("cannot start")?;
    let guard = Guard::new(tokens.unwrap_or_default(), &args.host);
    let api = Arc::new(Api::new(args.dir.clone()));
    let served = runtime.block_on(serve(sockets, api, guard));
    // Calls that wait for a daemon need not end, nor captures.
    runtime.shutdown_background();
    served
}

/// Where to listen. Addresses that others reach are refused.
fn places(args: &Args, has_tokens: bool) -> Result<Vec<Place>> {
    let own = || Place::Unix(daemon_dir(args.dir.as_deref()).join("http.sock"));
    let places = if args.listen.is_empty() { vec![own()] } else { args.listen.clone() };
    for place in &places {
        if !place.is_local() {
            bail!(
                "does not listen at {place}: it has no TLS, and others could read the tokens; \
                 listen at 127.0.0.1 and put a reverse proxy with TLS in front, see docs/http.md"
            );
        }
        if matches!(place, Place::Tcp(_)) && !has_tokens {
            bail!(
                "{place} needs --tokens FILE: any user of this machine can connect there; make \
                 one with: uvala-http token NAME FILE"
            );
        }
    }
    Ok(places)
}

/// Confines the process while it has one thread.
fn enter_sandbox(mode: Mode) -> Result<()> {
    if mode == Mode::Off {
        return Ok(());
    }
    let report = confine::enter(mode, Thread::Function, &Files::of_a_client())
        .context("cannot enter the sandbox; run without it: --sandbox=off")?;
    if mode == Mode::On && !report.is_whole() {
        say::remark(format_args!("uvala-http: the sandbox is not complete: {report}"));
    }
    Ok(())
}

/// Serves until a signal. The sockets go with their handles.
async fn serve(sockets: Vec<Socket>, api: Shared, guard: Guard) -> Result<()> {
    tokio::spawn(counters::keep(api.clone()));
    let server = Arc::new(Server::new(router::router(api, guard)));
    for socket in &sockets {
        tokio::spawn(server.clone().accept(socket.listener()?));
    }
    let mut signals = [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()]
        .map(|kind| signal(kind).context("cannot catch signals"));
    let [Ok(terminate), Ok(interrupt), Ok(hangup)] = &mut signals else {
        return signals.into_iter().find_map(Result::err).map_or(Ok(()), Err);
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
        _ = hangup.recv() => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn only_addresses_of_this_machine_with_tokens_are_listened_at() {
        let places = |words: &[&str], has_tokens| {
            let args = Args::parse_from(["uvala-http"].iter().chain(words));
            places(&args, has_tokens).map_err(|error| error.to_string())
        };
        let refused = places(&["--listen=0.0.0.0:1"], true).unwrap_err();
        assert!(refused.contains("reverse proxy"), "{refused}");
        let refused = places(&["--listen=127.0.0.1:1"], false).unwrap_err();
        assert!(refused.contains("--tokens FILE"), "{refused}");
        assert_eq!(places(&["--listen=[::1]:1"], true).unwrap().len(), 1);
        assert!(matches!(&places(&[], false).unwrap()[..], [Place::Unix(_)]));
    }
}
