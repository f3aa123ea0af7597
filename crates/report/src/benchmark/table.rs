//! Results as a table for terminals.

use std::{fmt::Write as _, time::Duration};

use howdah_warm::benchmark::{BenchmarkResults, BenchmarkRun, WarmMethod};

use super::seconds;
use crate::text;

/// Renders the server, the notes, one row per method, and the throughput after a tenth of the pages
/// was loaded.
pub fn table(results: &BenchmarkResults) -> String {
    let mut table = String::new();
    // Writing to a String cannot fail, here and below.
    let _ = writeln!(
        table,
        "PostgreSQL {}, {} in the cache; steady: {:.0} reads per second, p99 {}",
        results.server,
        text::bytes(results.pages.0 * u64::from(results.pages.1)),
        results.steady,
        seconds(Duration::from_micros(results.steady_p99_us)),
    );
    for note in &results.notes {
        let _ = writeln!(table, "{note}");
    }
    let _ = writeln!(
        table,
        "\n{:12} {:>8} {:>10} {:>8} {:>9} | {:>8} {:>10} {:>8} {:>10} {:>8}",
        "METHOD",
        "TO 90 %",
        "LOST",
        "P99",
        "LONGEST",
        "WARMING",
        "SERVER CPU",
        "OWN CPU",
        "READ",
        "RESIDENT"
    );
    for run in &results.runs {
        write_run(&mut table, run);
    }
    for run in &results.runs {
        if let Some(share) = run.share_after_a_tenth(results.steady, results.step) {
            let (name, percent) = (run.method.name(), share * 100.0);
            let _ = writeln!(
                table,
                "\n{name}: {percent:.0} % of the steady rate in the step after a tenth was loaded"
            );
        }
    }
    table
}

fn write_run(table: &mut String, run: &BenchmarkRun) {
    let none = || "-".to_owned();
    let micros = |us| seconds(Duration::from_micros(us));
    let _ = write!(
        table,
        "{:12} {:>8} {:>10} {:>8} {:>9} | ",
        run.method.name(),
        run.summary.time_to_90.map_or("never".to_owned(), seconds),
        run.summary.lost,
        micros(run.p99_us),
        micros(run.max_us),
    );
    let Some(warming) = run.warming.filter(|_| run.method != WarmMethod::NoWarming) else {
        let _ = writeln!(table, "{:>8} {:>10} {:>8} {:>10} {:>8}", "-", "-", "-", "-", "-");
        return;
    };
    let wall =
        if warming.is_done { seconds(warming.wall) } else { format!(">{}", seconds(warming.wall)) };
    let _ = writeln!(
        table,
        "{wall:>8} {:>10} {:>8} {:>10} {:>8}",
        warming.server_cpu.map_or_else(none, seconds),
        seconds(warming.own_cpu),
        warming.read_bytes.map_or_else(none, text::bytes),
        warming.resident_share.map_or_else(none, |share| format!("{:.1}%", share * 100.0)),
    );
}

#[test]
fn table_has_one_row_per_method() {
    insta::assert_snapshot!(table(&super::tests::results()));
}
