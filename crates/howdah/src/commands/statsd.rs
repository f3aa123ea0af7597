//! `howdah statsd`: the statsd server.

use std::{fs::File, path::PathBuf};

use anyhow::{Context as _, bail};
use howdah_connect::Environment;
use howdah_statsd::{
    backends,
    server::{ServerParts, StatsdServer},
    settings::{self, StatsdLogLevel, StatsdSettings},
};
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    iterator::Signals,
};

use super::settings_check::SettingsCheck;
use crate::{
    config::ConfigFile, context::CommandContext, errors::WithHint as _, logging,
    notify::service_state, outcome::CommandOutcome,
};

/// Receive and aggregate counters, timers, gauges and sets, and forward the results.
///
/// A statsd server: samples received by UDP, TCP and Unix sockets are aggregated and sent every ten
/// seconds to Graphite, Prometheus, InfluxDB, OpenTelemetry, PostgreSQL, a file or the console.
/// Settings are read from howdah.toml (section statsd) or from the files of other statsd servers:
/// config.js of etsy's statsd, or the JSON of Net::Statsd::Server.
///
/// SIGHUP reloads the settings; SIGTERM and Ctrl-C flush a last time and exit; a second signal
/// stops at once.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Settings file [default: section statsd of howdah.toml, if present]
    #[arg(short = 'c', long, value_name = "FILE")]
    settings: Option<PathBuf>,
    /// Server to imitate where implementations differ; overrides the settings
    #[arg(long, value_enum, value_name = "SERVER")]
    dialect: Option<DialectArg>,
    /// Report all problems with the settings, then exit; with 3 if there are any
    #[arg(long)]
    check: bool,
    /// With --check: treat warnings as errors
    #[arg(long, requires = "check")]
    strict: bool,
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

pub(crate) fn run(args: &Args, ctx: &CommandContext) -> anyhow::Result<CommandOutcome> {
    if args.check {
        let mut check = check_settings(read_from(args, ctx)?)?;
        if args.strict {
            check.errors.append(&mut check.warnings);
        }
        return check.finish(ctx);
    }
    let read = read(args, ctx)?;
    adjust_log(&read.settings.log);
    let warnings = read.warnings.iter();
    warnings.for_each(|warning| tracing::warn!("{warning}"));
    // Handlers are installed before any socket is opened, so that no early signal is missed.
    let flag = ctx.interrupted();
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGTERM])?;
    let server = start(read)?;
    announce(&server, ctx);
    service_state("READY=1");
    for signal in signals.forever() {
        if signal != SIGHUP {
            break;
        }
        reload(args, ctx, &server);
    }
    drop(flag);
    service_state("STOPPING=1");
    stop(server, ctx)
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

/// Maximum length of a settings file: 16 MiB.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// Reads the settings from the named or found file.
fn read(args: &Args, ctx: &CommandContext) -> anyhow::Result<settings::ParsedSettings> {
    read_from(args, ctx)?
        .context("cannot use the settings")
        .hint("`howdah statsd --check -c FILE` lists all problems in a file")
}

/// Reads the settings. Errors in the settings themselves are in the inner result.
///
/// # Errors
///
/// The file cannot be read, or was found in the working directory and must be named.
fn read_from(
    args: &Args,
    ctx: &CommandContext,
) -> anyhow::Result<anyhow::Result<settings::ParsedSettings>> {
    let (path, text) = match &args.settings {
        Some(path) => {
            let text = File::open(path)
                .and_then(|file| howdah_settings::read_text(file, FILE_BYTES_MAX))
                .with_context(|| format!("cannot read the settings {}", path.display()))?;
            (path.clone(), text)
        }
        None => match ConfigFile::find(ctx.config())?.for_server("statsd")? {
            Some(file) if file.has_section("statsd") => {
                (file.path().to_owned(), file.text().to_owned())
            }
            _ => (PathBuf::from("the defaults"), "[statsd]".to_owned()),
        },
    };
    let variable = |name: &str| std::env::var(name).ok();
    let read = StatsdSettings::read_with(&text, &path, &host(), &variable);
    Ok(read.map(|read| with_overrides(args, read)).map_err(anyhow::Error::from))
}

/// Applies options of the command line, which override the settings.
fn with_overrides(args: &Args, mut read: settings::ParsedSettings) -> settings::ParsedSettings {
    read.settings.dialect = match args.dialect {
        Some(DialectArg::Etsy) => settings::StatsdDialect::Etsy,
        Some(DialectArg::Perl) => settings::StatsdDialect::Perl,
        Some(DialectArg::Dogstatsd) => settings::StatsdDialect::Dogstatsd,
        None => read.settings.dialect,
    };
    read
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
    let read = || StatsdSettings::read(file.text(), file.path(), &host());
    file.has_section("statsd").then(|| check_settings(read().map_err(anyhow::Error::from)))
}

fn start(read: settings::ParsedSettings) -> anyhow::Result<StatsdServer> {
    let settings::ParsedSettings { settings, config_lines, .. } = read;
    let backends = backends::open(&settings, &Environment::from_process())
        .context("cannot start a backend")?;
    StatsdServer::start(ServerParts { settings, config_lines, backends, observers: Vec::new() })
        .context("cannot start the statsd server")
        .hint("is another statsd server running? [[statsd.listen]] sets the addresses")
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
}

/// Reloads the settings. If they are invalid or cannot be read, logs the problems and keeps the old
/// ones.
fn reload(args: &Args, ctx: &CommandContext, server: &StatsdServer) {
    service_state("RELOADING=1");
    match read(args, ctx) {
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
        }
        Err(error) => tracing::error!("keeping the old settings: {error:#}"),
    }
    service_state("READY=1");
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
