//! `howdah pool advise`: which pool mode and sizes suit the clients of a capture.

use std::{io::Write as _, path::PathBuf, sync::atomic::Ordering};

use anyhow::{Context as _, bail};
use howdah_advise::Advisor;
use howdah_report::pool_advice::{document, table};

use crate::{
    commands::capture,
    context::CommandContext,
    format::{self, Format},
    outcome::CommandOutcome,
    progress::Total,
    values::dataset_path,
};

/// Show which pool mode and sizes suit the clients of a capture.
///
/// For each database, user and application: how many sessions and transactions are open at once,
/// which session state outlives its transaction, and hence which clients transaction mode would
/// break and adaptive mode would pin to a server. Then a size for each pool, and settings to copy.
/// State is recognised by PostgreSQL's grammar. Nothing is executed.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Folder of the capture
    #[arg(value_name = "CAPTURE", value_parser = dataset_path())]
    capture: PathBuf,
    /// Output format
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t)]
    format: Format,
    /// Number of rows in each list; 0 for all [default: 20 in a table, all in JSON]
    #[arg(long, value_name = "COUNT")]
    limit: Option<usize>,
    /// A function that leaves no state in its session, as name or schema.name, as in
    /// adaptive.stateless-functions; repeatable
    #[arg(long, value_name = "FUNCTION", value_delimiter = ',')]
    stateless_function: Vec<String>,
}

const EXAMPLES: &str = "\
Examples:
  howdah pool advise monday
  howdah pool advise monday --stateless-function app.total --format json";

/// Number of rows in each list of the table.
const TABLE_ROWS: usize = 20;

pub(super) fn run(args: &Args, ctx: &CommandContext) -> anyhow::Result<CommandOutcome> {
    let mut advisor = Advisor::new(args.stateless_function.clone())?;
    let capture = capture::open(&args.capture)?;
    let manifest = capture.manifest();
    let bar = ctx.progress(Total::Count(manifest.events), "reading");
    let interrupted = ctx.interrupted();
    for event in capture.events() {
        if interrupted.load(Ordering::Relaxed) {
            bail!("interrupted before the end of the capture");
        }
        advisor.observe(&*event.context("cannot read the events")?);
        bar.inc(1);
    }
    bar.finish_and_clear();
    if manifest.report["completeness"].as_array().is_some_and(|gaps| !gaps.is_empty()) {
        ctx.report(format_args!(
            "the capture has gaps: `howdah capture info {}` lists them",
            args.capture.display()
        ));
    }
    if !manifest.finished {
        ctx.report("the capture is incomplete: later events are missing");
    }
    let advice = advisor.finish();
    let limit = |default| match args.limit {
        Some(0) => usize::MAX,
        Some(limit) => limit,
        None => default,
    };
    let mut out = ctx.stdout();
    match args.format {
        Format::Table => out.write_all(table(&advice, limit(TABLE_ROWS)).as_bytes())?,
        Format::Json => format::write_json(&mut out, &document(&advice, limit(usize::MAX)))?,
    }
    Ok(CommandOutcome::Done)
}
