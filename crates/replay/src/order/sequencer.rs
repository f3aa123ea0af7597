//! [`Sequencer`]: determines from the captured times which transactions each event must wait for.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use howdah_sql::{Lexer, SqlCommand, TransactionBlock};
use howdah_traffic::{Event, Kind, SessionId, Timestamp};

use super::{CommitOrder, OrderPosition, TransactionEnd, is_conflict_victim};

/// Sees all events in the order of their captured time, and notes the ends of transactions among
/// them.
#[derive(Debug)]
pub(crate) struct Sequencer {
    order: Arc<CommitOrder>,
    resolution: TimeResolution,
    /// Sessions whose latest event left a transaction block open.
    in_block: HashSet<SessionId>,
    /// When the latest statement of each session ended. The next one, which may have arrived before
    /// that in a pipeline, started then at the earliest.
    busy_until: HashMap<SessionId, Timestamp>,
    /// Number of the latest end of a transaction.
    last_end: u64,
}

impl Sequencer {
    pub(crate) fn new(order: Arc<CommitOrder>) -> Self {
        Self {
            order,
            resolution: TimeResolution::default(),
            in_block: HashSet::new(),
            busy_until: HashMap::new(),
            last_end: 0,
        }
    }

    /// Returns the position of the next event in the commit order.
    pub(crate) fn position(&mut self, event: &Event) -> OrderPosition {
        let position = self.position_of(event);
        // Events at the same time may follow.
        self.order.read(event.time);
        position
    }

    /// Records that all events have been read.
    pub(crate) fn finish(&self) {
        self.order.finish_reading();
    }

    fn position_of(&mut self, event: &Event) -> OrderPosition {
        let resolution = self.resolution.of(event);
        let kind = event.action.kind();
        if matches!(kind, Kind::Connect | Kind::Disconnect) {
            self.in_block.remove(&event.session);
            self.busy_until.remove(&event.session);
        }
        if matches!(kind, Kind::Connect | Kind::Disconnect | Kind::Cancel) {
            return OrderPosition::default();
        }
        let was_in_block = self.in_block.contains(&event.session);
        let block = if kind.is_execution() { block_after(event) } else { None };
        match block {
            Some(TransactionBlock::Opened) => drop(self.in_block.insert(event.session.clone())),
            Some(TransactionBlock::Closed) => drop(self.in_block.remove(&event.session)),
            None => {}
        }
        let busy_until = self.busy_until.get(&event.session);
        let start = busy_until.map_or(event.time, |busy_until| event.time.max(*busy_until));
        let end = start + event.captured_end().saturating_since(event.time);
        if kind.is_execution() {
            self.busy_until.insert(event.session.clone(), end);
        }
        let ended_at = match block {
            _ if !kind.is_execution() => None,
            // The victim is never held back, so others may wait for it from its start on.
            _ if is_conflict_victim(event) => Some(start),
            // Locks are released by the failure, after the error was sent.
            _ if event.outcome.failed() => Some(end),
            // Locks are released before the reply is sent, but after the statement was.
            Some(_) if was_in_block => Some(start),
            Some(TransactionBlock::Opened) => None,
            Some(TransactionBlock::Closed) => Some(end),
            None => (!was_in_block).then_some(end),
        };
        let ends = ended_at.map(|time| {
            self.last_end += 1;
            let ends = TransactionEnd { time, number: self.last_end };
            self.order.add(ends, event.session.clone());
            ends
        });
        // The end of a transaction may release locks that others wait for.
        let closes = was_in_block && block.is_some();
        let needs = (!closes).then(|| {
            let time = if may_wait_for_locks(event) { end } else { start };
            time - resolution
        });
        OrderPosition { needs, ends }
    }
}

/// Returns how an execution changed the transaction block of its session. A statement that failed
/// changes nothing.
pub(crate) fn block_after(event: &Event) -> Option<TransactionBlock> {
    let sql = event.action.sql().filter(|_| !event.outcome.failed())?;
    TransactionBlock::after(sql.as_bytes())
}

/// Whether a statement may have waited for a lock of another transaction: all but those that only
/// read, as far as their text shows that.
fn may_wait_for_locks(event: &Event) -> bool {
    if !event.action.kind().is_execution() {
        return false;
    }
    let Some(sql) = event.action.sql() else { return true };
    let sql = sql.as_bytes();
    let only_reads = matches!(
        SqlCommand::from_sql(sql),
        SqlCommand::Select | SqlCommand::Values | SqlCommand::Table | SqlCommand::Show
    );
    let locks_rows = || Lexer::new(sql).any(|token| token.text.eq_ignore_ascii_case(b"for"));
    !only_reads || locks_rows() || sql.contains(&b';')
}

/// The resolution of a log's times, as far as its events have shown it.
#[derive(Debug, Default)]
struct TimeResolution {
    has_milliseconds: bool,
}

impl TimeResolution {
    /// Returns the shortest time between two events of which one is certainly earlier.
    fn of(&mut self, event: &Event) -> Duration {
        if event.wire.is_some() {
            return Duration::ZERO; // The pooler's own clock, in microseconds.
        }
        let end = event.captured_end();
        // The log line has the time of the start or that of the end; the other one is computed.
        let is_whole = |time: Timestamp| time.as_micros() % 1_000_000 == 0;
        self.has_milliseconds |= !is_whole(event.time) && !is_whole(end);
        if self.has_milliseconds { Duration::from_millis(1) } else { Duration::from_secs(1) }
    }
}

/// Returns a simple query, as captured by the pooler.
#[cfg(test)]
pub(crate) fn test_event(session: &str, time: Timestamp, sql: &str) -> Event {
    use howdah_traffic::{Action, CapturedOutcome, Source, Text, WireDetail};
    Event {
        time,
        session: session.into(),
        user: "u".into(),
        database: "d".into(),
        application: "".into(),
        action: Action::Simple { sql: Text::from(sql) },
        outcome: CapturedOutcome::default(),
        source: Source::Statement,
        vxid: None,
        query_id: None,
        pipeline: None,
        wire: Some(Box::new(WireDetail::default())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use howdah_traffic::SqlState;

    /// An event of a session with a start and a duration in milliseconds.
    fn event(session: &str, start: i64, duration: Option<u64>, sql: &str) -> Event {
        let mut event = test_event(session, Timestamp::from_micros(start * 1_000), sql);
        event.outcome.duration_us = duration.map(|ms| ms * 1_000);
        event
    }

    /// Returns, for each event, the time that it needs in milliseconds, and when it ended its
    /// transaction.
    fn positions(events: &[Event]) -> Vec<(Option<i64>, Option<i64>)> {
        let mut sequencer = Sequencer::new(Arc::new(CommitOrder::new()));
        let millis = |time: Timestamp| time.as_micros() / 1_000;
        let position = |event| {
            let OrderPosition { needs, ends } = sequencer.position(event);
            (needs.map(millis), ends.map(|ends| millis(ends.time)))
        };
        events.iter().map(position).collect()
    }

    #[test]
    fn writes_wait_for_transactions_until_their_end_and_reads_until_their_start() {
        let events = [
            event("a", 0, Some(1), "begin"),
            event("b", 1, Some(9), "update t set v = 1"),
            event("a", 2, Some(1), "update u set v = 1"),
            event("a", 4, Some(2), "commit"),
            event("c", 5, Some(3), "select 1"),
            event("c", 9, Some(3), "select 1 from t for update"),
        ];
        assert_eq!(
            positions(&events),
            [
                (Some(1), None),
                (Some(10), Some(10)),
                (Some(3), None),
                (None, Some(4)),
                (Some(5), Some(8)),
                (Some(12), Some(12)),
            ]
        );
    }

    #[test]
    fn transactions_end_when_their_locks_are_released() {
        let mut failed = event("a", 1, Some(2), "update t set v = 1/0");
        failed.outcome.sqlstate = SqlState::new(b"22012");
        let mut alone = event("b", 4, Some(3), "select 1/0");
        alone.outcome.sqlstate = SqlState::new(b"22012");
        let events = [
            event("a", 0, Some(1), "begin"),
            failed,
            event("a", 4, Some(1), "rollback"),
            event("a", 5, Some(1), "begin; select 1; rollback"),
            alone,
            event("b", 7, Some(1), "begin"),
            event("b", 8, Some(1), "commit and chain"),
            event("b", 9, Some(1), "select 1"),
            event("b", 10, Some(1), "rollback"),
        ];
        let ends: Vec<_> = positions(&events).into_iter().map(|(_, ends)| ends).collect();
        let at = Some;
        assert_eq!(ends, [None, at(3), at(4), at(6), at(7), None, at(8), None, at(10)]);
    }

    #[test]
    fn end_of_transaction_is_never_held_back() {
        let events = [
            event("a", 0, Some(1), "begin"),
            event("a", 3, Some(1), "commit"),
            event("a", 5, Some(1), "begin; update t set v = 1; commit"),
        ];
        let needs: Vec<_> = positions(&events).into_iter().map(|(needs, _)| needs).collect();
        assert_eq!(needs, [Some(1), None, Some(6)], "a whole transaction waits like a statement");
    }

    #[test]
    fn statement_of_a_pipeline_starts_when_the_previous_one_has_ended() {
        let events = [
            event("a", 0, Some(4), "update t set v = 1"),
            event("a", 0, Some(1), "select 1"),
            event("b", 1, Some(0), "select 1"),
        ];
        let expected = [(Some(4), Some(4)), (Some(4), Some(5)), (Some(1), Some(1))];
        assert_eq!(positions(&events), expected);
    }

    #[test]
    fn times_of_logs_are_compared_by_their_resolution() {
        let log = |start: i64, duration: u64| {
            let mut event = event("a", 0, None, "select 1");
            event.time = Timestamp::from_micros(start);
            event.outcome.duration_us = Some(duration);
            event.wire = None;
            event
        };
        // In whole seconds, then in milliseconds.
        assert_eq!(positions(&[log(2_999_000, 1_000)])[0].0, Some(1_999));
        assert_eq!(positions(&[log(2_999_000, 2_000)])[0].0, Some(2_998));
    }

    #[test]
    fn order_is_clear_up_to_first_transaction_that_has_not_ended() {
        let order = Arc::new(CommitOrder::new());
        let mut sequencer = Sequencer::new(order.clone());
        let clear = || order.clear_until().as_micros() / 1_000;
        let first = sequencer.position(&event("a", 1, Some(5), "update t set v = 1")).ends.unwrap();
        let second =
            sequencer.position(&event("b", 2, Some(1), "update t set v = 2")).ends.unwrap();
        assert_eq!(clear(), 2, "as far as events were read");
        sequencer.position(&event("c", 9, Some(1), "select 1"));
        assert_eq!(clear(), 3, "the second one ended first in the capture");
        order.transaction_ended(second);
        assert_eq!(clear(), 6);
        order.transaction_ended(first);
        assert_eq!(clear(), 9);
        order.finish_reading();
        assert_eq!(clear(), 10, "the last statement has not ended");
    }
}
