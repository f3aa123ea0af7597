//! [`OpenTransactions`]: the transactions that a capture ends in the middle of.

use std::collections::HashSet;

use howdah_sql::TransactionBlock;
use howdah_traffic::{EventRef, Kind};

/// Finds the sessions whose transaction block is still open where a capture ends.
///
/// A replay closes such sessions when it reaches the end of the capture, which rolls their
/// transactions back. Only blocks whose `BEGIN` is in the capture are known. Eight bytes for each
/// session with an open block, 1,048,576 at most.
#[derive(Debug, Default)]
pub struct OpenTransactions {
    /// Hashes of the names of their sessions.
    sessions: HashSet<u64>,
}

/// Sessions with an open block that are followed at once; a server has far fewer connections.
const SESSIONS_MAX: usize = 1 << 20;

impl OpenTransactions {
    /// Follows the next event of a capture.
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
            // A BEGIN that failed opened nothing; a COMMIT that failed rolled back.
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

    /// Number of transactions that are open at this point.
    pub fn count(&self) -> usize {
        self.sessions.len()
    }
}

#[cfg(test)]
mod tests {
    use howdah_traffic::{Action, Event, Outcome, Source, SqlState, Timestamp};

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
                outcome: Outcome { sqlstate, ..Outcome::default() },
                source: Source::Statement,
                vxid: None,
                query_id: None,
                pipeline: None,
                wire: None,
            };
            open.observe(&EventRef::of(&event));
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
