//! `howdah lab`: throw-away PostgreSQL clusters.

use std::{
    io::Write as _,
    path::PathBuf,
    str::FromStr,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use anyhow::bail;
use howdah_lab::{
    ACCOUNT_NAME, Builder, Error as LabError, Lab, LabState, Labs, LabsError, MAJORS, Search,
    StartedLab,
};
use serde::Serialize;

use crate::{
    context::Context,
    errors::{self, WithHint as _},
    format::{self, Format},
    outcome::Outcome,
};

/// Start and stop throw-away PostgreSQL clusters.
///
/// PostgreSQL is taken from where it is installed; a major version that the machine lacks is fetched
/// once and kept for later. Clusters listen on a unix socket that other users of the machine cannot
/// reach, and do not wait for the disk. Nothing in them is meant to last.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

const EXAMPLES: &str = "\
Examples:
  howdah lab start --pg 17 --name try --set work_mem=64MB
  howdah lab start --standby-of try --name standby
  howdah lab restart try --set shared_buffers=1GB
  howdah lab stop --all";

#[derive(Debug, clap::Subcommand)]
enum Action {
    Start(Start),
    Restart(Restart),
    Stop(Stop),
    List(List),
}

/// Start a lab and print its connection URI.
///
/// It runs in the background until `howdah lab stop`. The superuser is postgres, without a password
/// on the unix socket, which only you and root can reach. When root starts it, the server runs as
/// the system account howdah-lab, which is created if it is missing.
#[derive(Debug, clap::Args)]
struct Start {
    /// Major version of PostgreSQL, 14 to 18; without it the newest that is installed
    #[arg(long, value_name = "MAJOR", value_parser = major)]
    pg: Option<u32>,
    /// Folder of the server's programs, instead of a search for them
    #[arg(long, value_name = "DIR")]
    pg_bin: Option<PathBuf>,
    /// Name of the lab, for the other commands; without it one is made up
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Folder for its files, made if missing; a lab that was kept there is started again
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Leave the files in --dir when the lab is stopped
    #[arg(long, requires = "dir")]
    keep: bool,
    /// A setting of the server, as in postgresql.conf; repeat for more
    #[arg(long, value_name = "NAME=VALUE")]
    set: Vec<Setting>,
    /// Make it a physical standby of this lab, with the same programs and settings
    #[arg(long, value_name = "NAME", conflicts_with_all = ["pg", "pg_bin"])]
    standby_of: Option<String>,
    /// Also listen on 127.0.0.1; clients give the password that is in the file of the URI's passfile
    #[arg(long)]
    tcp: bool,
    /// Stay in the foreground; the lab ends with Ctrl-C, or when this process dies
    #[arg(long)]
    foreground: bool,
}

/// Restart a lab's server, also one that is down, and print its connection URI.
///
/// Files and port stay the same. If the server does not start with the new settings, they are taken
/// back, and the lab stays down.
#[derive(Debug, clap::Args)]
struct Restart {
    /// Name of the lab
    name: String,
    /// A setting to add, as in postgresql.conf; repeat for more
    #[arg(long, value_name = "NAME=VALUE")]
    set: Vec<Setting>,
}

/// Stop a lab and remove its files.
#[derive(Debug, clap::Args)]
struct Stop {
    /// Name of the lab; not needed when there is only one
    name: Option<String>,
    /// Stop them all
    #[arg(long, conflicts_with = "name")]
    all: bool,
}

/// List the labs, also those whose server is down. Nothing is changed.
#[derive(Debug, clap::Args)]
struct List {
    /// How to print the list
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t)]
    format: Format,
}

pub(crate) fn run(args: Args, ctx: &Context) -> anyhow::Result<Outcome> {
    let labs = Labs::of_user();
    match args.action {
        Action::Start(args) => start(&args, &labs, ctx),
        Action::Restart(args) => restart(&args, &labs, ctx),
        Action::Stop(args) => stop(args, &labs, ctx),
        Action::List(args) => list(args.format, &labs, ctx),
    }
}

fn start(args: &Start, labs: &Labs, ctx: &Context) -> anyhow::Result<Outcome> {
    let mut builder = builder(args);
    if let Some(primary) = &args.standby_of {
        builder = builder.standby_of_lab(&get(labs, primary)?);
    }
    // In the foreground signals are ours from the start on: what is half made is cleaned up then,
    // too, but a person who pressed Ctrl-C wants to see that it has been.
    let interrupted = args.foreground.then(|| ctx.interrupted());
    if args.standby_of.is_none() && has_to_fetch(args) {
        ctx.say("fetching PostgreSQL; this machine has none that fits");
    }
    let started = advised(labs.start(args.name.as_deref(), builder))?;
    print(started.lab(), ctx)?;
    match interrupted {
        Some(interrupted) => stay(started, &interrupted),
        None => {
            started.leave_running();
            Ok(Outcome::Done)
        }
    }
}

fn restart(args: &Restart, labs: &Labs, ctx: &Context) -> anyhow::Result<Outcome> {
    let settings: Vec<_> =
        args.set.iter().map(|Setting { name, value }| (&**name, &**value)).collect();
    let lab = advised(labs.restart(&args.name, &settings))?;
    print(&lab, ctx)?;
    Ok(Outcome::Done)
}

/// The URI for scripts, the rest for people.
fn print(lab: &Lab, ctx: &Context) -> anyhow::Result<()> {
    ctx.say(format_args!(
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

fn builder(args: &Start) -> Builder {
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
    for Setting { name, value } in &args.set {
        builder = builder.setting(name, value);
    }
    builder
}

/// Whether the start is going to use the network: a person wants to know what takes so long.
fn has_to_fetch(args: &Start) -> bool {
    let search = args.pg.map_or_else(Search::new, |major| Search::new().major(major));
    cfg!(feature = "fetch")
        && args.pg_bin.is_none()
        && search.fetch(false).find().is_err_and(|error| error.is_no_postgres())
}

/// Waits for Ctrl-C, or for the server to be stopped by somebody else.
fn stay(mut started: StartedLab, interrupted: &AtomicBool) -> anyhow::Result<Outcome> {
    const GLANCE: Duration = Duration::from_millis(100);
    while !interrupted.load(Ordering::Relaxed) {
        match started.cluster().exit_status() {
            Some(status) if status.success() => break,
            Some(status) => bail!("the server ended by itself ({status})"),
            None => std::thread::sleep(GLANCE),
        }
    }
    started.cluster().stop()?;
    Ok(Outcome::Done)
}

fn stop(args: Stop, labs: &Labs, ctx: &Context) -> anyhow::Result<Outcome> {
    let names = match args.name {
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
                        .hint(format_args!("name one of {}, or say --all", names.join(", ")));
                }
            }
            names.sort();
            names
        }
    };
    for name in names {
        let lab = advised(labs.stop(&name))?;
        let what = if lab.dir.exists() { "files kept in" } else { "removed" };
        ctx.say(format_args!("{name}: stopped, {what} {}", lab.dir.display()));
    }
    Ok(Outcome::Done)
}

fn get(labs: &Labs, name: &str) -> anyhow::Result<Lab> {
    advised(labs.get(name))
}

/// Adds what a person can do about it.
fn advised<T>(result: Result<T, LabsError>) -> anyhow::Result<T> {
    match result {
        Err(LabsError::Unknown { name, known }) => {
            let hint = match known.as_slice() {
                [] => "there is none at the moment; `howdah lab start` starts one".to_owned(),
                known => format!("there is {}", known.join(", ")),
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
            Err(error).hint("start the lab with --tcp: then clients need its password")
        }
        Err(LabsError::Cluster(error @ LabError::NoAccount { .. })) => Err(error).hint(format_args!(
            "make the account by hand, as in `useradd --system {ACCOUNT_NAME}`, or run as another user"
        )),
        Err(LabsError::Cluster(LabError::ServerEnded { status, log })) => {
            let error = Err(anyhow::anyhow!("the server ended while starting ({status})"));
            let words = log.lines().rev().map(without_log_prefix).filter(|line| !line.is_empty());
            words.take(LOG_LINES_MAX).fold(error, |error, line| error.hint(format_args!("its log: {line}")))
        }
        Err(LabsError::Cluster(error)) if error.is_no_postgres() => {
            Err(error).hint("install PostgreSQL's server package, or say where it is with --pg-bin")
        }
        result => Ok(result?),
    }
}

/// Lines of a server's log that are shown where it did not start.
const LOG_LINES_MAX: usize = 4;

/// A line of a server's log without its time and process id.
fn without_log_prefix(line: &str) -> &str {
    line.find("] ").map_or(line, |end| &line[end + 2..]).trim()
}

fn list(format: Format, labs: &Labs, ctx: &Context) -> anyhow::Result<Outcome> {
    let labs: Vec<_> = labs.list()?.iter().map(Row::of).collect();
    let mut out = ctx.stdout();
    match format {
        Format::Json => {
            format::write_json(&mut out, &Document { version: 1, labs })?;
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
    Ok(Outcome::Done)
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

/// What `--format json` prints. Fields are added, never changed, within a version.
#[derive(Debug, Serialize)]
struct Document {
    version: u32,
    labs: Vec<Row>,
}

#[derive(Debug, Default, Serialize)]
struct Row {
    name: String,
    /// `starting`, `running` or `down`. What follows is empty while it starts; `pid` and `uri` are
    /// empty while it is down.
    state: &'static str,
    postgresql: Option<String>,
    major: Option<u32>,
    pid: Option<u32>,
    uri: Option<String>,
    port: Option<u16>,
    /// The file with the password for TCP, if it listens there.
    passfile: Option<PathBuf>,
    socket_dir: Option<PathBuf>,
    dir: Option<String>,
    data_dir: Option<PathBuf>,
    standby_of: Option<String>,
    started_s: Option<u64>,
}

impl Row {
    fn of(state: &LabState) -> Self {
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

/// A major version that labs can be made of.
fn major(word: &str) -> Result<u32, String> {
    let (first, last) = (MAJORS.start(), MAJORS.end());
    match word.parse() {
        Ok(major) if MAJORS.contains(&major) => Ok(major),
        _ => Err(format!("a lab is PostgreSQL {first} to {last}: give the major version alone")),
    }
}

/// `NAME=VALUE`; the value may be empty and hold anything. One in quotes is read as in
/// `postgresql.conf`, where `''` stands for a quote.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Setting {
    name: String,
    value: String,
}

impl FromStr for Setting {
    type Err = &'static str;

    fn from_str(word: &str) -> Result<Self, Self::Err> {
        let (name, value) = word.split_once('=').ok_or("a setting is NAME=VALUE")?;
        let inner = value.strip_prefix('\'').and_then(|rest| rest.strip_suffix('\''));
        let value = inner.map_or_else(|| value.to_owned(), |inner| inner.replace("''", "'"));
        Ok(Self { name: name.trim().to_owned(), value })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_names_and_values() {
        let parse = |word: &str| word.parse::<Setting>();
        let setting = |name: &str, value: &str| Setting { name: name.into(), value: value.into() };
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
    fn versions_are_majors_that_can_be_had() {
        assert_eq!(major("16"), Ok(16));
        for word in ["16x", "9", "16.4", "-16", ""] {
            let refused = major(word).unwrap_err();
            assert_eq!(refused, "a lab is PostgreSQL 14 to 18: give the major version alone");
        }
    }

    #[test]
    fn a_table_is_as_wide_as_its_cells() {
        let starting = Row::of(&LabState::Starting { name: "a-rather-long-name".into() });
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
