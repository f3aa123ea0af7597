//! The thread that writes the file, so that a disk that is slow or full never holds up a look.

use std::{
    io::ErrorKind,
    path::Path,
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{Receiver, SyncSender, TrySendError, sync_channel},
    },
    thread::{self, JoinHandle},
};

use super::ring::{RecordError, Ring};

/// Writes records in a thread of its own. Dropping it waits until what was given is written.
#[derive(Debug)]
pub(super) struct RecordingWriter {
    orders: Option<SyncSender<Order>>,
    thread: Option<JoinHandle<()>>,
    standing: Arc<Mutex<Standing>>,
    body_max: usize,
    max_bytes: u64,
}

/// How it stands with the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Standing {
    /// Records that were not written.
    pub(super) lost: u64,
    /// Why the last one was not written. `None`: it was.
    pub(super) trouble: Option<String>,
    /// Records that an episode had no room for.
    pub(super) left_out: u64,
}

/// Bytes of a record. Those of an episode are wanted twice.
pub(super) type Body = Arc<[u8]>;

enum Order {
    Append(Body),
    Keep(Vec<Body>),
}

/// Records that wait to be written: some minutes of them. More are lost, and counted.
const WAITING_MAX: usize = 1024;

impl RecordingWriter {
    /// Opens the file; gives also the number that the first record should have.
    pub(super) fn open(
        path: &Path,
        max_bytes: Option<u64>,
        default_bytes: u64,
    ) -> Result<(Self, u64), RecordError> {
        let ring = Ring::open(path, max_bytes, default_bytes)?;
        let (next_number, body_max, max_bytes) =
            (ring.next_number(), ring.body_max(), ring.max_bytes());
        let (orders, received) = sync_channel(WAITING_MAX);
        let standing = Arc::default();
        let shared = Arc::clone(&standing);
        let started = thread::Builder::new()
            .name("recorder-file".to_owned())
            .spawn(move || write(ring, &received, &shared));
        let thread = started.map_err(|source| RecordError::Io { path: path.to_owned(), source })?;
        let pen =
            Self { orders: Some(orders), thread: Some(thread), standing, body_max, max_bytes };
        Ok((pen, next_number))
    }

    /// The longest record.
    pub(super) fn body_max(&self) -> usize {
        self.body_max
    }

    /// How large the file may become.
    pub(super) fn max_bytes(&self) -> u64 {
        self.max_bytes
    }

    /// Has a record written behind the others.
    pub(super) fn append(&self, body: Body) {
        self.order(Order::Append(body));
    }

    /// Has an episode's records written where the ring does not come by.
    pub(super) fn keep(&self, bodies: Vec<Body>) {
        self.order(Order::Keep(bodies));
    }

    pub(super) fn standing(&self) -> Standing {
        self.standing.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Ends when what was given is written.
    pub(super) fn closed(mut self) -> Standing {
        self.close();
        self.standing()
    }

    fn close(&mut self) {
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            // Its only results are in the file.
            let _ = thread.join();
        }
    }

    fn order(&self, order: Order) {
        let Some(orders) = &self.orders else { return };
        if let Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) = orders.try_send(order) {
            let mut standing = self.standing.lock().unwrap_or_else(PoisonError::into_inner);
            standing.lost += 1;
            standing.trouble = Some("the disk is too slow".to_owned());
        }
    }
}

impl Drop for RecordingWriter {
    fn drop(&mut self) {
        self.close();
    }
}

fn write(mut ring: Ring, orders: &Receiver<Order>, standing: &Mutex<Standing>) {
    for order in orders {
        let written = match &order {
            Order::Append(body) => ring.append(body).map(|()| 0),
            Order::Keep(bodies) => ring.keep(bodies),
        };
        let mut standing = standing.lock().unwrap_or_else(PoisonError::into_inner);
        match written {
            Ok(left_out) => {
                standing.left_out += left_out as u64;
                standing.trouble = None;
            }
            Err(error) => {
                standing.lost += match &order {
                    Order::Append(_) => 1,
                    Order::Keep(bodies) => bodies.len() as u64,
                };
                standing.trouble = Some(match error.kind() {
                    ErrorKind::StorageFull => "there is no room on the disk".to_owned(),
                    _ => error.to_string(),
                });
            }
        }
    }
    // The machine may go down; a process that is killed loses nothing without it.
    if let Err(error) = ring.sync() {
        standing.lock().unwrap_or_else(PoisonError::into_inner).trouble = Some(error.to_string());
    }
}
