//! The text exposition format, version 0.0.4: a family is its help, its type and its samples.

use howdah_stats::prometheus::{PrometheusNumber, PrometheusText};

use super::{
    families::{FamilyTable, FamilyType, PrometheusFamily, PrometheusSeries, TimerObservations},
    names::LabelSet,
};

/// Renders all families and the server's own metrics.
pub(super) fn render(families: &FamilyTable) -> String {
    let mut out = PrometheusText::default();
    for (family, series) in families.iter() {
        write_family(&mut out, family, series);
    }
    families.for_each_self_metric(|name, family| out.family(name, family));
    out.into_string()
}

fn write_family<'s>(
    out: &mut PrometheusText,
    family: &PrometheusFamily,
    all: impl Iterator<Item = &'s PrometheusSeries>,
) {
    let name = &*family.name;
    out.header(name, &family.help(), family.shape.as_str());
    for series in all {
        let labels = &series.labels;
        match (&series.observations, family.shape) {
            (Some(observed), FamilyType::Summary) => summary(out, name, labels, observed),
            (Some(observed), _) => histogram(out, name, labels, observed),
            (None, _) => out.sample(name, "", labels.iter(), series.value),
        }
    }
}

fn summary(out: &mut PrometheusText, name: &str, labels: &LabelSet, observed: &TimerObservations) {
    for (quantile, value) in observed.quantiles() {
        let quantile = PrometheusNumber(quantile).to_string();
        out.sample(name, "", labels.iter().chain([("quantile", &*quantile)]), value);
    }
    write_totals(out, name, labels, observed);
}

fn histogram(
    out: &mut PrometheusText,
    name: &str,
    labels: &LabelSet,
    observed: &TimerObservations,
) {
    let bounds = observed.observing.buckets.iter().copied().chain([f64::INFINITY]);
    let mut below = 0.0;
    for (bound, count) in bounds.zip(&observed.buckets) {
        below += count;
        let bound = PrometheusNumber(bound).to_string();
        out.sample(name, "_bucket", labels.iter().chain([("le", &*bound)]), below);
    }
    write_totals(out, name, labels, observed);
}

fn write_totals(
    out: &mut PrometheusText,
    name: &str,
    labels: &LabelSet,
    observed: &TimerObservations,
) {
    out.sample(name, "_sum", labels.iter(), observed.sum);
    out.sample(name, "_count", labels.iter(), observed.count);
}
