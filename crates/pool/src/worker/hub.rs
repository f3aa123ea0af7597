//! [`ListenMultiplexer`]: the dedicated connection of a database that listens for its clients.
//!
//! A thread of its own, for as long as any client listens: the data path writes a request into a list and
//! wakes it, and gets letters back. What the connection brings is handed to workers by the channel, each
//! notification once with the clients there that it is for.
//!
//! The connection logs in as one of the users whose clients listen, at the primary if there are several
//! servers: a standby takes no LISTEN. When it is lost, or is to go to another place, it is made again with
//! growing pauses, listens to everything again, and then whoever listens is told that something may be
//! missing: by then, what a client reads anew is followed by every later notification.

mod board;
mod handover;
mod line;
mod run;

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
        mpsc::Sender,
    },
    thread,
};

use howdah_net::{Poller, Waker};

pub(super) use self::handover::Positions;
use self::{board::ListeningClient, run::Run};
use super::{
    front::Front,
    mail::{Mailbox, WorkerMessage},
    takeover::Outgoing,
};
use crate::{Channel, ClientId, PoolId};

/// All hubs, by the names that clients have for databases.
#[derive(Debug, Default)]
pub(super) struct Hubs {
    by_database: Mutex<HashMap<String, Arc<ListenMultiplexer>>>,
    in_flight: Arc<AtomicUsize>,
    /// Where to send what another process needs that takes over, while one does.
    exit: Mutex<Option<Sender<Outgoing>>>,
}

/// The hub of a database.
#[derive(Debug)]
struct ListenMultiplexer {
    database: String,
    desk: Mutex<Desk>,
    in_flight: Arc<AtomicUsize>,
}

#[derive(Debug, Default)]
struct Desk {
    requests: Vec<Request>,
    /// Of the thread, if there is one.
    waker: Option<Waker>,
    report: HubReport,
}

/// What a client wants of the hub.
#[derive(Debug)]
pub(super) enum Request {
    /// To hear of channels. `again` if it did before, elsewhere: with the numbers of the last notifications
    /// that it was given there.
    Listen { ear: ListeningClient, home: PoolId, channels: Vec<Channel>, again: Option<Positions> },
    /// Not to hear of some any more; or of any.
    Unlisten { ear: ListeningClient, channels: Option<Vec<Channel>> },
    /// Another process takes over: have it listen to the same.
    Depart(Sender<Outgoing>),
    /// It listens to the channels of this round.
    Confirmed(u32),
    /// The other process is gone.
    Stay,
    /// Listen to these channels, for clients of these pools that another process hands over.
    Hold { homes: Vec<PoolId>, round: u32, marker: Channel, channels: Vec<Channel> },
    /// No more of them will be handed over.
    Release,
}

/// What a hub is at.
#[derive(Clone, Debug, Default)]
pub struct HubReport {
    /// The database, by the name that clients use.
    pub database: String,
    /// The user as whom the connection is logged in; of the last one if there is none now.
    pub user: String,
    /// Where it leads, likewise.
    pub server: String,
    /// The process there; `None` without a connection.
    pub process_id: Option<i32>,
    /// Channels that it listens to.
    pub channels: usize,
    /// Clients that listen.
    pub clients: usize,
    /// Notifications that came.
    pub received: u64,
    /// How often a connection was lost.
    pub lost: u64,
    /// Why there is no connection.
    pub error: Option<String>,
}

/// A notification, as the server sent it.
#[derive(Debug)]
pub(super) struct Notification {
    pub(super) channel: Channel,
    pub(super) message: Box<[u8]>,
    /// Its number among those of the channel, while another process takes over; else 0.
    pub(super) position: u64,
}

/// Notifications on their way to a worker, with the clients there that each is for.
#[derive(Debug)]
pub(super) struct Flight {
    /// The database, by the name that clients use.
    pub(super) database: Arc<str>,
    pub(super) notifications: Vec<(Arc<Notification>, Arc<[ClientId]>)>,
    in_flight: Arc<AtomicUsize>,
}

impl Flight {
    fn new(hub: &ListenMultiplexer, database: &Arc<str>) -> Self {
        let in_flight = Arc::clone(&hub.in_flight);
        Self { database: Arc::clone(database), notifications: Vec::new(), in_flight }
    }

    fn load(&mut self, notification: Arc<Notification>, clients: Arc<[ClientId]>) {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        self.notifications.push((notification, clients));
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.in_flight.fetch_sub(self.notifications.len(), Ordering::Relaxed);
    }
}

impl Hubs {
    /// Takes a client's request to the hub of its database, which begins if it is not there.
    pub(super) fn ask(
        &self,
        database: &str,
        request: Request,
        front: &Arc<Front>,
        mailboxes: &Arc<[Arc<Mailbox>]>,
    ) {
        let mut hubs = self.by_database.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(hub) = hubs.get(database) {
            return hub.take(request, front, mailboxes);
        }
        if !request.begins_a_hub() {
            return; // It never heard of the client.
        }
        let in_flight = Arc::clone(&self.in_flight);
        let hub =
            ListenMultiplexer { database: database.to_owned(), desk: Mutex::default(), in_flight };
        let hub = Arc::clone(hubs.entry(database.to_owned()).or_insert(Arc::new(hub)));
        drop(hubs);
        hub.take(request, front, mailboxes);
    }

    /// Another process takes over: have it listen to what is listened to here, before clients go there.
    pub(super) fn depart(&self, exit: &Sender<Outgoing>) {
        *self.exit.lock().unwrap_or_else(PoisonError::into_inner) = Some(exit.clone());
        self.tell_running(|| Request::Depart(exit.clone()));
    }

    /// That process listens to the channels of a round.
    pub(super) fn confirmed(&self, database: &str, round: u32) {
        let hubs = self.by_database.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(hub) = hubs.get(database) {
            hub.tell_running(Request::Confirmed(round));
        }
    }

    /// The takeover is over, one way or the other.
    pub(super) fn stay(&self) {
        *self.exit.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.tell_running(|| Request::Stay);
    }

    /// No more clients come from another process.
    pub(super) fn release(&self) {
        self.tell_running(|| Request::Release);
    }

    fn tell_running(&self, request: impl Fn() -> Request) {
        let hubs = self.by_database.lock().unwrap_or_else(PoisonError::into_inner);
        hubs.values().for_each(|hub| hub.tell_running(request()));
    }

    /// Something has changed by which connections may have to go or to come.
    pub(super) fn look(&self) {
        let hubs = self.by_database.lock().unwrap_or_else(PoisonError::into_inner);
        hubs.values().filter_map(|hub| hub.desk().waker.clone()).for_each(|waker| waker.wake());
    }

    /// What each is at, in the order of names.
    pub(super) fn reports(&self) -> Vec<HubReport> {
        let hubs = self.by_database.lock().unwrap_or_else(PoisonError::into_inner);
        let mut reports: Vec<_> = hubs
            .values()
            .map(|hub| HubReport { database: hub.database.clone(), ..hub.desk().report.clone() })
            .collect();
        reports.sort_by(|a, b| a.database.cmp(&b.database));
        reports
    }
}

impl Request {
    /// Whether it needs a connection that is not there yet.
    fn begins_a_hub(&self) -> bool {
        matches!(self, Self::Listen { .. } | Self::Hold { .. })
    }
}

impl ListenMultiplexer {
    /// A request for the thread, if there is one.
    fn tell_running(&self, request: Request) {
        let mut desk = self.desk();
        if let Some(waker) = &desk.waker {
            waker.wake();
            desk.requests.push(request);
        }
    }

    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(
        self: &Arc<Self>,
        request: Request,
        front: &Arc<Front>,
        mailboxes: &Arc<[Arc<Mailbox>]>,
    ) {
        let mut desk = self.desk();
        if let Some(waker) = &desk.waker {
            waker.wake();
            return desk.requests.push(request);
        }
        if !request.begins_a_hub() {
            return; // Nobody is heard for.
        }
        let exit = front.hubs.exit.lock().unwrap_or_else(PoisonError::into_inner).clone();
        desk.requests.extend(exit.map(Request::Depart));
        let begun = Poller::new().and_then(|poller| {
            desk.waker = Some(poller.waker()?);
            let (hub, front, mailboxes) =
                (Arc::clone(self), Arc::clone(front), Arc::clone(mailboxes));
            let run = move || Run::new(&hub, &front, &mailboxes, poller).run();
            thread::Builder::new().name("listen".to_owned()).spawn(run)
        });
        match begun {
            Ok(_) => desk.requests.push(request),
            Err(error) => {
                desk.waker = None;
                if let Request::Listen { ear, again: None, .. } = request {
                    let why = Err(error.to_string());
                    mailboxes[usize::from(ear.0.0)]
                        .send(WorkerMessage::Heard { client: ear.1, result: why });
                }
            }
        }
    }
}
