//! Lanes of wait events: those of clients, stacked by class, and, in a separate lane, those of idle
//! and background processes, which would hide the others.

use howdah_probe::{analysis::TimeBucket, waits::TimeCategory};

use super::Canvas;
use crate::chart::{Axis, ticks};

/// Classes from the bottom of the stack up, with their colours.
const CLASSES: [(&str, &str); 7] = [
    ("CPU*", "cpu"),
    ("IO", "io"),
    ("LWLock", "lwlock"),
    ("Lock", "lock"),
    ("IPC", "ipc"),
    ("Timeout", "timeout"),
    ("other", "rest"),
];

/// Returns the average number of sessions in each of [`CLASSES`].
fn sessions(bucket: &TimeBucket) -> [f64; CLASSES.len()] {
    let mut sessions = [0.0; CLASSES.len()];
    for (class, seconds) in bucket.classes(TimeCategory::Database) {
        let index =
            CLASSES.iter().position(|(name, _)| *name == class).unwrap_or(CLASSES.len() - 1);
        sessions[index] += seconds / bucket.seconds().max(1e-9);
    }
    sessions
}

impl Canvas {
    pub(super) fn waits_lane(&mut self, buckets: &[TimeBucket]) {
        const NAME: &str = "sessions running or waiting, by wait event class";
        let stacks: Vec<_> =
            buckets.iter().map(|bucket| (self.column(bucket), sessions(bucket))).collect();
        let most =
            stacks.iter().map(|(_, sessions)| sessions.iter().sum::<f64>()).fold(0.0, f64::max);
        if most == 0.0 {
            self.empty_lane(NAME, "none");
            return;
        }
        let y = Axis::new((0.0, most * 1.05), (self.y + 150.0, self.y));
        let (top, _) = self.lane(NAME, 150.0, &labelled_ticks(most * 1.05, 4.0, &y));
        for ((left, right), sessions) in &stacks {
            let (mut below, width) = (0.0, (right - left).max(0.8));
            for (seconds, (_, class)) in sessions.iter().zip(CLASSES) {
                let (from, to) = (y.position(below), y.position(below + seconds));
                below += seconds;
                if from - to > 0.05 {
                    self.svg.push(format_args!(
                        r#"<rect class="{class}" x="{left:.1}" y="{to:.1}" width="{width:.1}" height="{:.1}"/>"#,
                        from - to
                    ));
                }
            }
        }
        let is_there = |index: &usize| stacks.iter().any(|(_, sessions)| sessions[*index] > 0.0);
        let there = (0..CLASSES.len()).filter(is_there);
        let names: Vec<_> = there.map(|index| (CLASSES[index].1, CLASSES[index].0)).collect();
        self.legend(&names, top - 7.0);
    }

    /// Draws the average numbers of background processes and idle connections.
    pub(super) fn idle_lane(&mut self, buckets: &[TimeBucket]) {
        const GROUPS: [(TimeCategory, &str, &str); 2] = [
            (TimeCategory::Background, "background processes", "ipc"),
            (TimeCategory::Idle, "idle", "timeout"),
        ];
        let of = |bucket: &TimeBucket, group| {
            bucket.classes(group).values().sum::<f64>() / bucket.seconds().max(1e-9)
        };
        let all = buckets.iter().flat_map(|bucket| GROUPS.map(|(group, ..)| of(bucket, group)));
        let most = all.fold(0.0, f64::max);
        if most == 0.0 {
            return;
        }
        let y = Axis::new((0.0, most * 1.1), (self.y + 50.0, self.y));
        let (top, _) = self.lane("other processes", 50.0, &labelled_ticks(most * 1.1, 2.0, &y));
        for (group, _, class) in GROUPS {
            let points: Vec<_> = buckets
                .iter()
                .map(|bucket| {
                    let (left, right) = self.column(bucket);
                    (f64::midpoint(left, right), y.position(of(bucket, group)))
                })
                .collect();
            self.line(&format!("line {class}"), &points);
        }
        self.legend(&GROUPS.map(|(_, name, class)| (class, name)), top - 7.0);
    }
}

pub(super) fn labelled_ticks(end: f64, count: f64, y: &Axis) -> Vec<(f64, String)> {
    ticks(end, count).into_iter().map(|value| (y.position(value), format!("{value}"))).collect()
}
