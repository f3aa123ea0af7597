//! `howdah rehearse`: checks, replays in turns on two servers, compares and reports.

use std::{
    io::Write as _,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context as _;
use howdah_compare::{ChangeFactor, FailOn};
use howdah_connect::{ConnParams, ConnectTarget, Environment};
use howdah_http::server::PageServerError;
use howdah_rehearse::{
    ChangeSource, JournalError, LiveRehearsal, Plan, Rehearsal, RehearsalError, RehearsalInput,
    RehearsalObserver, RehearsalOptions, RehearsalStep, ResetHooks, ResetMode, StepProgress,
};
use howdah_replay::{Rate, ReplayProgress};
use howdah_report::{
    TableStyle,
    rehearsal::{self, RecoveryTarget, RehearsalReport, RehearsalVerdict, RunSummary},
};
use indicatif::ProgressBar;
use parking_lot::Mutex;

use crate::{
    commands::{
        capture::{self, LogArgs},
        replay,
    },
    context::CommandContext,
    errors::{self, WithHint as _},
    format::{self, Format},
    identities::IdentityArgs,
    outcome::CommandOutcome,
    progress::Total,
    values::{listen_address, time_in_range, time_or_zero},
};

/// Rehearse a change: replay traffic on two servers in turns, compare, and report.
///
/// Checks both servers, then replays the capture several times on each, in the order A B B A, so
/// that a slow drift of the machine affects both. Before each run, its server is reset, vacuumed
/// and warmed. Statements are really executed, so name copies of the database. A rehearsal that was
/// stopped continues when the same command is run again.
///
/// Exits with 0 if no query is slower, with 3 if one is or a condition of --fail-on is met, and
/// with 4 if the runs are not comparable.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// A capture, or server logs: files, folders or glob patterns, in any order
    #[arg(required = true, value_name = "CAPTURE|LOG")]
    inputs: Vec<PathBuf>,
    /// Server in its present state: a URI or a keyword string
    #[arg(long, value_name = "CONNINFO")]
    base: String,
    /// Server with the change
    #[arg(long, value_name = "CONNINFO", required_unless_present = "change_sql")]
    change: Option<String>,
    /// Instead of --change: apply this migration to a copy of the database of --base
    #[arg(long, value_name = "FILE", conflicts_with = "change")]
    change_sql: Option<PathBuf>,
    /// Folder for the journal, the runs and the report
    #[arg(long, short, value_name = "DIR")]
    output: PathBuf,
    /// Start anew, even if the folder has another rehearsal
    #[arg(long)]
    force: bool,
    /// Runs on each server
    #[arg(long, value_name = "COUNT", default_value_t = 3,
          value_parser = clap::value_parser!(u32).range(1..=50))]
    runs: u32,
    /// Speed relative to the capture, such as 0.5 or 2, or max to replay without waiting
    #[arg(long, short, value_name = "FACTOR", default_value_t, allow_negative_numbers = true)]
    rate: Rate,
    /// Print the steps with an estimate of their time, and stop
    #[arg(long)]
    dry_run: bool,
    /// Do not observe the servers' wait events, counters and checkpoints during the runs
    #[arg(long)]
    no_sampling: bool,
    /// Output format
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t)]
    format: Format,
    /// Show the progress as a web page on this machine; port 0 picks a free port
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = listen_address)]
    live: Option<SocketAddr>,
    #[command(flatten)]
    sessions: SessionArgs,
    #[command(flatten)]
    preparation: PreparationArgs,
    #[command(flatten)]
    decision: DecisionArgs,
    #[command(flatten)]
    log: LogArgs,
}

const EXAMPLES: &str = "\
Examples:
  howdah rehearse monday --base postgresql://copy16/shop --change postgresql://copy17/shop -o upgrade
  howdah rehearse monday --base postgresql://copy/shop --change-sql drop-index.sql -o drop-index
  howdah rehearse monday --base service=a --change service=b -o out --reset-base ./restore-a --reset-change ./restore-b";

/// How sessions log in.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Sessions")]
struct SessionArgs {
    #[command(flatten)]
    identities: IdentityArgs,
    /// Connect all sessions to the database named with each server
    #[arg(long)]
    single_database: bool,
    /// Number of threads that run sessions
    #[arg(long, value_name = "COUNT", default_value_t = 1,
          value_parser = clap::value_parser!(u16).range(1..=256))]
    workers: u16,
}

/// Steps before each run.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Before each run")]
struct PreparationArgs {
    /// How data is reset; --change-sql implies copy
    #[arg(long, value_enum, value_name = "HOW", conflicts_with_all = ["reset_base", "reset_change"])]
    reset: Option<Reset>,
    /// Command that resets the base, such as a restore of a snapshot; run by sh
    #[arg(long, value_name = "COMMAND", conflicts_with = "change_sql")]
    reset_base: Option<String>,
    /// Command that resets the server with the change
    #[arg(long, value_name = "COMMAND", conflicts_with = "change_sql")]
    reset_change: Option<String>,
    /// Maximum time of a reset command
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = time_in_range(1.0..=604_800.0))]
    reset_timeout: Duration,
    /// Do not run VACUUM (ANALYZE)
    #[arg(long)]
    no_vacuum: bool,
    /// Cache image to load, as saved by `howdah warm dump`
    #[arg(long, value_name = "IMAGE")]
    warm: Option<PathBuf>,
    /// Without --warm: captured time to replay read-only and discard; 0 for none
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = time_or_zero)]
    warm_up: Duration,
    /// Allow a server that looks like production, by repeating its database's name
    #[arg(long, value_name = "NAME")]
    allow_production: Option<String>,
}

/// The way in which data is reset before each run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Reset {
    /// Not at all: runs see what earlier runs wrote
    None,
    /// Each run has a new copy of the database, by CREATE DATABASE
    Copy,
}

/// The rules of the verdict.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Verdict")]
struct DecisionArgs {
    /// Exit with 3 if a query meets this condition, as in p95>1.5x; repeatable
    ///
    /// See `howdah compare --help` for metrics and limits.
    #[arg(long, value_name = "CONDITION")]
    fail_on: Vec<FailOn>,
    /// Ignore changes by less than this factor [default: 1.2x; with one run a side 1.25x]
    #[arg(long, value_name = "FACTOR")]
    min_change: Option<ChangeFactor>,
    /// Put captured values into the report: an execution of each changed query, error messages
    #[arg(long)]
    examples: bool,
}

pub(crate) fn run(args: &Args, ctx: &CommandContext) -> anyhow::Result<CommandOutcome> {
    let (format, is_dry_run) = (args.format, args.dry_run);
    let options = options(args)?;
    let dir = options.dir.clone();
    if is_dry_run {
        let rehearsal = Rehearsal { options, stop: std::sync::Arc::default() };
        let plan = rehearsal.plan().map_err(|error| with_advice(error, &dir))?;
        let target = rehearsal.recovery_target().map_err(|error| with_advice(error, &dir))?;
        let mut out = ctx.stdout();
        write!(out, "{plan}")?;
        for line in target.iter().flat_map(RecoveryTarget::lines) {
            writeln!(out, "{line}")?;
        }
        out.finish()?;
        return Ok(CommandOutcome::Done);
    }
    replay::allow_many_connections();
    let rehearsal = Rehearsal { options, stop: ctx.interrupted() };
    let live = args.live.map(|address| start_live(address, &rehearsal.options, ctx)).transpose()?;
    let progress = Progress { ctx, bar: Mutex::new(None), live };
    let report = rehearsal.run(&progress);
    progress.finish_bar();
    let report = report.map_err(|error| with_advice(error, &dir));
    if let Some(live) = progress.live {
        match &report {
            Ok(report) => live.finish(Ok(report)),
            Err(error) => live.finish(Err(&format!("{error:#}"))),
        }
    }
    let report = report?;
    print(&report, format, &dir, ctx)?;
    Ok(match report.verdict {
        RehearsalVerdict::Passed => CommandOutcome::Done,
        RehearsalVerdict::Failed => CommandOutcome::CheckFailed,
        RehearsalVerdict::NotComparable => CommandOutcome::NotComparable,
    })
}

fn options(args: &Args) -> anyhow::Result<RehearsalOptions> {
    let Args { sessions, preparation, decision, .. } = args;
    let identities = sessions.identities.identity_map();
    Ok(RehearsalOptions {
        input: input(args)?,
        base: target("--base", &args.base)?,
        change: change(args)?,
        dir: args.output.clone(),
        force: args.force,
        runs: args.runs,
        rate: args.rate,
        identities,
        is_single_database: sessions.single_database,
        workers: usize::from(sessions.workers),
        reset: reset(args)?,
        vacuum: !preparation.no_vacuum,
        warm_image: preparation.warm.clone(),
        warm_up: preparation.warm_up,
        is_observed: !args.no_sampling,
        change_min: decision.min_change,
        fail_on: decision.fail_on.clone(),
        has_examples: decision.examples,
        allow_production: preparation.allow_production.clone(),
    })
}

fn input(args: &Args) -> anyhow::Result<RehearsalInput> {
    match &args.inputs[..] {
        [dir] if dir.is_dir() && !capture::has_no_dataset(dir) => {
            // This adds hints if the input is not a capture.
            capture::open(dir)?;
            Ok(RehearsalInput::Capture(dir.clone()))
        }
        inputs if inputs.iter().any(|path| path.as_os_str() == "-") => Err(errors::wrong_usage(
            "a rehearsal reads its input several times, so it cannot be standard input: give files",
        )),
        files => Ok(RehearsalInput::Logs {
            files: files.to_vec(),
            options: Box::new(args.log.options()?),
        }),
    }
}

fn change(args: &Args) -> anyhow::Result<ChangeSource> {
    match &args.change_sql {
        Some(path) => {
            let sql = std::fs::read_to_string(path)
                .with_context(|| format!("cannot read the migration {}", path.display()))?;
            Ok(ChangeSource::Migration { path: path.clone(), sql })
        }
        None => {
            let conninfo = args.change.as_deref().unwrap_or_default();
            Ok(ChangeSource::Server(Box::new(target("--change", conninfo)?)))
        }
    }
}

fn reset(args: &Args) -> anyhow::Result<ResetMode> {
    let PreparationArgs { reset, reset_base, reset_change, reset_timeout, .. } = &args.preparation;
    let is_migration = args.change_sql.is_some();
    match (reset, is_migration) {
        (Some(Reset::None), true) => {
            Err(errors::wrong_usage("--change-sql needs --reset copy, which is its default"))
        }
        (Some(Reset::Copy), _) | (None, true) => Ok(ResetMode::Copy),
        _ if reset_base.is_some() || reset_change.is_some() => Ok(ResetMode::Hooks(ResetHooks {
            base: reset_base.clone(),
            change: reset_change.clone(),
            timeout: *reset_timeout,
        })),
        _ => Ok(ResetMode::None),
    }
}

fn target(option: &str, conninfo: &str) -> anyhow::Result<ConnectTarget> {
    ConnectTarget::resolve(&ConnParams::from_conninfo(conninfo), &Environment::from_process())
        .with_context(|| format!("invalid value of {option}"))
}

/// Adds a hint to an error that has a known remedy.
fn with_advice(error: RehearsalError, dir: &Path) -> anyhow::Error {
    let hint = match &error {
        RehearsalError::Guard(guard) => guard.hint(),
        RehearsalError::Journal(JournalError::OtherOption { .. }) => format!(
            "give the same options to continue, another folder with -o, or --force to start anew \
             in {}",
            dir.display()
        ),
        RehearsalError::Journal(JournalError::Corrupt { .. } | JournalError::Version { .. }) => {
            "--force starts anew".to_owned()
        }
        RehearsalError::Interrupted => {
            "finished runs are kept: the same command continues".to_owned()
        }
        RehearsalError::Login { .. } => "--map-user and --as-user log in as another role; \
             --map-database and --single-database connect to another database"
            .to_owned(),
        RehearsalError::ForeignDatabase { database, .. } => {
            format!("rename or drop the database {database}, whose name the copy would have")
        }
        _ => return error.into(),
    };
    Err::<(), _>(error).hint(hint).err().unwrap_or_else(|| anyhow::anyhow!("no error"))
}

/// Maximum number of queries in the text on stdout. `report.html` and `report.json` contain all
/// queries.
const QUERIES_MAX: usize = 20;

fn print(
    report: &RehearsalReport,
    format: Format,
    dir: &Path,
    ctx: &CommandContext,
) -> anyhow::Result<()> {
    let mut out = ctx.stdout();
    match format {
        Format::Json => format::write_json(&mut out, &rehearsal::document(report))?,
        Format::Table => {
            let style = TableStyle {
                is_colored: ctx.terminal().color_stdout,
                width: ctx.terminal().stdout_width(),
                queries_max: Some(QUERIES_MAX),
            };
            write!(out, "{}", rehearsal::text(report, &style))?;
            writeln!(out, "\nreport: {}", dir.join("report.html").display())?;
        }
    }
    out.finish()?;
    Ok(())
}

/// Starts the live page of a rehearsal, and reports its address.
fn start_live(
    address: SocketAddr,
    options: &RehearsalOptions,
    ctx: &CommandContext,
) -> anyhow::Result<LiveRehearsal> {
    let live = LiveRehearsal::start(address, options);
    let live = match live {
        Err(error @ PageServerError::NotLoopback(_)) => Err(error).hint(
            "--live listens on this machine only; `ssh -L 8080:127.0.0.1:8080` forwards a port",
        )?,
        live => live.hint("--live 127.0.0.1:0 picks a free port")?,
    };
    ctx.report(format_args!("live: http://{}/", live.address()));
    Ok(live)
}

/// Observer that shows the steps and the progress of each replay on stderr, and on the live page if
/// there is one.
struct Progress<'a> {
    ctx: &'a CommandContext,
    bar: Mutex<Option<ProgressBar>>,
    live: Option<LiveRehearsal>,
}

impl Progress<'_> {
    fn finish_bar(&self) {
        if let Some(bar) = self.bar.lock().take() {
            bar.finish_and_clear();
        }
    }
}

impl RehearsalObserver for Progress<'_> {
    fn on_plan(&self, plan: &Plan) {
        self.live.iter().for_each(|live| live.on_plan(plan));
    }

    fn on_run(&self, run: &RunSummary) {
        self.live.iter().for_each(|live| live.on_run(run));
    }

    fn on_step(&self, progress: &StepProgress) {
        self.live.iter().for_each(|live| live.on_step(progress));
        self.finish_bar();
        let StepProgress { step, number, steps, .. } = progress;
        self.ctx.report(format_args!(
            "{number}/{steps}  {step}, {} left",
            howdah_rehearse::time_text(progress.time_left)
        ));
        if let RehearsalStep::Replay(run) = step {
            let bar = self.ctx.progress(Total::Count(progress.events), format!("replaying {run}"));
            *self.bar.lock() = Some(bar);
        }
    }

    fn on_replay(&self, progress: ReplayProgress) {
        self.live.iter().for_each(|live| live.on_replay(progress));
        if let Some(bar) = &*self.bar.lock() {
            bar.set_position(progress.ended);
        }
    }

    fn on_note(&self, text: &str) {
        self.live.iter().for_each(|live| live.on_note(text));
        self.ctx.report(format_args!("note: {text}"));
    }
}
