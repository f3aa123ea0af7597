//! The event loop: sends each session's next event when it is due and its session free.
//!
//! One worker is one thread with one [`Poller`]. Sessions never move between workers and no worker
//! waits for another, so a slow statement delays its own session and nothing else. What one
//! statement costs here: an event taken from the inbox, one timer, one write, one read, and its
//! share of an `epoll_wait`.

mod admission;
mod ending;
mod finish;
mod seat;
mod stats;

pub(crate) use stats::WorkerStats;

use std::{
    collections::HashMap,
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::SyncSender,
    },
    time::{Duration, Instant},
};

use howdah_net::{Dialer, Poller, Readiness, Timers};
use howdah_traffic::SessionId;
use howdah_wire::startup::cancel_request;

use crate::{
    cancel::{Cancel, Cancels, NotBegun},
    inbox::{Inbox, Supply},
    link::{Link, Lost, Pumped, Reply},
    metrics::Metrics,
    notice::{Notice, Notices},
    pace::Schedule,
    player::{End, Finished, Item, Outage, Player, Presence, Skip, Step},
    settings::Limits,
    target::Logins,
    types::ParameterTypes,
};
use ending::Ending;
use seat::{Seat, Slot};

/// How often a stop is looked for, and gauges are set.
const HOUSEKEEPING: Duration = Duration::from_millis(100);

/// Waits between attempts to connect: doubled from the first to the second.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// Failed attempts to connect, some twenty seconds of them, after which an outage is a long one.
const RETRIES_OF_LONG_OUTAGE: u32 = 8;

/// Outcomes handed over at once, at most.
const BATCH: usize = 512;

/// What workers share.
#[derive(Clone)]
pub(crate) struct Shared {
    pub(crate) schedule: Schedule,
    pub(crate) dialer: Dialer,
    pub(crate) logins: Arc<Logins>,
    pub(crate) types: Arc<ParameterTypes>,
    pub(crate) limits: Limits,
    pub(crate) workers: usize,
    pub(crate) notices: Arc<Notices>,
    pub(crate) metrics: Metrics,
    pub(crate) stop: Arc<AtomicBool>,
    pub(crate) finished: SyncSender<Vec<Finished>>,
}

pub(crate) struct Worker {
    shared: Shared,
    inbox: Arc<Inbox>,
    poller: Poller,
    timers: Timers<Slot>,
    seats: Vec<Seat>,
    vacant: Vec<u32>,
    by_session: HashMap<SessionId, Slot>,
    /// Connections that have more to read, and will not be reported again.
    unread: Vec<Slot>,
    cancels: Cancels,
    /// Outcomes not handed over yet.
    ended: Vec<Finished>,
    backlog_bytes: usize,
    /// When something ended last.
    progress: Instant,
    /// When sessions without further events are looked for next, after the end of the events.
    finish_check: Instant,
    /// Set once somebody wants an end.
    ending: Option<Ending>,
    stats: WorkerStats,
    buffer: Box<[u8]>,
}

impl Worker {
    pub(crate) fn new(poller: Poller, inbox: Arc<Inbox>, shared: Shared) -> Self {
        Self {
            shared,
            inbox,
            poller,
            timers: Timers::new(),
            seats: Vec::new(),
            vacant: Vec::new(),
            by_session: HashMap::new(),
            unread: Vec::new(),
            cancels: Cancels::default(),
            ended: Vec::new(),
            backlog_bytes: 0,
            progress: Instant::now(),
            finish_check: Instant::now(),
            ending: None,
            stats: WorkerStats::default(),
            buffer: vec![0; 64 * 1024].into(),
        }
    }

    /// Plays until the inbox is finished and everything is answered, or until told to stop.
    pub(crate) fn run(mut self) -> io::Result<WorkerStats> {
        let mut ready = Vec::new();
        while let Some(deadline) = self.turn(Instant::now()) {
            ready.clear();
            self.poller.wait(Some(deadline), &mut ready)?;
            let unread = std::mem::take(&mut self.unread);
            for one in &ready {
                self.handle(*one);
            }
            for slot in unread {
                self.listen(slot);
            }
        }
        self.leave();
        self.hand_over();
        Ok(self.stats)
    }

    /// Does what the time has come for, and says when to be called again at the latest; `None` when
    /// there is nothing left to do.
    fn turn(&mut self, now: Instant) -> Option<Instant> {
        if self.ending.is_none() && self.shared.stop.load(Ordering::Relaxed) {
            self.interrupt(now);
        }
        let deadline = match self.ending {
            Some(_) => self.wind_down(now)?,
            None => {
                let supply = self.admit(now);
                self.fire(now);
                if let Supply::Finished(last) = supply
                    && self.finish_sessions(last, now)
                {
                    return None;
                }
                self.deadline(supply, now)
            }
        };
        self.hand_over();
        self.set_gauges();
        Some(if self.unread.is_empty() { deadline } else { now })
    }

    fn set_timer(&mut self, slot: Slot, due: Instant) {
        let seat = &mut self.seats[slot.index as usize];
        if seat.timer.is_none_or(|set| due < set) {
            seat.timer = Some(due);
            self.timers.insert(due, slot);
        }
    }

    /// Lets every player go on whose time has come.
    fn fire(&mut self, now: Instant) {
        while let Some((due, slot)) = self.timers.pop_due(now) {
            let seat = &mut self.seats[slot.index as usize];
            if seat.generation == slot.generation && seat.timer == Some(due) {
                seat.timer = None;
                self.play(slot);
            }
        }
    }

    /// Lets one player do all it can now.
    fn play(&mut self, slot: Slot) {
        let paced = self.shared.schedule.is_paced();
        loop {
            // Read anew for each step: what others did in this turn made this one late.
            let now = Instant::now();
            let seat = &mut self.seats[slot.index as usize];
            if seat.generation != slot.generation {
                return;
            }
            let Some(player) = seat.player.as_mut() else { return };
            let client = seat.link.as_mut().and_then(Link::client);
            match player.step(now, paced, client) {
                Step::Wait => break,
                Step::WaitUntil(due) => {
                    self.set_timer(slot, due);
                    break;
                }
                Step::Send => {
                    self.stats.in_flight += 1;
                    self.send(slot);
                }
                Step::Connect(item) => self.connect(slot, item, now),
                Step::Record(item, end) => {
                    let free = player.free();
                    self.end(unsent(item, end, now, free));
                }
                Step::Hangup(item) => {
                    let free = player.free();
                    player.left(now);
                    if let Some(link) = seat.link.take() {
                        link.close();
                        self.stats.open -= 1;
                    }
                    self.end(Finished {
                        item,
                        sent: Some(now),
                        begun: Some(now),
                        ended: Instant::now(),
                        free,
                        rows: None,
                        end: End::Done,
                    });
                }
                Step::Cancel(item) => self.cancel(slot, item, now),
            }
        }
        self.vacate_if_done(slot);
    }

    fn send(&mut self, slot: Slot) {
        let seat = &mut self.seats[slot.index as usize];
        let Some(link) = seat.link.as_mut() else { return };
        if link.flush().is_err() {
            // The server has hung up. Reading finds out what it said before.
            self.unread.push(slot);
        }
    }

    fn connect(&mut self, slot: Slot, item: Option<Item>, now: Instant) {
        let seat = &mut self.seats[slot.index as usize];
        let Some(player) = seat.player.as_mut() else { return };
        let who = item.as_ref().map(|item| &item.event).or_else(|| player.next_event());
        let Some(who) = who else { return };
        let who = [&*who.user, &who.database, &who.application];
        let login = self.shared.logins.login(who, player.settings());
        player.presence = Presence::Arriving;
        seat.arriving = Some((item, now));
        let begun = Link::begin(&self.shared.dialer, login)
            .map_err(io::Error::other)
            .and_then(|link| self.poller.add(link.stream(), slot.token()).map(|()| link));
        match begun {
            Ok(link) => self.seats[slot.index as usize].link = Some(link),
            Err(error) => self.lose(slot, Lost::Io(error), now),
        }
    }

    fn cancel(&mut self, slot: Slot, item: Item, now: Instant) {
        let seat = &mut self.seats[slot.index as usize];
        let Some(player) = seat.player.as_ref() else { return };
        let free = player.free();
        let Some(request) = cancel_of(seat) else {
            self.end(unsent(item, End::Skipped(Skip::NothingToCancel), now, free));
            return;
        };
        let begun = self.cancels.begin(&self.shared.dialer, &self.poller, request, Some(item), now);
        if let Err(NotBegun { item: Some(item), failure }) = begun.map_err(|refused| *refused) {
            self.end(unsent(item, End::Failed(failure), now, free));
        }
    }

    fn handle(&mut self, ready: Readiness) {
        if Cancels::owns(ready.token) {
            let cancel = self.cancels.advance(ready.token);
            if let Some(Cancel { item: Some(item), sent, failure }) = cancel {
                let end = failure.map_or(End::Done, End::Failed);
                self.end(answered(item, sent, Instant::now(), end));
            }
            return;
        }
        let index = (ready.token.0 & 0xffff_ffff) as u32;
        let Some(seat) = self.seats.get_mut(index as usize) else { return };
        let slot = Slot { index, generation: seat.generation };
        // A report about a connection that this place had before.
        if slot.token() != ready.token {
            return;
        }
        if let (true, Some(link)) = (ready.hung_up, seat.link.as_mut()) {
            link.hung_up();
        }
        self.listen(slot);
    }

    /// Reads what the server said on one connection.
    fn listen(&mut self, slot: Slot) {
        let seat = &mut self.seats[slot.index as usize];
        if seat.generation != slot.generation {
            return;
        }
        let (Some(link), Some(player)) = (seat.link.as_mut(), seat.player.as_mut()) else { return };
        let mut ended = Vec::new();
        let mut arrived = false;
        let was_busy = player.is_busy();
        let pumped = link.pump(&mut self.buffer, &self.shared.logins, |client, reply| {
            arrived |= matches!(reply, Reply::LoggedIn);
            // Read anew: a large answer may take long to arrive.
            ended.extend(player.heard(reply, Instant::now(), client));
        });
        let now = Instant::now();
        if was_busy && !player.is_busy() {
            self.stats.in_flight -= 1;
            self.progress = now;
        }
        for one in ended {
            self.end(one);
        }
        if arrived {
            self.arrive(slot, now);
        }
        match pumped {
            Ok(Pumped::Dry) => self.play(slot),
            Ok(Pumped::More) => {
                self.unread.push(slot);
                self.play(slot);
            }
            Err(lost) => self.lose(slot, lost, now),
        }
    }

    fn arrive(&mut self, slot: Slot, now: Instant) {
        self.stats.connections += 1;
        self.stats.open += 1;
        self.stats.open_max = self.stats.open_max.max(self.stats.open);
        self.shared.metrics.connections_established.add(1);
        self.progress = now;
        let seat = &mut self.seats[slot.index as usize];
        seat.retries = 0;
        if let Some((Some(item), since)) = seat.arriving.take() {
            self.end(answered(item, since, now, End::Done));
        }
    }

    /// The connection of a seat is gone or was refused: what was on it fails, the rest goes on.
    fn lose(&mut self, slot: Slot, lost: Lost, now: Instant) {
        let seat = &mut self.seats[slot.index as usize];
        // What the server said at last tells more than that it hung up.
        let said = seat.link.take().and_then(Link::into_last_words);
        let failure = said.unwrap_or_else(|| lost.into());
        let Some(player) = seat.player.as_mut() else { return };
        let was_here = matches!(player.presence, Presence::Here);
        let was_busy = player.is_busy();
        let wait = RETRY.0.saturating_mul(1 << seat.retries.min(16)).min(RETRY.1);
        seat.retries += 1;
        // The first attempt after a loss is at once; waiting begins when that fails too.
        let retry = if was_here { now } else { now + wait };
        // At the highest speed there is no due time to miss, so a restart of the target is waited
        // for; not so a refusal that will be the same next time.
        let is_long = !failure.may_pass() || seat.retries > RETRIES_OF_LONG_OUTAGE;
        let waits = !self.shared.schedule.is_paced() && !is_long;
        let mut ended = player.lost(Outage { failure: failure.clone(), retry, is_long }, now);
        match seat.arriving.take() {
            Some((Some(item), _)) if waits => player.put_back(item),
            Some((Some(item), since)) => {
                ended.push(answered(item, since, now, End::Failed(failure.clone())));
            }
            // The event that wanted this connection does not get another.
            _ if !was_here && !waits => ended.extend(player.refuse_head(&failure, now)),
            _ => {}
        }
        if !was_here && failure.is_want_of_room() {
            let said = failure.message.to_string();
            let paced = self.shared.schedule.is_paced();
            self.shared.notices.give(&Notice::Full { said, open: self.stats.open, paced });
        }
        self.stats.lost += 1;
        self.shared.metrics.connections_lost.add(1);
        self.stats.open -= usize::from(was_here);
        self.stats.in_flight -= usize::from(was_busy);
        self.progress = now;
        tracing::debug!(reason = %failure.message, "connection to the target lost");
        for one in ended {
            self.end(one);
        }
        self.play(slot);
    }

    fn end(&mut self, mut one: Finished) {
        if self.ending.is_some() {
            ending::judge(&mut one);
        }
        self.backlog_bytes = self.backlog_bytes.saturating_sub(one.item.bytes);
        if let Some(sent) = one.sent
            && one.item.event.action.kind().is_execution()
        {
            let position = one.item.event.time.as_micros() as f64 / 1e6;
            self.shared.metrics.position.set(position);
            let late = sent.saturating_duration_since(one.item.due);
            self.shared.metrics.lag.set(late.as_secs_f64());
        }
        self.ended.push(one);
    }

    fn hand_over(&mut self) {
        while !self.ended.is_empty() {
            let rest = self.ended.split_off(self.ended.len().min(BATCH));
            let batch = std::mem::replace(&mut self.ended, rest);
            // The recorder is only gone when it panicked; its thread's join tells.
            let _ = self.shared.finished.send(batch);
        }
    }

    /// Frees the place of a session that has left and has nothing more to do.
    fn vacate_if_done(&mut self, slot: Slot) {
        let seat = &mut self.seats[slot.index as usize];
        if seat.generation != slot.generation || seat.link.is_some() || seat.arriving.is_some() {
            return;
        }
        let Some(player) = seat.player.take_if(|player| player.is_done()) else { return };
        seat.generation = seat.generation.wrapping_add(1);
        seat.timer = None;
        seat.retries = 0;
        self.by_session.remove(&player.id);
        self.vacant.push(slot.index);
    }

    fn is_quiet(&self) -> bool {
        self.cancels.is_empty()
            && self.seats.iter().all(|seat| seat.player.as_ref().is_none_or(Player::is_idle))
    }

    fn deadline(&self, supply: Supply, now: Instant) -> Instant {
        let mut deadline = now + HOUSEKEEPING;
        if let Some(due) = self.timers.next_due() {
            deadline = deadline.min(due);
        }
        if let (Supply::Next(time), true) = (supply, self.shared.schedule.is_paced()) {
            // Half the lookahead late is early enough, and spares a wake-up per event.
            let lookahead = admission::lookahead(self.backlog_bytes, self.shared.limits);
            deadline = deadline.min(self.shared.schedule.due(time) - lookahead / 2);
        }
        deadline
    }

    fn set_gauges(&self) {
        let metrics = &self.shared.metrics;
        metrics.connections_active.set(self.stats.open as f64);
        metrics.statements_in_flight.set(self.stats.in_flight as f64);
        metrics.backlog_bytes.set(self.backlog_bytes as f64);
    }
}

fn unsent(item: Item, end: End, now: Instant, free: Instant) -> Finished {
    Finished { item, sent: None, begun: None, ended: now, free, rows: None, end }
}

/// What became of something that has no rows and was sent as soon as it could be.
fn answered(item: Item, sent: Instant, ended: Instant, end: End) -> Finished {
    Finished { item, sent: Some(sent), begun: Some(sent), ended, free: sent, rows: None, end }
}

/// The request that cancels what a seat's connection is doing, if its server takes any.
fn cancel_of(seat: &mut Seat) -> Option<Vec<u8>> {
    let key = seat.link.as_mut()?.client()?.cancel_key()?;
    let mut request = Vec::new();
    cancel_request(&mut request, key);
    Some(request)
}
