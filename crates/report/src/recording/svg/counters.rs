//! Lanes with one line or several: sessions that wait for storage or for locks, commits, and the
//! pressure on the host.

use std::array;

use howdah_probe::{
    analysis::{RecordingWindow, TimeBucket, TimeSpan},
    recorder::is_storage_wait,
    waits::TimeCategory,
};

use super::{Canvas, waits::labelled_ticks};
use crate::chart::Axis;

const HEIGHT: f64 = 60.0;

/// A line of a lane: its colour, its name in the legend, and its value in each column that has one.
struct LaneLine<'a> {
    class: &'a str,
    name: &'a str,
    values: Vec<Option<f64>>,
}

impl Canvas {
    /// Draws sessions that wait for files, for the WAL, or to extend a relation.
    pub(super) fn storage_lane(&mut self, buckets: &[TimeBucket]) {
        let values = waiting(buckets, |_, event| is_storage_wait(event));
        let line = LaneLine { class: "io", name: "", values };
        self.lines_lane("sessions waiting for storage", buckets, &[line], 0.0);
    }

    /// Draws sessions that wait for heavyweight locks.
    pub(super) fn locks_lane(&mut self, buckets: &[TimeBucket]) {
        const NAME: &str = "sessions waiting for locks";
        let values = waiting(buckets, |class, _| class == "Lock");
        if values.iter().flatten().all(|sessions| *sessions == 0.0) {
            self.empty_lane(NAME, "none");
            return;
        }
        self.lines_lane(NAME, buckets, &[LaneLine { class: "lock", name: "", values }], 0.0);
    }

    /// Draws commits per second, which a recording with a connection has.
    pub(super) fn commits_lane(&mut self, window: &RecordingWindow, buckets: &[TimeBucket]) {
        const NAME: &str = "commits per second";
        let (mut commits, mut seconds) = (vec![0.0; buckets.len()], vec![0.0; buckets.len()]);
        for counters in window.counters.iter().filter(|counters| counters.elapsed_us > 0) {
            // The middle of the time that they count.
            let half_us = i64::try_from(counters.elapsed_us / 2).unwrap_or(i64::MAX);
            let at_us = counters.at_us.saturating_sub(half_us);
            if let Some(index) = self.column_of(buckets, at_us) {
                commits[index] += counters.commits as f64;
                seconds[index] += counters.elapsed_us as f64 / 1e6;
            }
        }
        if seconds.iter().all(|seconds| *seconds == 0.0) {
            self.empty_lane(NAME, "not recorded: name the server by a URI");
            return;
        }
        let rate = |(commits, seconds): (f64, f64)| (seconds > 0.0).then(|| commits / seconds);
        let values = commits.into_iter().zip(seconds).map(rate).collect();
        self.lines_lane(NAME, buckets, &[LaneLine { class: "cpu", name: "", values }], 0.0);
    }

    /// Draws the share of time in which processes of the host waited for a resource.
    pub(super) fn pressure_lane(&mut self, window: &RecordingWindow, buckets: &[TimeBucket]) {
        const NAME: &str = "host pressure: % of time in which processes waited";
        let mut values: [Vec<Option<f64>>; 3] = array::from_fn(|_| vec![None; buckets.len()]);
        for pressure in &window.pressures {
            let Some(index) = self.column_of(buckets, pressure.at_us) else { continue };
            let resources = [pressure.cpu, pressure.io, pressure.memory];
            for (values, resource) in values.iter_mut().zip(resources) {
                let percent = resource.map(|hundredths| f64::from(hundredths) / 100.0);
                if percent > values[index] {
                    values[index] = percent;
                }
            }
        }
        if values.iter().flatten().all(Option::is_none) {
            self.empty_lane(NAME, "not reported by the kernel");
            return;
        }
        let [cpu, io, memory] = values;
        let lines = [("cpu", "CPU", cpu), ("io", "I/O", io), ("ipc", "memory", memory)]
            .map(|(class, name, values)| LaneLine { class, name, values });
        self.lines_lane(NAME, buckets, &lines, 10.0);
    }

    /// Returns the index of the column that has a time.
    fn column_of(&self, buckets: &[TimeBucket], at_us: i64) -> Option<usize> {
        let index = buckets.partition_point(|bucket| bucket.at_us <= at_us).checked_sub(1)?;
        let from_us = buckets[index].at_us;
        let column = TimeSpan { from_us, to_us: from_us.saturating_add(self.bucket_us) };
        column.contains(at_us).then_some(index)
    }

    /// Draws a lane of lines on one axis, which ends at `least` or above.
    fn lines_lane(
        &mut self,
        name: &str,
        buckets: &[TimeBucket],
        lines: &[LaneLine<'_>],
        least: f64,
    ) {
        let most = lines.iter().flat_map(|line| line.values.iter().flatten());
        let most = most.copied().fold(least, f64::max);
        let end = if most > 0.0 { most * 1.05 } else { 1.0 };
        let y = Axis::new((0.0, end), (self.y + HEIGHT, self.y));
        let (top, _) = self.lane(name, HEIGHT, &labelled_ticks(end, 2.0, &y));
        for LaneLine { class, values, .. } in lines {
            let points: Vec<_> = buckets
                .iter()
                .zip(values)
                .filter_map(|(bucket, value)| {
                    let (left, right) = self.column(bucket);
                    Some((f64::midpoint(left, right), y.position((*value)?)))
                })
                .collect();
            self.line(&format!("line {class}"), &points);
        }
        let names: Vec<_> = lines.iter().map(|line| (line.class, line.name)).collect();
        if names.len() > 1 {
            self.legend(&names, top - 7.0);
        }
    }
}

/// Returns the average number of client sessions in the selected classes and events, by column.
fn waiting(buckets: &[TimeBucket], select: impl Fn(&str, &str) -> bool) -> Vec<Option<f64>> {
    let sessions = |bucket: &TimeBucket| {
        let waits = bucket.waits.iter().filter(|((group, class, event), _)| {
            *group == TimeCategory::Database && select(class, event)
        });
        Some(waits.map(|(_, seconds)| seconds).sum::<f64>() / bucket.seconds().max(1e-9))
    };
    buckets.iter().map(sessions).collect()
}
