//! Renders profiles of stacks: a table of functions, rows of stacks, and the folded format.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, Write},
    time::{Duration, SystemTime},
};

use howdah_probe::stacks::profile::StackProfile;
use serde_json::json;

use super::rows::{self, RowFormat, RowWriter};

const COLUMNS: &[&str] =
    &["source", "kind", "time", "backend", "stack", "count", "seconds", "share"];

/// Maximum number of functions in the table.
const FUNCTIONS_SHOWN: usize = 20;

/// Writes the functions with most time as a table, or all stacks as rows.
///
/// # Errors
///
/// The writer fails.
pub fn write_profile(out: impl Write, format: RowFormat, profile: &StackProfile) -> io::Result<()> {
    let mut rows = RowWriter::new(out, format, COLUMNS);
    if rows.is_table() {
        return functions_table(&mut rows.out, profile);
    }
    let time = rows::time(SystemTime::now());
    let total = profile.total();
    let mut stacks: Vec<_> = profile.stacks.iter().collect();
    stacks.sort_by_key(|(_, weight)| std::cmp::Reverse(weight.time));
    for (text, weight) in stacks {
        let (backend, stack) = text.split_once(';').unwrap_or((text, ""));
        rows.write(&[
            ("source", json!("perf")),
            ("kind", json!("stack")),
            ("time", json!(time)),
            ("backend", json!(backend)),
            ("stack", json!(stack)),
            ("count", json!(weight.count)),
            ("seconds", json!(weight.time.as_secs_f64())),
            ("share", json!(share(weight.time, total))),
        ])?;
    }
    Ok(())
}

/// Writes the stacks in the folded format of flame graphs: one line each, with its time in
/// microseconds.
///
/// # Errors
///
/// The writer fails.
pub fn write_folded(mut out: impl Write, profile: &StackProfile) -> io::Result<()> {
    for (stack, weight) in &profile.stacks {
        writeln!(out, "{stack} {}", weight.time.as_micros())?;
    }
    out.flush()
}

fn functions_table(out: &mut impl Write, profile: &StackProfile) -> io::Result<()> {
    let mut functions = BTreeMap::<&str, [Duration; 2]>::new();
    for (stack, weight) in &profile.stacks {
        let names: Vec<&str> = stack.split(';').skip(1).filter(|name| *name != "[cut]").collect();
        if let Some(innermost) = names.last() {
            functions.entry(innermost).or_default()[0] += weight.time;
        }
        // A recursive function counts once.
        for name in names.into_iter().collect::<BTreeSet<_>>() {
            functions.entry(name).or_default()[1] += weight.time;
        }
    }
    let mut functions: Vec<_> = functions.into_iter().collect();
    functions.sort_by_key(|&(name, [own, all])| (std::cmp::Reverse((own, all)), name));
    let total = profile.total();
    writeln!(out, "{:>10} {:>8} {:>10} {:>8}  function", "self", "", "total", "")?;
    for (name, [own, all]) in functions.iter().take(FUNCTIONS_SHOWN) {
        let [own_share, all_share] = [*own, *all].map(|time| 100.0 * share(time, total));
        let [own, all] = [*own, *all].map(rows::duration);
        writeln!(out, "{own:>10} {own_share:>6.1} % {all:>10} {all_share:>6.1} %  {name}")?;
    }
    let more = functions.len().saturating_sub(FUNCTIONS_SHOWN);
    if more > 0 {
        writeln!(out, "{:>10} and {more} more functions", "")?;
    }
    out.flush()
}

fn share(time: Duration, total: Duration) -> f64 {
    time.as_secs_f64() / total.as_secs_f64().max(1e-12)
}
