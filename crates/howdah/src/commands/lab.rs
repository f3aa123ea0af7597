//! `howdah lab`: throwaway PostgreSQL clusters.

use std::{
    io::Write as _,
    path::PathBuf,
    str::FromStr,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use anyhow::{anyhow, bail};
use howdah_lab::{
    ACCOUNT_NAME, BinariesSearch, Builder, ClusterError as LabError, Lab, LabState, Labs,
    LabsError, MAJORS, StartedLab,
};
use serde::Serialize;

use crate::{
    context::CommandContext,
    errors::{self, WithHint as _},
    format::{self, Format},
    outcome::CommandOutcome,
};

/// Start and stop throwaway PostgreSQL clusters.
///
/// Uses the installed PostgreSQL; a missing major version is downloaded once and kept. Clusters
/// listen on a Unix socket that other users cannot reach, and run without fsync. They are not meant
/// for data you want to keep.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: LabCommand,
}

const EXAMPLES: &str = "\
Examples:
  howdah lab start --pg 17 --name try --set work_mem=64MB
  howdah lab start --standby-of try --name standby
  howdah lab restart try --set shared_buffers=1GB
  howdah lab stop --all";

commands! {
    enum LabCommand {
        Start(LabStartArgs) => start,
        Restart(LabRestartArgs) => restart,
        Stop(LabStopArgs) => stop,
        List(LabListArgs) => list,
    }
}

/// Start a lab and print its connection URI.
///
/// It runs in the background until `howdah lab stop`. The superuser is postgres, without a password
/// on the Unix socket, which only you and root can reach. If started by root, the server runs as
/// the system account howdah-lab, which is created if missing.
#[derive(Debug, clap::Args)]
struct LabStartArgs {
    /// Major version of PostgreSQL, 14 to 18 [default: the newest installed]
    #[arg(long, value_name = "MAJOR", value_parser = major)]
    pg: Option<u32>,
    /// Folder with the server programs, instead of searching for them
    #[arg(long, value_name = "DIR")]
    pg_bin: Option<PathBuf>,
    /// Name of the lab, for the other commands [default: generated]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Folder for its files, created if missing; a lab kept there is started again
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Keep the files in --dir when the lab is stopped
    #[arg(long, requires = "dir")]
    keep: bool,
    /// Server setting, as in postgresql.conf; repeatable
    #[arg(long, value_name = "NAME=VALUE")]
    set: Vec<LabSetting>,
    /// Create a physical standby of this lab, with the same programs and settings
    #[arg(long, value_name = "NAME", conflicts_with_all = ["pg", "pg_bin"])]
    standby_of: Option<String>,
    /// Also listen on 127.0.0.1; clients need the password in the URI's passfile
    #[arg(long)]
    tcp: bool,
    /// Stay in the foreground; the lab stops on Ctrl-C, or when this process dies
    #[arg(long)]
    foreground: bool,
}

/// Restart a lab's server, even if it is down, and print its connection URI.
///
/// Files and port stay the same. If the server does not start with the new settings, they are
/// reverted, and the lab stays down.
#[derive(Debug, clap::Args)]
struct LabRestartArgs {
    /// Name of the lab
    name: String,
    /// Setting to add, as in postgresql.conf; repeatable
    #[arg(long, value_name = "NAME=VALUE")]
    set: Vec<LabSetting>,
}

/// Stop a lab and remove its files.
#[derive(Debug, clap::Args)]
struct LabStopArgs {
    /// Name of the lab; optional if there is only one
    name: Option<String>,
    /// Stop all labs
    #[arg(long, conflicts_with = "name")]
    all: bool,
}

/// List the labs, including those whose server is down. Nothing is changed.
#[derive(Debug, clap::Args)]
struct LabListArgs {
    /// Output format
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t)]
    format: Format,
}

pub(crate) fn run(args: &Args, ctx: &CommandContext) -> anyhow::Result<CommandOutcome> {
    args.command.run(ctx)
}

fn start(args: &LabStartArgs, ctx: &CommandContext) -> anyhow::Result<CommandOutcome> {
    let labs = &Labs::for_current_user();
    let mut builder = builder(args);
    if let Some(primary) = &args.standby_of {
        builder = builder.standby_of_lab(&get(labs, primary)?);
    }
    // In the foreground, handle signals from the beginning. A half-created cluster is removed in
    // any case, but after Ctrl-C the user should be shown that it was.
    let interrupted = args.foreground.then(|| ctx.interrupted());
    if args.standby_of.is_none() && needs_download(args) {
        ctx.report("downloading PostgreSQL: no suitable version is installed");
    }
    let started = with_lab_hint(labs.start(args.name.as_deref(), builder))?;
    print(started.lab(), ctx)?;
    match interrupted {
        Some(interrupted) => wait_until_stopped(started, &interrupted),
        None => {
            started.leave_running();
            Ok(CommandOutcome::Done)
        }
    }
}

fn restart(args: &LabRestartArgs, ctx: &CommandContext) -> anyhow::Result<CommandOutcome> {
    let labs = Labs::for_current_user();
    let settings: Vec<_> =
        args.set.iter().map(|LabSetting { name, value }| (&**name, &**value)).collect();
    let lab = with_lab_hint(labs.restart(&args.name, &settings))?;
    print(&lab, ctx)?;
    Ok(CommandOutcome::Done)
}

/// Prints the URI to stdout for scripts, and the rest to stderr.
fn print(lab: &Lab, ctx: &CommandContext) -> anyhow::Result<()> {
    ctx.report(format_args!(
        "{}: PostgreSQL {}, files in {}",
        lab.name,
        lab.version,
        lab.dir.display()
    ));
    let mut out = ctx.stdout();
    writeln!(out, "{}", lab.uri("postgres"))?;
    out.finish()?;
    Ok(())
}

fn builder(args: &LabStartArgs) -> Builder {
    let mut builder = Builder::new().keep(args.keep);
    if let Some(major) = args.pg {
        builder = builder.major(major);
    }
    if let Some(dir) = &args.pg_bin {
        builder = builder.bin_dir(dir);
    }
    if let Some(dir) = &args.dir {
        builder = builder.dir(dir);
    }
    if args.tcp {
        builder = builder.tcp();
    }
    for LabSetting { name, value } in &args.set {
        builder = builder.setting(name, value);
    }
    builder
}

/// Whether starting the lab will download PostgreSQL, which takes a while, so that it is announced.
fn needs_download(args: &LabStartArgs) -> bool {
    let search =
        args.pg.map_or_else(BinariesSearch::new, |major| BinariesSearch::new().major(major));
    cfg!(feature = "fetch")
        && args.pg_bin.is_none()
        && search.fetch(false).find().is_err_and(|error| error.is_postgres_missing())
}

/// Waits for Ctrl-C, and stops the server. Returns earlier if the server is stopped from outside,
/// and an error if it exits unexpectedly.
fn wait_until_stopped(
    mut started: StartedLab,
    interrupted: &AtomicBool,
) -> anyhow::Result<CommandOutcome> {
    const POLL_INTERVAL: Duration = Duration::from_millis(100);
    while !interrupted.load(Ordering::Relaxed) {
        match started.cluster().exit_status() {
            Some(status) if status.success() => break,
            Some(status) => {
                return Err(anyhow!("the server exited unexpectedly ({status})")).hint(
                    "start it with --dir and --keep: then its log remains, and may show the reason",
                );
            }
            None => std::thread::sleep(POLL_INTERVAL),
        }
    }
    started.cluster().stop()?;
    Ok(CommandOutcome::Done)
}

fn stop(args: &LabStopArgs, ctx: &CommandContext) -> anyhow::Result<CommandOutcome> {
    let labs = &Labs::for_current_user();
    let names = match args.name.clone() {
        Some(name) => vec![name],
        None => {
            let mut names: Vec<_> =
                labs.list()?.iter().map(|state| state.name().to_owned()).collect();
            match names.as_slice() {
                [] if args.all => {}
                [] => bail!("there is no lab to stop"),
                [_] => {}
                _ if args.all => {}
                _ => {
                    return Err(errors::wrong_usage("there are several labs"))
                        .hint(format_args!("name one of {}, or use --all", names.join(", ")));
                }
            }
            names.sort();
            names
        }
    };
    for name in names {
        let lab = with_lab_hint(labs.stop(&name))?;
        let what = if lab.dir.exists() { "files kept in" } else { "removed" };
        ctx.report(format_args!("{name}: stopped, {what} {}", lab.dir.display()));
    }
    Ok(CommandOutcome::Done)
}

fn get(labs: &Labs, name: &str) -> anyhow::Result<Lab> {
    with_lab_hint(labs.get(name))
}

/// Adds a hint to an error that has a known remedy, and the end of the log to one about a server
/// that did not start.
fn with_lab_hint<T>(result: Result<T, LabsError>) -> anyhow::Result<T> {
    match result {
        Err(LabsError::Unknown { name, known }) => {
            let hint = match known.as_slice() {
                [] => "there are no labs; `howdah lab start` starts one".to_owned(),
                known => format!("existing labs: {}", known.join(", ")),
            };
            Err(LabsError::Unknown { name, known }).hint(hint)
        }
        Err(error @ LabsError::NameTaken { .. }) => Err(error)
            .hint("`howdah lab stop` stops it, `howdah lab restart` restarts it; or choose another --name"),
        Err(LabsError::Down { name }) => {
            let hint = format!("`howdah lab restart {name}` starts it again");
            Err(LabsError::Down { name }).hint(hint)
        }
        Err(LabsError::Cluster(error @ LabError::TcpNotEnabled)) => {
            Err(error).hint("start the lab with --tcp; clients then need its password")
        }
        Err(LabsError::Cluster(error @ LabError::UnusableAccount { .. })) => {
            Err(error).hint(format_args!(
                "{ACCOUNT_NAME} must be an account with a user id other than 0, as \
                 `useradd --system {ACCOUNT_NAME}` creates it; or run as another user"
            ))
        }
        Err(LabsError::Cluster(LabError::ServerEnded { status, log })) => {
            let error = Err(anyhow::anyhow!("the server exited while starting ({status})"));
            let lines = log.lines().rev().map(without_log_prefix).filter(|line| !line.is_empty());
            lines.take(LOG_LINES_MAX).fold(error, |error, line| error.hint(format_args!("its log: {line}")))
        }
        Err(LabsError::Cluster(error)) if error.is_postgres_missing() => {
            Err(error).hint("install the PostgreSQL server package, or give its location with --pg-bin")
        }
        result => Ok(result?),
    }
}

/// Maximum number of server log lines shown if the server did not start.
const LOG_LINES_MAX: usize = 4;

/// Removes time and process id from a server log line.
fn without_log_prefix(line: &str) -> &str {
    line.find("] ").map_or(line, |end| &line[end + 2..]).trim()
}

fn list(args: &LabListArgs, ctx: &CommandContext) -> anyhow::Result<CommandOutcome> {
    let labs = Labs::for_current_user();
    let labs: Vec<_> = labs.list()?.iter().map(LabRow::from_state).collect();
    let mut out = ctx.stdout();
    match args.format {
        Format::Json => {
            format::write_json(&mut out, &LabListDocument { version: 1, labs })?;
        }
        Format::Table => {
            let widths = HEAD.map(str::len);
            let widths = labs.iter().fold(widths, |widths, row| {
                let cells = row.cells();
                std::array::from_fn(|column| widths[column].max(cells[column].len()))
            });
            write_line(&mut out, widths, HEAD)?;
            for row in &labs {
                write_line(&mut out, widths, row.cells())?;
            }
        }
    }
    Ok(CommandOutcome::Done)
}

const HEAD: [&str; 5] = ["name", "postgresql", "standby of", "uri", "folder"];

fn write_line(
    out: &mut impl std::io::Write,
    [name, version, primary, uri, _]: [usize; 5],
    cells: [&str; 5],
) -> std::io::Result<()> {
    let [a, b, c, d, folder] = cells;
    writeln!(out, "{a:name$}  {b:version$}  {c:primary$}  {d:uri$}  {folder}")
}

/// The document for `--format json`. Within a version, fields are added but never changed.
#[derive(Debug, Serialize)]
struct LabListDocument {
    version: u32,
    labs: Vec<LabRow>,
}

#[derive(Debug, Default, Serialize)]
struct LabRow {
    name: String,
    /// `starting`, `running` or `down`. The fields below are null while the server starts; `pid`
    /// and `uri` are also null while it is down.
    state: &'static str,
    postgresql: Option<String>,
    major: Option<u32>,
    pid: Option<u32>,
    uri: Option<String>,
    port: Option<u16>,
    /// The password file for TCP, if the server listens on TCP.
    passfile: Option<PathBuf>,
    socket_dir: Option<PathBuf>,
    dir: Option<String>,
    data_dir: Option<PathBuf>,
    standby_of: Option<String>,
    started_s: Option<u64>,
}

impl LabRow {
    fn from_state(state: &LabState) -> Self {
        let name = state.name().to_owned();
        let (lab, state) = match state {
            LabState::Starting { .. } => {
                return Self { name, state: "starting", ..Self::default() };
            }
            LabState::Running(lab) => (lab, "running"),
            LabState::Down(lab) => (lab, "down"),
        };
        Self {
            name,
            state,
            postgresql: Some(lab.version.to_string()),
            major: Some(lab.version.major()),
            pid: lab.pid(),
            uri: (state == "running").then(|| lab.uri("postgres")),
            port: Some(lab.port),
            passfile: lab.passfile.clone(),
            socket_dir: Some(lab.socket_dir.clone()),
            dir: Some(lab.dir.display().to_string()),
            data_dir: Some(lab.data_dir.clone()),
            standby_of: lab.standby_of.clone(),
            started_s: Some(lab.started_s),
        }
    }

    fn cells(&self) -> [&str; 5] {
        fn text(cell: &Option<String>) -> &str {
            cell.as_deref().unwrap_or("")
        }
        let uri = self.uri.as_deref().unwrap_or(self.state);
        [&self.name, text(&self.postgresql), text(&self.standby_of), uri, text(&self.dir)]
    }
}

/// Parses a supported major version.
fn major(text: &str) -> Result<u32, String> {
    let (first, last) = (MAJORS.start(), MAJORS.end());
    match text.parse() {
        Ok(major) if MAJORS.contains(&major) => Ok(major),
        _ => Err(format!("give a major version from {first} to {last}, without a minor version")),
    }
}

/// A setting given as `NAME=VALUE`. The value may be empty and contain any character. A quoted
/// value is read as in `postgresql.conf`, where `''` stands for a quote.
#[derive(Clone, Debug, PartialEq, Eq)]
struct LabSetting {
    name: String,
    value: String,
}

impl FromStr for LabSetting {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (name, value) = text.split_once('=').ok_or("a setting is NAME=VALUE")?;
        let inner = value.strip_prefix('\'').and_then(|rest| rest.strip_suffix('\''));
        let value = inner.map_or_else(|| value.to_owned(), |inner| inner.replace("''", "'"));
        Ok(Self { name: name.trim().to_owned(), value })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn setting_is_split_at_first_equals_sign() {
        let parse = |text: &str| text.parse::<LabSetting>();
        let setting =
            |name: &str, value: &str| LabSetting { name: name.into(), value: value.into() };
        assert_eq!(parse("work_mem=1MB"), Ok(setting("work_mem", "1MB")));
        assert_eq!(parse("log_line_prefix=%m=%p "), Ok(setting("log_line_prefix", "%m=%p ")));
        assert_eq!(parse("search_path="), Ok(setting("search_path", "")));
        assert_eq!(
            parse("log_line_prefix='%m it''s '"),
            Ok(setting("log_line_prefix", "%m it's "))
        );
        assert_eq!(parse("a='"), Ok(setting("a", "'")));
        assert!(parse("work_mem").is_err());
    }

    #[test]
    fn only_supported_major_versions_are_accepted() {
        assert_eq!(major("16"), Ok(16));
        for text in ["16x", "9", "16.4", "-16", ""] {
            let refused = major(text).unwrap_err();
            assert_eq!(refused, "give a major version from 14 to 18, without a minor version");
        }
    }

    #[test]
    fn table_columns_fit_their_cells() {
        let starting =
            LabRow::from_state(&LabState::Starting { name: "a-rather-long-name".into() });
        let mut out = Vec::new();
        let widths =
            std::array::from_fn(|column| HEAD[column].len().max(starting.cells()[column].len()));
        write_line(&mut out, widths, HEAD).unwrap();
        write_line(&mut out, widths, starting.cells()).unwrap();
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "name                postgresql  standby of  uri       folder\n\
             a-rather-long-name                          starting  \n"
        );
    }
}
