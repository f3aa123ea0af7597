//! What sessions at work wait for, counted in the server: a few short rows, so that it may be asked often.

use std::sync::Arc;

use howdah_connect::ResultSet;

use crate::{
    Activity, Backend, Kind, State, Version, Wait,
    text::shown_line,
    view::{Since, chosen},
};

/// How many sessions at work were in which wait, at one moment. The same wait stands there once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WaitCounts(Vec<WaitCount>);

/// Sessions in one wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitCount {
    /// What they wait for; `None` if for nothing: they run.
    pub wait: Option<Wait>,
    /// How many there are.
    pub sessions: u32,
}

/// Sessions at work, as [`Backend::works`] has it. Before 10 there were no kinds, and only walsenders are
/// in doubt: they count there.
const FROM: &[Since] = &[
    (9, "a.state IN ('active', 'fastpath function call')"),
    (
        10,
        "a.state IN ('active', 'fastpath function call') AND a.backend_type <> 'walsender' \
         OR a.backend_type = 'parallel worker'",
    ),
];

/// The statement that counts them.
pub(crate) fn sql(version: Version) -> String {
    let works = chosen(FROM, version).unwrap_or("false");
    format!(
        "SELECT a.wait_event_type, a.wait_event, count(*)::int4 FROM pg_stat_activity a \
         WHERE a.pid <> pg_backend_pid() AND ({works}) GROUP BY 1, 2"
    )
}

impl WaitCounts {
    /// Counts of a set of waits. Those that stand there twice are added up.
    pub fn new(counts: impl IntoIterator<Item = WaitCount>) -> Self {
        let mut sums: Vec<WaitCount> = Vec::new();
        for count in counts {
            match sums.iter_mut().find(|sum| sum.wait == count.wait) {
                Some(sum) => sum.sessions = sum.sessions.saturating_add(count.sessions),
                None => sums.push(count),
            }
        }
        sums.sort_unstable_by(|one, other| one.wait.cmp(&other.wait));
        Self(sums)
    }

    /// The counts of sessions that were read one by one.
    pub fn of(activity: &Activity) -> Self {
        let working = activity.backends.iter().filter(|backend| backend.works());
        Self::new(working.map(|backend| WaitCount { wait: backend.wait.clone(), sessions: 1 }))
    }

    pub(crate) fn of_result(result: &ResultSet) -> Self {
        let word = |text: std::borrow::Cow<'_, str>| -> Arc<str> { shown_line(&text).into() };
        Self::new(result.rows.iter().map(|row| {
            WaitCount {
                wait: row
                    .text(0)
                    .zip(row.text(1))
                    .map(|(class, event)| Wait { class: word(class), event: word(event) }),
                sessions: row.text(2).and_then(|text| text.parse().ok()).unwrap_or(0),
            }
        }))
    }

    /// Each wait, in order, running first.
    pub fn iter(&self) -> impl Iterator<Item = &WaitCount> {
        self.0.iter()
    }

    /// How many sessions are at work.
    pub fn sessions(&self) -> u32 {
        self.0.iter().fold(0, |sum, count| sum.saturating_add(count.sessions))
    }

    /// How many of them wait for another session: for a lock, a latch, a pinned buffer.
    pub fn waiting_for_others(&self) -> u32 {
        let waits = |count: &&WaitCount| {
            let class = count.wait.as_ref().map(|wait| &*wait.class);
            matches!(class, Some("Lock" | "LWLock" | "BufferPin" | "Buffer"))
        };
        self.0.iter().filter(waits).fold(0, |sum, count| sum.saturating_add(count.sessions))
    }
}

impl Backend {
    /// Whether it is at work: runs a statement, or helps with one. A walsender runs for ever and is not.
    pub fn works(&self) -> bool {
        let helps = self.kind == Some(Kind::ParallelWorker);
        let runs = matches!(self.state, Some(State::Active | State::FastPath));
        (helps || runs) && self.kind != Some(Kind::WalSender)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_work_is_counted() {
        let wait = Wait { class: "IO".into(), event: "DataFileRead".into() };
        let backend = |state, kind, wait| Backend { state, kind, wait, ..Backend::default() };
        let counts = WaitCounts::of(&Activity {
            taken_us: 0,
            backends: vec![
                backend(Some(State::Active), Some(Kind::Client), Some(wait.clone())),
                backend(Some(State::Active), Some(Kind::Client), None),
                backend(None, Some(Kind::ParallelWorker), None),
                backend(Some(State::Idle), Some(Kind::Client), Some(wait.clone())),
                backend(Some(State::Active), Some(Kind::WalSender), Some(wait.clone())),
                backend(None, Some(Kind::Other("checkpointer".into())), Some(wait.clone())),
            ],
        });
        let running = WaitCount { wait: None, sessions: 2 };
        assert_eq!(counts, WaitCounts(vec![running, WaitCount { wait: Some(wait), sessions: 1 }]));
        assert_eq!((counts.sessions(), counts.waiting_for_others()), (3, 0));
    }
}
