//! `howdah pool`: the connection pooler.

mod import;

use std::{
    io::{self, Write as _},
    path::{Path, PathBuf},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use howdah_pool::{
    Control, Origin, Pooler, Preflight, StartError,
    config::{Config, EXAMPLE, Read, ReadError, Remark, ShutdownMode},
    passed_sockets, preflight,
};
use rustix::{
    process::{Resource, Rlimit, geteuid, getrlimit, setrlimit},
    time::{ClockId, Timespec, clock_gettime},
};
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2},
    iterator::Signals,
};

use super::verdict::Verdict;
use crate::{
    config::ConfigFile,
    context::Context,
    errors::{WithHint as _, with_hint},
    logging,
    metrics::MetricsArgs,
    notify::service_state,
    outcome::Outcome,
};

/// Let many clients share few PostgreSQL connections.
///
/// A connection pooler: clients connect to it as they would to the server, and get a server
/// connection for a session, a transaction or a statement. Settings are read from howdah.toml
/// (section pool) or from a pgbouncer.ini with its userlist.txt; which of the two a file is, its form
/// tells.
///
/// Operators connect to the database howdah, or pgbouncer, and say SHOW HELP there.
///
/// Sockets that a service manager passes (systemd's socket activation) are listened at instead of those
/// that the settings name.
///
/// SIGHUP reads the settings again: those that are wrong are refused as a whole, and what changed is
/// logged.
///
/// SIGTERM and Ctrl-C take no new clients and let each go when its transaction is over; a second one
/// stops, as SIGQUIT does at once. With shutdown-mode = "wait-for-clients", and with a pgbouncer.ini, SIGTERM
/// waits until each client has disconnected. SIGUSR1 pauses all databases, SIGUSR2 resumes them.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    /// The settings: howdah.toml or pgbouncer.ini; without it the howdah.toml that is found
    #[arg(short = 'c', long, value_name = "FILE")]
    settings: Option<PathBuf>,
    /// Event loops, one per thread; wins over the settings, whose default is one per core
    #[arg(long, value_name = "N")]
    workers: Option<std::num::NonZeroUsize>,
    /// Say all that is wrong with the settings, and with the files and places that they name, and do nothing
    /// else; exit 3 if anything is
    #[arg(long)]
    check: bool,
    /// Print a howdah.toml with every key, its default and what it means, and do nothing else
    #[arg(long)]
    example: bool,
    /// Take over from the process that serves now, with its clients' connections; it ends when it has
    /// none left
    #[arg(long)]
    takeover: bool,
    #[command(flatten)]
    metrics: MetricsArgs,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Import(import::Args),
}

pub(crate) fn run(args: Args, ctx: &Context) -> anyhow::Result<Outcome> {
    if let Some(Command::Import(args)) = &args.command {
        return import::run(args, ctx);
    }
    if args.example {
        ctx.stdout().write_all(EXAMPLE.as_bytes())?;
        return Ok(Outcome::Done);
    }
    if args.check {
        let read = read(&args, ctx).map(|(mut read, _)| {
            read.config.workers = args.workers.or(read.config.workers);
            read
        });
        return judge(read, args.takeover)?.conclude(ctx);
    }
    let read =
        read(&args, ctx).hint("`howdah pool --check -c FILE` tells all that is wrong with a file");
    let (Read { mut config, warnings, .. }, path) = read?;
    // What happens is what a service's log is for.
    let _ = logging::adjust(Some(logging::Level::Info), None);
    warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    config.workers = args.workers.or(config.workers);
    if geteuid().is_root() {
        tracing::warn!("running as root, which a pooler needs for nothing");
    }
    raise_descriptor_limit(&config);
    // Before anything is open: a signal that comes early must not be missed.
    let flag = match config.shutdown_mode {
        ShutdownMode::WaitForServers => Some(ctx.interrupted()),
        // As in PgBouncer, a second signal ends it well, and at once: see `wait`.
        ShutdownMode::WaitForClients => None,
    };
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGTERM, SIGQUIT, SIGUSR1, SIGUSR2])?;
    let origin = Origin { path, workers: args.workers };
    let passed = passed_sockets()
        .context("cannot use the sockets that the service manager passed")
        .hint("see deploy/howdah-pool.socket")?;
    let pooler = match args.takeover {
        true => Pooler::take_over(config, Some(origin))
            .context("cannot start the pooler")
            .hint("the other process has to run, as the same user, with the same listen.takeover"),
        false => Pooler::start_at(passed, config, Some(origin)).map_err(not_started),
    }?;
    Control::let_log_level_change(logging::change);
    for address in pooler.addresses() {
        ctx.announce(format_args!("listening: {address}"));
        tracing::info!(%address, "listening");
    }
    for path in pooler.unix_sockets() {
        ctx.announce(format_args!("listening: {}", path.display()));
        tracing::info!(path = %path.display(), "listening");
    }
    // Its console may end it as well.
    if let Some(end) = pooler.end() {
        let signals = signals.handle();
        thread::Builder::new().name("end".to_owned()).spawn(move || {
            end.wait();
            signals.close();
        })?;
    }
    let metrics = args.metrics.serve(ctx)?;
    let (_stop, stopped) = mpsc::channel();
    if args.metrics.is_wanted() {
        let (control, registry) = (pooler.control(), ctx.registry().clone());
        let keep = move || control.keep_metrics(&registry, &stopped);
        thread::Builder::new().name("counts".to_owned()).spawn(keep)?;
    }
    // systemd knows the other process as the service's until it is told.
    let main =
        if args.takeover { format!("\nMAINPID={}", std::process::id()) } else { String::new() };
    service_state(&format!("READY=1{main}"));
    let control = pooler.control();
    let signal = signals.forever().find(|signal| match *signal {
        SIGHUP => {
            reload(&control);
            false
        }
        SIGUSR1 => {
            let paused = control.pause_all();
            tracing::info!(paused, "SIGUSR1: PAUSE");
            false
        }
        SIGUSR2 => {
            let resumed = control.resume_all();
            tracing::info!(resumed, "SIGUSR2: RESUME");
            false
        }
        _ => true,
    });
    metrics.takes_no_more();
    // The service goes on in another process.
    if !pooler.was_taken_over() {
        service_state("STOPPING=1");
    }
    match signal {
        Some(SIGQUIT) => pooler.stop(),
        Some(SIGTERM) if control.config().shutdown_mode == ShutdownMode::WaitForClients => {
            tracing::info!("SIGTERM: SHUTDOWN WAIT_FOR_CLIENTS");
            pooler.wait_for_clients();
        }
        Some(_) => {
            tracing::info!("shutting down: SHUTDOWN WAIT_FOR_SERVERS");
            pooler.drain();
        }
        None => {}
    }
    let ended = wait(pooler, control.config().timeouts.shutdown, &mut signals);
    drop(flag);
    ended
}

/// Why the pooler did not start, with what to do about it.
fn not_started(error: StartError) -> anyhow::Error {
    let is_taken = match &error {
        StartError::Listen(listen) => listen.source.kind() == io::ErrorKind::AddrInUse,
        _ => false,
    };
    let hint = match is_taken {
        true => "is another pooler running there? Places are set by [pool.listen]",
        false => "`howdah pool --check -c FILE` tells all that is wrong with a file",
    };
    with_hint(anyhow::Error::from(error).context("cannot start the pooler"), hint)
}

/// Reads the settings again. What comes of it stands in the log; what is said here is for systemd, whose
/// `Type=notify-reload` waits for it.
fn reload(control: &Control) {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::Monotonic);
    let now_us = tv_sec * 1_000_000 + tv_nsec / 1000;
    service_state(&format!("RELOADING=1\nMONOTONIC_USEC={now_us}"));
    let status = match control.reload() {
        Ok(reloaded) => format!("settings read again, {} changes", reloaded.changes.len()),
        Err(_) => "settings not changed: they are wrong, see the log".to_owned(),
    };
    service_state(&format!("READY=1\nSTATUS={status}"));
}

/// Waits for the last client, for so long as it is given.
fn wait(
    pooler: Pooler,
    patience: Option<Duration>,
    signals: &mut Signals,
) -> anyhow::Result<Outcome> {
    const LOOK: Duration = Duration::from_millis(20);
    let began = Instant::now();
    while !pooler.is_over() {
        let is_late = patience.is_some_and(|patience| began.elapsed() >= patience);
        // A second SIGTERM or SIGINT that is to kill has done so before it is seen here.
        let ends = |signal| matches!(signal, SIGQUIT | SIGTERM | SIGINT);
        if is_late || signals.pending().any(ends) {
            pooler.stop();
        }
        thread::sleep(LOOK);
    }
    pooler.join().context("a worker failed")?;
    Ok(Outcome::Done)
}

/// Settings from the file that was named, or found; and which it is.
fn read(args: &Args, ctx: &Context) -> anyhow::Result<(Read, PathBuf)> {
    if let Some(path) = &args.settings {
        return Ok((Config::read(path)?, path.clone()));
    }
    match ConfigFile::find(ctx.config())?.for_server("pool")? {
        Some(file) => Ok((read_text(file.text(), file.path())?, file.path().to_owned())),
        None => bail!("there are no settings: name them by -c FILE"),
    }
}

fn read_text(text: &str, path: &Path) -> Result<Read, ReadError> {
    Ok(Config::read_str(text, path)?)
}

/// What is to be said about settings that were read, and about the files and places that they name.
fn judge(read: anyhow::Result<Read>, takes_over: bool) -> anyhow::Result<Verdict> {
    let texts = |remarks: &[Remark]| remarks.iter().map(ToString::to_string).collect();
    let found = read.as_ref().ok().map(|read| {
        // As `passed_sockets` tells: a service manager's sockets are used instead.
        let is_passed = std::env::var_os("LISTEN_FDS").is_some();
        let Preflight { errors, warnings } = preflight(&read.config, !is_passed && !takes_over);
        let lines = |found: Vec<(String, String)>| -> Vec<String> {
            found.into_iter().map(|(key, text)| read.remark(&key, text).to_string()).collect()
        };
        (lines(errors), lines(warnings))
    });
    let warnings = |read: &Read| texts(&read.warnings);
    let mut verdict = Verdict::of(read, warnings, |error| {
        match error.chain().find_map(|it| it.downcast_ref()) {
            Some(ReadError::Wrong(wrong)) => Some(texts(&wrong.0)),
            _ => None,
        }
    })?;
    if let Some((errors, warnings)) = found {
        verdict.wrong.extend(errors);
        verdict.warnings.extend(warnings);
    }
    Ok(verdict)
}

/// What is to be said about the section of a howdah.toml; `None` if it has none.
pub(super) fn check_section(file: &ConfigFile) -> Option<anyhow::Result<Verdict>> {
    let read = || read_text(file.text(), file.path()).map_err(anyhow::Error::from);
    file.has_section("pool").then(|| judge(read(), false))
}

/// Descriptors beside those of clients: logins under way, servers, listeners.
const SPARE_DESCRIPTORS: u64 = 512;

/// Every client is a descriptor. The soft limit, 1024 on most systems, is for programs that use
/// `select`, so the hard one is taken; and if that is not enough, it is said now and not when clients
/// are turned away.
fn raise_descriptor_limit(config: &Config) {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if limit.current != limit.maximum && setrlimit(Resource::Nofile, raised).is_err() {
        tracing::warn!("cannot raise the limit of open files");
    }
    // Each client that is in; those on their way in, a hundred and some at least; servers and our own.
    let clients = u64::from(config.limits.clients);
    let wanted = clients + SPARE_DESCRIPTORS;
    if let Some(most) = getrlimit(Resource::Nofile).current
        && most < wanted
    {
        tracing::warn!(
            may_be_open = most,
            clients,
            wanted,
            "too few files may be open for as many clients and their servers: raise the hard limit \
             (LimitNOFILE= in systemd) or lower limits.clients"
        );
    }
}
