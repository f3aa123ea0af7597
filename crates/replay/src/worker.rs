//! The event loop: sends each session's next event when it is due and its session is free.
//!
//! One worker is one thread with one [`Poller`]. Sessions never move between workers and no worker
//! waits for another, so a slow statement delays only its own session. A typical statement costs
//! one event popped from the inbox, one timer, one write, one read, and a share of an `epoll_wait`.

mod admission;
mod end_of_capture;
mod interruption;
mod lag;
mod ordering;
mod outcome_buffer;
mod session_slot;
mod spread;
mod stats;

pub use lag::LagAbort;
pub(crate) use outcome_buffer::FreeBatches;
pub(crate) use stats::WorkerStats;

use std::{
    io,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
        mpsc::SyncSender,
    },
    time::{Duration, Instant},
};

use hashbrown::HashMap;
use howdah_net::{Poller, SocketReadiness, Timers};
use howdah_traffic::SessionId;
use howdah_wire::startup::cancel_request;

use crate::{
    cancel::{CancelRequests, CancelStartError, FinishedCancel},
    inbox::{Inbox, QueueState},
    link::{ConnectionLoss, Link, PumpResult, Reply},
    machine::CalibrationControl,
    metrics::Metrics,
    notice::{Notice, NoticeSink},
    order::{CommitOrder, StatementOrder},
    pace::{Schedule, control::PaceControl},
    player::{
        EventEnd, FinishedEvent, LinkState, Outage, Player, PlayerSettings, PlayerStep,
        ScheduledEvent, SkipCause,
    },
    settings::ReplayLimits,
    target::SessionTarget,
};
use interruption::Interruption;
use ordering::HeldSessions;
use outcome_buffer::OutcomeBuffer;
use session_slot::{SessionSlot, SlotId};
use spread::FurtherConnections;

/// Maximum time between checks of the stop flag, and between updates of the gauges.
const HOUSEKEEPING_INTERVAL: Duration = Duration::from_millis(100);

/// Delays between connection attempts: the first value, doubled each time up to the second value.
const RETRY_DELAYS: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// An outage counts as long after more than this number of failures in a row, counting the loss of
/// the connection and each failed attempt to connect. The delays alone then exceed 16 seconds.
const RETRIES_OF_LONG_OUTAGE: u32 = 8;

/// Maximum number of attempts to connect for which the next event waits although it is due, if the
/// server has no slot left. A session that has disconnected may free one soon. The delays between
/// the attempts are three seconds together.
const RETRIES_FOR_SLOT: u32 = 5;

/// Settings, channels and counters that all workers share.
#[derive(Clone)]
pub(crate) struct WorkerContext {
    pub(crate) schedule: Schedule,
    pub(crate) pace: PaceControl,
    /// At least one target; each session uses one of them.
    pub(crate) targets: Arc<[SessionTarget]>,
    pub(crate) players: PlayerSettings,
    /// The captured order of commits, if the replay keeps it.
    pub(crate) order: Option<Arc<CommitOrder>>,
    pub(crate) limits: ReplayLimits,
    pub(crate) workers: usize,
    pub(crate) notices: Arc<NoticeSink>,
    pub(crate) metrics: Metrics,
    pub(crate) calibration: Arc<CalibrationControl>,
    pub(crate) stop: Arc<AtomicBool>,
    /// Set when a session is later than allowed, which ends the replay.
    pub(crate) lag_abort: Arc<OnceLock<LagAbort>>,
    pub(crate) finished: SyncSender<Vec<FinishedEvent>>,
    pub(crate) free_batches: Arc<FreeBatches>,
}

impl WorkerContext {
    /// Whether the replay ends before the end of the capture.
    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed) || self.lag_abort.get().is_some()
    }

    /// Tells the commit order that an event is over, if it ended a transaction.
    fn note_transaction_end(&self, item: &ScheduledEvent) {
        if let Some(order) = &self.order
            && let Some(end) = item.position.ends
        {
            order.transaction_ended(end);
        }
    }
}

pub(crate) struct ReplayWorker {
    shared: WorkerContext,
    inbox: Arc<Inbox>,
    poller: Poller,
    timers: Timers<SlotId>,
    slots: Vec<SessionSlot>,
    free_slots: Vec<u32>,
    by_session: HashMap<SessionId, SlotId>,
    /// Connections to read from without waiting for readiness: they have more to read and will not
    /// be reported again, or sending on them failed.
    unread: Vec<SlotId>,
    cancels: CancelRequests,
    held: HeldSessions,
    further: FurtherConnections,
    /// Number of the latest change of the schedule that this worker has applied.
    pace_version: u64,
    /// Next time to check how late sessions are.
    lag_check: Instant,
    finished: OutcomeBuffer,
    backlog_bytes: usize,
    /// Time of the last progress, such as a completed batch, a login or a lost connection.
    progress: Instant,
    /// Next time to check for sessions without further events, once the events have ended.
    finish_check: Instant,
    /// The state of the interruption; set once the replay has been interrupted.
    interruption: Option<Interruption>,
    stats: WorkerStats,
    /// This worker's contribution to the gauges, as last reported.
    gauge_share: GaugeShare,
    buffer: Box<[u8]>,
    /// Events that ended in one call of [`Self::receive`]; empty between two calls.
    ended: Vec<FinishedEvent>,
}

impl ReplayWorker {
    pub(crate) fn new(poller: Poller, inbox: Arc<Inbox>, shared: WorkerContext) -> Self {
        Self {
            shared,
            inbox,
            poller,
            timers: Timers::new(),
            slots: Vec::new(),
            free_slots: Vec::new(),
            by_session: HashMap::new(),
            unread: Vec::new(),
            cancels: CancelRequests::default(),
            held: HeldSessions::default(),
            further: FurtherConnections::default(),
            pace_version: 0,
            lag_check: Instant::now(),
            finished: OutcomeBuffer::default(),
            backlog_bytes: 0,
            progress: Instant::now(),
            finish_check: Instant::now(),
            interruption: None,
            stats: WorkerStats::default(),
            gauge_share: GaugeShare::default(),
            buffer: vec![0; 64 * 1024].into(),
            ended: Vec::new(),
        }
    }

    /// Replays events until the inbox is finished and all replies have arrived, or until the replay
    /// is stopped.
    pub(crate) fn run(mut self) -> io::Result<WorkerStats> {
        let mut ready = Vec::new();
        while let Some(deadline) = self.tick(Instant::now()) {
            ready.clear();
            self.poller.wait(Some(deadline), &mut ready)?;
            let unread = std::mem::take(&mut self.unread);
            for one in &ready {
                self.handle(*one);
            }
            for slot in unread {
                self.receive(slot);
            }
        }
        self.close_all();
        self.finished.send(&self.shared);
        Ok(self.stats)
    }

    /// Does the work that is due, and returns the deadline of the next call; `None` when there is
    /// nothing left to do.
    fn tick(&mut self, now: Instant) -> Option<Instant> {
        if now >= self.lag_check {
            self.lag_check = now + HOUSEKEEPING_INTERVAL;
            lag::check(self.shared.players.lag, &self.slots, now, &self.shared.lag_abort);
        }
        if self.interruption.is_none() && self.shared.is_stopped() {
            self.interrupt(now);
        }
        if let Some(schedule) = self.shared.pace.changed_since(&mut self.pace_version) {
            self.shared.schedule = schedule;
            session_slot::reschedule(&mut self.slots, &mut self.timers, now, &schedule);
        }
        let deadline = match self.interruption {
            Some(_) => self.wind_down(now)?,
            None => {
                let supply = self.admit(now);
                self.run_expired_timers(now);
                if let Some(order) = &self.shared.order {
                    for slot in self.held.take_freed(order, &mut self.slots) {
                        self.play(slot);
                    }
                }
                if let QueueState::Finished(last) = supply
                    && self.finish_sessions(last, now)
                {
                    return None;
                }
                self.deadline(supply, now)
            }
        };
        self.finished.send_if_due(now, &self.shared);
        self.update_gauges();
        Some(if self.unread.is_empty() { deadline } else { now })
    }

    fn set_timer(&mut self, slot: SlotId, due: Instant) {
        let slot_entry = &mut self.slots[slot.index as usize];
        if slot_entry.timer.is_none_or(|set| due < set) {
            slot_entry.timer = Some(due);
            self.timers.insert(due, slot);
        }
    }

    /// Runs every player whose timer has expired.
    fn run_expired_timers(&mut self, now: Instant) {
        while let Some((due, slot)) = self.timers.pop_expired(now) {
            let slot_entry = &mut self.slots[slot.index as usize];
            if slot_entry.generation == slot.generation && slot_entry.timer == Some(due) {
                slot_entry.timer = None;
                self.play(slot);
            }
        }
    }

    /// Runs one player until it waits for the due time of an event or for the server.
    fn play(&mut self, slot: SlotId) {
        let schedule = self.shared.schedule;
        loop {
            // The clock is read for each step, because earlier steps take time.
            let now = Instant::now();
            let slot_entry = &mut self.slots[slot.index as usize];
            // A step may have ended the session, and the slot may now belong to another one.
            if slot_entry.generation != slot.generation {
                return;
            }
            let Some(player) = slot_entry.player.as_mut() else { return };
            let client = slot_entry.link.as_mut().and_then(Link::client);
            let was_held = player.order.is_waiting();
            let clear = self.shared.order.as_ref().map(|order| order.clear_until());
            let step = player.step(now, &schedule, clear.unwrap_or_default(), client);
            if was_held
                && !player.order.is_waiting()
                && let Some(order) = &self.shared.order
            {
                order.end_wait(&player.id);
            }
            match step {
                PlayerStep::Wait => break,
                PlayerStep::WaitForTransactions(needs) => {
                    if let Some(order) = &self.shared.order {
                        order.start_wait(&player.id, needs);
                        self.held.add(slot, needs);
                    }
                    break;
                }
                PlayerStep::WaitUntil(due) => {
                    self.set_timer(slot, due);
                    break;
                }
                PlayerStep::Send => {
                    self.stats.in_flight += 1;
                    let flushed = slot_entry.link.as_mut().map(Link::flush);
                    if matches!(flushed, Some(Err(_))) {
                        // The server has closed the connection. Reading returns the error it sent
                        // before.
                        self.unread.push(slot);
                    }
                }
                PlayerStep::Connect(item) => self.connect(slot, item, now),
                PlayerStep::Record(item, end) => {
                    let free = player.free_since;
                    self.finish_event(FinishedEvent::unsent(item, now, free, end));
                }
                // The captured client disconnected here: close without waiting for the server, as
                // it did.
                PlayerStep::Hangup(item) => {
                    let free = player.free_since;
                    player.on_disconnected(now);
                    if let Some(link) = slot_entry.link.take() {
                        link.close();
                        self.stats.open -= 1;
                    }
                    self.finish_event(FinishedEvent {
                        item,
                        sent: Some(now),
                        started: Some(now),
                        ended: Instant::now(),
                        free_since: free,
                        rows: None,
                        result: None,
                        end: EventEnd::Done,
                    });
                }
                PlayerStep::Cancel(item) => self.cancel(slot, item, now),
                PlayerStep::Spread => {
                    if let Some(other) = self.spread(slot, now) {
                        self.play(other);
                    }
                    break;
                }
            }
        }
        self.release_slot_if_done(slot);
    }

    fn connect(&mut self, slot: SlotId, item: Option<ScheduledEvent>, now: Instant) {
        let slot_entry = &mut self.slots[slot.index as usize];
        let Some(player) = slot_entry.player.as_mut() else { return };
        let event = item.as_ref().map(|item| &*item.event).or_else(|| player.next_event());
        let Some(event) = event else { return };
        let event = [&*event.user, &event.database, &event.application];
        let target = &self.shared.targets[slot_entry.target];
        let login = target.logins.login(event, &player.settings);
        player.link_state = LinkState::Connecting;
        slot_entry.connecting = Some((item, now));
        let begun = Link::open(&target.dialer, login)
            .map_err(io::Error::other)
            .and_then(|link| self.poller.add(link.stream(), slot.token()).map(|()| link));
        match begun {
            Ok(link) => self.slots[slot.index as usize].link = Some(link),
            Err(error) => self.on_connection_lost(slot, ConnectionLoss::Io(error), now),
        }
    }

    fn cancel(&mut self, slot: SlotId, item: ScheduledEvent, now: Instant) {
        let slot_entry = &mut self.slots[slot.index as usize];
        let Some(player) = slot_entry.player.as_ref() else { return };
        let free = player.free_since;
        let Some(request) = cancel_request_for(slot_entry) else {
            self.finish_event(FinishedEvent::unsent(
                item,
                now,
                free,
                EventEnd::Skipped(SkipCause::NothingToCancel),
            ));
            return;
        };
        let dialer = &self.shared.targets[slot_entry.target].dialer;
        let begun = self.cancels.start(dialer, &self.poller, request, Some(item), now);
        if let Err(CancelStartError { item: Some(item), failure }) =
            begun.map_err(|refused| *refused)
        {
            self.finish_event(FinishedEvent::unsent(item, now, free, EventEnd::Failed(failure)));
        }
    }

    fn handle(&mut self, ready: SocketReadiness) {
        if CancelRequests::owns_token(ready.token) {
            let cancel = self.cancels.advance(ready.token);
            if let Some(FinishedCancel { item: Some(item), sent, failure }) = cancel {
                let end = failure.map_or(EventEnd::Done, EventEnd::Failed);
                self.finish_event(answered(item, sent, Instant::now(), end));
            }
            return;
        }
        let index = (ready.token.0 & 0xffff_ffff) as u32;
        let Some(slot_entry) = self.slots.get_mut(index as usize) else { return };
        let slot = SlotId { index, generation: slot_entry.generation };
        // The readiness event belongs to an earlier connection of this slot.
        if slot.token() != ready.token {
            return;
        }
        if let (true, Some(link)) = (ready.hung_up, slot_entry.link.as_mut()) {
            link.on_hangup();
        }
        self.receive(slot);
    }

    /// Reads the replies on one connection.
    fn receive(&mut self, slot: SlotId) {
        let slot_entry = &mut self.slots[slot.index as usize];
        if slot_entry.generation != slot.generation {
            return;
        }
        let (Some(link), Some(player)) = (slot_entry.link.as_mut(), slot_entry.player.as_mut())
        else {
            return;
        };
        let mut ended = std::mem::take(&mut self.ended);
        let mut has_logged_in = false;
        let was_busy = player.is_busy();
        let logins = &self.shared.targets[slot_entry.target].logins;
        let pumped = link.pump(&mut self.buffer, logins, |client, reply, received_at| {
            has_logged_in |= matches!(reply, Reply::LoggedIn);
            player.handle_reply(reply, received_at, client, &mut ended);
        });
        let now = Instant::now();
        if was_busy && !player.is_busy() {
            self.stats.in_flight -= 1;
            self.progress = now;
        }
        for one in ended.drain(..) {
            self.finish_event(one);
        }
        self.ended = ended;
        if has_logged_in {
            self.on_logged_in(slot, now);
        }
        // The session may have to wait for one of its connections.
        if was_busy
            && self.shared.players.order == StatementOrder::None
            && let Some(main) = spread::current_slot(&self.by_session, &self.slots, slot)
        {
            self.play(main);
        }
        match pumped {
            Ok(PumpResult::Drained) => self.play(slot),
            Ok(PumpResult::More) => {
                self.unread.push(slot);
                self.play(slot);
            }
            Err(lost) => self.on_connection_lost(slot, lost, now),
        }
    }

    fn on_logged_in(&mut self, slot: SlotId, now: Instant) {
        self.stats.connections += 1;
        self.stats.open += 1;
        self.stats.open_max = self.stats.open_max.max(self.stats.open);
        self.shared.metrics.connections_established.add(1);
        self.progress = now;
        let slot_entry = &mut self.slots[slot.index as usize];
        slot_entry.retries = 0;
        if let Some(order) = &self.shared.order
            && let Some(player) = &slot_entry.player
            && let Some(backend) = slot_entry.link.as_mut().and_then(Link::backend)
        {
            order.set_backend(&player.id, backend);
        }
        if let Some((Some(item), since)) = slot_entry.connecting.take() {
            self.finish_event(answered(item, since, now, EventEnd::Done));
        }
    }

    /// Handles the loss or refusal of a slot's connection. Incomplete events in flight fail. If the
    /// connection was refused, so does the event that needed it, unless events can wait for the
    /// target. The session's other events stay queued.
    fn on_connection_lost(&mut self, slot: SlotId, lost: ConnectionLoss, now: Instant) {
        let slot_entry = &mut self.slots[slot.index as usize];
        // The server's last error is more specific than the hangup.
        let last_error = slot_entry.link.take().and_then(Link::into_last_error);
        let failure = last_error.unwrap_or_else(|| lost.into());
        let Some(player) = slot_entry.player.as_mut() else { return };
        if let Some(order) = &self.shared.order {
            order.remove_backend(&player.id);
        }
        let was_connected = matches!(player.link_state, LinkState::Connected);
        let was_busy = player.is_busy();
        let wait =
            RETRY_DELAYS.0.saturating_mul(1 << slot_entry.retries.min(16)).min(RETRY_DELAYS.1);
        slot_entry.retries += 1;
        // The first attempt after a loss is immediate; delays start if it fails too.
        let retry = if was_connected { now } else { now + wait };
        // At the highest speed there are no due times to miss, so events wait for a restart of the
        // target, but not for a refusal that would be repeated.
        let is_long = !failure.is_transient() || slot_entry.retries > RETRIES_OF_LONG_OUTAGE;
        let waits_for_slot = !was_connected
            && failure.is_too_many_connections()
            && slot_entry.retries <= RETRIES_FOR_SLOT;
        let can_wait = !is_long && (waits_for_slot || !self.shared.schedule.is_paced());
        let outage = Outage { failure: failure.clone(), retry, waits_for_slot, is_long };
        let mut ended = player.on_connection_lost(outage, now);
        match slot_entry.connecting.take() {
            Some((Some(item), _)) if can_wait => player.requeue(item),
            Some((Some(item), since)) => {
                ended.push(answered(item, since, now, EventEnd::Failed(failure.clone())));
            }
            // The event that needed this connection does not get another attempt.
            _ if !was_connected && !can_wait => ended.extend(player.fail_next(&failure, now)),
            _ => {}
        }
        if !was_connected && failure.is_too_many_connections() {
            self.shared.calibration.release_slot();
            let last_error = failure.message.to_string();
            let paced = self.shared.schedule.is_paced();
            self.update_gauges();
            self.shared.notices.report(&Notice::NoConnectionsLeft {
                message: last_error,
                open: self.shared.metrics.connections_active.value() as usize,
                is_paced: paced,
            });
        }
        self.stats.lost += 1;
        self.shared.metrics.connections_lost.add(1);
        self.stats.open -= usize::from(was_connected);
        self.stats.in_flight -= usize::from(was_busy);
        self.progress = now;
        tracing::debug!(reason = %failure.message, "connection to the target lost");
        for one in ended {
            self.finish_event(one);
        }
        self.play(slot);
    }

    fn finish_event(&mut self, mut one: FinishedEvent) {
        if self.interruption.is_some() {
            interruption::mark_cancelled(&mut one);
        }
        self.backlog_bytes = self.backlog_bytes.saturating_sub(one.item.bytes);
        self.shared.note_transaction_end(&one.item);
        if let Some(sent) = one.sent
            && one.item.event.action.kind().is_execution()
        {
            let position = one.item.event.time.as_micros() as f64 / 1e6;
            self.shared.metrics.position.set(position);
            let late = sent.saturating_duration_since(one.item.scheduled);
            self.shared.metrics.lag.set(late.as_secs_f64());
        }
        self.finished.push(one);
    }

    /// Frees the slot of a session that has disconnected and has nothing more to do.
    fn release_slot_if_done(&mut self, slot: SlotId) {
        let slot_entry = &mut self.slots[slot.index as usize];
        if slot_entry.generation != slot.generation || slot_entry.connecting.is_some() {
            return;
        }
        let is_done = |player: &mut Player| player.is_done() && !player.is_busy();
        let Some(player) = slot_entry.player.take_if(is_done) else { return };
        if let Some(link) = slot_entry.link.take() {
            link.close();
            self.stats.open -= 1;
        }
        slot_entry.generation = slot_entry.generation.wrapping_add(1);
        slot_entry.timer = None;
        slot_entry.retries = 0;
        self.free_slots.push(slot.index);
        if self.by_session.get(&player.id) == Some(&slot) {
            self.by_session.remove(&player.id);
            self.close_further(&player.id, Instant::now());
        }
    }

    fn is_idle(&self) -> bool {
        self.cancels.is_empty()
            && self
                .slots
                .iter()
                .all(|slot_entry| slot_entry.player.as_ref().is_none_or(Player::is_idle))
    }

    fn deadline(&self, supply: QueueState, now: Instant) -> Instant {
        let mut deadline = now + HOUSEKEEPING_INTERVAL;
        if let Some(due) = self.timers.next_deadline() {
            deadline = deadline.min(due);
        }
        let is_full = self.backlog_bytes >= self.shared.limits.backlog_bytes;
        let waits_for_room = is_full && !admission::may_drop(&self.shared.players);
        if let QueueState::Next(time) = supply
            && self.shared.schedule.is_paced()
            && !waits_for_room
        {
            // Half of the lookahead is early enough, and saves a wake-up per event.
            let lookahead = admission::lookahead(self.backlog_bytes, self.shared.limits);
            deadline = deadline.min(self.shared.schedule.due(time) - lookahead / 2);
        }
        deadline
    }

    /// Updates the gauges, which are the sums over all workers.
    fn update_gauges(&mut self) {
        let share = GaugeShare {
            open: self.stats.open,
            in_flight: self.stats.in_flight,
            backlog_bytes: self.backlog_bytes,
        };
        let previous = std::mem::replace(&mut self.gauge_share, share);
        let metrics = &self.shared.metrics;
        for (gauge, value, before) in [
            (&metrics.connections_active, share.open, previous.open),
            (&metrics.statements_in_flight, share.in_flight, previous.in_flight),
            (&metrics.backlog_bytes, share.backlog_bytes, previous.backlog_bytes),
        ] {
            if value != before {
                gauge.add(value as f64 - before as f64);
            }
        }
    }
}

/// One worker's contribution to the gauges, as last reported.
#[derive(Clone, Copy, Debug, Default)]
struct GaugeShare {
    open: usize,
    in_flight: usize,
    backlog_bytes: usize,
}

/// Creates the outcome of an event that returns no rows and was sent as soon as possible.
fn answered(item: ScheduledEvent, sent: Instant, ended: Instant, end: EventEnd) -> FinishedEvent {
    FinishedEvent {
        item,
        sent: Some(sent),
        started: Some(sent),
        ended,
        free_since: sent,
        rows: None,
        result: None,
        end,
    }
}

/// Returns the cancel request for the connection of a slot, if the server sent a cancel key.
fn cancel_request_for(slot_entry: &mut SessionSlot) -> Option<Vec<u8>> {
    let key = slot_entry.link.as_mut()?.client()?.cancel_key()?;
    let mut request = Vec::new();
    cancel_request(&mut request, key);
    Some(request)
}
