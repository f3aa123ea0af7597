//! Whom to cancel or to terminate: always a list first, with who and why, and who not and why not.

use howdah_collect::{Action, Backend, Kind, SignalTarget, State};

use crate::{Snapshot, table::RowKey, units::span};

/// Where "all slower than" begins, in seconds: below that a slip of a finger ends ordinary work.
pub const THRESHOLD_MIN: f64 = 30.0;

/// What is going to be done, for somebody to say yes to.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// To whom each will be done.
    pub action: Action,
    /// The ones it will be done to.
    pub listed: Vec<Listed>,
    /// The ones that fit and are left alone.
    pub excluded: Vec<Excluded>,
}

/// Somebody on the list.
#[derive(Clone, Debug, PartialEq)]
pub struct Listed {
    /// Whom the signal is for.
    pub suspect: SignalTarget,
    /// Process, role, database.
    pub who: String,
    /// Why.
    pub why: String,
    /// The statement, on one line.
    pub query: String,
}

/// Somebody who is left alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Excluded {
    /// Process, role, database.
    pub who: String,
    /// Why not.
    pub reason: &'static str,
}

/// Who is spared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// Sessions of superusers are not.
    pub with_superusers: bool,
}

/// What the connections of this program call themselves.
pub const APPLICATION: &str = "howdah top";

impl Plan {
    /// A plan for sessions that somebody chose. Those that have gone since are not on it.
    pub fn of_chosen(
        snapshot: &Snapshot,
        chosen: &[RowKey],
        action: Action,
        policy: Policy,
    ) -> Self {
        let is_chosen =
            |backend: &&Backend| chosen.contains(&RowKey::Session(backend.pid, backend.started_us));
        let chosen = snapshot.activity.backends.iter().filter(is_chosen);
        Self::of(chosen.map(|backend| (backend, "chosen".to_owned())), action, policy)
    }

    /// A plan for all whose statement, or idling in a transaction, has lasted longer than `seconds`, which
    /// is at least [`THRESHOLD_MIN`]. An idle transaction cannot be cancelled: it is on the list only if it
    /// will be terminated.
    pub fn of_slow(snapshot: &Snapshot, seconds: f64, action: Action, policy: Policy) -> Self {
        let seconds = seconds.max(THRESHOLD_MIN);
        let now_us = snapshot.activity.taken_us;
        let slow = snapshot.activity.backends.iter().filter_map(|backend| {
            let lasted = backend.duration(now_us).filter(|lasted| *lasted > seconds)?;
            let what = match backend.state? {
                State::Active | State::FastPath => "runs for",
                state if state.is_idle_in_transaction() && action == Action::Terminate => {
                    "idles in its transaction for"
                }
                _ => return None,
            };
            // A helper ends with its leader.
            let helps = backend.kind == Some(Kind::ParallelWorker);
            (!helps).then(|| (backend, format!("{what} {}", span(lasted))))
        });
        Self::of(slow, action, policy)
    }

    fn of<'a>(
        candidates: impl Iterator<Item = (&'a Backend, String)>,
        action: Action,
        policy: Policy,
    ) -> Self {
        let mut plan = Self { action, listed: Vec::new(), excluded: Vec::new() };
        for (backend, why) in candidates {
            let who = who(backend);
            if let Some(reason) = spared(backend, action, policy) {
                plan.excluded.push(Excluded { who, reason });
                continue;
            }
            // A statement is meant where one runs; if the next has begun, the signal is not for it.
            let suspect = match backend.state {
                Some(State::Active | State::FastPath) => SignalTarget::statement_of(backend),
                _ => SignalTarget::session_of(backend),
            };
            let query =
                backend.query.as_ref().map(howdah_collect::SqlText::one_line).unwrap_or_default();
            plan.listed.push(Listed { suspect, who, why, query });
        }
        plan
    }
}

/// Why a process is left alone, if it is.
fn spared(backend: &Backend, action: Action, policy: Policy) -> Option<&'static str> {
    let query = backend.query.as_ref().map_or("", |text| text.as_str());
    match &backend.kind {
        _ if backend.application.as_deref() == Some(APPLICATION) => Some("it is howdah top itself"),
        None => Some("this role may not know what it is"),
        Some(Kind::WalSender) => Some("it feeds a standby or a subscriber"),
        Some(Kind::AutovacuumWorker) if query.contains("to prevent wraparound") => {
            Some("it prevents transaction id wraparound")
        }
        Some(Kind::Other(_)) => Some("it is one of the server's own processes"),
        _ if backend.is_superuser && !policy.with_superusers => {
            Some("it is a superuser's, and --superusers was not given")
        }
        _ if action == Action::Cancel
            && !matches!(backend.state, Some(State::Active | State::FastPath)) =>
        {
            Some("it runs no statement: only terminating helps")
        }
        _ => None,
    }
}

fn who(backend: &Backend) -> String {
    let user = backend.user.as_deref().unwrap_or("-");
    let database = backend.database.as_deref().unwrap_or("-");
    format!("{} {user}@{database}", backend.pid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampler::tests::snapshot;

    fn backend(pid: i32, state: State, since_us: i64) -> Backend {
        Backend {
            pid,
            started_us: 1,
            user: Some("app".into()),
            database: Some("shop".into()),
            kind: Some(Kind::Client),
            state: Some(state),
            query_started_us: Some(since_us),
            state_changed_us: Some(since_us),
            is_readable: true,
            ..Backend::default()
        }
    }

    fn listed(plan: &Plan) -> Vec<i32> {
        plan.listed.iter().map(|listed| listed.suspect.pid).collect()
    }

    #[test]
    fn all_slower_than_are_those_who_work_and_no_others() {
        let at = |seconds: i64| 1_000_000_000 - seconds * 1_000_000;
        let vacuum = howdah_collect::SqlText::new(
            b"autovacuum: VACUUM a (to prevent wraparound)",
            None,
            None,
        );
        let snapshot = snapshot(
            1_000_000_000,
            vec![
                backend(1, State::Active, at(100)),
                backend(2, State::Active, at(20)),
                backend(3, State::Idle, at(100)),
                backend(4, State::IdleInTransaction, at(100)),
                Backend { kind: Some(Kind::WalSender), ..backend(5, State::Active, at(100)) },
                Backend {
                    kind: Some(Kind::AutovacuumWorker),
                    query: Some(vacuum),
                    ..backend(6, State::Active, at(100))
                },
                Backend { is_superuser: true, ..backend(7, State::Active, at(100)) },
                Backend {
                    application: Some(APPLICATION.into()),
                    ..backend(8, State::Active, at(100))
                },
                Backend { kind: Some(Kind::ParallelWorker), ..backend(9, State::Active, at(100)) },
            ],
        );
        let plan = Plan::of_slow(&snapshot, 1.0, Action::Cancel, Policy::default());
        assert_eq!(listed(&plan), [1]);
        assert_eq!(plan.listed[0].why, "runs for 1m40s");
        assert_eq!(plan.listed[0].suspect.query_started_us, Some(at(100)));
        let spared: Vec<_> = plan.excluded.iter().map(|excluded| excluded.reason).collect();
        assert_eq!(
            spared,
            [
                "it feeds a standby or a subscriber",
                "it prevents transaction id wraparound",
                "it is a superuser's, and --superusers was not given",
                "it is howdah top itself",
            ]
        );
        let plan =
            Plan::of_slow(&snapshot, 30.0, Action::Terminate, Policy { with_superusers: true });
        assert_eq!(listed(&plan), [1, 4, 7]);
    }

    #[test]
    fn who_was_chosen_and_has_gone_is_not_on_the_list() {
        let snapshot = snapshot(
            1_000_000,
            vec![backend(1, State::Active, 0), backend(2, State::IdleInTransaction, 0)],
        );
        let chosen = [RowKey::Session(1, 1), RowKey::Session(2, 1), RowKey::Session(1, 99)];
        let plan = Plan::of_chosen(&snapshot, &chosen, Action::Cancel, Policy::default());
        assert_eq!(listed(&plan), [1]);
        assert_eq!(plan.excluded[0].reason, "it runs no statement: only terminating helps");
        let plan = Plan::of_chosen(&snapshot, &chosen, Action::Terminate, Policy::default());
        assert_eq!(listed(&plan), [1, 2]);
    }
}
