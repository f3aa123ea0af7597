//! `howdah statsd`: the statsd server.

use std::{fs, path::PathBuf};

use anyhow::{Context as _, bail};
use howdah_connect::Environment;
use howdah_statsd::{
    backends,
    server::{Parts, Server},
    settings::{self, LogLevel, Settings},
};
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    iterator::Signals,
};

use super::verdict::Verdict;
use crate::{
    config::ConfigFile, context::Context, errors::WithHint as _, logging, notify::service_state,
    outcome::Outcome,
};

/// Receive counters, timers, gauges and sets, and hand on what they come to.
///
/// A statsd server: samples come in by UDP, TCP and unix sockets, are added up, and leave every ten
/// seconds for Graphite, Prometheus, InfluxDB, OpenTelemetry, PostgreSQL, a file or the console.
/// Settings are read from howdah.toml (section statsd) or from files that other statsd servers have:
/// config.js of etsy's, the JSON of Net::Statsd::Server.
///
/// SIGHUP reads the settings again; SIGTERM and Ctrl-C flush once more and end; a second one stops.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The settings; without it the section statsd of howdah.toml, if there is one
    #[arg(short = 'c', long, value_name = "FILE")]
    settings: Option<PathBuf>,
    /// Whose habits to follow where servers differ; wins over the settings
    #[arg(long, value_enum, value_name = "SERVER")]
    dialect: Option<Dialect>,
    /// Say what is wrong with the settings, and do nothing else; exit 3 if anything is
    #[arg(long)]
    check: bool,
    /// With --check: warnings are mistakes, too
    #[arg(long, requires = "check")]
    strict: bool,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Dialect {
    /// The first statsd, in JavaScript
    Etsy,
    /// Net::Statsd::Server
    Perl,
    /// The first statsd, with DogStatsD's absolute gauges: -5 sets a gauge, and does not lower it
    Dogstatsd,
}

pub(crate) fn run(args: Args, ctx: &Context) -> anyhow::Result<Outcome> {
    if args.check {
        let (path, read) = read_from(&args, ctx)?;
        let mut verdict = judge(read)?.in_file(path.as_deref());
        if args.strict {
            verdict.wrong.append(&mut verdict.warnings);
        }
        return verdict.conclude(ctx);
    }
    let read = read(&args, ctx)?;
    adjust_log(&read.settings.log);
    let warnings = read.warnings.iter();
    warnings.for_each(|warning| tracing::warn!("{warning}"));
    // Before anything is open: a signal that comes early must not be missed.
    let flag = ctx.interrupted();
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGTERM])?;
    let server = start(read)?;
    announce(&server, ctx);
    service_state("READY=1");
    for signal in signals.forever() {
        if signal != SIGHUP {
            break;
        }
        reload(&args, ctx, &server);
    }
    drop(flag);
    service_state("STOPPING=1");
    stop(server, ctx)
}

/// Does what the settings say about the log.
fn adjust_log(log: &settings::Log) {
    let level = log.level.map(|level| match level {
        LogLevel::Error => logging::Level::Error,
        LogLevel::Warn => logging::Level::Warn,
        LogLevel::Info => logging::Level::Info,
        LogLevel::Debug => logging::Level::Debug,
    });
    if let Err(error) = logging::adjust(level, log.syslog.as_deref()) {
        tracing::warn!(%error, "there is no syslog here: the log stays on standard error");
    }
}

/// Settings from the file that was named, or found.
fn read(args: &Args, ctx: &Context) -> anyhow::Result<settings::Read> {
    let (path, read) = read_from(args, ctx)?;
    let name = path.map_or_else(|| "the defaults".to_owned(), |path| path.display().to_string());
    read.with_context(|| format!("cannot use the settings in {name}"))
        .hint("`howdah statsd --check -c FILE` tells all that is wrong with a file")
}

/// The same, with what is wrong with them and the file; none is the defaults.
///
/// # Errors
///
/// The file cannot be read.
fn read_from(
    args: &Args,
    ctx: &Context,
) -> anyhow::Result<(Option<PathBuf>, anyhow::Result<settings::Read>)> {
    let (path, text) = match &args.settings {
        Some(path) => {
            let text = fs::read_to_string(path)
                .with_context(|| format!("cannot read the settings {}", path.display()))?;
            (Some(path.clone()), text)
        }
        None => match ConfigFile::find(ctx.config())?.for_server("statsd")? {
            Some(file) if file.has_section("statsd") => {
                (Some(file.path().to_owned()), file.text().to_owned())
            }
            _ => (None, "[statsd]".to_owned()),
        },
    };
    let variable = |name: &str| std::env::var(name).ok();
    let read = Settings::read_with(&text, &host(), &variable).map(|read| chosen(args, read));
    Ok((path, read.map_err(anyhow::Error::from)))
}

/// What the words of the command line say wins.
fn chosen(args: &Args, mut read: settings::Read) -> settings::Read {
    read.settings.dialect = match args.dialect {
        Some(Dialect::Etsy) => settings::Dialect::Etsy,
        Some(Dialect::Perl) => settings::Dialect::Perl,
        Some(Dialect::Dogstatsd) => settings::Dialect::Dogstatsd,
        None => read.settings.dialect,
    };
    read
}

/// This machine's name, for settings that ask for it.
fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// What is to be said about settings that were read.
fn judge(read: anyhow::Result<settings::Read>) -> anyhow::Result<Verdict> {
    let texts = |remarks: &[settings::Remark]| remarks.iter().map(ToString::to_string).collect();
    let warnings = |read: &settings::Read| texts(&read.warnings);
    Verdict::of(read, warnings, |error| {
        let wrong: Option<&settings::Wrong> = error.chain().find_map(|it| it.downcast_ref());
        wrong.map(|wrong| texts(&wrong.0))
    })
}

/// What is to be said about the section of a howdah.toml; `None` if it has none.
pub(super) fn check_section(file: &ConfigFile) -> Option<anyhow::Result<Verdict>> {
    let read = || Settings::read(file.text(), &host()).map_err(anyhow::Error::from);
    file.has_section("statsd").then(|| Ok(judge(read())?.in_file(Some(file.path()))))
}

fn start(read: settings::Read) -> anyhow::Result<Server> {
    let settings::Read { settings, config_lines, .. } = read;
    let backends = backends::open(&settings, &Environment::from_process())
        .context("cannot start a backend")?;
    Server::start(Parts { settings, config_lines, backends, taps: Vec::new() })
        .context("cannot start the statsd server")
        .hint("is another statsd server running? Other places can be set, see [[statsd.listen]]")
}

fn announce(server: &Server, ctx: &Context) {
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

/// Reads the settings again. What is wrong with them is logged, and the old ones stay.
fn reload(args: &Args, ctx: &Context, server: &Server) {
    service_state("RELOADING=1");
    match read(args, ctx) {
        Ok(read) => {
            read.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
            let restart = server.reload(&read.settings, read.config_lines);
            match restart.is_empty() {
                true => tracing::info!("settings reloaded"),
                false => tracing::warn!(
                    changed = restart.join(", "),
                    "settings reloaded, but for these, which need a new start"
                ),
            }
        }
        Err(error) => tracing::error!("the old settings stay: {error:#}"),
    }
    service_state("READY=1");
}

fn stop(server: Server, ctx: &Context) -> anyhow::Result<Outcome> {
    let ended = server.stop();
    let account = &ended.account;
    let packets: u64 = account.sockets.iter().map(|socket| socket.packets_total).sum();
    let unread: u64 = account.sockets.iter().map(|socket| socket.unread_bytes).sum();
    ctx.say(format_args!(
        "packets received {packets}, dropped at sockets {}, dropped by the host {}{}",
        account.drops_total(),
        account.backlog_drops_total,
        if unread > 0 { format!(", {unread} bytes left unread") } else { String::new() },
    ));
    if ended.undelivered.is_empty() {
        return Ok(Outcome::Done);
    }
    let one = |(name, why): &(&str, String)| format!("{name}: {why}");
    let all: Vec<String> = ended.undelivered.iter().map(one).collect();
    bail!("the last interval did not get everywhere: {}", all.join("; "))
}
