//! The text exposition format, version 0.0.4: a family is its help, its type and its samples.

use std::fmt::{self, Write as _};

use super::{
    families::{FamilyTable, FamilyType, PrometheusFamily, PrometheusSeries, TimerObservations},
    names::LabelSet,
    self_metrics,
};

/// Renders all families and the server's own metrics.
pub(super) fn render(families: &FamilyTable) -> String {
    let mut out = String::new();
    for (family, series) in families.iter() {
        // Writing into a String cannot fail.
        let _ = write_family(&mut out, family, series);
    }
    let _ = write_self_metrics(&mut out, families);
    out
}

fn write_family<'s>(
    out: &mut String,
    family: &PrometheusFamily,
    all: impl Iterator<Item = &'s PrometheusSeries>,
) -> fmt::Result {
    let name = &*family.name;
    write_header(out, name, &family.help(), family.shape.as_str())?;
    for series in all {
        let labels = &series.labels;
        match (&series.observations, family.shape) {
            (Some(observed), FamilyType::Summary) => summary(out, name, labels, observed)?,
            (Some(observed), _) => histogram(out, name, labels, observed)?,
            (None, _) => {
                writeln!(
                    out,
                    "{name}{} {}",
                    LabelSetText(labels, None),
                    ExpositionNumber(series.value)
                )?;
            }
        }
    }
    Ok(())
}

fn write_header(out: &mut String, name: &str, help: &str, kind: &str) -> fmt::Result {
    let help = help.replace('\\', "\\\\").replace('\n', "\\n");
    writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}")
}

fn summary(
    out: &mut String,
    name: &str,
    labels: &LabelSet,
    observed: &TimerObservations,
) -> fmt::Result {
    for (quantile, value) in observed.quantiles() {
        let quantile = ExpositionNumber(quantile).to_string();
        writeln!(
            out,
            "{name}{} {}",
            LabelSetText(labels, Some(("quantile", &quantile))),
            ExpositionNumber(value)
        )?;
    }
    write_totals(out, name, labels, observed)
}

fn histogram(
    out: &mut String,
    name: &str,
    labels: &LabelSet,
    observed: &TimerObservations,
) -> fmt::Result {
    let bounds = observed.observing.buckets.iter().copied().chain([f64::INFINITY]);
    let mut below = 0.0;
    for (bound, count) in bounds.zip(&observed.buckets) {
        below += count;
        let bound = ExpositionNumber(bound).to_string();
        writeln!(
            out,
            "{name}_bucket{} {}",
            LabelSetText(labels, Some(("le", &bound))),
            ExpositionNumber(below)
        )?;
    }
    write_totals(out, name, labels, observed)
}

fn write_totals(
    out: &mut String,
    name: &str,
    labels: &LabelSet,
    observed: &TimerObservations,
) -> fmt::Result {
    writeln!(out, "{name}_sum{} {}", LabelSetText(labels, None), ExpositionNumber(observed.sum))?;
    writeln!(out, "{name}_count{} {}", LabelSetText(labels, None), ExpositionNumber(observed.count))
}

fn write_self_metrics(out: &mut String, families: &FamilyTable) -> fmt::Result {
    for row in self_metrics::self_metric_families(families) {
        write_header(out, &row.name, row.help, row.shape.as_str())?;
        for (label, value) in &row.samples {
            let label = label.as_ref().map(|(name, value)| (*name, value.as_str()));
            writeln!(
                out,
                "{}{} {}",
                row.name,
                LabelSetText(&LabelSet::default(), label),
                ExpositionNumber(*value)
            )?;
        }
    }
    Ok(())
}

/// Renders `{a="1",b="2"}`, optionally with one more label, or nothing.
struct LabelSetText<'a>(&'a LabelSet, Option<(&'a str, &'a str)>);

impl fmt::Display for LabelSetText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let labels = self.0.iter();
        let mut separator = '{';
        for (name, value) in labels.chain(self.1) {
            write!(f, "{separator}{name}=\"{}\"", escaped(value))?;
            separator = ',';
        }
        if separator == ',' { f.write_char('}') } else { Ok(()) }
    }
}

fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// Renders a number for the text format.
struct ExpositionNumber(f64);

impl fmt::Display for ExpositionNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            f64::INFINITY => f.write_str("+Inf"),
            f64::NEG_INFINITY => f.write_str("-Inf"),
            value => write!(f, "{}", crate::js::JsNumber(value)),
        }
    }
}
