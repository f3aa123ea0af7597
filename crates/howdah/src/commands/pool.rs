//! `howdah pool`: the connection pooler.

mod advise;
mod import;
mod pid_file;

use std::{
    fs::File,
    io::{self, Write as _},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, anyhow, bail};
use howdah_pool::{
    ConfigOrigin, LogControl, Pooler, PoolerHandle, PoolerStartError, Preflight, activated_sockets,
    preflight,
};
use howdah_pool_config::{
    Config, ConfigReadError, Diagnostic, EXAMPLE, LogConfig, ParsedConfig, ShutdownMode,
};
use rustix::{
    process::{Resource, Rlimit, geteuid, getrlimit, setrlimit},
    time::{ClockId, Timespec, clock_gettime},
};
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2},
    iterator::Signals,
};

use self::pid_file::ProcessIdFile;
use super::settings_check::SettingsCheck;
use crate::{
    config::ConfigFile,
    context::CommandContext,
    errors::{WithHint as _, with_hint},
    logging::{self, SyslogName},
    metrics::MetricsArgs,
    notify::service_state,
    outcome::CommandOutcome,
    service_user::ServiceUser,
};

/// Pool connections: let many clients share few PostgreSQL connections.
///
/// Clients connect to the pooler as they would to the server, and are assigned a server connection
/// for a session, a transaction or a statement. Settings are read from howdah.toml (section pool)
/// or from a pgbouncer.ini with its userlist.txt; the format of the file is detected.
///
/// For the admin console, connect to the database howdah or pgbouncer and run SHOW HELP.
///
/// Sockets passed by a service manager (systemd socket activation) replace the addresses in the
/// settings.
///
/// SIGHUP reloads the settings: invalid settings are rejected as a whole, and changes are logged.
///
/// SIGTERM and Ctrl-C stop accepting clients and disconnect each one at the end of its transaction;
/// a second signal stops at once, as SIGQUIT does. With shutdown-mode = "wait-for-clients", and
/// with a pgbouncer.ini, SIGTERM waits until all clients have disconnected. SIGUSR1 pauses all
/// databases, SIGUSR2 resumes them.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<PoolCommand>,
    /// Settings file: howdah.toml or pgbouncer.ini, as with -c
    #[arg(value_name = "FILE", conflicts_with = "settings")]
    file: Option<PathBuf>,
    /// Settings file: howdah.toml or pgbouncer.ini [default: howdah.toml in its default locations]
    #[arg(short = 'c', long, value_name = "FILE")]
    settings: Option<PathBuf>,
    /// Number of worker threads; overrides the settings, whose default is one per core
    #[arg(long, value_name = "N")]
    workers: Option<std::num::NonZeroUsize>,
    /// User of the operating system to change to if started as root, before any socket is opened;
    /// overrides the settings. The name root keeps the pooler running as root
    #[arg(short = 'u', long, alias = "user", value_name = "NAME")]
    os_user: Option<String>,
    /// Report all problems with the settings and with the files and addresses they name, then exit;
    /// with 3 if there are any
    #[arg(long)]
    check: bool,
    /// Print a howdah.toml with all keys, their defaults and descriptions, then exit
    #[arg(long)]
    example: bool,
    /// Take over from the running process, with its clients' connections; it exits when none are
    /// left
    #[arg(long)]
    takeover: bool,
    /// The same as --takeover, as in PgBouncer; without a running process, start as usual
    #[arg(short = 'R', long)]
    reboot: bool,
    /// Log details, as --log-level debug does; twice: every step
    #[arg(short, long, action = clap::ArgAction::Count)]
    verbose: u8,
    /// Print the version, then exit
    #[arg(short = 'V', long)]
    version: bool,
    /// PgBouncer's option to run in the background, which is refused: a service manager does that
    #[arg(short, long, hide = true)]
    daemon: bool,
    #[command(flatten)]
    metrics: MetricsArgs,
}

commands! {
    enum PoolCommand {
        Import(import::Args) => import::run,
        Advise(advise::Args) => advise::run,
    }
}

pub(crate) fn run(args: &Args, ctx: &CommandContext) -> anyhow::Result<CommandOutcome> {
    if let Some(command) = &args.command {
        return command.run(ctx);
    }
    if args.example {
        ctx.stdout().write_all(EXAMPLE.as_bytes())?;
        return Ok(CommandOutcome::Done);
    }
    if args.version {
        writeln!(ctx.stdout(), "howdah {}", env!("CARGO_PKG_VERSION"))?;
        return Ok(CommandOutcome::Done);
    }
    if args.daemon {
        let hint = "leave out -d and let a service manager such as systemd run it; `deploy/systemd` has a unit";
        return Err(with_hint(anyhow!("the pooler does not run in the background"), hint));
    }
    if args.check {
        let read = read(args, ctx).map(|(mut read, _)| {
            read.config.workers = args.workers.or(read.config.workers);
            read.config.os_user = args.os_user.clone().or(read.config.os_user.take());
            read
        });
        return check_settings(read, args.takeover)?.finish(ctx);
    }
    let read = read(args, ctx).hint("`howdah pool --check -c FILE` lists all problems in a file");
    let (ParsedConfig { mut config, warnings, .. }, path) = read?;
    // A service logs its events, so info is the default level.
    let _ = logging::adjust(
        Some(match args.verbose {
            0 => logging::Level::Info,
            1 => logging::Level::Debug,
            _ => logging::Level::Trace,
        }),
        None,
    );
    warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    config.workers = args.workers.or(config.workers);
    // Before the user changes: only root may raise the hard limit.
    raise_descriptor_limit(&config);
    change_user(args.os_user.as_ref().or(config.os_user.as_ref()), &path)?;
    open_log(&config.log, ctx.is_quiet())?;
    let takes_over = args.takeover || args.reboot && Pooler::can_take_over(&config);
    if let Some(path) = config.log.pid_file.as_deref().filter(|_| !takes_over) {
        ProcessIdFile::check(path)?;
    }
    let pid_path = config.log.pid_file.clone();
    // Handlers are installed before any socket is opened, so that no early signal is missed.
    let flag = match config.shutdown_mode {
        ShutdownMode::WaitForServers => Some(ctx.interrupted()),
        // As in PgBouncer, a second signal stops at once, but cleanly: see `wait`.
        ShutdownMode::WaitForClients => None,
    };
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGTERM, SIGQUIT, SIGUSR1, SIGUSR2])?;
    let origin = ConfigOrigin { path, workers: args.workers };
    let passed = activated_sockets()
        .context("cannot use the sockets passed by the service manager")
        .hint("the service manager should pass sockets that listen, as howdah-pool.socket does")?;
    let pooler = if takes_over {
        Pooler::take_over(config, Some(origin)).context("cannot start the pooler").hint(
            "the other process must be running, as the same user and with the same listen.takeover",
        )
    } else {
        Pooler::start_with_sockets(passed, config, Some(origin)).map_err(start_error)
    }?;
    let _pid_file = pid_path.map(ProcessIdFile::write).transpose()?;
    let (set_level, reopen) = (logging::set_level, logging::reopen_file);
    PoolerHandle::allow_log_control(LogControl { set_level, reopen });
    for address in pooler.addresses() {
        ctx.announce(format_args!("listening: {address}"));
        tracing::info!(%address, "listening");
    }
    for path in pooler.unix_sockets() {
        ctx.announce(format_args!("listening: {}", path.display()));
        tracing::info!(path = %path.display(), "listening");
    }
    // The admin console can also shut the pooler down.
    if let Some(end) = pooler.shutdown_waiter() {
        let signals = signals.handle();
        thread::Builder::new().name("end".to_owned()).spawn(move || {
            end.wait();
            signals.close();
        })?;
    }
    let metrics = args.metrics.serve(ctx)?;
    let stopping = Arc::new(AtomicBool::new(false));
    {
        let (control, stopping) = (pooler.control(), Arc::clone(&stopping));
        metrics
            .ready_while(move || !stopping.load(Ordering::Relaxed) && !control.is_shutting_down());
    }
    let (_stop, stopped) = mpsc::channel();
    if args.metrics.is_enabled() {
        let (control, registry) = (pooler.control(), ctx.registry().clone());
        let keep = move || control.export_metrics(&registry, &stopped);
        thread::Builder::new().name("counts".to_owned()).spawn(keep)?;
    }
    // Tell systemd that the main process of the service has changed.
    let main = if takes_over { format!("\nMAINPID={}", std::process::id()) } else { String::new() };
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
    stopping.store(true, Ordering::Relaxed);
    // After a takeover, the service continues in another process.
    if !pooler.was_taken_over() {
        service_state("STOPPING=1");
    }
    let mut is_urgent = signal == Some(SIGQUIT);
    if let (Some(SIGTERM | SIGINT), Some(delay)) =
        (signal, control.config().timeouts.shutdown_delay)
    {
        is_urgent = wait_before_shutdown(delay, &pooler, &mut signals);
    }
    match signal {
        Some(_) if is_urgent => pooler.stop(),
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

/// Directs the log to the file and to syslog, if configured.
fn open_log(log: &LogConfig, is_quiet: bool) -> anyhow::Result<()> {
    if let Some(path) = &log.file {
        logging::copy_to_file(path, !is_quiet)
            .with_context(|| format!("cannot open the log file {}", path.display()))?;
    }
    if let Some(facility) = log.facility().filter(|_| log.syslog) {
        let name = SyslogName { application: &log.syslog_name, facility };
        if let Err(error) = logging::adjust(None, Some(name)) {
            tracing::warn!(%error, "syslog is not available: logging to standard error");
        }
    }
    Ok(())
}

/// Changes the user of the process to `name`, if given. Without a name, running as root is an
/// error, because a pooler can be reached from the network.
fn change_user(name: Option<&String>, settings: &Path) -> anyhow::Result<()> {
    let Some(name) = name else {
        if geteuid().is_root() {
            let hint = "start it as another user, or name one with --os-user or os-user in the \
                        settings; --os-user root keeps it running as root";
            return Err(with_hint(anyhow!("the pooler must not run as root"), hint));
        }
        return Ok(());
    };
    let user = ServiceUser::find(name)?;
    user.change_to()?;
    // It was read before, as root.
    if File::open(settings).is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied) {
        tracing::warn!(
            user = %name,
            path = %settings.display(),
            "the user cannot read the settings file: reloads will fail"
        );
    }
    Ok(())
}

/// Converts a failure to start to an error with a hint.
fn start_error(error: PoolerStartError) -> anyhow::Error {
    let is_taken = match &error {
        PoolerStartError::Listen(listen) => listen.source.kind() == io::ErrorKind::AddrInUse,
        _ => false,
    };
    let hint = if is_taken {
        "is another pooler running there? [pool.listen] sets the addresses"
    } else {
        "`howdah pool --check -c FILE` lists all problems in a file"
    };
    with_hint(anyhow::Error::from(error).context("cannot start the pooler"), hint)
}

/// Reloads the settings. The pooler logs the result; this function notifies systemd, because
/// `Type=notify-reload` waits for that.
fn reload(control: &PoolerHandle) {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::Monotonic);
    let now_us = tv_sec * 1_000_000 + tv_nsec / 1000;
    service_state(&format!("RELOADING=1\nMONOTONIC_USEC={now_us}"));
    let status = match control.reload() {
        Ok(reloaded) => format!("settings reloaded, number of changes: {}", reloaded.changes.len()),
        Err(_) => "settings not changed: they are invalid, see the log".to_owned(),
    };
    service_state(&format!("READY=1\nSTATUS={status}"));
}

/// Continues to accept clients for a while after a signal, until load balancers have noticed that
/// `/readyz` fails. Returns whether a second signal asks to stop at once.
fn wait_before_shutdown(delay: Duration, pooler: &Pooler, signals: &mut Signals) -> bool {
    tracing::info!(?delay, "shutting down after timeouts.shutdown-delay");
    let started_at = Instant::now();
    while started_at.elapsed() < delay && !pooler.is_finished() {
        if signals.pending().any(|signal| matches!(signal, SIGQUIT | SIGTERM | SIGINT)) {
            return true;
        }
        thread::sleep(POLL_INTERVAL);
    }
    false
}

/// Time between checks for a signal or the end of the pooler during a shutdown.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Waits until the pooler has finished. Stops it after the timeout, or on a signal to stop at once.
fn wait(
    pooler: Pooler,
    timeout: Option<Duration>,
    signals: &mut Signals,
) -> anyhow::Result<CommandOutcome> {
    let started_at = Instant::now();
    while !pooler.is_finished() {
        let is_late = timeout.is_some_and(|timeout| started_at.elapsed() >= timeout);
        // In the other mode, a second SIGTERM or SIGINT would already have killed the process.
        let ends = |signal| matches!(signal, SIGQUIT | SIGTERM | SIGINT);
        if is_late || signals.pending().any(ends) {
            pooler.stop();
        }
        thread::sleep(POLL_INTERVAL);
    }
    pooler.join().context("a thread of the pooler failed")?;
    Ok(CommandOutcome::Done)
}

/// Reads the settings from the named or found file, and returns the file's path.
fn read(args: &Args, ctx: &CommandContext) -> anyhow::Result<(ParsedConfig, PathBuf)> {
    if let Some(path) = args.file.as_ref().or(args.settings.as_ref()) {
        return Ok((Config::read(path)?, path.clone()));
    }
    match ConfigFile::find(ctx.config())?.for_server("pool")? {
        Some(file) => Ok((read_text(file.text(), file.path())?, file.path().to_owned())),
        None => bail!("no settings found: name a file"),
    }
}

fn read_text(text: &str, path: &Path) -> Result<ParsedConfig, ConfigReadError> {
    Ok(Config::read_str(text, path)?)
}

/// Checks the settings, and the files and addresses they name.
fn check_settings(
    read: anyhow::Result<ParsedConfig>,
    takes_over: bool,
) -> anyhow::Result<SettingsCheck> {
    let texts = |remarks: &[Diagnostic]| remarks.iter().map(ToString::to_string).collect();
    let found = read.as_ref().ok().map(|read| {
        // With sockets from a service manager, the addresses in the settings are not used.
        let is_passed = std::env::var_os("LISTEN_FDS").is_some();
        let Preflight { mut errors, warnings } = preflight(&read.config, !is_passed && !takes_over);
        if let Some(Err(error)) = read.config.os_user.as_deref().map(ServiceUser::find) {
            errors.push(("os-user".to_owned(), error.to_string()));
        }
        let lines = |found: Vec<(String, String)>| -> Vec<String> {
            found.into_iter().map(|(key, text)| read.diagnostic(&key, text).to_string()).collect()
        };
        (lines(errors), lines(warnings), texts(&read.differences))
    });
    let warnings = |read: &ParsedConfig| texts(&read.warnings);
    let mut check = SettingsCheck::from_result(read, warnings, |error| {
        match error.chain().find_map(|it| it.downcast_ref()) {
            Some(ConfigReadError::Invalid(wrong)) => Some(texts(&wrong.0)),
            _ => None,
        }
    })?;
    if let Some((errors, warnings, differences)) = found {
        check.differences = differences;
        check.errors.extend(errors);
        check.warnings.extend(warnings);
    }
    Ok(check)
}

/// Checks the section of a howdah.toml; `None` if it has none.
pub(super) fn check_section(file: &ConfigFile) -> Option<anyhow::Result<SettingsCheck>> {
    let read = || read_text(file.text(), file.path()).map_err(anyhow::Error::from);
    file.has_section("pool").then(|| check_settings(read(), false))
}

/// Descriptors needed in addition to those of clients: logins in progress, servers, listeners.
const SPARE_DESCRIPTORS: u64 = 512;

/// Raises the soft limit of open files to the hard limit, because each client needs a descriptor.
/// The soft limit, 1024 on most systems, exists for programs that use `select`. If the hard limit
/// is too low as well, warns now instead of when clients are rejected.
fn raise_descriptor_limit(config: &Config) {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if limit.current != limit.maximum && setrlimit(Resource::Nofile, raised).is_err() {
        tracing::warn!("cannot raise the limit on open files");
    }
    // Clients that are logged in, logins in progress (at least a hundred), servers, and our own
    // descriptors.
    let clients = u64::from(config.limits.clients);
    let needed = clients + SPARE_DESCRIPTORS;
    if let Some(most) = getrlimit(Resource::Nofile).current
        && most < needed
    {
        tracing::warn!(
            limit = most,
            clients,
            needed,
            "the limit on open files is too low for limits.clients and their servers: raise the hard limit \
             (LimitNOFILE= in systemd) or lower limits.clients"
        );
    }
}
