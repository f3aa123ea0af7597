//! The Prometheus text format, version 0.0.4.
//!
//! A family is its `# HELP` line, its `# TYPE` line and its samples. Help texts escape `\` and line
//! feeds, label values also `"`. Durations are written in seconds, although counted in
//! microseconds.

use std::fmt::{self, Write};

use crate::registry::{MetricFamilies, MetricFamily, MetricHandle};

pub(crate) fn render(families: &MetricFamilies) -> String {
    let mut text = String::new();
    for family in families.values() {
        // Writing into a String cannot fail.
        let _ = family.write(&mut text);
    }
    text
}

impl MetricFamily {
    fn write(&self, out: &mut impl Write) -> fmt::Result {
        let name = self.description.name();
        writeln!(out, "# HELP {name} {}", Escaped(self.description.help(), false))?;
        writeln!(out, "# TYPE {name} {}", self.description.kind().as_str())?;
        let names = self.description.label_names();
        for (values, handle) in &self.series {
            let labels = LabelsText { names, values, le: None };
            match handle {
                MetricHandle::Counter(counter) => {
                    writeln!(out, "{name}{labels} {}", counter.value())?;
                }
                MetricHandle::Gauge(gauge) => {
                    writeln!(out, "{name}{labels} {}", PrometheusNumber(gauge.value()))?;
                }
                MetricHandle::Histogram(histogram) => {
                    let mut count = 0;
                    for (bound_us, below) in histogram.cumulative() {
                        let le = Some(bound_us.map(Seconds));
                        writeln!(out, "{name}_bucket{} {below}", LabelsText { le, ..labels })?;
                        count = below;
                    }
                    writeln!(out, "{name}_sum{labels} {}", Seconds(histogram.sum_us()))?;
                    // The count must equal the last bucket, although observations may have been
                    // added since: the format requires it.
                    writeln!(out, "{name}_count{labels} {count}")?;
                }
            }
        }
        Ok(())
    }
}

/// Renders `{a="1",b="2"}`, or nothing. `le` is a histogram's own label; `Some(None)` is infinity.
#[derive(Clone, Copy)]
struct LabelsText<'a> {
    names: &'a [&'static str],
    values: &'a [Box<str>],
    le: Option<Option<Seconds>>,
}

impl fmt::Display for LabelsText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = '{';
        for (name, value) in self.names.iter().zip(self.values) {
            write!(f, "{separator}{name}=\"{}\"", Escaped(value, true))?;
            separator = ',';
        }
        match self.le {
            None => {}
            Some(None) => write!(f, "{separator}le=\"+Inf\"")?,
            Some(Some(bound)) => write!(f, "{separator}le=\"{bound}\"")?,
        }
        if separator == '{' && self.le.is_none() { Ok(()) } else { f.write_char('}') }
    }
}

/// Renders text with `\` and line feeds escaped, and also `"` if the flag is set.
struct Escaped<'a>(&'a str, bool);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|char| match char {
            '\\' => f.write_str("\\\\"),
            '\n' => f.write_str("\\n"),
            '"' if self.1 => f.write_str("\\\""),
            _ => f.write_char(char),
        })
    }
}

/// Renders a number for Prometheus, infinities as `+Inf` and `-Inf`.
struct PrometheusNumber(f64);

impl fmt::Display for PrometheusNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            f64::INFINITY => f.write_str("+Inf"),
            f64::NEG_INFINITY => f.write_str("-Inf"),
            number => write!(f, "{number}"),
        }
    }
}

/// Renders microseconds as seconds without rounding: `2.5`, `0.0001`, `60`.
#[derive(Clone, Copy)]
struct Seconds(u64);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, us) = (self.0 / 1_000_000, self.0 % 1_000_000);
        write!(f, "{whole}")?;
        if us == 0 {
            return Ok(());
        }
        let digits = format!("{us:06}");
        write!(f, ".{}", digits.trim_end_matches('0'))
    }
}

#[cfg(test)]
mod tests;
