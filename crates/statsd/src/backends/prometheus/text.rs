//! The text exposition format, version 0.0.4: a family is its help, its type and its samples.

use howdah_stats::prometheus::PrometheusText;

use super::{
    cursor::FamilyRun, families::FamilyTable, names::label_pairs, samples::for_each_sample,
};

/// Writes a run of series, after the header of their family unless an earlier run had it.
pub(super) fn write_run(out: &mut PrometheusText, run: &FamilyRun<'_>) {
    let name = &*run.name;
    if !run.is_continued {
        out.header(name, &run.help(), run.shape().as_str());
    }
    for_each_sample(run, |sample| {
        let labels = label_pairs(sample.labels).chain(sample.bound);
        out.sample(name, sample.suffix, labels, sample.value);
    });
}

/// Writes the server's own metrics.
pub(super) fn write_self_metrics(out: &mut PrometheusText, families: &FamilyTable) {
    families.for_each_self_metric(|name, family| out.family(name, family));
}
