//! Waits for heavyweight locks, from snapshots of `pg_locks`.
//!
//! A wait is known by who waits for what, and the server says since when. It has ended when it is not there any
//! more; how long it was then is what was last said.

use std::{
    collections::{BTreeMap, HashMap},
    io, mem,
    time::Duration,
};

use anyhow::Context as _;
use howdah_collect::{Server, VIEWS};
use howdah_probe::{Distribution, Figures};
use serde_json::{Value, json};

use super::{Asking, LOOK, Told};
use crate::commands::probe::{durations, extend, rows};

/// Who waits for what: pid, kind of lock, mode and object.
type Wait = (String, String, String, String);

/// Waits, and how long they were when they were last seen.
#[derive(Debug, Default)]
struct Snapshots {
    open: HashMap<Wait, Seen>,
    ended: Vec<(Wait, Seen)>,
}

/// A wait as it was last seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Seen {
    waited: Duration,
    blocked_by: String,
}

impl Snapshots {
    fn look(&mut self, server: &mut Server) -> anyhow::Result<()> {
        let view = VIEWS.iter().find(|view| view.name == "waiting").expect("it is a view");
        let reading = server.read(view).context("cannot read pg_locks")?;
        let column = |name| view.column(name).expect("the view has it");
        let [pid, kind, mode, object] = ["pid", "type", "mode", "object"].map(column);
        let [waited, blocked_by] = ["waited", "blocked_by"].map(column);
        let rows = reading.iter().flat_map(|reading| reading.rows.iter());
        let now: HashMap<Wait, Seen> = rows
            .map(|row| {
                let text = |at: usize| row[at].text().unwrap_or_default().to_owned();
                let waited = row[waited].number().unwrap_or_default();
                let waited = Duration::try_from_secs_f64(waited).unwrap_or_default();
                let seen = Seen { waited, blocked_by: text(blocked_by) };
                ((text(pid), text(kind), text(mode), text(object)), seen)
            })
            .collect();
        self.take(now);
        Ok(())
    }

    fn take(&mut self, now: HashMap<Wait, Seen>) {
        for (wait, before) in mem::take(&mut self.open) {
            // A shorter wait for the same is another one.
            if now.get(&wait).is_none_or(|seen| seen.waited < before.waited) {
                self.ended.push((wait, before));
            }
        }
        self.open = now;
    }

    /// Those that ended since the last time.
    fn ended(&mut self) -> Vec<(Wait, Seen)> {
        mem::take(&mut self.ended)
    }

    /// Those that last still, as they are.
    fn end_all(&mut self) {
        self.take(HashMap::new());
    }
}

/// All waits for heavyweight locks.
#[derive(Debug, Default)]
pub(in super::super) struct Locks {
    snapshots: Snapshots,
    threshold: Option<Duration>,
    subjects: BTreeMap<String, Distribution>,
    behind: BTreeMap<String, Distribution>,
    all: Distribution,
}

impl Locks {
    /// Tells of each wait of at least `threshold`.
    pub(in super::super) fn new(threshold: Option<Duration>) -> Self {
        Self { threshold, ..Self::default() }
    }

    fn take(&mut self, told: &mut Told<'_>) -> io::Result<Distribution> {
        let mut interval = Distribution::default();
        for ((pid, kind, _, object), Seen { waited, blocked_by }) in self.snapshots.ended() {
            let subject = format!("{kind} {object}");
            interval.add(waited);
            self.all.add(waited);
            let is_known = self.subjects.contains_key(&subject);
            if is_known || self.subjects.len() < SUBJECTS_MAX {
                self.subjects.entry(subject.clone()).or_default().add(waited);
            }
            let is_known = self.behind.contains_key(&blocked_by);
            if !blocked_by.is_empty() && (is_known || self.behind.len() < SUBJECTS_MAX) {
                self.behind.entry(blocked_by.clone()).or_default().add(waited);
            }
            if self.threshold.is_some_and(|least| waited >= least) {
                let pid = json!(pid.parse::<u32>().ok());
                let mut row = vec![("operation", json!("lock")), ("subject", json!(subject))];
                row.extend([("pid", pid), ("blocked_by", json!(blocked_by))]);
                row.push(("max_ms", rows::ms(waited)));
                told.write(Some("call"), row)?;
            }
        }
        Ok(interval)
    }
}

/// There may be very many relations.
const SUBJECTS_MAX: usize = 10_000;

fn cells(figures: &Figures) -> Vec<(&'static str, Value)> {
    let mut row = vec![("operation", json!("lock")), ("calls", json!(figures.count))];
    if figures.count > 0 {
        row.extend(durations::times(figures));
    }
    row
}

impl Asking for Locks {
    const COLUMNS: &'static [&'static str] = durations::COLUMNS;
    const LACKS: &'static str = "waits shorter than the 100 ms between two looks; longer ones are \
        samples, told up to 100 ms too short";
    const EVERY: Option<Duration> = Some(LOOK);

    fn look(&mut self, server: &mut Server) -> anyhow::Result<()> {
        self.snapshots.look(server)
    }

    fn tell_interval(&mut self, told: &mut Told<'_>) -> io::Result<()> {
        let interval = self.take(told)?.figures();
        if interval.count == 0 {
            return Ok(());
        }
        told.write(Some("interval"), cells(&interval))
    }

    fn tell_end(&mut self, told: &mut Told<'_>) -> io::Result<()> {
        self.snapshots.end_all();
        self.take(told)?;
        for (subject, distribution) in &self.subjects {
            let mut row = cells(&distribution.figures());
            row.push(("subject", json!(subject)));
            told.write(Some("subject"), row)?;
        }
        for (pids, distribution) in &self.behind {
            let mut row = cells(&distribution.figures());
            row.push(("blocked_by", json!(pids)));
            told.write(Some("blocker"), row)?;
        }
        told.write(Some("end"), cells(&self.all.figures()))
    }
}

/// Waits for the lock to extend a relation.
#[derive(Debug, Default)]
pub(in super::super) struct Extensions {
    snapshots: Snapshots,
    relations: BTreeMap<String, Distribution>,
    all: Distribution,
}

impl Extensions {
    fn take(&mut self) -> Distribution {
        let mut interval = Distribution::default();
        for ((_, kind, _, object), Seen { waited, .. }) in self.snapshots.ended() {
            if kind == "extend" {
                interval.add(waited);
                self.all.add(waited);
                let is_known = self.relations.contains_key(&object);
                if is_known || self.relations.len() < SUBJECTS_MAX {
                    self.relations.entry(object).or_default().add(waited);
                }
            }
        }
        interval
    }
}

fn waits(figures: &Figures) -> Vec<(&'static str, Value)> {
    let mut row = vec![("waits", json!(figures.count))];
    if figures.count > 0 {
        row.extend(extend::wait_times(figures));
    }
    row
}

impl Asking for Extensions {
    const COLUMNS: &'static [&'static str] = extend::COLUMNS;
    const LACKS: &'static str = "nearly all waits: these are samples of pg_locks, 100 ms apart, and such \
        waits last milliseconds; holds, and locks taken at once";
    const EVERY: Option<Duration> = Some(LOOK);

    fn look(&mut self, server: &mut Server) -> anyhow::Result<()> {
        self.snapshots.look(server)
    }

    fn tell_interval(&mut self, told: &mut Told<'_>) -> io::Result<()> {
        let interval = self.take().figures();
        told.write(Some("interval"), waits(&interval))
    }

    fn tell_end(&mut self, told: &mut Told<'_>) -> io::Result<()> {
        self.snapshots.end_all();
        self.take();
        for (relation, distribution) in &self.relations {
            let mut row = waits(&distribution.figures());
            row.push(("relation", json!(relation)));
            told.write(Some("relation"), row)?;
        }
        told.write(Some("end"), waits(&self.all.figures()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now(waits: &[(&str, u64)]) -> HashMap<Wait, Seen> {
        let wait = |pid: &str| (pid.into(), "relation".into(), "m".into(), "orders".into());
        let seen = |ms| Seen { waited: Duration::from_millis(ms), blocked_by: "9".to_owned() };
        waits.iter().map(|(pid, ms)| (wait(pid), seen(*ms))).collect()
    }

    #[test]
    fn a_wait_ends_when_it_is_not_there_any_more_or_begins_anew() {
        let mut snapshots = Snapshots::default();
        snapshots.take(now(&[("7", 50), ("8", 500)]));
        assert_eq!(snapshots.ended(), []);
        snapshots.take(now(&[("7", 150), ("8", 20)]));
        let ended = snapshots.ended().into_iter();
        let ended: Vec<_> = ended.map(|(wait, seen)| (wait.0, seen.waited)).collect();
        assert_eq!(ended, [("8".to_owned(), Duration::from_millis(500))]);
        snapshots.end_all();
        assert_eq!(snapshots.ended().len(), 2);
    }
}
