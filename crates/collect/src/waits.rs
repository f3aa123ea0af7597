//! Counts the wait events of working sessions in the server. The result is a few short rows, which
//! are cheap to read often.

use std::sync::Arc;

use howdah_connect::ResultSet;

use crate::{
    Activity, BackendActivity, BackendState, BackendType, BackendWait, ServerVersion,
    text::sanitized_line,
    view::{VersionedSql, sql_for_version},
};

/// The number of working sessions in each wait event at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WaitCounts(Vec<WaitCount>);

/// Number of sessions in one wait event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitCount {
    /// The wait event; `None` for sessions that run without waiting.
    pub wait: Option<BackendWait>,
    /// Number of working sessions with this wait event.
    pub sessions: u32,
}

/// Selects working sessions, as [`BackendActivity::is_working`] does. Before version 10 the backend
/// type is not available, so walsenders cannot be distinguished and are counted.
const FROM: &[VersionedSql] = &[
    (9, "a.state IN ('active', 'fastpath function call')"),
    (
        10,
        "a.state IN ('active', 'fastpath function call') AND a.backend_type <> 'walsender' \
         OR a.backend_type = 'parallel worker'",
    ),
];

/// Builds the counting statement.
pub(crate) fn sql(version: ServerVersion) -> String {
    let works = sql_for_version(FROM, version).unwrap_or("false");
    format!(
        "SELECT a.wait_event_type, a.wait_event, count(*)::int4 FROM pg_stat_activity a \
         WHERE a.pid <> pg_backend_pid() AND ({works}) GROUP BY 1, 2"
    )
}

impl WaitCounts {
    /// Creates counts, and adds up those of the same event.
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

    /// Counts the wait events of the working sessions in a sample.
    pub fn from_activity(activity: &Activity) -> Self {
        let working = activity.backends.iter().filter(|backend| backend.is_working());
        Self::new(working.map(|backend| WaitCount { wait: backend.wait.clone(), sessions: 1 }))
    }

    pub(crate) fn from_result(result: &ResultSet) -> Self {
        let word = |text: std::borrow::Cow<'_, str>| -> Arc<str> { sanitized_line(&text).into() };
        Self::new(result.rows.iter().map(|row| {
            WaitCount {
                wait: row
                    .text(0)
                    .zip(row.text(1))
                    .map(|(class, event)| BackendWait { class: word(class), event: word(event) }),
                sessions: row.text(2).and_then(|text| text.parse().ok()).unwrap_or(0),
            }
        }))
    }

    /// Returns the counts, ordered by wait event, running sessions first.
    pub fn iter(&self) -> impl Iterator<Item = &WaitCount> {
        self.0.iter()
    }

    /// Returns the total number of working sessions.
    pub fn sessions(&self) -> u32 {
        self.0.iter().fold(0, |sum, count| sum.saturating_add(count.sessions))
    }

    /// Returns the number of sessions that wait for another session: for a heavyweight or
    /// lightweight lock, or for a pinned buffer.
    pub fn waiting_for_others(&self) -> u32 {
        let waits = |count: &&WaitCount| {
            let class = count.wait.as_ref().map(|wait| &*wait.class);
            matches!(class, Some("Lock" | "LWLock" | "BufferPin" | "Buffer"))
        };
        self.0.iter().filter(waits).fold(0, |sum, count| sum.saturating_add(count.sessions))
    }
}

impl BackendActivity {
    /// Whether the process executes a statement, its own or as a parallel worker. Walsenders run
    /// forever and do not count.
    pub fn is_working(&self) -> bool {
        let helps = self.kind == Some(BackendType::ParallelWorker);
        let runs = matches!(self.state, Some(BackendState::Active | BackendState::FastPath));
        (helps || runs) && self.kind != Some(BackendType::WalSender)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_working_sessions_are_counted() {
        let wait = BackendWait { class: "IO".into(), event: "DataFileRead".into() };
        let backend =
            |state, kind, wait| BackendActivity { state, kind, wait, ..BackendActivity::default() };
        let counts = WaitCounts::from_activity(&Activity {
            taken_us: 0,
            backends: vec![
                backend(Some(BackendState::Active), Some(BackendType::Client), Some(wait.clone())),
                backend(Some(BackendState::Active), Some(BackendType::Client), None),
                backend(None, Some(BackendType::ParallelWorker), None),
                backend(Some(BackendState::Idle), Some(BackendType::Client), Some(wait.clone())),
                backend(
                    Some(BackendState::Active),
                    Some(BackendType::WalSender),
                    Some(wait.clone()),
                ),
                backend(None, Some(BackendType::Other("checkpointer".into())), Some(wait.clone())),
            ],
        });
        let running = WaitCount { wait: None, sessions: 2 };
        assert_eq!(counts, WaitCounts(vec![running, WaitCount { wait: Some(wait), sessions: 1 }]));
        assert_eq!((counts.sessions(), counts.waiting_for_others()), (3, 0));
    }
}
