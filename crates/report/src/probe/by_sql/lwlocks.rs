//! Renders waits for lightweight locks as samples: how often processes were seen waiting. Samples
//! come from SQL, or from memory if BPF programs are not permitted but reading memory is.

use std::io::{self, Write};

use howdah_probe::by_sql::{LwLockSamples, SampledTime};
use serde_json::json;

use super::{SqlPrinter, SqlReport};
use crate::probe::{
    calls,
    rows::{self, Cell},
};

fn cells(tranche: &str, amount: SampledTime) -> Vec<Cell> {
    vec![
        ("operation", json!("lwlock")),
        ("subject", json!(tranche)),
        ("samples", json!(amount.samples)),
        ("total_ms", rows::ms(amount.time)),
    ]
}

impl SqlReport for LwLockSamples {
    const COLUMNS: &'static [&'static str] = calls::COLUMNS;

    fn write_interval(&mut self, rows: &mut SqlPrinter<impl Write>) -> io::Result<()> {
        for (tranche, amount) in self.drain_interval() {
            rows.row(Some("interval"), cells(&tranche, amount))?;
        }
        Ok(())
    }

    fn write_totals(&mut self, rows: &mut SqlPrinter<impl Write>) -> io::Result<()> {
        for (tranche, amount) in self.tranches() {
            rows.row(Some("subject"), cells(tranche, *amount))?;
        }
        let mut end = cells("", self.total());
        end.retain(|(name, _)| *name != "subject");
        rows.row(Some("end"), end)
    }
}
