//! [`OpenTransactions`]: the transactions that are open at the end of a capture.

use std::collections::HashSet;

use howdah_sql::TransactionBlock;
use howdah_traffic::{EventRef, Kind};

/// A counter of the sessions whose transaction block is still open at the end of a capture.
///
/// A replay closes such sessions when it reaches the end of the capture, which rolls their
/// transactions back. Only blocks whose `BEGIN` is in the capture are detected, in at most
/// 1,048,576 sessions at a time. Of each such session, a hash of eight bytes is stored.
#[derive(Debug, Default)]
pub struct OpenTransactions {
    /// Hashes of the sessions' names.
    sessions: HashSet<u64>,
}

/// Maximum number of sessions with an open block; servers have far fewer connections.
const SESSIONS_MAX: usize = 1 << 20;

impl OpenTransactions {
    /// Processes the next event of a capture.
    pub fn observe(&mut self, event: &EventRef<'_>) {
        let kind = event.action.kind();
        let block = match kind {
            Kind::Connect | Kind::Disconnect => Some(TransactionBlock::Closed),
            Kind::Simple | Kind::Execute => {
                event.action.sql().and_then(|sql| TransactionBlock::after(sql.as_bytes()))
            }
            _ => None,
        };
        match block {
            // A failed BEGIN opens nothing; a failed COMMIT rolls back.
            Some(TransactionBlock::Opened) if event.outcome.failed() => {}
            Some(TransactionBlock::Opened) if self.sessions.len() < SESSIONS_MAX => {
                self.sessions.insert(event.identity.session_hash());
            }
            Some(TransactionBlock::Closed) => {
                self.sessions.remove(&event.identity.session_hash());
            }
            _ => {}
        }
    }

    /// Returns the number of transactions that are open at this point.
    pub fn count(&self) -> usize {
        self.sessions.len()
    }
}

#[cfg(test)]
mod tests {
    use howdah_traffic::{Action, CapturedOutcome, Event, Source, SqlState, Timestamp};

    use super::*;

    fn count_after(events: &[(&str, Option<&str>)]) -> usize {
        let mut open = OpenTransactions::default();
        for (session, sql) in events {
            let action = match sql {
                Some(sql) => Action::Simple { sql: (*sql).into() },
                None => Action::Disconnect,
            };
            let failed = sql.is_some_and(|sql| sql.ends_with("-- fails"));
            let sqlstate = failed.then(|| SqlState::new(b"42601")).flatten();
            let event = Event {
                time: Timestamp::from_micros(0),
                session: (*session).into(),
                user: "".into(),
                database: "".into(),
                application: "".into(),
                action,
                outcome: CapturedOutcome { sqlstate, ..CapturedOutcome::default() },
                source: Source::Statement,
                vxid: None,
                query_id: None,
                pipeline: None,
                wire: None,
            };
            open.observe(&EventRef::from_event(&event));
        }
        open.count()
    }

    #[test]
    fn blocks_without_commit_or_disconnect_stay_open() {
        assert_eq!(count_after(&[("a", Some("begin")), ("b", Some("begin")), ("a", None)]), 1);
        assert_eq!(count_after(&[("a", Some("begin; select 1")), ("a", Some("commit"))]), 0);
        assert_eq!(count_after(&[("a", Some("begin")), ("a", Some("rollback to s"))]), 1);
        assert_eq!(count_after(&[("a", Some("begin isolation level nonsense -- fails"))]), 0);
        assert_eq!(count_after(&[("a", Some("begin")), ("a", Some("commit -- fails"))]), 0);
        assert_eq!(count_after(&[("a", Some("select 1"))]), 0);
    }
}
