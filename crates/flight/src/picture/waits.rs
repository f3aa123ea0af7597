//! Lanes of what processes wait for: those that clients wait for, stacked by class; and those that have
//! nothing to do or work for nobody in particular, apart, so that they drown nothing.

use howdah_chart::{Axis, ticks};
use howdah_probe::waits::Group;

use super::Canvas;
use crate::timeline::Step;

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

/// Sessions at each of [`CLASSES`], on average.
fn sessions(step: &Step) -> [f64; CLASSES.len()] {
    let mut sessions = [0.0; CLASSES.len()];
    for (class, seconds) in step.classes(Group::Database) {
        let place =
            CLASSES.iter().position(|(name, _)| *name == class).unwrap_or(CLASSES.len() - 1);
        sessions[place] += seconds / step.seconds().max(1e-9);
    }
    sessions
}

impl Canvas {
    pub(super) fn waits(&mut self, steps: &[Step]) {
        const NAME: &str = "sessions that work or wait, by class of the wait";
        let stacks: Vec<_> = steps.iter().map(|step| (self.column(step), sessions(step))).collect();
        let most =
            stacks.iter().map(|(_, sessions)| sessions.iter().sum::<f64>()).fold(0.0, f64::max);
        if most == 0.0 {
            self.nothing(NAME, "none");
            return;
        }
        let y = Axis::new((0.0, most * 1.05), (self.y + 150.0, self.y));
        let (top, _) = self.lane(NAME, 150.0, &named(most * 1.05, 4.0, &y));
        for ((left, right), sessions) in &stacks {
            let (mut below, width) = (0.0, (right - left).max(0.8));
            for (seconds, (_, class)) in sessions.iter().zip(CLASSES) {
                let (from, to) = (y.at(below), y.at(below + seconds));
                below += seconds;
                if from - to > 0.05 {
                    self.svg.put(format_args!(
                        r#"<rect class="{class}" x="{left:.1}" y="{to:.1}" width="{width:.1}" height="{:.1}"/>"#,
                        from - to
                    ));
                }
            }
        }
        let is_there = |place: &usize| stacks.iter().any(|(_, sessions)| sessions[*place] > 0.0);
        let there = (0..CLASSES.len()).filter(is_there);
        let names: Vec<_> = there.map(|place| (CLASSES[place].1, CLASSES[place].0)).collect();
        self.legend(&names, top - 7.0);
    }

    /// Idle connections and the server's own processes at work.
    pub(super) fn idle(&mut self, steps: &[Step]) {
        const GROUPS: [(Group, &str, &str); 2] =
            [(Group::Background, "own processes at work", "ipc"), (Group::Idle, "idle", "timeout")];
        let of = |step: &Step, group| {
            step.classes(group).values().sum::<f64>() / step.seconds().max(1e-9)
        };
        let all = steps.iter().flat_map(|step| GROUPS.map(|(group, ..)| of(step, group)));
        let most = all.fold(0.0, f64::max);
        if most == 0.0 {
            return;
        }
        let y = Axis::new((0.0, most * 1.1), (self.y + 50.0, self.y));
        let (top, _) = self.lane("processes apart from these", 50.0, &named(most * 1.1, 2.0, &y));
        for (group, _, class) in GROUPS {
            let points: Vec<_> = steps
                .iter()
                .map(|step| {
                    let (left, right) = self.column(step);
                    (f64::midpoint(left, right), y.at(of(step, group)))
                })
                .collect();
            self.line(&format!("line {class}"), &points);
        }
        self.legend(&GROUPS.map(|(_, name, class)| (class, name)), top - 7.0);
    }
}

fn named(end: f64, count: f64, y: &Axis) -> Vec<(f64, String)> {
    ticks(end, count).into_iter().map(|value| (y.at(value), format!("{value}"))).collect()
}
