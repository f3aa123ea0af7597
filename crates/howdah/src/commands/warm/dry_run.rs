//! `howdah warm load --dry-run`: shows what would be loaded, and how long it would take.

use std::io::{self, Write};

use howdah_warm::load::{ASSUMED_RATES, LoadForecast, RateBasis, RelationOutcome, TimeEstimate};
use indicatif::BinaryBytes;
use serde::Serialize;

use super::relation_label;

/// The document of `--dry-run --format json`. Counts are in pages.
#[derive(Serialize)]
pub(super) struct ForecastDocument {
    version: u32,
    page_bytes: u32,
    /// Pages excluded by `--database`, `--relation`, `--exclude` and `--min-usage`.
    not_selected: u64,
    /// Pages excluded by `--limit`.
    limited: u64,
    /// Whether the image lacks a record of the cluster that it was taken from.
    origin_unknown: bool,
    #[serde(flatten)]
    pages: ForecastCounts,
    estimate: EstimateDocument,
    relations: Vec<ForecastRow>,
}

#[derive(Clone, Copy, Serialize)]
struct ForecastCounts {
    in_image: u64,
    resident: u64,
    to_load: u64,
    no_room: u64,
    not_found: u64,
    beyond_end: u64,
}

#[derive(Serialize)]
struct EstimateDocument {
    seconds_min: f64,
    seconds_max: f64,
    /// `sample`, `assumed` or `nothing to load`.
    basis: &'static str,
    sample_bytes: u64,
    sample_seconds: f64,
}

#[derive(Serialize)]
struct ForecastRow {
    database: String,
    relation: String,
    #[serde(flatten)]
    pages: ForecastCounts,
    rewritten: bool,
    problem: Option<String>,
}

pub(super) fn document(forecast: &LoadForecast, not_selected: u64) -> ForecastDocument {
    let (basis, sample_bytes, sample_seconds) = match &forecast.estimate.basis {
        RateBasis::Sample { bytes, elapsed } => ("sample", *bytes, elapsed.as_secs_f64()),
        RateBasis::NothingToLoad => ("nothing to load", 0, 0.0),
        _ => ("assumed", 0, 0.0),
    };
    ForecastDocument {
        version: 1,
        page_bytes: forecast.page_bytes,
        not_selected,
        limited: forecast.limited,
        origin_unknown: forecast.is_origin_unknown,
        pages: counts(forecast.pages()),
        estimate: EstimateDocument {
            seconds_min: forecast.estimate.shortest.as_secs_f64(),
            seconds_max: forecast.estimate.longest.as_secs_f64(),
            basis,
            sample_bytes,
            sample_seconds,
        },
        relations: forecast.outcomes.iter().map(row).collect(),
    }
}

fn counts(pages: howdah_warm::load::PageCounts) -> ForecastCounts {
    ForecastCounts {
        in_image: pages.in_image,
        resident: pages.resident,
        to_load: pages.to_load(),
        no_room: pages.no_room,
        not_found: pages.not_found,
        beyond_end: pages.beyond_end,
    }
}

fn row(outcome: &RelationOutcome) -> ForecastRow {
    let (database, relation) = relation_label(outcome);
    ForecastRow {
        database,
        relation,
        pages: counts(outcome.pages),
        rewritten: outcome.is_rewritten,
        problem: outcome.problem.as_ref().map(ToString::to_string),
    }
}

/// Writes a row for each relation, those with the most pages to load first, then the totals.
pub(super) fn table(
    out: &mut impl Write,
    forecast: &LoadForecast,
    not_selected: u64,
) -> io::Result<()> {
    let mut rows: Vec<_> = forecast.outcomes.iter().map(row).collect();
    rows.sort_by_key(|row| std::cmp::Reverse((row.pages.to_load, row.pages.in_image)));
    let header = ["TO LOAD", "BYTES", "PRESENT", "NO ROOM", "NOT FOUND"];
    let [to_load, bytes, present, no_room, not_found] = header;
    writeln!(
        out,
        "{to_load:>10} {bytes:>11} {present:>10} {no_room:>10} {not_found:>10}  RELATION"
    )?;
    let size = |pages: u64| BinaryBytes(pages * u64::from(forecast.page_bytes));
    let line = |out: &mut dyn Write, pages: ForecastCounts, label: &str| {
        let ForecastCounts { resident, to_load, no_room, not_found, .. } = pages;
        let bytes = size(to_load).to_string();
        writeln!(
            out,
            "{to_load:>10} {bytes:>11} {resident:>10} {no_room:>10} {not_found:>10}  {label}"
        )
    };
    for ForecastRow { database, relation, pages, rewritten, problem } in &rows {
        let mut label = format!("{database} {relation}");
        if let Some(problem) = problem {
            label.push_str(": ");
            label.push_str(problem);
        } else if *rewritten {
            label.push_str(" (other file than in the image)");
        }
        line(out, *pages, &label)?;
    }
    line(out, counts(forecast.pages()), "total")?;
    writeln!(out)?;
    for (what, count) in [
        ("not selected", not_selected),
        ("limited     ", forecast.limited),
        ("beyond end  ", forecast.pages().beyond_end),
    ] {
        if count > 0 {
            writeln!(out, "{what} {} ({count} pages)", size(count))?;
        }
    }
    estimate(out, &forecast.estimate)
}

fn estimate(out: &mut impl Write, estimate: &TimeEstimate) -> io::Result<()> {
    let TimeEstimate { shortest, longest, basis } = estimate;
    let (shortest, longest) = (shortest.as_secs_f64(), longest.as_secs_f64());
    match basis {
        RateBasis::NothingToLoad => writeln!(out, "estimate     nothing to load"),
        RateBasis::Sample { bytes, elapsed } => {
            let seconds = elapsed.as_secs_f64();
            writeln!(out, "estimate     {shortest:.1} to {longest:.1} s")?;
            writeln!(
                out,
                "             a sample of {} was read in {seconds:.3} s, from files that were as \
                 cold or hot as now",
                BinaryBytes(*bytes)
            )
        }
        _ => {
            let (slow, fast) = ASSUMED_RATES;
            writeln!(out, "estimate     {shortest:.1} to {longest:.1} s")?;
            writeln!(
                out,
                "             assuming {:.0} MB/s (cold files on a slow disk) to {:.0} MB/s (hot \
                 files): no sample could be read without the extension pg_prewarm",
                slow / 1e6,
                fast / 1e6
            )
        }
    }
}
