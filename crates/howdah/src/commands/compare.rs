//! `howdah compare`: compares two runs query by query, with a verdict.

use std::{
    io::Write as _,
    path::{Path, PathBuf},
    slice,
};

use anyhow::{Context as _, anyhow};
use howdah_compare::{
    ChangeFactor, CompareSettings, Comparison, FailOn, Overall, Samples, Violation, compare,
    compare_runs,
    explain::{Examples, explain},
};
use howdah_connect::{ConnParams, ConnectTarget, Environment};
use howdah_report::{TableStyle, document, query_text, table};
use howdah_sql::Fingerprint;

use crate::{
    context::CommandContext,
    errors::{self, WithHint as _},
    format::{self, Format},
    outcome::CommandOutcome,
    progress::Total,
    values::dataset_path,
};

/// Compare runs: which queries got slower, by how much, and how certain that is.
///
/// Statements that differ only in constants or bound values are one query. Queries are sorted by
/// the total cost of their change, worst first. A change counts if it is certain, large enough and
/// above the noise. Several runs on each side measure that noise: with two, the machine's load may
/// look like a change. Exits with 4 if the runs differ too much to say whether anything changed.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The baseline run and the run to compare with it: folders written by `howdah replay -o`
    #[arg(value_names = ["BASE", "RUN"], num_args = 2, required_unless_present = "base",
          conflicts_with_all = ["base", "run"], value_parser = dataset_path())]
    pair: Vec<PathBuf>,
    /// Runs of the baseline's setup
    #[arg(long, value_name = "RUN", num_args = 1.., requires = "run", conflicts_with = "control",
          value_parser = dataset_path())]
    base: Vec<PathBuf>,
    /// Runs of the changed setup, replayed in turns with those of the baseline
    #[arg(long, value_name = "RUN", num_args = 1.., requires = "base",
          value_parser = dataset_path())]
    run: Vec<PathBuf>,
    /// A second run of the baseline's setup, to measure the noise between runs
    #[arg(long, value_name = "RUN", value_parser = dataset_path())]
    control: Option<PathBuf>,
    /// Output format
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t)]
    format: Format,
    /// Exit with 3 if a query meets this condition: metric, > or >=, limit, as in p95>1.5x;
    /// repeatable
    ///
    /// Metrics: mean, p50, p90, p95, p99, max, total, errors, calls. Limits: 1.5x is relative to
    /// BASE; 20ms (us, ms, s, min) and, for errors and calls, 10 are absolute. errors>1x means more
    /// errors than in BASE. A relative change of times must also be statistically significant.
    #[arg(long, value_name = "CONDITION")]
    fail_on: Vec<FailOn>,
    /// Ignore changes by less than this factor [default: 1.25x; between several runs 1.2x]
    #[arg(long, value_name = "FACTOR")]
    min_change: Option<ChangeFactor>,
    /// Number of queries to show, worst first; 0 for all [default: 20 in a table, all in JSON]
    #[arg(long, value_name = "COUNT")]
    limit: Option<usize>,
    /// Server in the state of BASE, to get plans with EXPLAIN; nothing is executed
    #[arg(long, value_name = "URI")]
    explain_base: Option<String>,
    /// Server in the state of RUN, to get plans with EXPLAIN; nothing is executed
    #[arg(long, value_name = "URI")]
    explain_run: Option<String>,
}

const EXAMPLES: &str = "\
Examples:
  howdah compare run-16 run-17
  howdah compare --base a1 a2 a3 --run b1 b2 b3 --fail-on 'p95>1.5x'
  howdah compare run-a run-b --explain-base postgresql://a/shop --explain-run postgresql://b/shop";

/// Default number of queries in a table.
const TABLE_QUERIES: usize = 20;

pub(crate) fn run(args: &Args, ctx: &CommandContext) -> anyhow::Result<CommandOutcome> {
    let servers = ExplainServers::from_args(args)?;
    let (base_paths, run_paths) = match args.pair.as_slice() {
        [base, run] => (slice::from_ref(base), slice::from_ref(run)),
        _ => (args.base.as_slice(), args.run.as_slice()),
    };
    let read_all = |paths: &[PathBuf]| -> anyhow::Result<Vec<Samples>> {
        paths.iter().map(|path| read(ctx, path)).collect()
    };
    let (base, run) = (read_all(base_paths)?, read_all(run_paths)?);
    let control = args.control.as_deref().map(|path| read(ctx, path)).transpose()?;
    let settings = CompareSettings::default().with_change_min(args.min_change);
    let mut comparison = match &control {
        Some(control) => compare(&base[0], &run[0], Some(control), &settings),
        None => compare_runs(&base, &run, &settings),
    };
    if let Some(servers) = servers {
        servers.explain(&mut comparison, &run_paths[0], ctx)?;
    }
    let crossings: Vec<Violation> = args
        .fail_on
        .iter()
        .flat_map(|condition| condition.violations(&comparison, &base, &run))
        .collect();
    print(args, ctx, &comparison, &crossings)?;
    Ok(match comparison.verdict {
        _ if !crossings.is_empty() => CommandOutcome::CheckFailed,
        Overall::NotComparable => CommandOutcome::NotComparable,
        _ => CommandOutcome::Done,
    })
}

fn read(ctx: &CommandContext, path: &Path) -> anyhow::Result<Samples> {
    let bar = ctx.progress(Total::Count(0), format!("reading {}", path.display()));
    let samples = Samples::read_with_progress(path, |read, total| {
        bar.set_length(total);
        bar.set_position(read);
    });
    bar.finish_and_clear();
    let samples = samples.hint("`howdah replay CAPTURE --target URI -o RUN` writes a run")?;
    if samples.is_empty() {
        let error = anyhow!("the run {} has no executions to compare", path.display());
        return Err(errors::with_hint(
            error,
            "a replay stopped at its start, or of a capture without statements, writes such a run",
        ));
    }
    Ok(samples)
}

fn print(
    args: &Args,
    ctx: &CommandContext,
    comparison: &Comparison,
    crossings: &[Violation],
) -> anyhow::Result<()> {
    let limit = match (args.limit, args.format) {
        (Some(0), _) | (None, Format::Json) => None,
        (Some(limit), _) => Some(limit),
        (None, Format::Table) => Some(TABLE_QUERIES),
    };
    let mut out = ctx.stdout();
    match args.format {
        Format::Table => {
            let style = TableStyle {
                is_colored: ctx.terminal().color_stdout,
                width: ctx.terminal().stdout_width(),
                queries_max: limit,
            };
            write!(out, "{}", table(comparison, crossings, &style))?;
        }
        Format::Json => {
            format::write_json(&mut out, &document(comparison, crossings, limit))?;
        }
    }
    out.finish()?;
    Ok(())
}

/// The two servers used for plans.
struct ExplainServers {
    base: ConnectTarget,
    run: ConnectTarget,
}

impl ExplainServers {
    /// Resolves the targets named by the options, if any. Call this before the runs are read, so
    /// that a typo fails immediately.
    fn from_args(args: &Args) -> anyhow::Result<Option<Self>> {
        let (base, run) = match (&args.explain_base, &args.explain_run) {
            (Some(base), Some(run)) => (base, run),
            (None, None) => return Ok(None),
            (given, _) => {
                let (given, missing) = match given {
                    Some(_) => ("--explain-base", "--explain-run"),
                    None => ("--explain-run", "--explain-base"),
                };
                let error = errors::wrong_usage(format_args!("{given} requires {missing}"));
                let hint = format_args!("plans of two servers are compared: add {missing} URI");
                return Err(errors::with_hint(error, hint));
            }
        };
        Ok(Some(Self { base: target("--explain-base", base)?, run: target("--explain-run", run)? }))
    }

    fn explain(
        &self,
        comparison: &mut Comparison,
        run: &Path,
        ctx: &CommandContext,
    ) -> anyhow::Result<()> {
        let examples = Examples::for_changed(comparison, run)?;
        let failures = explain(comparison, &examples, &self.base, &self.run)
            .context("cannot get plans")
            .hint("the runs can be compared without --explain-base and --explain-run")?;
        for (fingerprint, error) in failures {
            let error = anyhow::Error::from(error);
            ctx.report(format_args!("no plan for {}: {error:#}", name(comparison, fingerprint)));
        }
        Ok(())
    }
}

fn target(option: &str, conninfo: &str) -> anyhow::Result<ConnectTarget> {
    ConnectTarget::resolve(&ConnParams::from_conninfo(conninfo), &Environment::from_process())
        .with_context(|| format!("invalid value of {option}"))
}

fn name(comparison: &Comparison, fingerprint: Fingerprint) -> String {
    const WIDTH: usize = 60;
    let mut queries = comparison.queries.iter();
    let found = queries.find(|query| query.fingerprint == fingerprint);
    found.map_or_else(|| fingerprint.to_string(), |query| query_text(query, WIDTH))
}
