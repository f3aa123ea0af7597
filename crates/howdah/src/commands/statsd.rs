//! `howdah statsd`: the statsd server.

mod file_watch;
mod import;
mod rules;

use std::{
    fs::{self, File, Metadata},
    io,
    net::SocketAddr,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    str::FromStr,
    sync::mpsc,
    thread,
    time::Duration,
};

use anyhow::{Context as _, bail};
use howdah_connect::Environment;
use howdah_statsd::{
    receiver::InheritedSockets,
    server::{Predecessor, ServerParts, ServerStartError, StatsdServer},
    settings::{self, StatsdDialect, StatsdLogLevel, StatsdSettings},
};
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    iterator::Signals,
};

use self::file_watch::FileWatch;
use super::settings_check::SettingsCheck;
use crate::{
    config::ConfigFile, context::CommandContext, errors::WithHint as _, logging,
    notify::service_state, outcome::CommandOutcome,
};

/// Receive and aggregate counters, timers, gauges and sets, and forward the results.
///
/// A statsd server: samples received by UDP, TCP and Unix sockets are aggregated and sent every ten
/// seconds to Graphite, Prometheus, InfluxDB, OpenTelemetry, PostgreSQL, a file or the console.
/// Settings are read from howdah.toml (section statsd) or from the file of another server: etsy's
/// statsd (config.js), Net::Statsd::Server, the Datadog agent (datadog.yaml), gostatsd, statsite,
/// Telegraf (telegraf.conf) or statsd_exporter (flags or mapping file).
///
/// Sockets passed by a service manager (systemd socket activation) are used for the addresses in
/// the settings that they are bound to.
///
/// SIGHUP reloads the settings, and so does a change of a config.js. SIGTERM and Ctrl-C flush a
/// last time and exit; a second signal stops at once.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<StatsdCommand>,
    /// Settings file [default: section statsd of howdah.toml, if present]
    #[arg(short = 'c', long, value_name = "FILE")]
    settings: Option<PathBuf>,
    /// Server to imitate where implementations differ; overrides the settings
    #[arg(long, value_enum, value_name = "SERVER")]
    dialect: Option<DialectArg>,
    /// Address of the management port, or off; overrides the settings
    #[arg(long, value_name = "ADDRESS")]
    management: Option<ManagementArg>,
    /// Take over from the running process: its sockets, connections, aggregates and schedule; it
    /// delivers what it has flushed, and exits. Settings must name its takeover socket
    #[arg(long)]
    takeover: bool,
    /// Report all problems with the settings, then exit; with 3 if there are any
    #[arg(long)]
    check: bool,
    /// With --check: treat warnings as errors
    #[arg(long, requires = "check")]
    strict: bool,
}

commands! {
    enum StatsdCommand {
        Import(import::Args) => import::run,
        Rules(rules::Args) => rules::run,
    }
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum DialectArg {
    /// The original statsd, in JavaScript
    Etsy,
    /// Net::Statsd::Server
    Perl,
    /// The original statsd, with DogStatsD's absolute gauges, containers as tags, and timestamps
    Dogstatsd,
}

/// Value of `--management`.
#[derive(Clone, Copy, Debug)]
enum ManagementArg {
    Off,
    Listen(SocketAddr),
}

impl FromStr for ManagementArg {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "off" {
            return Ok(Self::Off);
        }
        text.parse().map(Self::Listen).map_err(|_| "must be IP:PORT or off")
    }
}

impl DialectArg {
    fn dialect(self) -> StatsdDialect {
        match self {
            Self::Etsy => StatsdDialect::Etsy,
            Self::Perl => StatsdDialect::Perl,
            Self::Dogstatsd => StatsdDialect::Dogstatsd,
        }
    }
}

pub(crate) fn run(args: &Args, ctx: &CommandContext) -> anyhow::Result<CommandOutcome> {
    if let Some(command) = &args.command {
        return command.run(ctx);
    }
    if args.check {
        let mut check = check_settings(read_from(args, ctx)?)?;
        if args.strict {
            check.errors.append(&mut check.warnings);
        }
        return check.finish(ctx);
    }
    // Before the file is read, so that no later change is missed.
    let mut watch = FileWatch::new(settings_path(args, ctx)?);
    let read = read(args, ctx)?;
    let mut reloads_on_change = read.settings.reload_on_change;
    adjust_log(&read.settings.log);
    let warnings = read.warnings.iter();
    warnings.for_each(|warning| tracing::warn!("{warning}"));
    // Handlers are installed before any socket is opened, so that no early signal is missed.
    let flag = ctx.interrupted();
    let signals = Signals::new([SIGHUP, SIGINT, SIGTERM])?;
    let handle = signals.handle();
    let signals = receive_signals(signals)?;
    let server = start(read, args.takeover, Box::new(move || handle.close()))?;
    announce(&server, ctx);
    // Tell systemd that the main process of the service has changed.
    let takes_over = args.takeover;
    let main = if takes_over { format!("\nMAINPID={}", std::process::id()) } else { String::new() };
    service_state(&format!("READY=1{main}"));
    loop {
        let event = if reloads_on_change {
            signals.recv_timeout(WATCH_INTERVAL)
        } else {
            signals.recv().map_err(Into::into)
        };
        let is_changed = watch.poll();
        match event {
            Ok(SIGHUP) => {}
            Err(mpsc::RecvTimeoutError::Timeout) if is_changed => {
                tracing::info!("the settings file has changed");
            }
            Err(mpsc::RecvTimeoutError::Timeout) => continue,
            // Without a signal, another process has taken over.
            Ok(_) | Err(mpsc::RecvTimeoutError::Disconnected) => break,
        }
        if let Some(settings) = reload(args, ctx, &server) {
            reloads_on_change = settings.reload_on_change;
        }
    }
    drop(flag);
    // After a takeover, the service continues in another process.
    if !server.was_handed_over() {
        service_state("STOPPING=1");
    }
    stop(server, ctx)
}

/// Time between looks at the settings file with `reload-on-change`.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);

/// Starts a thread that passes on the signals of this process, so that their receiver can also wait
/// for a time.
fn receive_signals(mut signals: Signals) -> io::Result<mpsc::Receiver<i32>> {
    let (sender, receiver) = mpsc::channel();
    let pass_on = move || {
        for signal in signals.forever() {
            if sender.send(signal).is_err() {
                return;
            }
        }
    };
    thread::Builder::new().name("statsd-signals".into()).spawn(pass_on)?;
    Ok(receiver)
}

/// Applies the log level and syslog name of the settings to this process.
fn adjust_log(log: &settings::LogSettings) {
    let level = log.level.map(|level| match level {
        StatsdLogLevel::Error => logging::Level::Error,
        StatsdLogLevel::Warn => logging::Level::Warn,
        StatsdLogLevel::Info => logging::Level::Info,
        StatsdLogLevel::Debug => logging::Level::Debug,
    });
    if let Err(error) = logging::adjust(level, log.syslog.as_deref().map(Into::into)) {
        tracing::warn!(%error, "syslog is not available: logging to standard error");
    }
}

/// Returns the path of the settings file; `None` if there is none.
fn settings_path(args: &Args, ctx: &CommandContext) -> anyhow::Result<Option<PathBuf>> {
    if args.settings.is_some() {
        return Ok(args.settings.clone());
    }
    let file = ConfigFile::find(ctx.config())?.for_server("statsd")?;
    Ok(file.filter(|file| file.has_section("statsd")).map(|file| file.path().to_owned()))
}

/// Maximum length of a settings file: 16 MiB.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// Reads the settings from the named or found file.
fn read(args: &Args, ctx: &CommandContext) -> anyhow::Result<settings::ParsedSettings> {
    read_from(args, ctx)?
        .context("cannot use the settings")
        .hint("`howdah statsd --check -c FILE` lists all problems in a file")
}

/// Reads the settings with the overrides of the command line. Errors in the settings themselves are
/// in the inner result.
///
/// # Errors
///
/// See [`read_settings`].
fn read_from(
    args: &Args,
    ctx: &CommandContext,
) -> anyhow::Result<anyhow::Result<settings::ParsedSettings>> {
    let read = read_settings(args.settings.as_deref(), ctx)?;
    Ok(read.map(|read| with_overrides(args, read)))
}

/// Reads the settings from a file, or from howdah.toml. Errors in the settings themselves are in
/// the inner result.
///
/// # Errors
///
/// The file cannot be read, or was found in the working directory and must be named.
fn read_settings(
    path: Option<&Path>,
    ctx: &CommandContext,
) -> anyhow::Result<anyhow::Result<settings::ParsedSettings>> {
    match path {
        Some(path) => read_file(path),
        None => match ConfigFile::find(ctx.config())?.for_server("statsd")? {
            Some(file) if file.has_section("statsd") => {
                let metadata = fs::metadata(file.path()).ok();
                Ok(read_text(file.text(), file.path(), metadata.as_ref()))
            }
            _ => Ok(read_text("[statsd]", Path::new("the defaults"), None)),
        },
    }
}

/// Reads a settings file. Errors in the settings themselves are in the inner result.
///
/// # Errors
///
/// The file cannot be read.
fn read_file(path: &Path) -> anyhow::Result<anyhow::Result<settings::ParsedSettings>> {
    let read = || -> io::Result<(String, Metadata)> {
        let file = File::open(path)?;
        let metadata = file.metadata()?;
        Ok((howdah_settings::read_text(file, FILE_BYTES_MAX)?, metadata))
    };
    let (text, metadata) =
        read().with_context(|| format!("cannot read the settings {}", path.display()))?;
    Ok(read_text(&text, path, Some(&metadata)))
}

fn read_text(
    text: &str,
    path: &Path,
    metadata: Option<&Metadata>,
) -> anyhow::Result<settings::ParsedSettings> {
    let variable = |name: &str| std::env::var(name).ok();
    let read = StatsdSettings::read_with(text, path, &host(), &variable)?;
    check_programs(&read.settings, path, metadata)?;
    check_features(&read.settings, path)?;
    Ok(read)
}

/// Checks that root runs no program that another user could have named: the settings file must
/// belong to root, and no other user may write to it.
fn check_programs(
    settings: &StatsdSettings,
    path: &Path,
    metadata: Option<&Metadata>,
) -> Result<(), settings::SettingsErrors> {
    if settings.backends.exec.is_empty() || !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    if metadata.is_some_and(|metadata| metadata.uid() == 0 && metadata.mode() & 0o022 == 0) {
        return Ok(());
    }
    let file = path.display();
    let why =
        "the server runs as root, and other users can change this file, which names a program";
    let hint = format!("run `chown root {file}; chmod go-w {file}`, or start it as another user");
    let problem = settings::Diagnostic::new(path, 0, "backends.exec", why).with_hint(hint);
    Err(settings::SettingsErrors(vec![problem]))
}

/// Checks that this program was built with all backends that the settings name.
fn check_features(settings: &StatsdSettings, path: &Path) -> Result<(), settings::SettingsErrors> {
    match settings.backends.missing() {
        Some((key, why)) => {
            Err(settings::SettingsErrors(vec![settings::Diagnostic::new(path, 0, key, why)]))
        }
        None => Ok(()),
    }
}

/// Applies options of the command line, which override the settings.
fn with_overrides(args: &Args, mut read: settings::ParsedSettings) -> settings::ParsedSettings {
    if let Some(dialect) = args.dialect {
        read.settings.dialect = dialect.dialect();
    }
    match args.management {
        Some(ManagementArg::Off) => read.settings.management = None,
        Some(ManagementArg::Listen(address)) => read.settings.management = Some(address),
        None => {}
    }
    read.settings.takeover = read.settings.takeover.take().or_else(default_takeover_socket);
    read
}

/// Returns the path of the takeover socket in the folder that systemd creates for the service
/// (`RuntimeDirectory=`), if there is one.
fn default_takeover_socket() -> Option<PathBuf> {
    let folders = std::env::var("RUNTIME_DIRECTORY").ok()?;
    let folder = folders.split(':').next().filter(|folder| !folder.is_empty())?;
    Some(PathBuf::from(folder).join("takeover.sock"))
}

/// Returns this machine's host name, for settings that refer to it.
fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Converts errors in the settings to a list of problems, for `--check`.
fn check_settings(read: anyhow::Result<settings::ParsedSettings>) -> anyhow::Result<SettingsCheck> {
    let texts =
        |remarks: &[settings::Diagnostic]| remarks.iter().map(ToString::to_string).collect();
    let warnings = |read: &settings::ParsedSettings| texts(&read.warnings);
    SettingsCheck::from_result(read, warnings, |error| {
        let wrong: Option<&settings::SettingsErrors> =
            error.chain().find_map(|it| it.downcast_ref());
        wrong.map(|wrong| texts(&wrong.0))
    })
}

/// Checks the section of a howdah.toml; `None` if it has none.
pub(super) fn check_section(file: &ConfigFile) -> Option<anyhow::Result<SettingsCheck>> {
    let variable = |name: &str| std::env::var(name).ok();
    let read = || StatsdSettings::read_with(file.text(), file.path(), &host(), &variable);
    file.has_section("statsd").then(|| check_settings(read().map_err(anyhow::Error::from)))
}

fn start(
    read: settings::ParsedSettings,
    takes_over: bool,
    handed_over: Box<dyn FnOnce() + Send>,
) -> anyhow::Result<StatsdServer> {
    let settings::ParsedSettings { settings, config_lines, .. } = read;
    let (predecessor, passed) = if takes_over {
        let path = settings.takeover.as_deref().context("no takeover socket is known").hint(
            "set `takeover` in the section [statsd] to the same path as in the running process",
        )?;
        let (predecessor, sockets) = Predecessor::connect(path).context("cannot take over").hint(
            "the other process must be running, as the same user and with the same `takeover`",
        )?;
        (Some(predecessor), sockets)
    } else {
        let passed = InheritedSockets::activated()
            .hint("the service manager should pass sockets as howdah-statsd.socket does")?;
        (None, passed)
    };
    let parts = ServerParts {
        settings,
        config_lines,
        environment: Some(Environment::from_process()),
        passed,
        predecessor,
        handed_over: Some(handed_over),
        ..ServerParts::default()
    };
    match StatsdServer::start(parts) {
        Ok(server) => Ok(server),
        // The error names the backend.
        Err(error @ ServerStartError::Backend(_)) => Err(error.into()),
        Err(error) if takes_over => Err(error)
            .context("cannot start the statsd server")
            .hint("the running process goes on: its log may say more"),
        Err(error) => Err(error)
            .context("cannot start the statsd server")
            .hint("is another statsd server running? [[statsd.listen]] sets the addresses"),
    }
}

fn announce(server: &StatsdServer, ctx: &CommandContext) {
    for socket in server.account().sockets {
        ctx.announce(format_args!("receiving: {}", socket.name));
        tracing::info!(socket = socket.name, buffer_bytes = socket.buffer_bytes, "receiving");
    }
    if let Some(address) = server.management() {
        ctx.announce(format_args!("management: {address}"));
        tracing::info!(%address, "serving the management port");
    }
    if let Some(address) = server.health() {
        ctx.announce(format_args!("health: http://{address}/healthz"));
        tracing::info!(%address, "serving health");
    }
    // The line of etsy's server, for which scripts wait.
    ctx.announce("server is up");
    tracing::info!("server is up");
}

/// Reloads the settings and returns them. If they are invalid or cannot be read, logs the problems,
/// keeps the old ones and returns `None`.
fn reload(args: &Args, ctx: &CommandContext, server: &StatsdServer) -> Option<StatsdSettings> {
    service_state("RELOADING=1");
    let reloaded = match read(args, ctx) {
        Ok(read) => {
            read.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
            let restart = server.reload(&read.settings, read.config_lines);
            if restart.is_empty() {
                tracing::info!("settings reloaded");
            } else {
                tracing::warn!(
                    changed = restart.join(", "),
                    "settings reloaded, except for these, which require a restart"
                );
            }
            Some(read.settings)
        }
        Err(error) => {
            tracing::error!("keeping the old settings: {error:#}");
            None
        }
    };
    service_state("READY=1");
    reloaded
}

fn stop(server: StatsdServer, ctx: &CommandContext) -> anyhow::Result<CommandOutcome> {
    let ended = server.stop();
    let account = &ended.account;
    let packets: u64 = account.sockets.iter().map(|socket| socket.packets_total).sum();
    let unread: u64 = account.sockets.iter().map(|socket| socket.unread_bytes).sum();
    ctx.report(format_args!(
        "packets received {packets}, dropped at sockets {}, dropped by the host {}{}",
        account.drops_total(),
        account.backlog_drops_total,
        if unread > 0 { format!(", {unread} bytes left unread") } else { String::new() },
    ));
    if ended.undelivered.is_empty() {
        return Ok(CommandOutcome::Done);
    }
    let one = |(name, why): &(&str, String)| format!("{name}: {why}");
    let all: Vec<String> = ended.undelivered.iter().map(one).collect();
    bail!("the last interval was not delivered to all backends: {}", all.join("; "))
}
