//! [`SessionPace`]: when the next event of a session is due, and whether it is too late to be sent.

use std::time::{Duration, Instant};

use howdah_sql::{SqlCommand, TransactionBlock, split_statements};
use howdah_traffic::{Event, Kind, Timestamp};

use super::{ScheduledEvent, lasting_settings::may_change_state};
use crate::pace::{Schedule, lag::LagPolicy};

/// The pace of one session: how it relates to the schedule.
#[derive(Debug)]
pub(crate) struct SessionPace {
    policy: LagPolicy,
    /// Factor on the captured times between the end of a statement and the start of the next, if
    /// these times and not the schedule decide when a statement is due.
    think_time: Option<f64>,
    /// How much later than scheduled the events of the session are due.
    shift: Duration,
    /// The captured time at which the event sent last ended.
    previous_end: Option<Timestamp>,
    dropped: DroppedWork,
}

/// The work that is being dropped because it is late.
#[derive(Debug, Default)]
struct DroppedWork {
    /// Whether the transaction was dropped to which the next events belong.
    is_transaction: bool,
    /// The pipeline of the event dropped last.
    pipeline: Option<u32>,
}

impl SessionPace {
    pub(crate) fn new(policy: LagPolicy, think_time: Option<f64>) -> Self {
        Self {
            policy,
            think_time,
            shift: Duration::ZERO,
            previous_end: None,
            dropped: DroppedWork::default(),
        }
    }

    fn depends_on_previous(&self) -> bool {
        self.policy.depends_on_previous(self.think_time)
    }

    /// Sets the due time of the session's next event, which is free since `free_since`.
    pub(super) fn set_due(
        &mut self,
        next: &mut ScheduledEvent,
        free_since: Instant,
        schedule: &Schedule,
    ) {
        if !self.depends_on_previous() || !schedule.is_paced() {
            return;
        }
        let Some(previous_end) = self.previous_end else { return };
        let gap = next.time.saturating_since(previous_end);
        let due = match self.think_time {
            Some(factor) => free_since + gap.mul_f64(factor),
            None => {
                let free = free_since + schedule.replayed(gap);
                let due = free.max(next.scheduled + self.shift);
                self.shift = due.saturating_duration_since(next.scheduled);
                due
            }
        };
        if due != next.due {
            next.postpone(due);
        }
    }

    /// Sets the due time of an event that is sent with `first`: as much later as when captured.
    pub(super) fn set_due_in_batch(&self, next: &mut ScheduledEvent, first: &ScheduledEvent) {
        if self.depends_on_previous() {
            let gap = next.scheduled.saturating_duration_since(first.scheduled);
            next.postpone(first.due + gap);
        }
    }

    /// Records the event that is sent, or the last one of several.
    pub(super) fn note_sent(&mut self, item: &ScheduledEvent) {
        self.previous_end = Some(item.captured_end());
    }

    /// Starts anew after the session has ended.
    pub(super) fn reset(&mut self) {
        *self = Self::new(self.policy, self.think_time);
    }

    /// Whether the next event is so late that it must be dropped; `is_idle` if the session is not
    /// in a transaction. A transaction is dropped as a whole, but never when it has begun. What
    /// later statements depend on, such as SET and DDL, is not dropped.
    pub(super) fn drops(&mut self, next: &ScheduledEvent, now: Instant, is_idle: bool) -> bool {
        let LagPolicy::DropLate(limit) = self.policy else { return false };
        let event = &next.event;
        if matches!(event.action.kind(), Kind::Connect | Kind::Disconnect | Kind::Cancel) {
            self.dropped = DroppedWork::default();
            return false;
        }
        let block = event.action.sql().and_then(|sql| TransactionBlock::after(sql.as_bytes()));
        if self.dropped.is_transaction {
            let is_end = event.action.kind().is_execution() && block.is_some();
            self.dropped.is_transaction = !is_end || block == Some(TransactionBlock::Opened);
            return true;
        }
        let continues = event.pipeline.is_some() && event.pipeline == self.dropped.pipeline;
        let is_late = now.saturating_duration_since(next.due) > limit;
        if !(continues || is_late && is_idle && can_be_missing(event)) {
            self.dropped.pipeline = None;
            return false;
        }
        self.dropped.is_transaction =
            event.action.kind().is_execution() && block == Some(TransactionBlock::Opened);
        self.dropped.pipeline = event.pipeline;
        true
    }
}

/// Whether later statements of a session do not depend on an event, except for rows.
fn can_be_missing(event: &Event) -> bool {
    use SqlCommand::{
        Begin, Call, Copy, Delete, Execute, Explain, Fetch, Insert, Merge, Select, Show, Table,
        Update, Values, With,
    };
    let is_in_list = |sql: &[u8]| {
        matches!(
            SqlCommand::from_sql(sql),
            Begin
                | Call
                | Copy
                | Delete
                | Execute
                | Explain
                | Fetch
                | Insert
                | Merge
                | Select
                | Show
                | Table
                | Update
                | Values
                | With
        )
    };
    event.action.sql().is_some_and(|sql| {
        let sql = sql.as_bytes();
        split_statements(sql).all(is_in_list)
            && !may_change_state(sql)
            && memchr::memmem::find(sql, b"advisory").is_none()
    })
}
