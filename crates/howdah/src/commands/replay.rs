//! `howdah replay`: replays a capture or a log against a server.

mod admin;
mod pace;
mod source;
mod webhook;
mod worker;

use std::{
    collections::{BTreeMap, BTreeSet},
    io::Write as _,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, bail};
use howdah_connect::{Client, ConnectTarget};
use howdah_dataset::{CapturedServer, RunSettings, RunWriter, WriteError, is_store_url};
use howdah_logs::{ReadFilesError, ReceiverGone};
use howdah_replay::{
    CalibrationPlan, Capacity, ConcurrencyEstimate, DeniedLogin, EncodingMap, IdentityMap,
    LoginSetting, Notice, NoticeSink, PaceControl, Replay, ReplayLimits, ReplayReport,
    ReplaySettings, ReplayTarget, StartError, TargetFacts, check_target, find_denied_logins,
};
use howdah_traffic::Timestamp;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use self::{
    pace::PaceArgs,
    source::{ReplayInput, ReplaySource, show_progress},
    worker::{PlannedStart, WorkerArgs},
};
use crate::{
    commands::capture::{EncodingArgs, LogArgs, SelectArgs},
    connection::{self, ConnectionArgs},
    context::CommandContext,
    errors::{self, WithHint as _},
    identities::IdentityArgs,
    metrics::MetricsArgs,
    outcome::CommandOutcome,
    values::{SecretArg, dataset_path, listen_address},
};

/// Replay captured traffic against a server.
///
/// Every captured session gets its own connection and sends the same statements at the same times:
/// a slow statement delays only its own session. Statements are really executed, so use a copy of
/// the database. Server logs can be given instead of a capture; they are read during the replay.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true, after_help = EXAMPLES)]
pub(crate) struct Args {
    /// A capture, or server logs: files, folders or glob patterns, in any order; - is standard
    /// input
    #[arg(required = true, value_name = "CAPTURE|LOG", value_parser = dataset_path())]
    inputs: Vec<PathBuf>,
    /// Server to replay against: a URI or a keyword string, as for psql; repeatable, to spread the
    /// sessions over several servers
    #[arg(long, value_name = "CONNINFO")]
    target: Vec<String>,
    /// Allow a target that looks like production, by repeating its database's name
    #[arg(long, value_name = "NAME")]
    allow_production: Option<String>,
    #[command(flatten)]
    pace: PaceArgs,
    /// Compare results with captured ones, which the pooler captures on request
    #[arg(long)]
    check_results: bool,
    /// Replace captured values that a server generated, such as numbers of sequences, by those that
    /// the target generates in their place
    #[arg(long)]
    map_ids: bool,
    #[command(flatten)]
    identities: IdentityArgs,
    /// Connect all sessions to this database
    #[arg(long, value_name = "NAME")]
    as_database: Option<String>,
    /// Setting at the start of sessions: all, or those of a captured role, database or both;
    /// repeatable, or separated by semicolons
    #[arg(long, value_name = "[USER@DATABASE:]NAME=VALUE", value_delimiter = ';')]
    set: Vec<LoginSetting>,
    /// Rows per fetch from a portal, which logs do not record
    #[arg(long, value_name = "ROWS", default_value_t = ReplayLimits::default().fetch_rows,
          value_parser = clap::value_parser!(u32).range(1..))]
    fetch_rows: u32,
    /// Number of threads that run sessions
    #[arg(long, value_name = "COUNT", default_value_t = 1,
          value_parser = clap::value_parser!(u16).range(1..=256))]
    workers: u16,
    /// Memory for queued events per thread, in MiB; beyond it, late sessions skip events
    #[arg(long, value_name = "MIB", default_value_t = 256,
          value_parser = clap::value_parser!(u32).range(1..=1_048_576))]
    backlog: u32,
    /// Do not run the statement of about 1 ms that measures the target's speed four times a second
    #[arg(long)]
    no_calibration: bool,
    /// Output format
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t)]
    format: ReplayFormat,
    #[command(flatten)]
    run: RunArgs,
    #[command(flatten)]
    select: SelectArgs,
    #[command(flatten)]
    log: LogArgs,
    #[command(flatten)]
    encoding: EncodingArgs,
    #[command(flatten)]
    metrics: MetricsArgs,
    /// Serve requests that show and change the running replay, on a loopback address; port 0 picks
    /// a free port
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = listen_address)]
    admin: Option<SocketAddr>,
    /// Send the result as JSON to this URL at the end. Other users can see the URL in the process
    /// list: set HOWDAH_REPLAY_WEBHOOK instead
    #[arg(long, value_name = "URL", hide_default_value = true)]
    webhook: Option<SecretArg>,
    #[command(flatten)]
    connection: ConnectionArgs,
}

/// The run that is written.
#[derive(Debug, clap::Args)]
struct RunArgs {
    /// Folder to write the run to: the outcome of each event, for `howdah compare`
    #[arg(long, short, value_name = "RUN", value_parser = dataset_path())]
    output: Option<PathBuf>,
    /// Replace an existing run
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    worker: WorkerArgs,
}

const EXAMPLES: &str = "\
Examples:
  howdah replay monday --target postgresql://postgres@copy/shop -o run-1
  howdah replay postgresql.csv --target postgresql://copy/shop --rate 2 --as-user bench
  tail -n +1 -F postgresql.log | howdah replay - --target postgresql://copy/shop";

/// Format of a replay's result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum ReplayFormat {
    /// A table for people
    #[default]
    Table,
    /// One JSON document
    Json,
}

pub(crate) fn run(args: &Args, ctx: &CommandContext) -> anyhow::Result<CommandOutcome> {
    if args.target.is_empty() && !args.connection.names_a_server() {
        // A default server would be dangerous: it could be production, and statements are executed.
        let error = errors::wrong_usage("no server given to replay against");
        return Err(errors::with_hint(error, "give --target CONNINFO, or -h, -p, -U and -d"));
    }
    refuse_conflicting_settings(args)?;
    let receiver = args.webhook.as_ref().map(|url| webhook::receiver(&url.0)).transpose()?;
    args.run.worker.check(args.pace.order(), args.pace.skip_idle)?;
    let targets = targets(args)?;
    let mut source = ReplaySource::open(args)?;
    if let ReplaySource::Capture { is_finished: false, .. } = &source {
        ctx.report("note: the capture is incomplete: replaying the events it has");
    }
    let mut others = Vec::new();
    for target in &targets[1..] {
        let client = prepare_target(args, &source, target)?;
        others.push(replay_target(target, &client));
    }
    let target = &targets[0];
    let mut client = prepare_target(args, &source, target)?;
    allow_many_connections();
    let settings = settings(args, source.encodings(), &mut client);
    // With several targets, it is not known how many sessions each gets at once.
    let capacity = query_capacity(&mut client).filter(|_| others.is_empty());
    let survey = estimate_concurrency(args, capacity)?;
    let capacity_to_watch =
        check_logins(ctx, args, target, &settings.identities, &survey, capacity)?;
    let calibration = if args.no_calibration {
        CalibrationPlan::disabled()
    } else {
        CalibrationPlan::new(&mut client, capacity, survey.open_max)
    };
    // Wait for input before creating the run, so that unreadable input does not replace an existing
    // run, and before catching signals, so that Ctrl-C works while a pipe is silent.
    let first = source.wait_for_first();
    let start = args.run.worker.plan_start(ctx, &mut client)?;
    if matches!(first, Err(StartError::NoEvents)) && args.run.worker.is_one_of_several() {
        return finish_without_sessions(args, ctx, &client, start.as_ref());
    }
    first.map_err(|error| cannot_replay(args, error))?;
    let writer =
        args.run.output.as_deref().map(|dir| run_writer(args, dir, &client, start.as_ref()));
    let writer = writer.transpose()?;
    let _server = args.metrics.serve(ctx)?;
    let mut replay_targets = vec![replay_target(target, &client)];
    replay_targets.append(&mut others);
    let pace = PaceControl::default();
    let _admin = args.admin.map(|address| admin::serve(address, &pace, ctx)).transpose()?;
    // The captured sessions may need all connections that the target allows.
    client.close_and_wait(CLOSE_TIMEOUT);
    let stop = ctx.interrupted();
    if let Some(start) = &start {
        start.wait(ctx, &stop);
    }
    let replay = Replay {
        targets: replay_targets,
        settings,
        start: start.map(|start| start.with_origin(source.origin(args))),
        writer,
        has_outcomes: matches!(source, ReplaySource::Capture { .. }),
        capacity: capacity_to_watch,
        calibration,
        pace,
        notices: notice_sink(ctx),
        registry: ctx.registry().clone(),
        stop: stop.clone(),
    };
    let (total, left) = (source.total(), source.exclusions());
    let input = ReplayInput { total, left: left.clone(), position: source.position() };
    let finished = Arc::new(AtomicBool::new(false));
    let report = std::thread::scope(|scope| {
        let done = finished.clone();
        scope.spawn(move || show_progress(ctx, &input, &done));
        let report = source.play(replay);
        finished.store(true, Ordering::Relaxed);
        report
    });
    let report = report.map_err(|error| cannot_replay(args, error))?;
    left.report(ctx);
    let result = report.json(args.pace.rate);
    let finished = finish(args, ctx, report);
    if let Some(receiver) = &receiver {
        webhook::send(ctx, receiver, &result);
    }
    finished
}

/// Returns the servers to replay against, at least one.
fn targets(args: &Args) -> anyhow::Result<Vec<ConnectTarget>> {
    if args.target.is_empty() {
        return Ok(vec![args.connection.target(None)?]);
    }
    args.target.iter().map(|conninfo| args.connection.target(Some(conninfo))).collect()
}

/// Connects to a target and checks that the capture can be replayed against it.
fn prepare_target(
    args: &Args,
    source: &ReplaySource,
    target: &ConnectTarget,
) -> anyhow::Result<Client> {
    let mut client = connection::connect(target)?;
    refuse_production(args, source.captured_server(), &mut client)?;
    check_login_settings(&args.set, &mut client)?;
    Ok(client)
}

fn replay_target(target: &ConnectTarget, client: &Client) -> ReplayTarget {
    ReplayTarget {
        target: target.clone(),
        endpoint: client.endpoint().clone(),
        is_encrypted: client.is_encrypted(),
    }
}

/// Refuses a target that is the captured server or has other active clients, unless the user
/// allows it. Reads are refused as well: they slow down a server in production.
fn refuse_production(
    args: &Args,
    captured: Option<&CapturedServer>,
    client: &mut Client,
) -> anyhow::Result<()> {
    let facts = TargetFacts::query(client)
        .context("cannot check whether the target may be in production")?;
    let allowed = args.allow_production.as_deref();
    match check_target("target", &facts, captured, allowed) {
        Ok(()) => Ok(()),
        Err(error) => {
            let hint = error.hint();
            Err(error).hint(hint)
        }
    }
}

/// The setting by which `--read-only` prevents writes on the target.
const READ_ONLY: &str = "default_transaction_read_only";

fn refuse_conflicting_settings(args: &Args) -> anyhow::Result<()> {
    args.pace.check(args.target.len())?;
    let conflict = args.set.iter().find(|setting| setting.name.eq_ignore_ascii_case(READ_ONLY));
    match conflict.filter(|_| args.select.is_read_only()) {
        Some(setting) => Err(errors::wrong_usage(format_args!(
            "--set {setting} cannot be used with --read-only, which sets {READ_ONLY} to on"
        ))),
        None => Ok(()),
    }
}

/// Checks that the target accepts the settings of `--set`: an unknown name or an invalid value
/// would make logins fail.
fn check_login_settings(settings: &[LoginSetting], client: &mut Client) -> anyhow::Result<()> {
    // `options` is not a setting, and takes effect only at login.
    let named = settings.iter().filter(|setting| !setting.name.eq_ignore_ascii_case("options"));
    for setting in named {
        let quoted = |text: &str| format!("'{}'", text.replace('\'', "''"));
        let sql = format!(
            "set standard_conforming_strings = on; select pg_catalog.set_config({}, {}, true)",
            quoted(&setting.name),
            quoted(&setting.value)
        );
        let Err(error) = client.query(&sql) else { continue };
        // 42704 undefined_object, 22023 invalid_parameter_value. Settings that can be set only at
        // login, or only by some roles, are rejected here with other codes.
        if ["42704", "22023"].iter().any(|code| error.sqlstate() == Some(code)) {
            return Err(anyhow::Error::from(error)
                .context(format!("the target does not accept --set {setting}")));
        }
    }
    Ok(())
}

/// Time spent on reading ahead in the input to find its logins, before the replay starts.
const SURVEY_TIME: Duration = Duration::from_millis(50);

/// Like [`SURVEY_TIME`], if the capture may need more connections at once than the target allows.
const CROWDED_SURVEY_TIME: Duration = Duration::from_secs(1);

/// Maximum time to wait until the target has closed the first connection.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

fn query_capacity(client: &mut Client) -> Option<Capacity> {
    Capacity::query(client).unwrap_or_else(|error| {
        tracing::debug!(%error, "cannot query the connection limit of the target");
        None
    })
}

/// Reports which sessions will fail to log in, and whether the target allows too few connections,
/// before anything is replayed. Returns the connection limit if it must be watched during the
/// replay.
///
/// # Errors
///
/// A role or database named in an option is rejected or does not exist.
fn check_logins(
    ctx: &CommandContext,
    args: &Args,
    target: &ConnectTarget,
    identities: &IdentityMap,
    survey: &ConcurrencyEstimate,
    capacity: Option<Capacity>,
) -> anyhow::Result<Option<Capacity>> {
    let mut missing = BTreeSet::new();
    for denied in find_denied_logins(target, identities, survey) {
        if denied.is_database_missing() {
            // Report it once for all roles.
            if missing.insert(denied.database.clone()) {
                report_missing_database(args, ctx, denied)?;
            }
        } else {
            report_denied_login(ctx, denied)?;
        }
    }
    let needed = survey.open_max;
    match capacity.filter(|capacity| needed > capacity.available()) {
        Some(capacity) => {
            let more = if survey.is_complete { "" } else { " or more" };
            ctx.report(format_args!("note: needs {needed} connections{more} at once, {capacity}"));
            ctx.report(format_args!(
                "hint: {}",
                Notice::TooManySessions { sessions: needed, capacity }.hint()
            ));
            Ok(None)
        }
        None => Ok(capacity),
    }
}

/// Estimates the input's sessions and logins by reading ahead. The estimate is empty for a pipe,
/// which can be read only once, and for a glob pattern.
fn estimate_concurrency(
    args: &Args,
    capacity: Option<Capacity>,
) -> anyhow::Result<ConcurrencyEstimate> {
    let is_reread = |path: &PathBuf| is_store_url(path) || path.is_file() || path.is_dir();
    if !args.inputs.iter().all(is_reread) {
        return Ok(ConcurrencyEstimate::default());
    }
    Ok(match ReplaySource::open(args)? {
        ReplaySource::Capture { events, connects, .. } => {
            let free = capacity.map_or(usize::MAX, |capacity| capacity.available());
            let crowded = usize::try_from(connects).is_ok_and(|connects| connects > free);
            ConcurrencyEstimate::from_events(
                events,
                if crowded { CROWDED_SURVEY_TIME } else { SURVEY_TIME },
            )
        }
        ReplaySource::Log { events, .. } => ConcurrencyEstimate::from_events(events, SURVEY_TIME),
    })
}

/// Reports a role that cannot log in. It is an error if the role was named in an option, because
/// that is probably a typo; for a captured role, it may be known and irrelevant.
fn report_denied_login(ctx: &CommandContext, denied: DeniedLogin) -> anyhow::Result<()> {
    let DeniedLogin { user, database, is_mapped, captured, sessions, error, .. } = denied;
    let affected: Vec<_> = captured.iter().filter(|name| !name.is_empty()).cloned().collect();
    let affected = if affected.is_empty() {
        "all sessions".to_owned()
    } else {
        format!("sessions of {}", affected.join(", "))
    };
    if is_mapped {
        let error = anyhow::Error::from(error)
            .context(format!("role {user} cannot log in to database {database}"));
        return Err(errors::with_hint(
            error,
            format_args!("{affected} need it: see --map-user and --as-user"),
        ));
    }
    ctx.report(format_args!("note: role {user} cannot log in to database {database}: {error}"));
    ctx.report(format_args!(
        "hint: {affected} will fail ({sessions} seen so far); --map-user {user}=ROLE logs them in as another"
    ));
    Ok(())
}

/// Reports a database that does not exist on the target: an error if it was named in an option.
fn report_missing_database(
    args: &Args,
    ctx: &CommandContext,
    denied: DeniedLogin,
) -> anyhow::Result<()> {
    let DeniedLogin { database, is_database_mapped, captured_databases, sessions, error, .. } =
        denied;
    if is_database_mapped {
        let hint = match &args.as_database {
            Some(_) => format!("--as-database {database} sends all sessions there"),
            None => format!(
                "--map-database {}={database} sends sessions there",
                captured_databases.first().map_or("OLD", String::as_str)
            ),
        };
        let error = anyhow::Error::from(error)
            .context(format!("database {database} does not exist on the target"));
        return Err(errors::with_hint(error, hint));
    }
    ctx.report(format_args!("note: database {database} does not exist on the target: {error}"));
    ctx.report(format_args!(
        "hint: its sessions will fail ({sessions} seen so far, perhaps more); --map-database \
         {database}=NAME connects them to another, --as-database NAME connects all sessions to one"
    ));
    Ok(())
}

/// Creates a sink that prints notices above the progress bar.
fn notice_sink(ctx: &CommandContext) -> NoticeSink {
    let messages = ctx.messages();
    NoticeSink::new(move |notice| {
        messages.report(format_args!("note: {notice}"));
        messages.report(format_args!("hint: {}", notice.hint()));
    })
}

fn cannot_replay(args: &Args, error: StartError) -> anyhow::Error {
    // An unsuitable prefix is only detected at the first line of the log.
    if let StartError::Source(cause) = &error
        && let Some(ReadFilesError::Options(error)) =
            cause.downcast_ref::<ReadFilesError<ReceiverGone>>()
    {
        return errors::wrong_usage(error);
    }
    anyhow::Error::from(error).context(format!("cannot replay {}", args.inputs[0].display()))
}

/// Raises the soft limit on file descriptors, 1024 on most systems, to the hard limit: each session
/// needs one.
pub(super) fn allow_many_connections() {
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        tracing::warn!(%error, "cannot raise the limit on open files: it may be too low");
    }
}

fn settings(
    args: &Args,
    captured: BTreeMap<String, String>,
    client: &mut Client,
) -> ReplaySettings {
    let mut encodings = EncodingMap { captured, ..EncodingMap::default() };
    encodings.captured.extend(args.encoding.by_database());
    if let Err(error) = encodings.query_target(client) {
        tracing::debug!(%error, "cannot query the encodings of the target's databases");
    }
    ReplaySettings {
        rate: args.pace.rate,
        idle_max: args.pace.skip_idle,
        lag: args.pace.lag,
        think_time: args.pace.think_time,
        order: args.pace.order(),
        identities: IdentityMap {
            as_database: args.as_database.clone(),
            ..args.identities.identity_map()
        },
        encodings,
        login_settings: args.set.clone(),
        is_read_only: args.select.is_read_only(),
        checks_results: args.check_results,
        maps_ids: args.map_ids,
        limits: ReplayLimits {
            fetch_rows: args.fetch_rows,
            backlog_bytes: (args.backlog as usize) << 20,
            ..ReplayLimits::default()
        },
        workers: usize::from(args.workers),
    }
}

fn run_writer(
    args: &Args,
    dir: &Path,
    client: &Client,
    start: Option<&PlannedStart>,
) -> anyhow::Result<RunWriter> {
    let settings = RunSettings {
        capture: args
            .inputs
            .iter()
            .map(|path| path.display().to_string())
            .collect::<Vec<_>>()
            .join(" "),
        target: client.endpoint().to_string(),
        rate: args.pace.rate.to_string(),
        server_version: client.parameter("server_version").unwrap_or_default().to_owned(),
        started: Timestamp::now(),
        overwrite: args.run.force,
        part: args.run.worker.part(start),
    };
    let created = RunWriter::create(dir, settings);
    let exists = matches!(created, Err(WriteError::Exists { .. }));
    let created = created.with_context(|| format!("cannot write the run {}", dir.display()));
    if exists { created.hint("use --force to replace it") } else { created }
}

/// Writes the part of a worker for which the capture has no sessions.
fn finish_without_sessions(
    args: &Args,
    ctx: &CommandContext,
    client: &Client,
    start: Option<&PlannedStart>,
) -> anyhow::Result<CommandOutcome> {
    ctx.report(format_args!("worker {} has no sessions to replay", args.run.worker.share()));
    if let Some(dir) = &args.run.output {
        let writer = run_writer(args, dir, client, start)?;
        let finished = writer.finish(serde_json::Value::Null, true);
        finished.with_context(|| format!("cannot finish the run {}", dir.display()))?;
    }
    Ok(CommandOutcome::Done)
}

/// Finishes the run and prints the result. Returns an error if the replay or the run is incomplete,
/// or if no session could log in.
fn finish(
    args: &Args,
    ctx: &CommandContext,
    mut report: ReplayReport,
) -> anyhow::Result<CommandOutcome> {
    let summary = report.json(args.pace.rate);
    let complete =
        !report.is_interrupted && report.source_error.is_none() && report.write_error.is_none();
    // The result is printed, even if the run cannot be finished.
    let mut unfinished = None;
    if let (Some(writer), Some(dir)) = (report.writer.take(), &args.run.output) {
        let finished = writer.finish(summary.clone(), complete);
        unfinished =
            finished.with_context(|| format!("cannot finish the run {}", dir.display())).err();
    }
    {
        let mut out = ctx.stdout();
        match args.format {
            ReplayFormat::Table => write!(out, "{}", report.lines(args.pace.rate))?,
            ReplayFormat::Json => writeln!(out, "{summary:#}")?,
        }
        if let (Some(dir), ReplayFormat::Table) = (&args.run.output, args.format) {
            writeln!(out, "run: {}", dir.display())?;
        }
    }
    if let Some(error) = unfinished {
        return Err(error);
    }
    if let Some(error) = report.write_error.take() {
        return Err(error).context("the run is incomplete: not all outcomes could be written");
    }
    if let Some(error) = report.source_error.take() {
        bail!("the input could not be read to its end: {error}");
    }
    if let Some(abort) = &report.lag_abort {
        bail!(
            "session {} was {:.1} s late, more than --lag allows: the result above covers the replay \
             until then",
            &*abort.session,
            abort.lag.as_secs_f64(),
        );
    }
    if report.is_interrupted {
        bail!("interrupted: the result above covers the replay until then");
    }
    if let Some(why) = report.login_failure() {
        bail!("no session could log in to the target: {why}");
    }
    Ok(CommandOutcome::Done)
}
