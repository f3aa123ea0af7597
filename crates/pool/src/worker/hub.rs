//! [`Hub`]: the dedicated connection of a database that listens for its clients.
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
mod line;
mod run;

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use howdah_net::{Poller, Waker};

use self::{board::Ear, run::Run};
use super::{
    front::Front,
    mail::{Mail, Mailbox},
};
use crate::{Channel, ClientId, PoolId};

/// All hubs, by the names that clients have for databases.
#[derive(Debug, Default)]
pub(super) struct Hubs {
    by_database: Mutex<HashMap<String, Arc<Hub>>>,
    in_flight: Arc<AtomicUsize>,
}

/// The hub of a database.
#[derive(Debug)]
struct Hub {
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
    /// To hear of channels. `again` if it did before, elsewhere.
    Listen { ear: Ear, home: PoolId, channels: Vec<Channel>, again: bool },
    /// Not to hear of some any more; or of any.
    Unlisten { ear: Ear, channels: Option<Vec<Channel>> },
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
}

/// Notifications on their way to a worker, with the clients there that each is for.
#[derive(Debug)]
pub(super) struct Flight {
    pub(super) notifications: Vec<(Arc<Notification>, Arc<[ClientId]>)>,
    in_flight: Arc<AtomicUsize>,
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
        if matches!(request, Request::Unlisten { .. }) {
            return; // It never heard of the client.
        }
        let in_flight = Arc::clone(&self.in_flight);
        let hub = Hub { database: database.to_owned(), desk: Mutex::default(), in_flight };
        let hub = Arc::clone(hubs.entry(database.to_owned()).or_insert(Arc::new(hub)));
        drop(hubs);
        hub.take(request, front, mailboxes);
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

impl Hub {
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
        if matches!(request, Request::Unlisten { .. }) {
            return; // Nobody is heard for.
        }
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
                if let Request::Listen { ear, again: false, .. } = request {
                    let why = Err(error.to_string());
                    mailboxes[usize::from(ear.0.0)]
                        .send(Mail::Heard { client: ear.1, result: why });
                }
            }
        }
    }
}
