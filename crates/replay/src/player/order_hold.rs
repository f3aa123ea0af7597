//! [`OrderHold`]: holds the next event of a session back for the order of commits.

use std::{collections::VecDeque, time::Instant};

use howdah_traffic::{Event, Timestamp};

use super::{ScheduledEvent, batch::continues_statement};

/// The state of a session in the commit order.
#[derive(Debug, Default)]
pub(crate) struct OrderHold {
    /// Whether the replay follows the captured order of commits.
    pub(super) is_enabled: bool,
    /// The time for which the event at the front waits, while it is held back: see
    /// [`OrderPosition::needs`](crate::order::OrderPosition::needs).
    needs: Option<Timestamp>,
    /// When the event at the front was no longer held back, until it is sent.
    pub(super) ended_at: Option<Instant>,
    /// Whether the session does not wait for others until its transaction ends.
    pub(crate) is_released: bool,
}

/// Whether an event may be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OrderCheck {
    /// It may be sent.
    Passed,
    /// It waits until all transactions before this captured time have ended.
    WaitFor(Timestamp),
    /// It still waits for the same time.
    Wait,
}

impl OrderHold {
    pub(super) fn new(is_enabled: bool) -> Self {
        Self { is_enabled, ..Self::default() }
    }

    /// Whether the event at the front is held back.
    pub(crate) fn is_waiting(&self) -> bool {
        self.needs.is_some()
    }

    /// Checks whether the event at the front of a queue may be sent: whether the transactions have
    /// ended that it needs, or that the events need that are sent with it.
    #[inline]
    pub(super) fn check(
        &mut self,
        queue: &VecDeque<ScheduledEvent>,
        clear_until: Timestamp,
        now: Instant,
    ) -> OrderCheck {
        if !self.is_enabled {
            return OrderCheck::Passed;
        }
        let needs = needed_time(queue).filter(|needs| *needs > clear_until && !self.is_released);
        let before = std::mem::replace(&mut self.needs, needs);
        match needs {
            Some(_) if needs == before => OrderCheck::Wait,
            Some(needs) => OrderCheck::WaitFor(needs),
            None => {
                self.ended_at = before.map(|_| now).or(self.ended_at);
                OrderCheck::Passed
            }
        }
    }
}

/// Returns the latest time that the event at the front, or one that belongs to the same statement,
/// needs.
fn needed_time(queue: &VecDeque<ScheduledEvent>) -> Option<Timestamp> {
    let mut needs = None;
    let mut last: Option<&Event> = None;
    for next in queue {
        if last.is_some_and(|last| !continues_statement(last, &next.event)) {
            break;
        }
        needs = needs.max(next.position.needs);
        last = Some(&next.event);
    }
    needs
}
