//! Options shared by all probes, for the server, the format and the timing; and those shared by
//! tracing probes, for long events and cost.

use std::time::Duration;

use clap::ValueEnum as _;
use howdah_inspect::RunningServer;
use howdah_probe::live::{LiveError, Pace, ServerUnavailable, TraceEnd};
use howdah_report::probe::RowFormat;

use super::{
    source::SourceName,
    target::{LocalServer, ServerAccess, SqlTarget, TargetArgs},
};
use crate::{context::CommandContext, errors, outcome::CommandOutcome, values::time};

/// Options of all probes.
#[derive(Debug, clap::Args)]
pub(super) struct WatchArgs {
    #[command(flatten)]
    pub(super) target: TargetArgs,
    /// Source of the metrics
    #[arg(long, value_enum, value_name = "SOURCE", default_value_t)]
    pub(super) source: SourceName,
    /// Output format; the kinds of rows are described in the reference
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t)]
    pub(super) format: RowFormatArg,
    /// Exit after this time [default: run until Ctrl-C]
    #[arg(long, value_name = "TIME", value_parser = time)]
    duration: Option<Duration>,
    /// Time between reports
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "1s")]
    pub(super) interval: Duration,
}

/// Value of `--format`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum RowFormatArg {
    /// A table for people
    #[default]
    Table,
    /// One JSON document per line
    Ndjson,
    /// Comma-separated values with a header
    Csv,
}

impl From<RowFormatArg> for RowFormat {
    fn from(format: RowFormatArg) -> Self {
        match format {
            RowFormatArg::Table => Self::Table,
            RowFormatArg::Ndjson => Self::Ndjson,
            RowFormatArg::Csv => Self::Csv,
        }
    }
}

/// A probe opened for a server.
pub(super) enum OpenedProbe<T> {
    /// A local probe, and the server.
    Local(T, Box<LocalServer>),
    /// SQL is used, because it was requested or no local probe is possible.
    Sql(SqlTarget),
}

impl WatchArgs {
    /// Returns how long the probe runs, how often it reports, and the flag that stops it.
    pub(super) fn pace(&self, ctx: &CommandContext) -> Pace {
        Pace { interval: self.interval, duration: self.duration, stop: ctx.interrupted() }
    }

    /// Finds the server and opens the probe. Falls back to SQL if that fails, provided that a
    /// connection was named and no source was chosen. `sources` are those that the probe supports.
    pub(super) fn open<T>(
        &self,
        sources: &[SourceName],
        open: impl FnOnce(&RunningServer) -> anyhow::Result<T>,
    ) -> anyhow::Result<OpenedProbe<T>> {
        self.check_source(sources)?;
        let found = match self.target.reach(self.source)? {
            ServerAccess::Local(found) => found,
            ServerAccess::Sql(outside) => return Ok(OpenedProbe::Sql(outside)),
        };
        match open(&found.server) {
            Ok(opened) => Ok(OpenedProbe::Local(opened, found)),
            Err(error) => match found.session {
                Some((target, _)) if self.source == SourceName::Best => {
                    let reason = format!("{error:#}");
                    Ok(OpenedProbe::Sql(SqlTarget { target: Box::new(target), reason }))
                }
                _ => Err(error),
            },
        }
    }

    /// Checks that the probe supports the chosen source.
    pub(super) fn check_source(&self, sources: &[SourceName]) -> anyhow::Result<()> {
        if self.source == SourceName::Best || sources.contains(&self.source) {
            return Ok(());
        }
        let name = |source: &SourceName| {
            source.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
        };
        let supported: Vec<_> = sources.iter().map(name).collect();
        let requested = name(&self.source);
        let supported = supported.join(", ");
        Err(errors::wrong_usage(format_args!(
            "this probe does not support --source {requested}, only {supported}"
        )))
    }
}

/// Options of probes that trace with BPF programs.
#[derive(Debug, clap::Args)]
pub(super) struct TraceArgs {
    #[command(flatten)]
    pub(super) watch: WatchArgs,
    /// Report each event that took at least this long, such as 100ms
    #[arg(long, value_name = "TIME", value_parser = crate::values::short_time)]
    pub(super) threshold: Option<Duration>,
    /// Print the call stack of each of these events
    #[arg(long, requires = "threshold")]
    pub(super) stacks: bool,
    /// Detach if tracing costs more than this percentage of all CPUs
    #[arg(long, value_name = "PERCENT", default_value_t = 3.0)]
    budget: f64,
}

impl TraceArgs {
    /// Returns the minimum duration of events whose stacks are recorded; `None` if no stacks are.
    pub(super) fn stacks_from(&self) -> Option<Duration> {
        self.threshold.filter(|_| self.stacks)
    }

    /// Returns the allowed cost, as a share of all CPUs.
    pub(super) fn budget(&self) -> f64 {
        self.budget / 100.0
    }

    /// Reports if tracing ended because of its cost.
    pub(super) fn report_over_budget(&self, end: &TraceEnd, ctx: &CommandContext) {
        if let Some(share) = end.over_budget {
            let (share, allowed) = (100.0 * share, self.budget);
            ctx.report(format_args!(
                "detached: tracing cost {share:.1} % of the CPUs, {allowed} % are allowed (--budget)"
            ));
        }
    }
}

/// Reports that tracing starts, because an idle server may print nothing for a long time. From now
/// on Ctrl-C ends the command with its results.
pub(super) fn report_attached(server: &RunningServer, ctx: &CommandContext) {
    let _ = ctx.interrupted();
    let pid = server.postmaster().pid();
    ctx.report(format_args!("attached to the server with postmaster {pid}"));
}

/// Returns the outcome of a probe: `ended` is the error, if the probe ended because of one.
pub(super) fn outcome(ended: Option<LiveError>) -> anyhow::Result<CommandOutcome> {
    ended.map_or(Ok(CommandOutcome::Done), |error| Err(live_error(error)))
}

/// Converts an error, and adds a hint if the server was restarted.
pub(super) fn live_error(error: LiveError) -> anyhow::Error {
    match error {
        LiveError::Server(ServerUnavailable { source, restarted_as: Some(pid) }) => {
            let hint = format!("it was restarted, with postmaster {pid}: start the probe again");
            errors::with_hint(source.into(), hint)
        }
        LiveError::Server(ServerUnavailable { source, .. }) => source.into(),
        // A closed standard output has its own error type, which is recognised later.
        LiveError::Output(error) => error.into(),
        error => error.into(),
    }
}
