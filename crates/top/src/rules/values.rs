//! Computes the values that rules compare with their thresholds.

use howdah_collect::{BackendActivity, BackendState, BackendType, MissingPrivilege};

use super::{AlertRule, Measure, RuleSubject, SessionInfo};
use crate::ServerSnapshot;

/// Identity of an alert across samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum AlertKey {
    /// An alert about the whole server.
    Server,
    /// An alert about a session: process id, session start, and start of what is measured (0 for
    /// lock waits).
    Session(i32, i64, i64),
}

/// A value above the level at which the rule's alert ends.
pub(super) struct RuleValue {
    pub(super) key: AlertKey,
    pub(super) value: f64,
    pub(super) session: Option<SessionInfo>,
}

/// Half of the 32-bit transaction id space, over which ids are compared.
const TRANSACTIONS_UNTIL_WRAPAROUND: f64 = 2_147_483_648.0;

/// Returns the values of a snapshot that are above the level at which the rule's alert ends.
pub(super) fn values(rule: &AlertRule, snapshot: &ServerSnapshot) -> Vec<RuleValue> {
    let backends = &snapshot.activity.backends;
    match server_value(rule, snapshot) {
        Some(value) if value > rule.clear_below => {
            vec![RuleValue { key: AlertKey::Server, value, session: None }]
        }
        Some(_) => Vec::new(),
        None => {
            backends.iter().filter_map(|backend| session_value(rule, snapshot, backend)).collect()
        }
    }
}

/// Returns the input that the rule needs but the role cannot see, as a clause with the grant that
/// helps; `None` if the rule can be evaluated. A rule that already fires needs no hidden input: see
/// [`super::RuleEvaluator::unchecked`].
pub(super) fn hidden_input(rule: &AlertRule, snapshot: &ServerSnapshot) -> Option<String> {
    let backends = &snapshot.activity.backends;
    let sessions = match rule.subject {
        RuleSubject::Query | RuleSubject::IdleInTransaction | RuleSubject::Transaction => {
            backends.iter().filter(|backend| backend.is_hidden_client()).count()
        }
        // Waits are visible to every role, but their start only in pg_locks since 14. There, a wait
        // without a start time has just begun.
        RuleSubject::Blocked if snapshot.server.version.major() < 14 => {
            let is_hidden =
                |backend: &&BackendActivity| !backend.is_readable && !backend.blockers.is_empty();
            backends.iter().filter(is_hidden).count()
        }
        RuleSubject::Lag => {
            let standbys = usize::try_from(snapshot.overview.followers_hidden).unwrap_or(0);
            return (standbys > 0).then(|| {
                format!(
                    "the lag of {} is not visible{}",
                    counted(standbys, "standby", "standbys"),
                    grant_suffix(snapshot)
                )
            });
        }
        RuleSubject::Blocked
        | RuleSubject::Connections
        | RuleSubject::Wraparound
        | RuleSubject::Unreachable => 0,
    };
    (sessions > 0).then(|| {
        let sessions = counted(sessions, "session of another role", "sessions of other roles");
        format!("what {sessions} do is not visible{}", grant_suffix(snapshot))
    })
}

fn counted(count: usize, one: &str, several: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { several })
}

/// Returns the grant that shows all sessions, as the end of a sentence.
fn grant_suffix(snapshot: &ServerSnapshot) -> String {
    let missing =
        snapshot.missing.iter().find(|missing| missing.what == MissingPrivilege::SESSIONS);
    missing.map_or_else(String::new, |missing| format!("; {}", missing.remedy))
}

/// Returns the value for the whole server, if the rule is about the server and the value is known.
fn server_value(rule: &AlertRule, snapshot: &ServerSnapshot) -> Option<f64> {
    let overview = &snapshot.overview;
    match (rule.subject, rule.measure) {
        (RuleSubject::Connections, _) => {
            let backends = snapshot.activity.backends.iter();
            let clients = backends.filter(|backend| backend.may_be_client()).count();
            let max = snapshot.server.max_connections;
            (max > 0).then(|| 100.0 * real(i64::try_from(clients).unwrap_or(i64::MAX)) / real(max))
        }
        (RuleSubject::Lag, Measure::Bytes) => {
            overview.replay_lag_bytes.max(overview.followers_lag_bytes).map(real)
        }
        (RuleSubject::Lag, _) => {
            let lags = [overview.replay_lag_seconds, overview.followers_lag_seconds];
            lags.into_iter().flatten().max_by(f64::total_cmp)
        }
        (RuleSubject::Wraparound, Measure::Percent) => {
            overview.frozen_age.map(|age| 100.0 * real(age) / TRANSACTIONS_UNTIL_WRAPAROUND)
        }
        (RuleSubject::Wraparound, _) => overview.frozen_age.map(real),
        _ => None,
    }
}

/// Returns the value that a rule measures for one session; `None` if the rule does not apply to it,
/// or the value is unknown or not above the level at which the alert ends. Rules about the
/// durations of queries and transactions skip parallel workers, whose leader is reported, and
/// walsenders, which run forever.
fn session_value(
    rule: &AlertRule,
    snapshot: &ServerSnapshot,
    backend: &BackendActivity,
) -> Option<RuleValue> {
    let now_us = snapshot.activity.taken_us;
    let counts =
        !matches!(backend.kind, Some(BackendType::ParallelWorker | BackendType::WalSender));
    let works = matches!(backend.state, Some(BackendState::Active | BackendState::FastPath));
    let idles = backend.state.is_some_and(BackendState::is_idle_in_transaction);
    let (value, since_us) = match rule.subject {
        RuleSubject::Query if works && counts => {
            (backend.duration(now_us)?, backend.query_started_us?)
        }
        RuleSubject::IdleInTransaction if idles => (backend.duration(now_us)?, backend.since_us()?),
        RuleSubject::Transaction if counts => {
            (backend.transaction_age(now_us)?, backend.transaction_started_us?)
        }
        // The start of a wait becomes known only after a moment. It is not part of the key, so that
        // the alert remains the same.
        RuleSubject::Blocked => (backend.blocked_for(now_us)?, 0),
        _ => return None,
    };
    (value > rule.clear_below).then(|| RuleValue {
        key: AlertKey::Session(backend.pid, backend.started_us, since_us),
        value,
        session: Some(SessionInfo::new(backend)),
    })
}

#[expect(clippy::cast_precision_loss, reason = "a level that a person compares")]
fn real(number: i64) -> f64 {
    number as f64
}
