//! The Prometheus text format, version 0.0.4.
//!
//! A family is its `# HELP`, its `# TYPE`, its samples. Help escapes `\` and line feed, a label's
//! value escapes `"` too. Durations are in seconds, whatever they are counted in.

use std::fmt::{self, Write};

use crate::registry::{Families, Family, Handle};

pub(crate) fn render(families: &Families) -> String {
    let mut text = String::new();
    for family in families.values() {
        // Writing into a String cannot fail.
        let _ = family.write(&mut text);
    }
    text
}

impl Family {
    fn write(&self, out: &mut impl Write) -> fmt::Result {
        let name = self.description.name();
        writeln!(out, "# HELP {name} {}", Escaped(self.description.help(), false))?;
        writeln!(out, "# TYPE {name} {}", self.description.kind().as_str())?;
        let names = self.description.label_names();
        for (values, handle) in &self.series {
            let labels = Labels { names, values, le: None };
            match handle {
                Handle::Counter(counter) => writeln!(out, "{name}{labels} {}", counter.value())?,
                Handle::Gauge(gauge) => writeln!(out, "{name}{labels} {}", Number(gauge.value()))?,
                Handle::Histogram(histogram) => {
                    let mut count = 0;
                    for (bound_us, below) in histogram.cumulative() {
                        let le = Some(bound_us.map(Seconds));
                        writeln!(out, "{name}_bucket{} {below}", Labels { le, ..labels })?;
                        count = below;
                    }
                    writeln!(out, "{name}_sum{labels} {}", Seconds(histogram.sum_us()))?;
                    // The count is that of the last bucket, though more may have come since: the
                    // format wants the two equal.
                    writeln!(out, "{name}_count{labels} {count}")?;
                }
            }
        }
        Ok(())
    }
}

/// `{a="1",b="2"}`, or nothing. `le` is a histogram's own label; `Some(None)` is infinity.
#[derive(Clone, Copy)]
struct Labels<'a> {
    names: &'a [&'static str],
    values: &'a [Box<str>],
    le: Option<Option<Seconds>>,
}

impl fmt::Display for Labels<'_> {
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
        match separator == '{' && self.le.is_none() {
            true => Ok(()),
            false => f.write_char('}'),
        }
    }
}

/// Text with `\` and line feed escaped, and `"` if the flag says so.
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

/// A number as Prometheus writes it: the infinities have a sign and a capital.
struct Number(f64);

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            f64::INFINITY => f.write_str("+Inf"),
            f64::NEG_INFINITY => f.write_str("-Inf"),
            number => write!(f, "{number}"),
        }
    }
}

/// Microseconds, shown as seconds without rounding: `2.5`, `0.0001`, `60`.
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
