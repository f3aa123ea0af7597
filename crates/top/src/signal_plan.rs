//! Plans which sessions to cancel or terminate: lists them with reasons, together with the sessions
//! that are spared.

use howdah_collect::{BackendActivity, BackendState, BackendType, SignalAction, SignalTarget};

use crate::{ServerSnapshot, sampler::APPLICATION_NAME, table::RowId, units::format_duration};

/// Minimum threshold of "all slower than", in seconds: a lower one is probably a typing error, and
/// would end ordinary work.
pub const KILL_THRESHOLD_MIN: f64 = 30.0;

/// A plan to signal sessions, which the user must confirm.
#[derive(Clone, Debug, PartialEq)]
pub struct SignalPlan {
    /// The action to take on each target.
    pub action: SignalAction,
    /// Signals to send once the user confirms.
    pub signals: Vec<PlannedSignal>,
    /// Matching sessions that are left alone.
    pub spared: Vec<SparedBackend>,
}

/// A signal with the facts that the user needs to confirm it.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannedSignal {
    /// Session, or single statement, that the signal is meant for.
    pub target: SignalTarget,
    /// Process id, role and database of the session.
    pub session: String,
    /// The reason why the session was selected, as a phrase.
    pub reason: String,
    /// The statement, on one line.
    pub query: String,
}

/// A matching session that is left alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SparedBackend {
    /// Process id, role and database of the session.
    pub session: String,
    /// The reason why the session is left alone, as a phrase.
    pub reason: &'static str,
}

/// The restrictions on sessions that may be signalled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SignalPolicy {
    /// Whether superusers' sessions may be signalled, too.
    pub with_superusers: bool,
}

impl SignalPlan {
    /// Plans signals for chosen rows. Rows that are not sessions are omitted, as are sessions that
    /// have ended since.
    pub fn for_rows(
        snapshot: &ServerSnapshot,
        chosen: &[RowId],
        action: SignalAction,
        policy: SignalPolicy,
    ) -> Self {
        let is_chosen = |backend: &&BackendActivity| {
            chosen.contains(&RowId::Session(backend.pid, backend.started_us))
        };
        let chosen = snapshot.activity.backends.iter().filter(is_chosen);
        Self::from_candidates(chosen.map(|backend| (backend, "chosen".to_owned())), action, policy)
    }

    /// Plans signals for all sessions whose statement has run, or which have been idle in
    /// transaction, for longer than both `seconds` and [`KILL_THRESHOLD_MIN`]. An idle transaction
    /// cannot be cancelled, so it is included only if sessions are terminated. Parallel workers are
    /// omitted, because they end with their leader.
    pub fn for_slow(
        snapshot: &ServerSnapshot,
        seconds: f64,
        action: SignalAction,
        policy: SignalPolicy,
    ) -> Self {
        let seconds = seconds.max(KILL_THRESHOLD_MIN);
        let now_us = snapshot.activity.taken_us;
        let slow = snapshot.activity.backends.iter().filter_map(|backend| {
            let lasted = backend.duration(now_us).filter(|lasted| *lasted > seconds)?;
            let what = match backend.state? {
                BackendState::Active | BackendState::FastPath => "runs for",
                state if state.is_idle_in_transaction() && action == SignalAction::Terminate => {
                    "idle in transaction for"
                }
                _ => return None,
            };
            // A parallel worker ends with its leader, so it needs no signal.
            let helps = backend.kind == Some(BackendType::ParallelWorker);
            (!helps).then(|| (backend, format!("{what} {}", format_duration(lasted))))
        });
        Self::from_candidates(slow, action, policy)
    }

    fn from_candidates<'a>(
        candidates: impl Iterator<Item = (&'a BackendActivity, String)>,
        action: SignalAction,
        policy: SignalPolicy,
    ) -> Self {
        let mut plan = Self { action, signals: Vec::new(), spared: Vec::new() };
        for (backend, why) in candidates {
            let who = session_label(backend);
            if let Some(reason) = reason_to_spare(backend, action, policy) {
                plan.spared.push(SparedBackend { session: who, reason });
                continue;
            }
            // Target the running statement only: once the next statement has started, the signal
            // must not be sent.
            let signal_target = match backend.state {
                Some(BackendState::Active | BackendState::FastPath) => {
                    SignalTarget::for_statement(backend)
                }
                _ => SignalTarget::for_session(backend),
            };
            let query =
                backend.query.as_ref().map(howdah_collect::SqlText::one_line).unwrap_or_default();
            plan.signals.push(PlannedSignal {
                target: signal_target,
                session: who,
                reason: why,
                query,
            });
        }
        plan
    }
}

/// Returns the reason why a session must be left alone, if any.
fn reason_to_spare(
    backend: &BackendActivity,
    action: SignalAction,
    policy: SignalPolicy,
) -> Option<&'static str> {
    let query = backend.query.as_ref().map_or("", |text| text.as_str());
    match &backend.kind {
        _ if backend.application.as_deref() == Some(APPLICATION_NAME) => {
            Some("it is howdah top itself")
        }
        None => Some("its backend type is hidden from this role"),
        Some(BackendType::WalSender) => Some("it feeds a standby or a subscriber"),
        Some(BackendType::AutovacuumWorker) if query.contains("to prevent wraparound") => {
            Some("it prevents transaction id wraparound")
        }
        Some(BackendType::Other(_)) => Some("it is one of the server's own processes"),
        _ if backend.is_superuser && !policy.with_superusers => {
            Some("it is a superuser's, and --superusers was not given")
        }
        _ if action == SignalAction::Cancel
            && !matches!(backend.state, Some(BackendState::Active | BackendState::FastPath)) =>
        {
            Some("it runs no statement: it can only be terminated")
        }
        _ => None,
    }
}

fn session_label(backend: &BackendActivity) -> String {
    let user = backend.user.as_deref().unwrap_or("-");
    let database = backend.database.as_deref().unwrap_or("-");
    format!("{} {user}@{database}", backend.pid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampler::tests::snapshot;

    fn backend(pid: i32, state: BackendState, since_us: i64) -> BackendActivity {
        BackendActivity {
            pid,
            started_us: 1,
            user: Some("app".into()),
            database: Some("shop".into()),
            kind: Some(BackendType::Client),
            state: Some(state),
            query_started_us: Some(since_us),
            state_changed_us: Some(since_us),
            is_readable: true,
            ..BackendActivity::default()
        }
    }

    fn planned(plan: &SignalPlan) -> Vec<i32> {
        plan.signals.iter().map(|planned| planned.target.pid).collect()
    }

    #[test]
    fn slow_plan_lists_only_running_client_statements() {
        let at = |seconds: i64| 1_000_000_000 - seconds * 1_000_000;
        let vacuum = howdah_collect::SqlText::new(
            b"autovacuum: VACUUM a (to prevent wraparound)",
            None,
            None,
        );
        let snapshot = snapshot(
            1_000_000_000,
            vec![
                backend(1, BackendState::Active, at(100)),
                backend(2, BackendState::Active, at(20)),
                backend(3, BackendState::Idle, at(100)),
                backend(4, BackendState::IdleInTransaction, at(100)),
                BackendActivity {
                    kind: Some(BackendType::WalSender),
                    ..backend(5, BackendState::Active, at(100))
                },
                BackendActivity {
                    kind: Some(BackendType::AutovacuumWorker),
                    query: Some(vacuum),
                    ..backend(6, BackendState::Active, at(100))
                },
                BackendActivity { is_superuser: true, ..backend(7, BackendState::Active, at(100)) },
                BackendActivity {
                    application: Some(APPLICATION_NAME.into()),
                    ..backend(8, BackendState::Active, at(100))
                },
                BackendActivity {
                    kind: Some(BackendType::ParallelWorker),
                    ..backend(9, BackendState::Active, at(100))
                },
            ],
        );
        let plan =
            SignalPlan::for_slow(&snapshot, 1.0, SignalAction::Cancel, SignalPolicy::default());
        assert_eq!(planned(&plan), [1]);
        assert_eq!(plan.signals[0].reason, "runs for 1m40s");
        assert_eq!(plan.signals[0].target.query_started_us, Some(at(100)));
        let spared: Vec<_> = plan.spared.iter().map(|spared| spared.reason).collect();
        assert_eq!(
            spared,
            [
                "it feeds a standby or a subscriber",
                "it prevents transaction id wraparound",
                "it is a superuser's, and --superusers was not given",
                "it is howdah top itself",
            ]
        );
        let plan = SignalPlan::for_slow(
            &snapshot,
            30.0,
            SignalAction::Terminate,
            SignalPolicy { with_superusers: true },
        );
        assert_eq!(planned(&plan), [1, 4, 7]);
    }

    #[test]
    fn ended_sessions_are_left_off_the_plan() {
        let snapshot = snapshot(
            1_000_000,
            vec![
                backend(1, BackendState::Active, 0),
                backend(2, BackendState::IdleInTransaction, 0),
            ],
        );
        let chosen = [RowId::Session(1, 1), RowId::Session(2, 1), RowId::Session(1, 99)];
        let plan =
            SignalPlan::for_rows(&snapshot, &chosen, SignalAction::Cancel, SignalPolicy::default());
        assert_eq!(planned(&plan), [1]);
        assert_eq!(plan.spared[0].reason, "it runs no statement: it can only be terminated");
        let plan = SignalPlan::for_rows(
            &snapshot,
            &chosen,
            SignalAction::Terminate,
            SignalPolicy::default(),
        );
        assert_eq!(planned(&plan), [1, 2]);
    }
}
