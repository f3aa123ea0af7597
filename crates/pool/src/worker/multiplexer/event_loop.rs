//! [`MultiplexerThread`]: the event loop of a LISTEN multiplexer.

use std::{
    collections::HashMap,
    sync::{Arc, atomic::Ordering},
    thread,
    time::{Duration, Instant},
};

use howdah_net::Poller;
use howdah_pool_core::{ClientId, WorkerId};

use super::{
    ListenMultiplexer, ListenRequest, NotificationBatch, ServerNotification,
    channel_table::{ChannelTable, ListenOutcome},
    handover::{IncomingHandover, OutgoingHandover, marker_channel},
    notify_connection::{NotifyConnection, NotifyConnectionError},
};
use crate::worker::{
    directory::PoolEntry,
    messages::{Mailbox, WorkerMessage},
    shared_state::SharedState,
    takeover,
};

/// The delay after the first failed login; each further failure doubles it.
const RETRY_MIN: Duration = Duration::from_millis(100);

/// The maximum delay before reconnecting after a server refused a channel.
const RETRY_MAX: Duration = Duration::from_secs(15);

/// Interval at which to check whether the connection still leads to the right server.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// Idle time after which an empty query tests the connection.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(10);

/// Time without a reply after which the connection counts as lost.
const REPLY_TIMEOUT: Duration = Duration::from_secs(15);

/// Time without listening clients after which the thread and its connection end.
const IDLE_TIMEOUT: Duration = Duration::from_secs(5);

/// Number of notifications of all databases queued for workers, counted once per worker, at which
/// the threads stop reading. The servers then queue further notifications.
const IN_FLIGHT_MAX: usize = 100_000;

/// The state of a multiplexer's thread.
pub(super) struct MultiplexerThread<'a> {
    multiplexer: &'a ListenMultiplexer,
    shared: &'a SharedState,
    mailboxes: &'a [Arc<Mailbox>],
    poller: Poller,
    table: ChannelTable,
    connection: Option<NotifyConnection>,
    /// Time at which the next login may be tried.
    retry_at: Instant,
    retry_delay: Duration,
    /// Number of failed logins since the last successful one.
    attempts: usize,
    empty_since: Option<Instant>,
    database: Arc<str>,
    /// The state of the takeover of this process by a successor, if one is in progress.
    outgoing_handover: Option<OutgoingHandover>,
    /// The state of the takeover of a predecessor by this process, if one is in progress.
    incoming_handover: Option<IncomingHandover>,
}

impl<'a> MultiplexerThread<'a> {
    pub(super) fn new(
        multiplexer: &'a ListenMultiplexer,
        shared: &'a SharedState,
        mailboxes: &'a [Arc<Mailbox>],
        poller: Poller,
    ) -> Self {
        Self {
            multiplexer,
            shared,
            mailboxes,
            poller,
            table: ChannelTable::default(),
            connection: None,
            retry_at: Instant::now(),
            retry_delay: RETRY_MIN,
            attempts: 0,
            empty_since: None,
            database: multiplexer.database.as_str().into(),
            outgoing_handover: None,
            incoming_handover: None,
        }
    }

    pub(super) fn run(mut self) {
        while !self.shared.is_stopped() {
            for request in std::mem::take(&mut self.multiplexer.inbox().requests) {
                self.handle_request(request);
            }
            if self.stop_if_idle() {
                return;
            }
            if self.connection.as_ref().is_some_and(|connection| !self.is_current(connection)) {
                self.disconnect("the connection must be opened again");
            }
            self.connect();
            self.exchange_channels();
            self.send_next_query();
            self.update_report();
            self.wait();
            self.receive();
        }
    }

    /// If no client has listened for [`IDLE_TIMEOUT`], marks the thread as ended, so that the next
    /// request starts another. Returns whether the thread must end.
    fn stop_if_idle(&mut self) -> bool {
        if !self.table.is_empty() {
            self.empty_since = None;
            return false;
        }
        let since = *self.empty_since.get_or_insert_with(Instant::now);
        if since.elapsed() < IDLE_TIMEOUT {
            return false;
        }
        let mut inbox = self.multiplexer.inbox();
        if !inbox.requests.is_empty() {
            return false;
        }
        if self.outgoing_handover.is_some() {
            self.invalidate_positions();
        }
        inbox.waker = None;
        (inbox.report.process_id, inbox.report.channels, inbox.report.clients) = (None, 0, 0);
        true
    }

    fn handle_request(&mut self, request: ListenRequest) {
        match request {
            ListenRequest::Listen { client, pool, channels, resume_from: None } => {
                let outcome = self.table.listen(client, pool, channels, false);
                self.send_outcomes(outcome);
            }
            ListenRequest::Listen { client, pool, channels, resume_from: Some(positions) } => {
                let resumed = self.incoming_handover.as_mut().and_then(|incoming| {
                    incoming.resume(client, &channels, &positions, &self.table)
                });
                match resumed {
                    Some(notifications) => {
                        self.table.resume(client, pool, channels);
                        self.send_retained(client, notifications);
                    }
                    None => {
                        let outcome = self.table.listen(client, pool, channels, true);
                        self.send_outcomes(outcome);
                    }
                }
                let (worker, client) = client;
                self.send(worker, WorkerMessage::ListenResumed(client));
            }
            ListenRequest::Unlisten { client, channels } => self.table.unlisten(client, channels),
            ListenRequest::StartHandover(outgoing) => match self.shared.random_bytes() {
                Some(random) => {
                    let marker = marker_channel(random);
                    self.outgoing_handover =
                        Some(OutgoingHandover::new(outgoing, marker, &mut self.table));
                }
                None => drop(outgoing),
            },
            ListenRequest::ConfirmRound(round) => {
                if let Some(outgoing) = &mut self.outgoing_handover {
                    outgoing.confirm_round(round);
                }
            }
            ListenRequest::CancelHandover => {
                if self.outgoing_handover.take().is_some() && self.incoming_handover.is_none() {
                    self.table.unpin_all();
                }
            }
            ListenRequest::PinChannels { pools, round, marker, channels } => {
                let table = &mut self.table;
                let same = self.incoming_handover.take_if(|it| it.is_marked_by(&marker));
                let mut incoming = same.unwrap_or_else(|| IncomingHandover::new(marker, table));
                incoming.pin_round(round, pools, channels, table);
                self.incoming_handover = Some(incoming);
            }
            ListenRequest::FinishTakeover => {
                if let Some(incoming) = &mut self.incoming_handover {
                    incoming.schedule_release();
                }
            }
        }
    }

    /// During a takeover, offers channels to the successor and confirms those of the predecessor.
    fn exchange_channels(&mut self) {
        if let Some(outgoing) = &mut self.outgoing_handover {
            outgoing.offer(&self.multiplexer.database, &mut self.table);
        }
        let Some(incoming) = &mut self.incoming_handover else { return };
        while let Some(round) = incoming.next_confirmed(&self.table) {
            takeover::confirm_listening(&self.multiplexer.database, round, self.shared);
        }
        if incoming.is_released() {
            self.incoming_handover = None;
            if self.outgoing_handover.is_none() {
                self.table.unpin_all();
            }
        }
    }

    /// Sends a client the notifications that it did not receive from the old process.
    fn send_retained(
        &self,
        (worker, client): (WorkerId, ClientId),
        retained: Vec<Arc<ServerNotification>>,
    ) {
        if retained.is_empty() {
            return;
        }
        let mut batch = NotificationBatch::new(self.multiplexer, &self.database);
        let clients: Arc<[ClientId]> = [client].into();
        for notification in retained {
            batch.push(notification, Arc::clone(&clients));
        }
        self.send(worker, WorkerMessage::Notifications(batch));
    }

    /// Notifies the workers that the notification positions are no longer valid.
    fn invalidate_positions(&mut self) {
        if let Some(outgoing) = &mut self.outgoing_handover {
            outgoing.connection_lost();
            self.broadcast(WorkerMessage::PositionsInvalid);
        }
    }

    fn broadcast(&self, message: impl Fn(Arc<str>) -> WorkerMessage) {
        self.mailboxes.iter().for_each(|mailbox| mailbox.send(message(Arc::clone(&self.database))));
    }

    fn send_outcomes(&self, outcomes: impl IntoIterator<Item = ListenOutcome>) {
        let mut missed: HashMap<WorkerId, Vec<ClientId>> = HashMap::new();
        for outcome in outcomes {
            match outcome {
                ListenOutcome::Reply((worker, client), result) => {
                    self.send(worker, WorkerMessage::ListenResult { client, result });
                }
                ListenOutcome::Missed((worker, client)) => {
                    missed.entry(worker).or_default().push(client);
                }
            }
        }
        for (worker, clients) in missed {
            self.send(worker, WorkerMessage::NotificationsMissed(clients));
        }
    }

    fn send(&self, worker: WorkerId, message: WorkerMessage) {
        if let Some(mailbox) = self.mailboxes.get(usize::from(worker.0)) {
            mailbox.send(message);
        }
    }

    /// Whether the connection may be kept: its pool still exists, is not paused and has not been
    /// told to reconnect, and in a cluster the server is still the primary.
    fn is_current(&self, connection: &NotifyConnection) -> bool {
        let entry = self.shared.directory.by_id(connection.entry.id);
        entry.is_some_and(|entry| {
            entry.key == connection.entry.key
                && entry.spec.epoch() == connection.epoch
                && !entry.spec.is_paused()
                && entry.spec.member.as_ref().is_none_or(|member| member.state.accepts_writes())
        })
    }

    /// Opens the connection if it is closed, clients listen, and the retry delay has passed.
    fn connect(&mut self) {
        if self.connection.is_some() || self.table.is_empty() || Instant::now() < self.retry_at {
            return;
        }
        let pools = self.table.pools();
        let pools: Vec<_> = pools
            .iter()
            .filter_map(|pool| self.shared.directory.by_id(*pool))
            .filter(|pool| !pool.spec.is_paused())
            .collect();
        let Some(pool) = pools.get(self.attempts % pools.len().max(1)) else { return };
        self.attempts += 1;
        let dialled = match self.login_pool(pool) {
            Ok(entry) => NotifyConnection::connect(&mut self.poller, &entry, self.shared),
            Err(error) => Err(error),
        };
        match dialled {
            Ok(connection) => {
                self.attempts = 0;
                let mut inbox = self.multiplexer.inbox();
                inbox.report.user.clone_from(&connection.entry.settings.login.user);
                inbox.report.server = connection
                    .entry
                    .settings
                    .servers
                    .first()
                    .map_or_else(String::new, ToString::to_string);
                (inbox.report.process_id, inbox.report.error) = (connection.process_id, None);
                drop(inbox);
                let (database, user) =
                    (&self.multiplexer.database, &connection.entry.settings.login.user);
                tracing::info!(database, user, "listening for clients");
                self.connection = Some(connection);
            }
            Err(error) => {
                let (database, user, error) =
                    (&self.multiplexer.database, &pool.settings.login.user, error.to_string());
                tracing::warn!(database, user, error, "cannot listen for clients");
                self.multiplexer.inbox().report.error = Some(error.clone());
                self.back_off(pool.settings.timeouts.server_login_retry);
                // The login of every pool is tried once before clients get the error.
                if self.attempts.is_multiple_of(pools.len().max(1)) {
                    let outcomes = self.table.refuse_waiting(&error);
                    self.send_outcomes(outcomes);
                } else {
                    self.retry_at = Instant::now();
                }
            }
        }
    }

    /// Schedules the next login, with a longer delay after each failure.
    fn back_off(&mut self, longest: Duration) {
        self.retry_at = Instant::now() + self.retry_delay;
        self.retry_delay = (self.retry_delay * 2).min(longest.max(RETRY_MIN));
    }

    /// Returns the pool whose login to use: in a cluster, the primary's pool.
    ///
    /// # Errors
    ///
    /// No primary is known, or the database is sharded.
    fn login_pool(&self, pool: &Arc<PoolEntry>) -> Result<Arc<PoolEntry>, NotifyConnectionError> {
        let cluster = match &pool.spec.clusters[..] {
            [] => return Ok(Arc::clone(pool)),
            [cluster] => cluster,
            _ => return Err(NotifyConnectionError::Shards),
        };
        let primary = cluster.members.iter().find(|member| member.state.accepts_writes());
        let primary = primary.ok_or(NotifyConnectionError::NoPrimary)?;
        self.shared.directory.by_id(primary.pool).ok_or(NotifyConnectionError::NoPrimary)
    }

    /// Sends the next LISTEN, UNLISTEN, marker or heartbeat query unless one is in progress.
    fn send_next_query(&mut self) {
        let Some(connection) = self.connection.as_mut().filter(|connection| !connection.is_busy())
        else {
            return;
        };
        let sent = if let Some(sql) = self.table.next_query() {
            connection.query(&sql)
        } else if let Some(sql) =
            self.outgoing_handover.as_mut().and_then(OutgoingHandover::next_marker)
        {
            connection.query(&sql)
        } else if connection.idle_since.elapsed() >= HEARTBEAT_INTERVAL {
            connection.query(b"")
        } else {
            return;
        };
        if let Err(error) = sent {
            self.disconnect(&error.to_string());
        }
    }

    fn wait(&mut self) {
        let now = Instant::now();
        let mut until = now + CHECK_INTERVAL;
        if self.connection.is_none() && !self.table.is_empty() && self.retry_at > now {
            until = until.min(self.retry_at);
        }
        if self.connection.as_ref().is_some_and(|connection| connection.has_more) {
            until = now;
        }
        if self.poller.wait(Some(until), &mut Vec::new()).is_err() {
            thread::sleep(Duration::from_millis(1)); // Do not spin if polling fails.
        }
    }

    /// Reads from the connection, dispatches notifications, and handles the reply to the last
    /// query.
    fn receive(&mut self) {
        if self.multiplexer.in_flight.load(Ordering::Relaxed) >= IN_FLIGHT_MAX {
            thread::sleep(Duration::from_millis(1)); // Let the workers catch up.
            return;
        }
        let Some(connection) = &mut self.connection else { return };
        let received = connection.receive();
        let notifications = std::mem::take(&mut connection.notifications);
        self.dispatch(notifications);
        match received {
            Ok(None) => {
                let since = self.connection.as_ref().and_then(|connection| connection.query_sent);
                if since.is_some_and(|sent| sent.elapsed() >= REPLY_TIMEOUT) {
                    self.disconnect("no reply within 15 seconds");
                }
            }
            Ok(Some(result)) => {
                let why = result.as_ref().err().cloned();
                let outcomes = self.table.handle_reply(result);
                self.send_outcomes(outcomes);
                if self.table.take_must_reconnect() {
                    self.disconnect(&why.unwrap_or_default());
                    self.back_off(RETRY_MAX);
                } else {
                    self.retry_delay = RETRY_MIN;
                }
            }
            Err(error) => self.disconnect(&error.to_string()),
        }
    }

    fn dispatch(&mut self, notifications: Vec<ServerNotification>) {
        if notifications.is_empty() {
            return;
        }
        self.multiplexer.inbox().report.received += notifications.len() as u64;
        let mut batches: HashMap<WorkerId, NotificationBatch> = HashMap::new();
        for mut notification in notifications {
            if let Some(outgoing) = &mut self.outgoing_handover {
                if let Some(channels) = outgoing.take_marker(&notification) {
                    // Workers must first get the notifications that precede the marker.
                    self.send_batches(&mut batches);
                    let channels: Arc<[_]> = channels.into();
                    self.broadcast(|database| {
                        WorkerMessage::PositionsStarted(database, Arc::clone(&channels))
                    });
                    continue;
                }
                notification.position = outgoing.next_position(&notification.channel);
            }
            let is_marker =
                self.incoming_handover.as_mut().is_some_and(|it| it.is_marker(&notification));
            if is_marker {
                continue;
            }
            let notification = Arc::new(notification);
            let already_delivered = match &mut self.incoming_handover {
                Some(incoming) => incoming.receive(&notification),
                None => Vec::new(),
            };
            let new_batch = || NotificationBatch::new(self.multiplexer, &self.database);
            let lists = self.table.listening_clients(&notification.channel);
            for (worker, clients) in lists {
                let mut clients = Arc::clone(clients);
                if !already_delivered.is_empty() {
                    let is_new =
                        |client: &&ClientId| !already_delivered.contains(&(*worker, **client));
                    clients = clients.iter().filter(is_new).copied().collect();
                }
                let batch = batches.entry(*worker).or_insert_with(new_batch);
                batch.push(Arc::clone(&notification), clients);
            }
            // Workers without listening clients still need the position.
            if notification.position > 0 {
                for worker in (0_u8..).map(WorkerId).take(self.mailboxes.len()) {
                    if lists.iter().all(|(listening, _)| *listening != worker) {
                        let batch = batches.entry(worker).or_insert_with(new_batch);
                        batch.push(Arc::clone(&notification), Arc::default());
                    }
                }
            }
        }
        self.send_batches(&mut batches);
    }

    fn send_batches(&self, batches: &mut HashMap<WorkerId, NotificationBatch>) {
        for (worker, batch) in batches.drain() {
            self.send(worker, WorkerMessage::Notifications(batch));
        }
    }

    fn disconnect(&mut self, why: &str) {
        if self.connection.take().is_none() {
            return;
        }
        self.table.connection_lost();
        self.invalidate_positions();
        if let Some(incoming) = &mut self.incoming_handover {
            incoming.lost();
        }
        self.retry_at = Instant::now();
        let database = &self.multiplexer.database;
        tracing::warn!(database, why, "lost the connection that listens for clients");
        let mut inbox = self.multiplexer.inbox();
        inbox.report.lost += 1;
        (inbox.report.process_id, inbox.report.error) = (None, Some(why.to_owned()));
    }

    /// Updates the counts shown on the console.
    fn update_report(&self) {
        let mut inbox = self.multiplexer.inbox();
        (inbox.report.channels, inbox.report.clients) = self.table.counts();
    }
}
