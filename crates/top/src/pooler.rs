//! Finds the clients of a server's sessions by querying the poolers in front of it.
//!
//! Each pooler console has a thread that polls on request. A sampler sends a request just before it
//! reads its server, and waits only briefly: if a pooler does not respond, only the names of its
//! clients are missing.

use std::{
    collections::HashMap,
    io,
    sync::Arc,
    time::{Duration, Instant},
};

use howdah_collect::{BackendActivity, ConsoleConnection, PooledBackend, PoolerClient};
use howdah_connect::ConnectTarget;
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::sampler::{APPLICATION_NAME, with_causes};

/// Maximum time that a sampler waits for its poolers.
const RESPONSE_TIMEOUT: Duration = Duration::from_millis(250);

/// Time until an unreachable console is tried again.
const RETRY_INTERVAL: Duration = Duration::from_secs(2);

/// Clients of all poolers at one time, and the server sessions they use.
#[derive(Clone, Debug, Default)]
pub struct PooledClients {
    /// Clients of all poolers that responded.
    pub clients: Vec<PoolerClient>,
    /// One sentence for each pooler whose clients could not be read in time.
    pub problems: Vec<String>,
    /// Index into `clients` by server connection.
    clients_by_backend: HashMap<PooledBackend, usize>,
}

impl PooledClients {
    /// Creates the list from clients, as if all poolers had responded.
    pub fn new(clients: Vec<PoolerClient>) -> Self {
        let pooled_backend = |(at, client): (usize, &PoolerClient)| {
            client.backend.map(|pooled_backend| (pooled_backend, at))
        };
        let holders = clients.iter().enumerate().filter_map(pooled_backend).collect();
        Self { clients, problems: Vec::new(), clients_by_backend: holders }
    }

    /// Returns the client that a session currently serves.
    pub fn client_for(&self, backend: &BackendActivity) -> Option<&PoolerClient> {
        let pooled_backend = PooledBackend { pid: backend.pid, client_port: backend.client_port? };
        self.clients_by_backend.get(&pooled_backend).and_then(|&at| self.clients.get(at))
    }
}

/// Polls the consoles of several poolers. Clones share the threads.
#[derive(Clone, Debug, Default)]
pub struct Poolers(Vec<Arc<PollerShared>>);

#[derive(Debug)]
struct PollerShared {
    /// The pooler's name, for messages.
    name: String,
    state: Mutex<PollerState>,
    changed: Condvar,
}

#[derive(Debug)]
struct PollerState {
    /// Number of the most recent request.
    requested: u64,
    /// Number of the most recent request that was completed.
    completed: u64,
    result: Result<Arc<[PoolerClient]>, String>,
}

impl Poolers {
    /// Starts polling the consoles of `poolers`, each given with its name.
    ///
    /// # Errors
    ///
    /// A thread could not be started.
    pub fn start(poolers: Vec<(String, ConnectTarget)>) -> io::Result<Self> {
        let start = |(name, target): (String, ConnectTarget)| {
            let state = PollerState {
                requested: 0,
                completed: 0,
                result: Err(format!("pooler {name}: not sampled yet")),
            };
            let shared =
                Arc::new(PollerShared { name, state: Mutex::new(state), changed: Condvar::new() });
            let poller = PoolerPoller {
                target: target.with_application_name(APPLICATION_NAME),
                shared: Arc::clone(&shared),
            };
            std::thread::Builder::new().name("pooler".to_owned()).spawn(|| poller.run())?;
            Ok(shared)
        };
        poolers.into_iter().map(start).collect::<io::Result<_>>().map(Self)
    }

    /// Polls all poolers, waits briefly, and returns their clients; `None` if there are no poolers.
    pub(crate) fn read(&self) -> Option<Arc<PooledClients>> {
        if self.0.is_empty() {
            return None;
        }
        let requests: Vec<u64> = self.0.iter().map(|pooler| pooler.request()).collect();
        let until = Instant::now() + RESPONSE_TIMEOUT;
        let (mut clients, mut problems) = (Vec::new(), Vec::new());
        for (pooler, request) in self.0.iter().zip(requests) {
            match pooler.wait_for(request, until) {
                Ok(result) => clients.extend(result.iter().cloned()),
                Err(problem) => problems.push(problem),
            }
        }
        Some(Arc::new(PooledClients { problems, ..PooledClients::new(clients) }))
    }
}

impl PollerShared {
    fn state(&self) -> MutexGuard<'_, PollerState> {
        // Every change is complete when the lock is released.
        self.state.lock()
    }

    fn request(&self) -> u64 {
        let mut state = self.state();
        state.requested += 1;
        self.changed.notify_all();
        state.requested
    }

    /// Waits for the result of a request. An older result could name clients that have disconnected
    /// since.
    fn wait_for(&self, request: u64, until: Instant) -> Result<Arc<[PoolerClient]>, String> {
        let mut state = self.state();
        while state.completed < request {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return match &state.result {
                    Ok(_) => Err(format!("pooler {}: no response in time", self.name)),
                    Err(problem) => Err(problem.clone()),
                };
            }
            self.changed.wait_for(&mut state, left);
        }
        state.result.clone()
    }
}

/// The thread that polls one console.
struct PoolerPoller {
    target: ConnectTarget,
    shared: Arc<PollerShared>,
}

impl PoolerPoller {
    fn run(self) {
        let mut console: Option<ConsoleConnection> = None;
        while let Some(request) = self.next_request() {
            let result = match &mut console {
                Some(console) => console.clients(),
                none => ConsoleConnection::connect(&self.target)
                    .and_then(|connected| none.insert(connected).clients()),
            };
            let result = result
                .map(|read| read.clients.into())
                .map_err(|error| format!("pooler {}: {}", self.shared.name, with_causes(&error)));
            let is_unreachable = result.is_err();
            let mut state = self.shared.state();
            (state.completed, state.result) = (request, result);
            self.shared.changed.notify_all();
            drop(state);
            if is_unreachable {
                console = None;
                std::thread::sleep(RETRY_INTERVAL);
            }
        }
    }

    /// Waits for a request; `None` once all requesters are gone.
    fn next_request(&self) -> Option<u64> {
        let mut state = self.shared.state();
        loop {
            if state.requested > state.completed {
                return Some(state.requested);
            }
            // The other reference is held by the requesters.
            if Arc::strong_count(&self.shared) == 1 {
                return None;
            }
            self.shared.changed.wait_for(&mut state, RETRY_INTERVAL);
        }
    }
}

#[test]
fn missing_response_names_pooler() {
    let state = PollerState { requested: 0, completed: 0, result: Ok(Arc::default()) };
    let name = "bouncer".to_owned();
    let shared = PollerShared { name, state: Mutex::new(state), changed: Condvar::new() };
    let request = shared.request();
    let problem = shared.wait_for(request, Instant::now()).unwrap_err();
    assert_eq!(problem, "pooler bouncer: no response in time");
}
