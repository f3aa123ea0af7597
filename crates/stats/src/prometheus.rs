//! The Prometheus text format, version 0.0.4.
//!
//! A family is its `# HELP` line, its `# TYPE` line and its samples. In help texts, `\` and line
//! feeds are escaped; in label values, also `"`. Histograms count microseconds, but are written in
//! seconds.

use std::fmt::{self, Display, Write as _};

use crate::registry::{MetricFamily, MetricHandle};

/// A buffer to which metrics are written in the text format, one family after another.
///
/// A [`Registry`](crate::Registry) renders itself; this is for values that are in no registry.
///
/// ```
/// use howdah_stats::prometheus::PrometheusText;
///
/// let mut text = PrometheusText::default();
/// text.header("hits_total", "Hits.", "counter");
/// text.sample("hits_total", "", [("code", "200")], 3.0);
/// let text = text.into_string();
/// assert_eq!(text.lines().last(), Some("hits_total{code=\"200\"} 3"));
/// ```
#[derive(Clone, Debug, Default)]
pub struct PrometheusText(String);

impl PrometheusText {
    /// Writes the `# HELP` and `# TYPE` lines of a family. The name must be valid; the help may be
    /// any text.
    pub fn header(&mut self, name: &str, help: &str, kind: &str) {
        self.push(["# HELP ", name, " "]);
        self.push_escaped(help, &['\\', '\n']);
        self.push(["\n# TYPE ", name, " "]);
        self.push([kind, "\n"]);
    }

    /// Writes one sample of a family. The suffix, such as `_sum`, is added to the name. Label
    /// values may be any text.
    pub fn sample<'l>(
        &mut self,
        name: &str,
        suffix: &str,
        labels: impl IntoIterator<Item = (&'l str, &'l str)>,
        value: f64,
    ) {
        self.line(name, suffix, labels, PrometheusNumber(value));
    }

    /// Writes a registry's family, header and samples, under a name that may differ from its own.
    pub fn family(&mut self, name: &str, family: &MetricFamily) {
        let description = family.description();
        self.header(name, description.help(), description.kind().as_str());
        for (labels, handle) in family.series() {
            match handle {
                MetricHandle::Counter(counter) => self.line(name, "", labels, counter.value()),
                MetricHandle::Gauge(gauge) => self.sample(name, "", labels, gauge.value()),
                MetricHandle::Histogram(histogram) => {
                    let mut count = 0;
                    for (bound_us, below) in histogram.cumulative() {
                        let le = bound_us.map_or("+Inf".into(), |us| Seconds(us).to_string());
                        #[expect(clippy::map_identity, reason = "shortens the lifetime for `le`")]
                        let labels = labels.clone().map(|label| label).chain([("le", &*le)]);
                        self.line(name, "_bucket", labels, below);
                        count = below;
                    }
                    self.line(name, "_sum", labels.clone(), Seconds(histogram.sum_us()));
                    // The count must equal the last bucket, although observations may have been
                    // added since: the format requires it.
                    self.line(name, "_count", labels, count);
                }
            }
        }
    }

    /// Returns the number of bytes written so far.
    pub fn byte_count(&self) -> usize {
        self.0.len()
    }

    /// Returns the text written so far.
    pub fn into_string(self) -> String {
        self.0
    }

    fn line<'l>(
        &mut self,
        name: &str,
        suffix: &str,
        labels: impl IntoIterator<Item = (&'l str, &'l str)>,
        value: impl Display,
    ) {
        self.push([name, suffix]);
        let mut separator = "{";
        for (label, value) in labels {
            self.push([separator, label, "=\""]);
            self.push_escaped(value, &['\\', '\n', '"']);
            self.0.push('"');
            separator = ",";
        }
        if separator == "," {
            self.0.push('}');
        }
        // Writing into a String cannot fail.
        let _ = writeln!(self.0, " {value}");
    }

    fn push<const N: usize>(&mut self, parts: [&str; N]) {
        parts.iter().for_each(|part| self.0.push_str(part));
    }

    fn push_escaped(&mut self, text: &str, special: &[char]) {
        let mut rest = text;
        while let Some(at) = rest.find(special) {
            let (plain, from) = rest.split_at(at);
            let (escaped, after) = from.split_at(1);
            self.push([plain, "\\", if escaped == "\n" { "n" } else { escaped }]);
            rest = after;
        }
        self.0.push_str(rest);
    }
}

/// A number in the text format, in the shortest form that reads as the same double; minus zero is
/// `0`. Infinities are `+Inf` and `-Inf`; very large and very small numbers have an exponent, as in
/// `1e-9`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PrometheusNumber(pub f64);

impl Display for PrometheusNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            f64::INFINITY => f.write_str("+Inf"),
            f64::NEG_INFINITY => f.write_str("-Inf"),
            // This pattern also matches minus zero.
            0.0 => f.write_str("0"),
            // Without an exponent, a double may take more than 300 digits.
            number if (1e-6..1e21).contains(&number.abs()) || number.is_nan() => {
                write!(f, "{number}")
            }
            number => write!(f, "{number:e}"),
        }
    }
}

/// Renders microseconds as seconds without rounding: `2.5`, `0.0001`, `60`.
#[derive(Clone, Copy)]
struct Seconds(u64);

impl Display for Seconds {
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
