//! `howdah replay`: a capture or a log against a server.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::Write as _,
    iter::Peekable,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, bail};
use howdah_connect::{Client, Target};
use howdah_dataset::{Events, RunSettings, RunWriter, WriteError};
use howdah_logs::{LogStream, NotTaken, ReadFilesError};
use howdah_replay::{
    Capacity, DeniedLogin, Encodings, FeedError, Identities, Limits, LoginSetting, Notice, Notices,
    Rate, Renaming, Replay, Report, Settings, StartError, Survey, shut_out,
};
use howdah_traffic::{Event, Kind, Timestamp};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::{
    commands::capture::{self, EncodingArgs, LeftOut, LogArgs, SelectArgs, Sifted},
    connection::{self, ConnectionArgs},
    context::Context,
    errors::{self, WithHint as _},
    metrics::MetricsArgs,
    outcome::Outcome,
    progress::Total,
};

/// Replay captured traffic against a server.
///
/// Every captured session gets a connection of its own, and sends what it sent, when it sent it: a
/// slow statement delays its own session and no other. Statements really run, so point this at a
/// copy. Server logs can be given in place of a capture; they are read as the replay goes.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true, after_help = EXAMPLES)]
pub(crate) struct Args {
    /// A capture, or server logs: files, folders or patterns, in any order; - is standard input
    #[arg(required = true, value_name = "CAPTURE|LOG")]
    inputs: Vec<PathBuf>,
    /// The server to replay against: a URI or a keyword string, as psql takes it
    #[arg(long, value_name = "CONNINFO")]
    target: Option<String>,
    /// Folder for the run: the outcome of each event, which `howdah compare` reads
    #[arg(long, short, value_name = "RUN")]
    output: Option<PathBuf>,
    /// Replace a run that is there already
    #[arg(long)]
    force: bool,
    /// Pace: a factor on captured time such as 0.5 or 2, or max for no waiting at all
    #[arg(long, short, value_name = "FACTOR", default_value_t, allow_negative_numbers = true)]
    rate: Rate,
    /// Log in as NEW where the capture has OLD; repeat for more
    #[arg(long, value_name = "OLD=NEW", value_delimiter = ',')]
    map_user: Vec<Renaming>,
    /// Connect to NEW where the capture has OLD; repeat for more
    #[arg(long, value_name = "OLD=NEW", value_delimiter = ',')]
    map_database: Vec<Renaming>,
    /// Log in every session as this role
    #[arg(long, value_name = "ROLE")]
    as_user: Option<String>,
    /// Connect every session to this database
    #[arg(long, value_name = "NAME")]
    as_database: Option<String>,
    /// Setting that sessions begin with: all of them, or those of a captured role and database, of which
    /// one may be left out; repeat for more, or put a semicolon between
    #[arg(long, value_name = "[USER@DATABASE:]NAME=VALUE", value_delimiter = ';')]
    set: Vec<LoginSetting>,
    /// Rows per fetch from a portal: logs do not hold the number
    #[arg(long, value_name = "ROWS", default_value_t = Limits::default().fetch_rows,
          value_parser = clap::value_parser!(u32).range(1..))]
    fetch_rows: u32,
    /// Threads that hold sessions
    #[arg(long, value_name = "COUNT", default_value_t = 1,
          value_parser = clap::value_parser!(u16).range(1..=256))]
    workers: u16,
    /// Memory for events that wait, per thread, in MiB; beyond it, sessions that are behind skip
    #[arg(long, value_name = "MIB", default_value_t = 256,
          value_parser = clap::value_parser!(u32).range(1..=1_048_576))]
    backlog: u32,
    /// How to print the numbers
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t)]
    format: Format,
    #[command(flatten)]
    select: SelectArgs,
    #[command(flatten)]
    log: LogArgs,
    #[command(flatten)]
    encoding: EncodingArgs,
    #[command(flatten)]
    metrics: MetricsArgs,
    #[command(flatten)]
    connection: ConnectionArgs,
}

const EXAMPLES: &str = "\
Examples:
  howdah replay monday --target postgresql://postgres@copy/shop -o run-1
  howdah replay postgresql.csv --target postgresql://copy/shop --rate 2 --as-user bench
  tail -n +1 -F postgresql.log | howdah replay - --target postgresql://copy/shop";

/// How the numbers of a replay are printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    /// Lines for a person
    #[default]
    Table,
    /// One JSON document
    Json,
}

pub(crate) fn run(args: Args, ctx: &Context) -> anyhow::Result<Outcome> {
    if args.target.is_none() && !args.connection.names_a_server() {
        // A default server could be the one in production, and statements really run.
        let error = errors::wrong_usage("no server to replay against was named");
        return Err(errors::with_hint(error, "give --target CONNINFO, or -h, -p, -U and -d"));
    }
    refuse_conflicting_settings(&args)?;
    let target = args.connection.target(args.target.as_deref())?;
    let mut source = Source::open(&args)?;
    if let Source::Capture { is_finished: false, .. } = &source {
        ctx.say("note: the capture is not finished, its writer was stopped: what there is of it is played");
    }
    let mut client = connection::connect(&target)?;
    check_login_settings(&args.set, &mut client)?;
    allow_many_connections();
    let settings = settings(&args, source.encodings(), &mut client);
    let capacity = check_logins(&args, ctx, &mut client, &target, &settings.identities)?;
    // What cannot be read replaces no run, and Ctrl-C while a pipe is silent ends us at once.
    source.wait_for_first().map_err(|error| cannot_replay(&args, error))?;
    let writer = args.output.as_deref().map(|dir| run_writer(&args, dir, &client)).transpose()?;
    let _server = args.metrics.serve(ctx)?;
    let (endpoint, encrypted) = (client.endpoint().clone(), client.is_encrypted());
    // The captured sessions may need every connection that the target allows.
    client.close();
    let stop = ctx.interrupted();
    let replay = Replay {
        target,
        endpoint,
        encrypted,
        settings,
        writer,
        outcomes_known: matches!(source, Source::Capture { .. }),
        capacity,
        notices: notices(ctx),
        registry: ctx.registry().clone(),
        stop: stop.clone(),
    };
    let (total, left) = (source.total(), source.left());
    let finished = Arc::new(AtomicBool::new(false));
    let report = std::thread::scope(|scope| {
        let done = finished.clone();
        scope.spawn(move || show_progress(ctx, total, &done));
        let report = source.play(replay);
        finished.store(true, Ordering::Relaxed);
        report
    });
    let report = report.map_err(|error| cannot_replay(&args, error))?;
    left.say(ctx);
    conclude(&args, ctx, report)
}

/// The setting by which `--read-only` keeps the target from writing.
const READ_ONLY: &str = "default_transaction_read_only";

fn refuse_conflicting_settings(args: &Args) -> anyhow::Result<()> {
    let conflict = args.set.iter().find(|setting| setting.name.eq_ignore_ascii_case(READ_ONLY));
    match conflict.filter(|_| args.select.is_read_only()) {
        Some(setting) => Err(errors::wrong_usage(format_args!(
            "--set {setting} cannot be used with --read-only, which sets {READ_ONLY} to on"
        ))),
        None => Ok(()),
    }
}

/// Has the target judge the settings that sessions will begin with: one that it does not know, or whose
/// value it refuses, would keep every session out.
fn check_login_settings(settings: &[LoginSetting], client: &mut Client) -> anyhow::Result<()> {
    // `options` is no setting itself; its words show only in a login.
    let named = settings.iter().filter(|setting| !setting.name.eq_ignore_ascii_case("options"));
    for setting in named {
        let quoted = |text: &str| format!("'{}'", text.replace('\'', "''"));
        let sql = format!(
            "set standard_conforming_strings = on; select pg_catalog.set_config({}, {}, true)",
            quoted(&setting.name),
            quoted(&setting.value)
        );
        let Err(error) = client.query(&sql) else { continue };
        // 42704 undefined_object, 22023 invalid_parameter_value. What only a login may set, or only
        // some roles, is refused here with another code.
        if ["42704", "22023"].iter().any(|code| error.sqlstate() == Some(code)) {
            return Err(anyhow::Error::from(error)
                .context(format!("the target does not accept --set {setting}")));
        }
    }
    Ok(())
}

/// How long a capture is looked at for who comes, before it is played.
const GLANCE: Duration = Duration::from_millis(50);

/// The same where there may be more sessions at once than the target has room for.
const LONG_LOOK: Duration = Duration::from_secs(1);

/// Says which sessions will not get in, while nothing has been sent yet. Gives what is left to look
/// out for during the replay.
///
/// # Errors
///
/// A role that the user named is refused, or a database that the user named is not there.
fn check_logins(
    args: &Args,
    ctx: &Context,
    client: &mut Client,
    target: &Target,
    identities: &Identities,
) -> anyhow::Result<Option<Capacity>> {
    let capacity = Capacity::ask(client).unwrap_or_else(|error| {
        tracing::debug!(%error, "the target does not say how many connections it allows");
        None
    });
    let survey = survey(args, capacity)?;
    let mut missing = BTreeSet::new();
    for out in shut_out(target, identities, &survey) {
        if out.is_database_missing() {
            // Once for all roles that want to get there.
            if missing.insert(out.database.clone()) {
                complain_of_database(args, ctx, out)?;
            }
        } else {
            complain(ctx, out)?;
        }
    }
    let needed = survey.open_max;
    match capacity.filter(|capacity| needed > capacity.free()) {
        Some(capacity) => {
            let more = if survey.complete { "" } else { " or more" };
            ctx.say(format_args!("note: needs {needed} connections{more} at once, {capacity}"));
            ctx.say(format_args!(
                "hint: {}",
                Notice::Crowded { sessions: needed, capacity }.hint()
            ));
            Ok(None)
        }
        None => Ok(capacity),
    }
}

/// Looks ahead in what is being replayed. A pipe can be read only once, so nothing is known of it.
fn survey(args: &Args, capacity: Option<Capacity>) -> anyhow::Result<Survey> {
    if !args.inputs.iter().all(|path| path.is_file() || path.is_dir()) {
        return Ok(Survey::default());
    }
    Ok(match Source::open(args)? {
        Source::Capture { events, connects, .. } => {
            let free = capacity.map_or(usize::MAX, |capacity| capacity.free());
            let crowded = usize::try_from(connects).is_ok_and(|connects| connects > free);
            Survey::of(events, if crowded { LONG_LOOK } else { GLANCE })
        }
        Source::Log { events, .. } => Survey::of(events, GLANCE),
    })
}

/// Tells of a role that is not let in. One that was named for the replay is a slip of the pen, one of
/// the capture perhaps known and of no interest.
fn complain(ctx: &Context, out: DeniedLogin) -> anyhow::Result<()> {
    let DeniedLogin { user, database, is_mapped, captured, sessions, error, .. } = out;
    let whose: Vec<_> = captured.iter().filter(|name| !name.is_empty()).cloned().collect();
    let whose = if whose.is_empty() {
        "all sessions".to_owned()
    } else {
        format!("sessions of {}", whose.join(", "))
    };
    if is_mapped {
        let error = anyhow::Error::from(error)
            .context(format!("role {user} cannot log in to database {database}"));
        return Err(errors::with_hint(
            error,
            format_args!("{whose} need it: see --map-user and --as-user"),
        ));
    }
    ctx.say(format_args!("note: role {user} cannot log in to database {database}: {error}"));
    ctx.say(format_args!(
        "hint: {whose} will fail ({sessions} seen so far); --map-user {user}=ROLE logs them in as another"
    ));
    Ok(())
}

/// Reports a database that the target does not have: an error if it was named for the replay.
fn complain_of_database(args: &Args, ctx: &Context, out: DeniedLogin) -> anyhow::Result<()> {
    let DeniedLogin { database, is_database_mapped, captured_databases, sessions, error, .. } = out;
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
    ctx.say(format_args!("note: database {database} does not exist on the target: {error}"));
    ctx.say(format_args!(
        "hint: its sessions will fail ({sessions} seen so far, perhaps more); --map-database \
         {database}=NAME connects them to another, --as-database NAME connects all sessions to one"
    ));
    Ok(())
}

/// Notices go above the progress bar.
fn notices(ctx: &Context) -> Notices {
    let talk = ctx.talk();
    Notices::new(move |notice| {
        talk.say(format_args!("note: {notice}"));
        talk.say(format_args!("hint: {}", notice.hint()));
    })
}

fn cannot_replay(args: &Args, error: StartError) -> anyhow::Error {
    // Whether a prefix will do shows at the first line that it is to fit.
    if let StartError::Feed(cause) = &error
        && let Some(ReadFilesError::Options(error)) =
            cause.downcast_ref::<ReadFilesError<NotTaken>>()
    {
        return errors::wrong_usage(error);
    }
    anyhow::Error::from(error).context(format!("cannot replay {}", args.inputs[0].display()))
}

/// Raises the soft limit of file descriptors, 1024 at most places, to the hard one: each session
/// takes one.
fn allow_many_connections() {
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        tracing::warn!(%error, "cannot raise the limit of open files: it may be too low");
    }
}

fn settings(args: &Args, captured: BTreeMap<String, String>, client: &mut Client) -> Settings {
    let mut encodings = Encodings { captured, ..Encodings::default() };
    encodings.captured.extend(args.encoding.by_database());
    if let Err(error) = encodings.ask(client) {
        tracing::debug!(%error, "the target does not say what encodings its databases have");
    }
    let pairs = |renamings: &[Renaming]| {
        renamings.iter().map(|renaming| (renaming.from.clone(), renaming.to.clone())).collect()
    };
    Settings {
        rate: args.rate,
        identities: Identities {
            users: pairs(&args.map_user),
            databases: pairs(&args.map_database),
            as_user: args.as_user.clone(),
            as_database: args.as_database.clone(),
        },
        encodings,
        login_settings: args.set.clone(),
        is_read_only: args.select.is_read_only(),
        limits: Limits {
            fetch_rows: args.fetch_rows,
            backlog_bytes: (args.backlog as usize) << 20,
            ..Limits::default()
        },
        workers: usize::from(args.workers),
    }
}

fn run_writer(args: &Args, dir: &Path, client: &Client) -> anyhow::Result<RunWriter> {
    let settings = RunSettings {
        capture: args
            .inputs
            .iter()
            .map(|path| path.display().to_string())
            .collect::<Vec<_>>()
            .join(" "),
        target: client.endpoint().to_string(),
        rate: args.rate.to_string(),
        server_version: client.parameter("server_version").unwrap_or_default().to_owned(),
        started: Timestamp::now(),
        overwrite: args.force,
    };
    let created = RunWriter::create(dir, settings);
    let exists = matches!(created, Err(WriteError::Exists { .. }));
    let created = created.with_context(|| format!("cannot write the run {}", dir.display()));
    match exists {
        true => created.hint("--force replaces it"),
        false => created,
    }
}

/// Where the events come from.
#[expect(clippy::large_enum_variant, reason = "there is one in the life of a process")]
enum Source {
    Capture {
        events: Peekable<Sifted<Events>>,
        left: LeftOut,
        total: Option<u64>,
        connects: u64,
        is_finished: bool,
        encodings: BTreeMap<String, String>,
    },
    Log {
        events: Peekable<Sifted<LogStream>>,
        left: LeftOut,
    },
}

impl Source {
    fn open(args: &Args) -> anyhow::Result<Self> {
        match &args.inputs[..] {
            [dir] if dir.is_dir() && !capture::holds_no_dataset(dir) => {
                let capture = capture::open(dir)?;
                let manifest = capture.manifest();
                let connects = manifest.kinds.get(&Kind::Connect).copied().unwrap_or(0);
                let events = Sifted::new(capture.events(), args.select.sieve());
                let total = events.is_whole().then_some(manifest.events);
                let left = events.left();
                let encodings = manifest.origin.encodings.clone();
                let is_finished = manifest.finished;
                let events = events.peekable();
                Ok(Self::Capture { events, left, total, connects, is_finished, encodings })
            }
            inputs
                if inputs.iter().any(|path| path.is_dir() && !capture::holds_no_dataset(path)) =>
            {
                Err(errors::wrong_usage(
                    "give one capture, or logs: a folder among several inputs holds no logs",
                ))
            }
            inputs => {
                // A pattern stands for others, `-` for standard input.
                let is_name = |path: &&PathBuf| !path.to_string_lossy().contains(['*', '?', '[']);
                for path in inputs.iter().filter(is_name).filter(|path| path.as_os_str() != "-") {
                    std::fs::metadata(path)
                        .with_context(|| format!("cannot read the log {}", path.display()))?;
                }
                let stream = LogStream::open(inputs.to_vec(), args.log.options()?);
                let stream = stream.context("cannot read the log")?;
                let events = Sifted::new(stream, args.select.sieve());
                Ok(Self::Log { left: events.left(), events: events.peekable() })
            }
        }
    }

    /// What the capture says of its databases' encodings.
    fn encodings(&self) -> BTreeMap<String, String> {
        match self {
            Self::Capture { encodings, .. } => encodings.clone(),
            Self::Log { .. } => BTreeMap::new(),
        }
    }

    /// Waits for the first event, which stays to be played.
    fn wait_for_first(&mut self) -> Result<(), StartError> {
        match self {
            Self::Capture { events, .. } => first_of(events),
            Self::Log { events, .. } => first_of(events),
        }
    }

    /// Events that will come, if that is known.
    fn total(&self) -> Option<u64> {
        match self {
            Self::Capture { total, .. } => *total,
            Self::Log { .. } => None,
        }
    }

    /// What the filters leave out, while and after it is played.
    fn left(&self) -> LeftOut {
        match self {
            Self::Capture { left, .. } | Self::Log { left, .. } => left.clone(),
        }
    }

    fn play(self, replay: Replay) -> Result<Report, StartError> {
        match self {
            Self::Capture { events, .. } => replay.run(events),
            Self::Log { events, .. } => replay.run(events),
        }
    }
}

fn first_of<E: Into<FeedError>>(
    events: &mut Peekable<impl Iterator<Item = Result<Event, E>>>,
) -> Result<(), StartError> {
    if let Some(Ok(_)) = events.peek() {
        return Ok(());
    }
    match events.next() {
        Some(Err(error)) => Err(StartError::Feed(error.into())),
        _ => Err(StartError::NoEvents),
    }
}

/// Draws how far the replay has come, until it is finished.
fn show_progress(ctx: &Context, total: Option<u64>, finished: &AtomicBool) {
    let progress = howdah_replay::Progress::of(ctx.registry());
    let bar = ctx.progress(total.map_or(Total::Unknown, Total::Count), "replaying");
    while !finished.load(Ordering::Relaxed) {
        let state = progress.read();
        bar.set_position(state.ended);
        bar.set_message(format!(
            "replaying, {} open, {} failed, {} ms late",
            state.connections,
            state.failed,
            state.lag.as_millis()
        ));
        std::thread::sleep(Duration::from_millis(100));
    }
    bar.finish_and_clear();
}

/// Prints the numbers, finishes the run, and says what went wrong besides statements.
fn conclude(args: &Args, ctx: &Context, mut report: Report) -> anyhow::Result<Outcome> {
    let summary = report.json(args.rate);
    let complete =
        !report.interrupted && report.feed_error.is_none() && report.write_error.is_none();
    if let (Some(writer), Some(dir)) = (report.writer.take(), &args.output) {
        let finished = writer.finish(summary.clone(), complete);
        finished.with_context(|| format!("cannot finish the run {}", dir.display()))?;
    }
    {
        let mut out = ctx.stdout();
        match args.format {
            Format::Table => write!(out, "{}", report.lines(args.rate))?,
            Format::Json => writeln!(out, "{summary:#}")?,
        }
        if let (Some(dir), Format::Table) = (&args.output, args.format) {
            writeln!(out, "run: {}", dir.display())?;
        }
    }
    if let Some(error) = report.write_error.take() {
        return Err(error).context("the run is incomplete, its outcomes could not all be written");
    }
    if let Some(error) = report.feed_error.take() {
        bail!("the capture could not be read to its end: {error}");
    }
    if report.interrupted {
        bail!("interrupted: what was played until then is above");
    }
    if let Some(why) = report.login_failure() {
        bail!("no session could log in to the target: {why}");
    }
    Ok(Outcome::Done)
}
