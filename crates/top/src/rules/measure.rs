//! What a reading has to say about the subject of a rule.

use howdah_collect::{Backend, Kind, Missing, State};

use super::{Measure, Rule, Subject, Who};
use crate::Snapshot;

/// What one alert is about, from one reading to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Key {
    /// The server.
    Server,
    /// What a session does: process, start of the session, start of what is measured.
    Session(i32, i64, i64),
}

/// A value that is above where its alert would end.
pub(super) struct Measured {
    pub(super) key: Key,
    pub(super) value: f64,
    pub(super) who: Option<Who>,
}

/// Transaction ids are compared over half of their range of 32 bits.
const TRANSACTIONS_UNTIL_WRAPAROUND: f64 = 2_147_483_648.0;

/// What of a snapshot is above the end of a rule.
pub(super) fn of(rule: &Rule, snapshot: &Snapshot) -> Vec<Measured> {
    let backends = &snapshot.activity.backends;
    match level(rule, snapshot) {
        Some(value) if value > rule.clear => {
            vec![Measured { key: Key::Server, value, who: None }]
        }
        Some(_) => Vec::new(),
        None => backends.iter().filter_map(|backend| session(rule, snapshot, backend)).collect(),
    }
}

/// What the rule needs and the role cannot see, as a clause with the grant that helps; `None` if the rule can be
/// evaluated. A rule that is above its threshold by what is visible needs no more: see [`super::Guard::unchecked`].
pub(super) fn hidden(rule: &Rule, snapshot: &Snapshot) -> Option<String> {
    let backends = &snapshot.activity.backends;
    let sessions = match rule.subject {
        Subject::Query | Subject::IdleInTransaction | Subject::Transaction => {
            backends.iter().filter(|backend| backend.is_hidden_client()).count()
        }
        // Waits are visible to every role; since when they last, only pg_locks of 14 and later tells. There, a wait
        // without a time has just begun.
        Subject::Blocked if snapshot.identity.version.major() < 14 => {
            let is_hidden =
                |backend: &&Backend| !backend.is_readable && !backend.blockers.is_empty();
            backends.iter().filter(is_hidden).count()
        }
        Subject::Lag => {
            let standbys = usize::try_from(snapshot.overview.followers_hidden).unwrap_or(0);
            return (standbys > 0).then(|| {
                format!(
                    "the lag of {} is not visible{}",
                    counted(standbys, "standby", "standbys"),
                    grant(snapshot)
                )
            });
        }
        Subject::Blocked | Subject::Connections | Subject::Wraparound | Subject::Away => 0,
    };
    (sessions > 0).then(|| {
        let sessions = counted(sessions, "session of another role", "sessions of other roles");
        format!("what {sessions} do is not visible{}", grant(snapshot))
    })
}

fn counted(count: usize, one: &str, several: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { several })
}

/// The grant that shows all sessions, as the end of a sentence.
fn grant(snapshot: &Snapshot) -> String {
    let missing = snapshot.missing.iter().find(|missing| missing.what == Missing::SESSIONS);
    missing.map_or_else(String::new, |missing| format!("; {}", missing.remedy))
}

/// A figure of the whole server, if the rule is about one and it is known.
fn level(rule: &Rule, snapshot: &Snapshot) -> Option<f64> {
    let overview = &snapshot.overview;
    match (rule.subject, rule.measure) {
        (Subject::Connections, _) => {
            let backends = snapshot.activity.backends.iter();
            let clients = backends.filter(|backend| backend.may_be_client()).count();
            let max = snapshot.identity.connections_max;
            (max > 0).then(|| 100.0 * real(i64::try_from(clients).unwrap_or(i64::MAX)) / real(max))
        }
        (Subject::Lag, Measure::Bytes) => {
            overview.replay_lag_bytes.max(overview.followers_lag_bytes).map(real)
        }
        (Subject::Lag, _) => {
            let lags = [overview.replay_lag_seconds, overview.followers_lag_seconds];
            lags.into_iter().flatten().max_by(f64::total_cmp)
        }
        (Subject::Wraparound, Measure::Percent) => {
            overview.frozen_age.map(|age| 100.0 * real(age) / TRANSACTIONS_UNTIL_WRAPAROUND)
        }
        (Subject::Wraparound, _) => overview.frozen_age.map(real),
        _ => None,
    }
}

/// What a session has to do with a rule. Helpers of a parallel query are not told beside their leader, nor are
/// walsenders, which run for ever.
fn session(rule: &Rule, snapshot: &Snapshot, backend: &Backend) -> Option<Measured> {
    let now_us = snapshot.activity.taken_us;
    let counts = !matches!(backend.kind, Some(Kind::ParallelWorker | Kind::WalSender));
    let works = matches!(backend.state, Some(State::Active | State::FastPath));
    let idles = backend.state.is_some_and(State::is_idle_in_transaction);
    let (value, since_us) = match rule.subject {
        Subject::Query if works && counts => (backend.duration(now_us)?, backend.query_started_us?),
        Subject::IdleInTransaction if idles => (backend.duration(now_us)?, backend.since_us()?),
        Subject::Transaction if counts => {
            (backend.transaction_age(now_us)?, backend.transaction_started_us?)
        }
        // The server knows only after a moment since when: the same wait must not become another by it.
        Subject::Blocked => (backend.blocked_for(now_us)?, 0),
        _ => return None,
    };
    (value > rule.clear).then(|| Measured {
        key: Key::Session(backend.pid, backend.started_us, since_us),
        value,
        who: Some(Who::of(backend)),
    })
}

#[expect(clippy::cast_precision_loss, reason = "a level that a person compares")]
fn real(number: i64) -> f64 {
    number as f64
}
