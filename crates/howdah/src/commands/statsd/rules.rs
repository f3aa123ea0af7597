//! `howdah statsd rules`: shows the effect of rules on metrics.

use std::{fs::File, io, io::Write as _, path::PathBuf};

use anyhow::Context as _;
use howdah_statsd::preview::{PreviewedMetric, RulePreview};

use super::{FILE_BYTES_MAX, read_settings};
use crate::{context::CommandContext, outcome::CommandOutcome};

/// Show which rules match metrics, and the result.
///
/// Each line of the file is a metric line (web07.login:320|ms|#pod:7) or a name
/// (web07.login;pod=7). The output has, for each metric, its type, the rules that matched, the name
/// and tags after all rules and, if they differ, the name for Graphite. If the settings have a
/// Prometheus endpoint, the name and labels there follow, after its mapping file.
///
/// No server is started or asked.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// File with a metric or name in each line; - reads standard input
    #[arg(long, value_name = "FILE")]
    test: PathBuf,
    /// Settings file [default: section statsd of howdah.toml, if present]
    #[arg(short = 'c', long, value_name = "FILE")]
    settings: Option<PathBuf>,
}

pub(super) fn run(args: &Args, ctx: &CommandContext) -> anyhow::Result<CommandOutcome> {
    let read = read_settings(args.settings.as_deref(), ctx)?.context("cannot use the settings")?;
    let preview = RulePreview::new(&read.settings).context("cannot use the settings")?;
    let text = if args.test.as_os_str() == "-" {
        howdah_settings::read_text(io::stdin().lock(), FILE_BYTES_MAX)
    } else {
        File::open(&args.test).and_then(|file| howdah_settings::read_text(file, FILE_BYTES_MAX))
    };
    let text = text.with_context(|| format!("cannot read {}", args.test.display()))?;
    let mut out = ctx.stdout();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        writeln!(out, "{line}")?;
        match preview.metrics(line) {
            Ok(metrics) => metrics.iter().try_for_each(|metric| write_metric(&mut out, metric))?,
            Err(reason) => writeln!(out, "  bad line: {}", reason.as_str())?,
        }
    }
    out.flush()?;
    Ok(CommandOutcome::Done)
}

fn write_metric(out: &mut impl io::Write, metric: &PreviewedMetric) -> io::Result<()> {
    let kind = metric.kind.as_str();
    let rules = match &metric.rules[..] {
        [] => "no rule".to_owned(),
        rules => rules.join(", "),
    };
    let Some(keys) = &metric.keys else {
        return writeln!(out, "  {kind}, {rules}: dropped");
    };
    writeln!(out, "  {kind}, {rules}: {}", keys.sent)?;
    if keys.sanitised != keys.sent {
        writeln!(out, "  graphite: {}", keys.sanitised)?;
    }
    match &keys.prometheus {
        Some(Some(series)) => writeln!(out, "  prometheus: {series}"),
        Some(None) => writeln!(out, "  prometheus: dropped by the mapping"),
        None => Ok(()),
    }
}
