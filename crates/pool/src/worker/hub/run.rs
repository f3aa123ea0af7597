//! [`Run`]: the thread of a hub.

use std::{
    collections::HashMap,
    sync::{Arc, atomic::Ordering},
    thread,
    time::{Duration, Instant},
};

use howdah_net::Poller;

use super::{
    Flight, ListenMultiplexer, Notification, Request,
    board::{ChannelTable, Outcome},
    handover::{Departure, Inheritance, marker_channel},
    line::{Line, LineError},
};
use crate::{
    ClientId, WorkerId,
    worker::{
        directory::PoolEntry,
        front::Front,
        mail::{Mailbox, WorkerMessage},
        takeover,
    },
};

/// The first pause after a failed login; doubled by each further failure.
const RETRY_MIN: Duration = Duration::from_millis(100);

/// The longest pause after a server refused to listen.
const RETRY_MAX: Duration = Duration::from_secs(15);

/// Between two looks at whether the connection is still where it should be.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// A connection on which nothing came is asked whether it lives.
const HEARTBEAT: Duration = Duration::from_secs(10);

/// How long an answer may take before the connection counts as lost.
const ANSWER_IN: Duration = Duration::from_secs(15);

/// How long the thread and its connection stay when nobody listens.
const STAY: Duration = Duration::from_secs(5);

/// Most notifications on their way to workers. Beyond it, the server keeps them.
const IN_FLIGHT_MAX: usize = 100_000;

/// The thread of a hub.
pub(super) struct Run<'a> {
    hub: &'a ListenMultiplexer,
    front: &'a Front,
    mailboxes: &'a [Arc<Mailbox>],
    poller: Poller,
    board: ChannelTable,
    line: Option<Line>,
    /// When a login may be tried.
    retry_at: Instant,
    pause: Duration,
    /// Logins that were tried since one succeeded.
    attempts: usize,
    empty_since: Option<Instant>,
    database: Arc<str>,
    /// Another process takes over from this one.
    departure: Option<Departure>,
    /// This process takes over from another one.
    inheritance: Option<Inheritance>,
}

impl<'a> Run<'a> {
    pub(super) fn new(
        hub: &'a ListenMultiplexer,
        front: &'a Front,
        mailboxes: &'a [Arc<Mailbox>],
        poller: Poller,
    ) -> Self {
        Self {
            hub,
            front,
            mailboxes,
            poller,
            board: ChannelTable::default(),
            line: None,
            retry_at: Instant::now(),
            pause: RETRY_MIN,
            attempts: 0,
            empty_since: None,
            database: hub.database.as_str().into(),
            departure: None,
            inheritance: None,
        }
    }

    pub(super) fn run(mut self) {
        while !self.front.is_over() {
            for request in std::mem::take(&mut self.hub.desk().requests) {
                self.take(request);
            }
            if self.is_through() {
                return;
            }
            if self.line.as_ref().is_some_and(|line| !self.is_current(line)) {
                self.lose("it is to be made anew");
            }
            self.dial();
            self.hand_over();
            self.ask();
            self.tell();
            self.rest();
            self.hear();
        }
    }

    /// Whether nobody has listened for long enough; then another thread begins when somebody does.
    fn is_through(&mut self) -> bool {
        if !self.board.is_empty() {
            self.empty_since = None;
            return false;
        }
        let since = *self.empty_since.get_or_insert_with(Instant::now);
        if since.elapsed() < STAY {
            return false;
        }
        let mut desk = self.hub.desk();
        if !desk.requests.is_empty() {
            return false;
        }
        if self.departure.is_some() {
            self.forget_marks();
        }
        desk.waker = None;
        (desk.report.process_id, desk.report.channels, desk.report.clients) = (None, 0, 0);
        true
    }

    fn take(&mut self, request: Request) {
        match request {
            Request::Listen { ear, home, channels, again: None } => {
                let outcome = self.board.listen(ear, home, channels, false);
                self.deliver(outcome);
            }
            Request::Listen { ear, home, channels, again: Some(positions) } => {
                let resumed = self.inheritance.as_mut().and_then(|inheritance| {
                    inheritance.resume(ear, &channels, &positions, &self.board)
                });
                match resumed {
                    Some(notifications) => {
                        self.board.resume(ear, home, channels);
                        self.send_retained(ear, notifications);
                    }
                    None => {
                        let outcome = self.board.listen(ear, home, channels, true);
                        self.deliver(outcome);
                    }
                }
                let (worker, client) = ear;
                self.send(worker, WorkerMessage::Resumed(client));
            }
            Request::Unlisten { ear, channels } => self.board.unlisten(ear, channels),
            Request::Depart(exit) => match self.front.random_bytes() {
                Some(random) => {
                    let marker = marker_channel(random);
                    self.departure = Some(Departure::new(exit, marker, &mut self.board));
                }
                None => drop(exit),
            },
            Request::Confirmed(round) => {
                if let Some(departure) = &mut self.departure {
                    departure.confirmed(round);
                }
            }
            Request::Stay => {
                if self.departure.take().is_some() && self.inheritance.is_none() {
                    self.board.unpin_all();
                }
            }
            Request::Hold { homes, round, marker, channels } => {
                let board = &mut self.board;
                let same = self.inheritance.take_if(|it| it.is_marked_by(&marker));
                let mut inheritance = same.unwrap_or_else(|| Inheritance::new(marker, board));
                inheritance.hold(round, homes, channels, board);
                self.inheritance = Some(inheritance);
            }
            Request::Release => {
                if let Some(inheritance) = &mut self.inheritance {
                    inheritance.release_soon();
                }
            }
        }
    }

    /// Has the other process of a takeover know what is listened to.
    fn hand_over(&mut self) {
        if let Some(departure) = &mut self.departure {
            departure.offer(&self.hub.database, &mut self.board);
        }
        let Some(inheritance) = &mut self.inheritance else { return };
        while let Some(round) = inheritance.take_confirmed(&self.board) {
            takeover::confirm_channels(&self.hub.database, round, self.front);
        }
        if inheritance.is_released() {
            self.inheritance = None;
            if self.departure.is_none() {
                self.board.unpin_all();
            }
        }
    }

    /// What has come since the marker and was not given to a client where it came from.
    fn send_retained(
        &self,
        (worker, client): (WorkerId, ClientId),
        retained: Vec<Arc<Notification>>,
    ) {
        if retained.is_empty() {
            return;
        }
        let mut flight = Flight::new(self.hub, &self.database);
        let clients: Arc<[ClientId]> = [client].into();
        for notification in retained {
            flight.load(notification, Arc::clone(&clients));
        }
        self.send(worker, WorkerMessage::Notified(flight));
    }

    /// Numbers of before say nothing any more.
    fn forget_marks(&mut self) {
        if let Some(departure) = &mut self.departure {
            departure.lost();
            self.tell_workers(WorkerMessage::ChannelsUnmarked);
        }
    }

    fn tell_workers(&self, mail: impl Fn(Arc<str>) -> WorkerMessage) {
        self.mailboxes.iter().for_each(|mailbox| mailbox.send(mail(Arc::clone(&self.database))));
    }

    fn deliver(&self, outcomes: impl IntoIterator<Item = Outcome>) {
        let mut missed: HashMap<WorkerId, Vec<ClientId>> = HashMap::new();
        for outcome in outcomes {
            match outcome {
                Outcome::Answer((worker, client), result) => {
                    self.send(worker, WorkerMessage::Heard { client, result });
                }
                Outcome::Missed((worker, client)) => {
                    missed.entry(worker).or_default().push(client);
                }
            }
        }
        for (worker, clients) in missed {
            self.send(worker, WorkerMessage::Missed(clients));
        }
    }

    fn send(&self, worker: WorkerId, mail: WorkerMessage) {
        if let Some(mailbox) = self.mailboxes.get(usize::from(worker.0)) {
            mailbox.send(mail);
        }
    }

    /// Whether a connection is what it would be if it were made now.
    fn is_current(&self, line: &Line) -> bool {
        let entry = self.front.directory.by_id(line.entry.id);
        entry.is_some_and(|entry| {
            entry.key == line.entry.key
                && entry.spec.epoch() == line.epoch
                && !entry.spec.is_paused()
                && entry.spec.member.as_ref().is_none_or(|member| member.state.may_write())
        })
    }

    /// Makes the connection, if there is none and it is time to.
    fn dial(&mut self) {
        if self.line.is_some() || self.board.is_empty() || Instant::now() < self.retry_at {
            return;
        }
        let homes = self.board.homes();
        let homes: Vec<_> = homes
            .iter()
            .filter_map(|home| self.front.directory.by_id(*home))
            .filter(|home| !home.spec.is_paused())
            .collect();
        let Some(home) = homes.get(self.attempts % homes.len().max(1)) else { return };
        self.attempts += 1;
        let dialled = match self.place(home) {
            Ok(entry) => Line::dial(&mut self.poller, &entry, self.front),
            Err(error) => Err(error),
        };
        match dialled {
            Ok(line) => {
                self.attempts = 0;
                let mut desk = self.hub.desk();
                desk.report.user.clone_from(&line.entry.settings.login.user);
                desk.report.server = line
                    .entry
                    .settings
                    .servers
                    .first()
                    .map_or_else(String::new, ToString::to_string);
                (desk.report.process_id, desk.report.error) = (line.process_id, None);
                drop(desk);
                let (database, user) = (&self.hub.database, &line.entry.settings.login.user);
                tracing::info!(database, user, "listening for clients");
                self.line = Some(line);
            }
            Err(error) => {
                let (database, user, error) =
                    (&self.hub.database, &home.settings.login.user, error.to_string());
                tracing::warn!(database, user, error, "cannot listen for clients");
                self.hub.desk().report.error = Some(error.clone());
                self.back_off(home.settings.timeouts.server_login_retry);
                // Each of those who listen is tried once before anybody is turned away.
                if self.attempts.is_multiple_of(homes.len().max(1)) {
                    let outcomes = self.board.refuse_waiting(&error);
                    self.deliver(outcomes);
                } else {
                    self.retry_at = Instant::now();
                }
            }
        }
    }

    /// Waits for longer with each failure.
    fn back_off(&mut self, longest: Duration) {
        self.retry_at = Instant::now() + self.pause;
        self.pause = (self.pause * 2).min(longest.max(RETRY_MIN));
    }

    /// The pool by whose login it is made: of several servers, the primary's.
    ///
    /// # Errors
    ///
    /// There is none, or no single one.
    fn place(&self, home: &Arc<PoolEntry>) -> Result<Arc<PoolEntry>, LineError> {
        let cluster = match &home.spec.clusters[..] {
            [] => return Ok(Arc::clone(home)),
            [cluster] => cluster,
            _ => return Err(LineError::Shards),
        };
        let primary = cluster.members.iter().find(|member| member.state.may_write());
        let primary = primary.ok_or(LineError::NoPrimary)?;
        self.front.directory.by_id(primary.pool).ok_or(LineError::NoPrimary)
    }

    /// Has the server be told what to listen to, if it waits for nothing else.
    fn ask(&mut self) {
        let Some(line) = self.line.as_mut().filter(|line| !line.is_busy()) else { return };
        let sent = if let Some(sql) = self.board.next_query() {
            line.query(&sql)
        } else if let Some(sql) = self.departure.as_mut().and_then(Departure::next_marker) {
            line.query(&sql)
        } else if line.quiet_since.elapsed() >= HEARTBEAT {
            line.query(b"")
        } else {
            return;
        };
        if let Err(error) = sent {
            self.lose(&error.to_string());
        }
    }

    fn rest(&mut self) {
        let now = Instant::now();
        let mut until = now + LOOK_EVERY;
        if self.line.is_none() && !self.board.is_empty() && self.retry_at > now {
            until = until.min(self.retry_at);
        }
        if self.line.as_ref().is_some_and(|line| line.has_more) {
            until = now;
        }
        if self.poller.wait(Some(until), &mut Vec::new()).is_err() {
            thread::sleep(Duration::from_millis(1)); // Then there is no hurry.
        }
    }

    /// Takes what the connection brings.
    fn hear(&mut self) {
        if self.hub.in_flight.load(Ordering::Relaxed) >= IN_FLIGHT_MAX {
            thread::sleep(Duration::from_millis(1)); // Workers have to catch up.
            return;
        }
        let Some(line) = &mut self.line else { return };
        let heard = line.hear();
        let notifications = std::mem::take(&mut line.notifications);
        self.pass_on(notifications);
        match heard {
            Ok(None) => {
                let since = self.line.as_ref().and_then(|line| line.asked);
                if since.is_some_and(|asked| asked.elapsed() >= ANSWER_IN) {
                    self.lose("it does not answer");
                }
            }
            Ok(Some(result)) => {
                let why = result.as_ref().err().cloned();
                let outcomes = self.board.answered(result);
                self.deliver(outcomes);
                if self.board.take_stuck() {
                    self.lose(&why.unwrap_or_default());
                    self.back_off(RETRY_MAX);
                } else {
                    self.pause = RETRY_MIN;
                }
            }
            Err(error) => self.lose(&error.to_string()),
        }
    }

    fn pass_on(&mut self, notifications: Vec<Notification>) {
        if notifications.is_empty() {
            return;
        }
        self.hub.desk().report.received += notifications.len() as u64;
        let mut flights: HashMap<WorkerId, Flight> = HashMap::new();
        for mut notification in notifications {
            if let Some(departure) = &mut self.departure {
                if let Some(channels) = departure.marked(&notification) {
                    // What came before the marker has to be there before it.
                    self.send_flights(&mut flights);
                    let channels: Arc<[_]> = channels.into();
                    self.tell_workers(|database| {
                        WorkerMessage::ChannelsMarked(database, Arc::clone(&channels))
                    });
                    continue;
                }
                notification.position = departure.count(&notification.channel);
            }
            let is_marker = self.inheritance.as_mut().is_some_and(|it| it.is_marker(&notification));
            if is_marker {
                continue;
            }
            let notification = Arc::new(notification);
            let have_it = match &mut self.inheritance {
                Some(inheritance) => inheritance.receive(&notification),
                None => Vec::new(),
            };
            let new_flight = || Flight::new(self.hub, &self.database);
            let lists = self.board.ears(&notification.channel);
            for (worker, clients) in lists {
                let mut clients = Arc::clone(clients);
                if !have_it.is_empty() {
                    let is_new = |client: &&ClientId| !have_it.contains(&(*worker, **client));
                    clients = clients.iter().filter(is_new).copied().collect();
                }
                let flight = flights.entry(*worker).or_insert_with(new_flight);
                flight.load(Arc::clone(&notification), clients);
            }
            // Where nobody listens to it, its number is to be known all the same.
            if notification.position > 0 {
                for worker in (0_u8..).map(WorkerId).take(self.mailboxes.len()) {
                    if lists.iter().all(|(listening, _)| *listening != worker) {
                        let flight = flights.entry(worker).or_insert_with(new_flight);
                        flight.load(Arc::clone(&notification), Arc::default());
                    }
                }
            }
        }
        self.send_flights(&mut flights);
    }

    fn send_flights(&self, flights: &mut HashMap<WorkerId, Flight>) {
        for (worker, flight) in flights.drain() {
            self.send(worker, WorkerMessage::Notified(flight));
        }
    }

    fn lose(&mut self, why: &str) {
        if self.line.take().is_none() {
            return;
        }
        self.board.lost();
        self.forget_marks();
        if let Some(inheritance) = &mut self.inheritance {
            inheritance.lost();
        }
        self.retry_at = Instant::now();
        let database = &self.hub.database;
        tracing::warn!(database, why, "the connection that listens for clients was lost");
        let mut desk = self.hub.desk();
        desk.report.lost += 1;
        (desk.report.process_id, desk.report.error) = (None, Some(why.to_owned()));
    }

    /// Tells what it is at.
    fn tell(&self) {
        let mut desk = self.hub.desk();
        (desk.report.channels, desk.report.clients) = self.board.counts();
    }
}
