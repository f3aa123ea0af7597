//! The text format, version 0.0.4: a family is its help, its type, its samples.

use std::fmt::{self, Write as _};

use super::{
    families::{Families, Family, Observed, Series, Shape},
    names::Labels,
    own,
};

/// All families, and the server about itself.
pub(super) fn render(families: &Families) -> String {
    let mut out = String::new();
    for (family, series) in families.iter() {
        // Writing into a String cannot fail.
        let _ = write_family(&mut out, family, series);
    }
    let _ = write_own(&mut out, families);
    out
}

fn write_family<'s>(
    out: &mut String,
    family: &Family,
    all: impl Iterator<Item = &'s Series>,
) -> fmt::Result {
    let name = &*family.name;
    head(out, name, &family.help(), family.shape.word())?;
    for series in all {
        let labels = &series.labels;
        match (&series.observed, family.shape) {
            (Some(observed), Shape::Summary) => summary(out, name, labels, observed)?,
            (Some(observed), _) => histogram(out, name, labels, observed)?,
            (None, _) => {
                writeln!(out, "{name}{} {}", Shown(labels, None), Number(series.value))?;
            }
        }
    }
    Ok(())
}

fn head(out: &mut String, name: &str, help: &str, kind: &str) -> fmt::Result {
    let help = help.replace('\\', "\\\\").replace('\n', "\\n");
    writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}")
}

fn summary(out: &mut String, name: &str, labels: &Labels, observed: &Observed) -> fmt::Result {
    for (quantile, value) in observed.quantiles() {
        let quantile = Number(quantile).to_string();
        writeln!(out, "{name}{} {}", Shown(labels, Some(("quantile", &quantile))), Number(value))?;
    }
    total(out, name, labels, observed)
}

fn histogram(out: &mut String, name: &str, labels: &Labels, observed: &Observed) -> fmt::Result {
    let bounds = observed.observing.buckets.iter().copied().chain([f64::INFINITY]);
    let mut below = 0.0;
    for (bound, count) in bounds.zip(&observed.buckets) {
        below += count;
        let bound = Number(bound).to_string();
        writeln!(out, "{name}_bucket{} {}", Shown(labels, Some(("le", &bound))), Number(below))?;
    }
    total(out, name, labels, observed)
}

fn total(out: &mut String, name: &str, labels: &Labels, observed: &Observed) -> fmt::Result {
    writeln!(out, "{name}_sum{} {}", Shown(labels, None), Number(observed.sum))?;
    writeln!(out, "{name}_count{} {}", Shown(labels, None), Number(observed.count))
}

fn write_own(out: &mut String, families: &Families) -> fmt::Result {
    for row in own::rows(families) {
        head(out, &row.name, row.help, row.shape.word())?;
        for (label, value) in &row.samples {
            let label = label.as_ref().map(|(name, value)| (*name, value.as_str()));
            writeln!(out, "{}{} {}", row.name, Shown(&Labels::default(), label), Number(*value))?;
        }
    }
    Ok(())
}

/// `{a="1",b="2"}`, with one more label perhaps, or nothing.
struct Shown<'a>(&'a Labels, Option<(&'a str, &'a str)>);

impl fmt::Display for Shown<'_> {
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

/// A number as the format has it.
struct Number(f64);

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            f64::INFINITY => f.write_str("+Inf"),
            f64::NEG_INFINITY => f.write_str("-Inf"),
            value => write!(f, "{}", crate::js::Number(value)),
        }
    }
}
