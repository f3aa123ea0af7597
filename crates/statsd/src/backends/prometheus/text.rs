//! The text exposition format, version 0.0.4: a family is its help, its type and its samples.

use howdah_stats::prometheus::{PrometheusNumber, PrometheusText};

use super::{
    cursor::FamilyRun,
    families::{FamilyTable, FamilyType},
    names::label_pairs,
    observations::TimerObservations,
};

/// Writes a run of series, after the header of their family unless an earlier run had it.
pub(super) fn write_run(out: &mut PrometheusText, run: &FamilyRun<'_>) {
    let name = &*run.name;
    if !run.is_continued {
        out.header(name, &run.help(), run.shape().as_str());
    }
    for series in run.series() {
        let labels = series.labels;
        match (series.observations, run.shape()) {
            (Some(observed), FamilyType::Summary) => summary(out, name, labels, observed),
            (Some(observed), _) => histogram(out, name, labels, observed),
            (None, _) => out.sample(name, "", label_pairs(labels), series.value),
        }
    }
}

/// Writes the server's own metrics.
pub(super) fn write_self_metrics(out: &mut PrometheusText, families: &FamilyTable) {
    families.for_each_self_metric(|name, family| out.family(name, family));
}

fn summary(out: &mut PrometheusText, name: &str, labels: &str, observed: &TimerObservations) {
    for (quantile, value) in observed.quantiles() {
        let quantile = PrometheusNumber(quantile).to_string();
        out.sample(name, "", label_pairs(labels).chain([("quantile", &*quantile)]), value);
    }
    write_totals(out, name, labels, observed);
}

fn histogram(out: &mut PrometheusText, name: &str, labels: &str, observed: &TimerObservations) {
    let bounds = observed.observing.buckets.iter().copied().chain([f64::INFINITY]);
    let mut below = 0.0;
    for (bound, count) in bounds.zip(&observed.buckets) {
        below += count;
        let bound = PrometheusNumber(bound).to_string();
        out.sample(name, "_bucket", label_pairs(labels).chain([("le", &*bound)]), below);
    }
    write_totals(out, name, labels, observed);
}

fn write_totals(out: &mut PrometheusText, name: &str, labels: &str, observed: &TimerObservations) {
    out.sample(name, "_sum", label_pairs(labels), observed.sum);
    out.sample(name, "_count", label_pairs(labels), observed.count);
}
