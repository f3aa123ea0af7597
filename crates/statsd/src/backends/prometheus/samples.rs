//! The samples of a series: a value, or quantiles or buckets with sum and count.

use howdah_stats::prometheus::PrometheusNumber;

use super::{cursor::FamilyRun, observations::TimerObservations, series_names::FamilyType};

/// A sample of a series.
#[derive(Clone, Copy, Debug)]
pub(super) struct ExposedSample<'s> {
    /// The suffix of the family's name.
    pub(super) suffix: &'static str,
    /// The labels of the series, in the format of [`super::names::LabelSet`].
    pub(super) labels: &'s str,
    /// The label `quantile` or `le` with its value.
    pub(super) bound: Option<(&'static str, &'s str)>,
    pub(super) value: f64,
}

/// Passes the samples of all series of a run to `take`, as both the text format and remote write
/// have them.
pub(super) fn for_each_sample(run: &FamilyRun<'_>, mut take: impl FnMut(ExposedSample<'_>)) {
    for series in run.series() {
        let labels = series.labels;
        let Some(observed) = series.observations else {
            take(ExposedSample { suffix: "", labels, bound: None, value: series.value });
            continue;
        };
        match run.shape() {
            FamilyType::Summary => quantiles(labels, observed, &mut take),
            _ => buckets(labels, observed, &mut take),
        }
        take(ExposedSample { suffix: "_sum", labels, bound: None, value: observed.sum });
        take(ExposedSample { suffix: "_count", labels, bound: None, value: observed.count });
    }
}

fn quantiles(labels: &str, observed: &TimerObservations, take: &mut impl FnMut(ExposedSample<'_>)) {
    for (quantile, value) in observed.quantiles() {
        let quantile = PrometheusNumber(quantile).to_string();
        take(ExposedSample { suffix: "", labels, bound: Some(("quantile", &quantile)), value });
    }
}

fn buckets(labels: &str, observed: &TimerObservations, take: &mut impl FnMut(ExposedSample<'_>)) {
    let bounds = observed.observing.buckets.iter().copied().chain([f64::INFINITY]);
    let mut below = 0.0;
    for (bound, count) in bounds.zip(&observed.buckets) {
        below += count;
        let bound = PrometheusNumber(bound).to_string();
        let bound = Some(("le", &*bound));
        take(ExposedSample { suffix: "_bucket", labels, bound, value: below });
    }
}
