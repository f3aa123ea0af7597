//! `howdah probe waits`: samples what all backends wait for.

use std::{
    io::{self, BufRead as _, Read as _},
    sync::mpsc::{Receiver, sync_channel},
    thread,
    time::Duration,
};

use anyhow::Context as _;
use howdah_inspect::RunningServer;
use howdah_probe::{
    by_sql::{IdentityMonitor, SqlWaits},
    live::{MemoryWaits, profile_waits},
    waits::{QueryOptions, SamplerOptions, SessionDimension, WaitSampler},
};
use howdah_report::probe::{WaitGroups, WaitPrinter, sampling_remark};

use super::{
    by_sql,
    common::{self, OpenedProbe, WatchArgs},
    source::SourceName,
    target::SqlTarget,
};
use crate::{
    context::CommandContext, errors::wrong_usage, outcome::CommandOutcome, terminal::StdoutWriter,
};

/// Sample what all backends wait for, from their memory, up to a thousand times per second.
///
/// Needs no statements, locks or extensions. Shares are of database time, in which a client
/// waits for its backend; idle connections and the server's own processes are shown separately.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true, after_help = EXAMPLES)]
pub(super) struct Args {
    #[command(flatten)]
    watch: WatchArgs,
    /// Samples per second
    #[arg(long, value_name = "HZ", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
    frequency: u32,
    /// Group by these, separated by commas. All but `statement` need a connection
    #[arg(long, value_enum, value_name = "GROUP", value_delimiter = ',')]
    by: Vec<GroupName>,
    /// Same as `--by statement`
    #[arg(long)]
    queries: bool,
    /// Print the profile since the previous mark at each line of standard input
    ///
    /// The line is the name of the mark: press Enter, or let a script write to a pipe.
    #[arg(long)]
    mark: bool,
    /// Include the server's own processes and idle connections
    #[arg(long)]
    all: bool,
}

/// Value of `--by`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum GroupName {
    /// The statement without its literals
    Statement,
    /// The role that the session logged in as
    User,
    /// The database that the session is connected to
    Database,
    /// The application_name
    Application,
    /// The client's address
    Client,
}

const EXAMPLES: &str = "\
Examples:
  howdah probe waits postgresql://localhost/shop --duration 10s
  howdah probe waits postgresql://localhost/shop --by user,application --mark
  howdah probe waits --data-dir /var/lib/postgresql/16/main --frequency 1000 --queries
  howdah probe waits --pid 4711 --all --format ndjson > waits.ndjson";

pub(super) fn run(args: &Args, ctx: &CommandContext) -> anyhow::Result<CommandOutcome> {
    let watch = &args.watch;
    let period = Duration::from_secs(1) / args.frequency;
    if watch.interval < period {
        return Err(wrong_usage(
            "--interval is shorter than the time between two samples (--frequency)",
        ));
    }
    let open = |server: &RunningServer| {
        let options = SamplerOptions { queries: args.query_options(), ..SamplerOptions::default() };
        Ok(WaitSampler::open(server, options)?)
    };
    let dimensions = args.dimensions();
    if let Some(first) = dimensions.first()
        && !watch.target.is_connection()
    {
        return Err(wrong_usage(format_args!(
            "--by {} needs a connection, because sessions are identified over SQL: name the server by \
             a URI instead of a process, directory or container",
            first.name()
        )));
    }
    let (sampler, found) = match watch.open(&[SourceName::Memory, SourceName::Sql], open)? {
        OpenedProbe::Local(sampler, found) => (sampler, found),
        OpenedProbe::Sql(outside) => return by_sql(&outside, args, ctx),
    };
    let identities = match &found.session {
        Some((target, _)) if !dimensions.is_empty() => Some(
            IdentityMonitor::start(target, dimensions)
                .context("cannot read the sessions over SQL")?,
        ),
        _ => None,
    };
    if let Some(remedy) = identities.as_ref().and_then(IdentityMonitor::hidden) {
        ctx.report(format_args!("clients of other roles' sessions are hidden: {remedy}"));
    }
    let mut waits = MemoryWaits::new(sampler, &found.server, identities)?;
    let mut printer = args.printer(("memory", None), ctx);
    let marks = args.mark.then(read_marks);
    let totals =
        profile_waits(&mut waits, (&watch.pace(ctx), period), marks.as_ref(), &mut printer)
            .map_err(common::live_error)?;
    printer.totals(&totals.report, &waits)?;
    if let Some(error) = waits.identities().and_then(IdentityMonitor::take_error) {
        let error = anyhow::Error::from(error);
        ctx.report(format_args!("later sessions are not identified: {error:#}"));
    }
    ctx.report(sampling_remark(&waits.cost(), totals.missed));
    common::outcome(totals.ended)
}

fn by_sql(
    outside: &SqlTarget,
    args: &Args,
    ctx: &CommandContext,
) -> anyhow::Result<CommandOutcome> {
    let server = by_sql::connect(outside)?;
    by_sql::report_limitation(outside, SqlWaits::LIMITATION, ctx);
    let mut waits = SqlWaits::new(server, args.query_options(), args.dimensions())?;
    let mut printer = args.printer(("sql", Some(SqlWaits::LIMITATION)), ctx);
    let pace = args.watch.pace(ctx);
    let period = Duration::from_secs(1) / args.frequency.min(SqlWaits::FREQUENCY_MAX);
    let limits = (&pace, period.min(pace.interval));
    let marks = args.mark.then(read_marks);
    let totals = profile_waits(&mut waits, limits, marks.as_ref(), &mut printer)
        .map_err(common::live_error)?;
    printer.totals(&totals.report, &waits)?;
    let unreadable = waits.unreadable();
    if unreadable > 0 {
        ctx.report(format_args!(
            "{unreadable} sessions are not visible to this role: grant it pg_monitor"
        ));
    }
    common::outcome(totals.ended)
}

/// Reads marks from standard input, in a thread that ends with the process.
fn read_marks() -> Receiver<String> {
    /// Maximum length of a mark, in bytes.
    const MARK_MAX: u64 = 1000;
    /// Maximum number of marks that wait; the writer of the pipe waits for room.
    const QUEUE_MAX: usize = 16;
    let (sender, marks) = sync_channel(QUEUE_MAX);
    thread::spawn(move || {
        let mut input = io::stdin().lock();
        loop {
            let mut line = Vec::new();
            match input.by_ref().take(MARK_MAX).read_until(b'\n', &mut line) {
                Ok(1..) => {}
                _ => return,
            }
            if !line.ends_with(b"\n") && input.skip_until(b'\n').is_err() {
                return;
            }
            let mark = String::from_utf8_lossy(&line).trim().to_owned();
            if sender.send(mark).is_err() {
                return;
            }
        }
    });
    marks
}

impl Args {
    fn is_by_statement(&self) -> bool {
        self.queries || self.by.contains(&GroupName::Statement)
    }

    fn dimensions(&self) -> Vec<SessionDimension> {
        let dimension = |group: &GroupName| match group {
            GroupName::Statement => None,
            GroupName::User => Some(SessionDimension::User),
            GroupName::Database => Some(SessionDimension::Database),
            GroupName::Application => Some(SessionDimension::Application),
            GroupName::Client => Some(SessionDimension::Client),
        };
        let mut dimensions: Vec<_> = self.by.iter().filter_map(dimension).collect();
        dimensions.sort_unstable();
        dimensions.dedup();
        dimensions
    }

    fn query_options(&self) -> Option<QueryOptions> {
        let normalise = |text: &str| howdah_sql::normalize(text.as_bytes()).to_string();
        self.is_by_statement()
            .then(|| QueryOptions { normalise: Box::new(normalise), ..QueryOptions::default() })
    }

    fn printer<'a>(
        &self,
        source: (&'static str, Option<&'static str>),
        ctx: &'a CommandContext,
    ) -> WaitPrinter<StdoutWriter<'a>> {
        let groups =
            WaitGroups { statement: self.is_by_statement(), dimensions: self.dimensions() };
        WaitPrinter::new(ctx.output(), (self.watch.format.into(), self.all), groups, source)
    }
}
