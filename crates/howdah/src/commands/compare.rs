//! `howdah compare`: two runs, query by query, with a verdict.

use std::{
    io::Write as _,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, anyhow};
use howdah_compare::{
    ChangeFactor, Comparison, Crossing, FailOn, Samples, Settings, compare,
    explain::{Examples, explain},
};
use howdah_connect::{Environment, Target, Words};
use howdah_report::{TableStyle, document, query_text, table};
use howdah_sql::Fingerprint;

use crate::{
    context::Context,
    errors::{self, WithHint as _},
    format::{self, Format},
    outcome::Outcome,
    progress::Total,
};

/// Compare two runs: which query got slower, how sure that is, and by how much.
///
/// What differs only in constants or bound values is one query. Queries stand in the order of what
/// their change costs in total, the worst first. A change counts if it is certain, large enough
/// and above the noise; two runs of one setup are "no change".
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The run to compare with: a folder that `howdah replay -o` made
    base: PathBuf,
    /// The run to judge
    run: PathBuf,
    /// A second run of BASE's setup: what differs there is noise, not a change
    #[arg(long, value_name = "RUN")]
    control: Option<PathBuf>,
    /// How to print the comparison
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t)]
    format: Format,
    /// Exit with 3 if a query crosses this: metric, > or >=, limit, as in p95>1.5x; repeat for more
    ///
    /// Metrics: mean, p50, p90, p95, p99, max, total, errors, calls. Limits: 1.5x compares with
    /// BASE, 20ms (us, ms, s, min) and, for errors and calls, 10 are fixed. errors>1x means more
    /// errors than in BASE. A ratio of times must be more than luck.
    #[arg(long, value_name = "CONDITION")]
    fail_on: Vec<FailOn>,
    /// Changes by less than this factor are no change
    #[arg(long, value_name = "FACTOR", default_value_t = ChangeFactor::DEFAULT)]
    min_change: ChangeFactor,
    /// Queries to show, the worst first; 0 for all [default: 20 in a table, all in JSON]
    #[arg(long, value_name = "COUNT")]
    limit: Option<usize>,
    /// Server as it was for BASE, to ask for plans; nothing is executed there
    #[arg(long, value_name = "URI")]
    explain_base: Option<String>,
    /// Server as it was for RUN, to ask for plans; nothing is executed there
    #[arg(long, value_name = "URI")]
    explain_run: Option<String>,
}

const EXAMPLES: &str = "\
Examples:
  howdah compare run-16 run-17
  howdah compare run-16 run-17 --control run-16-again --fail-on 'p95>1.5x'
  howdah compare run-a run-b --explain-base postgresql://a/shop --explain-run postgresql://b/shop";

/// Queries in a table, if the user does not say.
const TABLE_QUERIES: usize = 20;

/// Columns of a table that goes to no terminal: a file can be scrolled.
const WIDTH_WITHOUT_TERMINAL: u16 = 160;

pub(crate) fn run(args: Args, ctx: &Context) -> anyhow::Result<Outcome> {
    let servers = Servers::of(&args)?;
    let base = read(ctx, &args.base)?;
    let run = read(ctx, &args.run)?;
    let control = args.control.as_deref().map(|path| read(ctx, path)).transpose()?;
    let settings = Settings { change_min: args.min_change, ..Settings::default() };
    let mut comparison = compare(&base, &run, control.as_ref(), &settings);
    if let Some(servers) = servers {
        servers.explain(&mut comparison, &args, ctx)?;
    }
    let crossings: Vec<Crossing> = args
        .fail_on
        .iter()
        .flat_map(|condition| condition.crossings(&comparison, &base, &run))
        .collect();
    print(&args, ctx, &comparison, &crossings)?;
    Ok(if crossings.is_empty() { Outcome::Done } else { Outcome::No })
}

fn read(ctx: &Context, path: &Path) -> anyhow::Result<Samples> {
    let bar = ctx.progress(Total::Count(0), format!("reading {}", path.display()));
    let samples = Samples::read_watched(path, |read, total| {
        bar.set_length(total);
        bar.set_position(read);
    });
    bar.finish_and_clear();
    let samples = samples.hint("`howdah replay CAPTURE --target URI -o RUN` makes a run")?;
    if samples.is_empty() {
        let error = anyhow!("the run {} has no executions to compare", path.display());
        return Err(errors::with_hint(
            error,
            "a replay that was stopped at once, or of a capture without statements, makes such a run",
        ));
    }
    Ok(samples)
}

fn print(
    args: &Args,
    ctx: &Context,
    comparison: &Comparison,
    crossings: &[Crossing],
) -> anyhow::Result<()> {
    let limit = match (args.limit, args.format) {
        (Some(0), _) | (None, Format::Json) => None,
        (Some(limit), _) => Some(limit),
        (None, Format::Table) => Some(TABLE_QUERIES),
    };
    let mut out = ctx.stdout();
    match args.format {
        Format::Table => {
            let terminal = terminal_size::terminal_size().filter(|_| ctx.terminal().stdout);
            let width = terminal.map_or(WIDTH_WITHOUT_TERMINAL, |(columns, _)| columns.0);
            let style = TableStyle {
                color: ctx.terminal().color_stdout,
                width: width.into(),
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

/// The two servers that are asked for plans.
struct Servers {
    base: Target,
    run: Target,
}

impl Servers {
    /// Resolved before the runs are read, so that a slip of the pen costs no time.
    fn of(args: &Args) -> anyhow::Result<Option<Self>> {
        let (base, run) = match (&args.explain_base, &args.explain_run) {
            (Some(base), Some(run)) => (base, run),
            (None, None) => return Ok(None),
            (given, _) => {
                let (given, missing) = match given {
                    Some(_) => ("--explain-base", "--explain-run"),
                    None => ("--explain-run", "--explain-base"),
                };
                let error = errors::wrong_usage(format_args!("{given} is of no use alone"));
                let hint = format_args!("plans of two servers are compared: add {missing} URI");
                return Err(errors::with_hint(error, hint));
            }
        };
        Ok(Some(Self { base: target("--explain-base", base)?, run: target("--explain-run", run)? }))
    }

    fn explain(
        &self,
        comparison: &mut Comparison,
        args: &Args,
        ctx: &Context,
    ) -> anyhow::Result<()> {
        let examples = Examples::of_changed(comparison, &args.run)?;
        let failures = explain(comparison, &examples, &self.base, &self.run)
            .context("cannot ask for plans")
            .hint("without --explain-base and --explain-run the runs are compared all the same")?;
        for (fingerprint, error) in failures {
            let error = anyhow::Error::from(error);
            ctx.say(format_args!("no plan for {}: {error:#}", name(comparison, fingerprint)));
        }
        Ok(())
    }
}

fn target(option: &str, conninfo: &str) -> anyhow::Result<Target> {
    Target::resolve(&Words::from_conninfo(conninfo), &Environment::from_process())
        .with_context(|| format!("cannot make sense of {option}"))
}

fn name(comparison: &Comparison, fingerprint: Fingerprint) -> String {
    const WIDTH: usize = 60;
    let mut queries = comparison.queries.iter();
    let found = queries.find(|query| query.fingerprint == fingerprint);
    found.map_or_else(|| fingerprint.to_string(), |query| query_text(query, WIDTH))
}
