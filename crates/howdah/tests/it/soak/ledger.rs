//! [`Ledger`]: clients of the pooler that write numbered rows, and know which were acknowledged.

use std::{
    collections::{BTreeMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc::{self, RecvTimeoutError},
    },
    thread::JoinHandle,
    time::Duration,
};

use howdah_connect::Client;
use howdah_lab::{Cluster, wait_until};

use super::{TIMEOUT, connect, value};

pub(super) const TABLE: &str = "create table ledger (client int, number int)";

const CLIENTS: usize = 4;
/// Pause of a client between two rows.
const PAUSE: Duration = Duration::from_millis(10);

/// Clients that write until they are stopped.
pub(super) struct Ledger {
    clients: Vec<(JoinHandle<ClientLedger>, mpsc::Sender<()>)>,
    acknowledged: Arc<[AtomicUsize; CLIENTS]>,
}

/// A client's record of its rows.
#[derive(Default)]
struct ClientLedger {
    /// Numbers of the rows that were acknowledged.
    acknowledged: Vec<u32>,
    /// How often writing failed, by SQLSTATE, or because the connection was lost.
    failed: BTreeMap<String, u32>,
}

/// The records of all clients.
pub(super) struct Acknowledged(Vec<ClientLedger>);

impl Ledger {
    /// Creates the table, and starts the clients of the pooler at `address`.
    pub(super) fn start(address: &str) -> Self {
        connect(&format!("{address} dbname=app user=postgres")).unwrap().query(TABLE).unwrap();
        let acknowledged: Arc<[AtomicUsize; CLIENTS]> = Arc::default();
        let clients = (0..CLIENTS).map(|client| {
            let (stop, stopped) = mpsc::channel();
            let (address, counts) = (address.to_owned(), Arc::clone(&acknowledged));
            let work = move || write(client, &address, &stopped, &counts[client]);
            (std::thread::spawn(work), stop)
        });
        Self { clients: clients.collect(), acknowledged }
    }

    /// Waits until each client has written 20 more rows.
    pub(super) fn wait_for_progress(&self, what: &str) {
        let counts = || self.acknowledged.each_ref().map(|count| count.load(Ordering::Relaxed));
        let before = counts();
        wait_until(what, TIMEOUT, || {
            counts().iter().zip(before).all(|(count, before)| *count >= before + 20)
        });
    }

    pub(super) fn finish(self) -> Acknowledged {
        let stop = |(client, stop): (JoinHandle<ClientLedger>, mpsc::Sender<()>)| {
            drop(stop);
            client.join().unwrap()
        };
        Acknowledged(self.clients.into_iter().map(stop).collect())
    }
}

impl Acknowledged {
    pub(super) fn len(&self) -> usize {
        self.0.iter().map(|client| client.acknowledged.len()).sum()
    }

    /// Returns how often writing failed, by SQLSTATE, or because the connection was lost.
    pub(super) fn failed(&self) -> BTreeMap<&str, u32> {
        let mut sums = BTreeMap::new();
        for (reason, count) in self.0.iter().flat_map(|client| &client.failed) {
            *sums.entry(reason.as_str()).or_default() += count;
        }
        sums
    }

    /// Checks that each acknowledged row is stored, and none twice.
    pub(super) fn assert_stored(&self, server: &Cluster) {
        for (client, ledger) in self.0.iter().enumerate() {
            let sql = "select string_agg(number::text, ',') from ledger where client =";
            let stored = value(server, &format!("{sql} {client}"));
            let mut found = HashSet::new();
            for number in stored.split(',').map(|number| number.parse::<u32>().unwrap()) {
                assert!(found.insert(number), "row {client}/{number} is stored twice");
            }
            let lost: Vec<_> =
                ledger.acknowledged.iter().filter(|it| !found.contains(it)).collect();
            assert!(lost.is_empty(), "rows of client {client} are lost: {lost:?}");
        }
    }
}

/// Writes rows until `stopped` is closed. A row without an answer may be stored or not, so it is
/// not written again.
fn write(
    client: usize,
    address: &str,
    stopped: &mpsc::Receiver<()>,
    count: &AtomicUsize,
) -> ClientLedger {
    let words = format!("{address} dbname=app user=postgres");
    let (mut session, mut ledger, mut number) = (None::<Client>, ClientLedger::default(), 0_u32);
    while stopped.recv_timeout(PAUSE) == Err(RecvTimeoutError::Timeout) {
        let Some(open) = &mut session else {
            // The pooler may be between two processes, or refuse clients for a moment.
            session = connect(&words).ok();
            continue;
        };
        number += 1;
        let (client, text) = (client.to_string(), number.to_string());
        let values = [Some(client.as_str()), Some(text.as_str())];
        match open.query_with("insert into ledger values ($1::int, $2::int)", &values) {
            Ok(_) => {
                ledger.acknowledged.push(number);
                count.fetch_add(1, Ordering::Relaxed);
            }
            Err(error) => {
                let reason = error.sqlstate().unwrap_or("connection lost").to_owned();
                *ledger.failed.entry(reason).or_default() += 1;
                if error.is_fatal() {
                    session = None;
                }
            }
        }
    }
    ledger
}
