//! `howdah probe waits`: samples what all backends wait for.

use std::time::Duration;

use howdah_inspect::RunningServer;
use howdah_probe::{
    by_sql::SqlWaits,
    live::{MemoryWaits, profile_waits},
    waits::{QueryOptions, SamplerOptions, WaitSampler},
};
use howdah_report::probe::{WaitPrinter, sampling_remark};

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
    /// Group by statement, without its literals
    #[arg(long)]
    queries: bool,
    /// Include the server's own processes and idle connections
    #[arg(long)]
    all: bool,
}

const EXAMPLES: &str = "\
Examples:
  howdah probe waits postgresql://localhost/shop --duration 10s
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
    let (sampler, server) = match watch.open(&[SourceName::Memory, SourceName::Sql], open)? {
        OpenedProbe::Local(sampler, found) => (sampler, found.server),
        OpenedProbe::Sql(outside) => return by_sql(&outside, args, ctx),
    };
    let mut waits = MemoryWaits::new(sampler, &server)?;
    let mut printer = args.printer(("memory", None), ctx);
    let totals = profile_waits(&mut waits, (&watch.pace(ctx), period), &mut printer)
        .map_err(common::live_error)?;
    printer.totals(&totals.report, &waits)?;
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
    let mut waits = SqlWaits::new(server, args.query_options())?;
    let mut printer = args.printer(("sql", Some(SqlWaits::LIMITATION)), ctx);
    let pace = args.watch.pace(ctx);
    let period = Duration::from_secs(1) / args.frequency.min(SqlWaits::FREQUENCY_MAX);
    let limits = (&pace, period.min(pace.interval));
    let totals = profile_waits(&mut waits, limits, &mut printer).map_err(common::live_error)?;
    printer.totals(&totals.report, &waits)?;
    let unreadable = waits.unreadable();
    if unreadable > 0 {
        ctx.report(format_args!(
            "{unreadable} sessions are not visible to this role: grant it pg_monitor"
        ));
    }
    common::outcome(totals.ended)
}

impl Args {
    fn query_options(&self) -> Option<QueryOptions> {
        let normalise = |text: &str| howdah_sql::normalize(text.as_bytes()).to_string();
        self.queries
            .then(|| QueryOptions { normalise: Box::new(normalise), ..QueryOptions::default() })
    }

    fn printer<'a>(
        &self,
        source: (&'static str, Option<&'static str>),
        ctx: &'a CommandContext,
    ) -> WaitPrinter<StdoutWriter<'a>> {
        WaitPrinter::new(ctx.output(), (self.watch.format.into(), self.all), source)
    }
}
