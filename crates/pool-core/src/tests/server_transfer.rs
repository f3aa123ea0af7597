//! Tests of workers on several threads that hand servers to one another as fast as possible.

use std::{
    collections::HashSet,
    io::IoSlice,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
        mpsc::{self, Receiver, Sender},
    },
    thread,
};

use howdah_wire::startup::{CancelKey, ProtocolVersion};
use parking_lot::Mutex;

use super::{POOL, message};
use crate::{
    Backlog, CancelSecret, ClientLogin, ConnectionLimit, Core, CoreEvent, CoreIo, PeerId, PoolId,
    PoolSpec, ServerId, ServerLogin, StatementRegistry, Time, Transfer, WorkerId,
};

const WORKERS: u8 = 4;
const SERVERS_MAX: u32 = 3;
const TRANSACTIONS: u32 = 3000;
/// Maximum number of iterations of a worker's loop before the test fails.
const ITERATIONS_MAX: u64 = 20_000_000;

enum ThreadMessage {
    HandOver(Box<Transfer>, TestSocket),
    Wanted(WorkerId),
    IdleWanted(WorkerId, u32),
    IdleConfirmed,
}

/// A server's socket. It cannot be copied, so only its owner can use the server.
struct TestSocket {
    number: u32,
    held: Arc<Mutex<HashSet<u32>>>,
}

impl TestSocket {
    fn open(number: u32, held: &Arc<Mutex<HashSet<u32>>>) -> Self {
        assert!(held.lock().insert(number));
        Self { number, held: Arc::clone(held) }
    }
}

impl Drop for TestSocket {
    fn drop(&mut self) {
        assert!(self.held.lock().remove(&self.number));
    }
}

/// A worker whose sockets answer each query in the next iteration of its loop.
struct ThreadedWorker {
    id: WorkerId,
    sockets: Vec<Option<TestSocket>>,
    messages: Vec<Sender<ThreadMessage>>,
    opened: Vec<ServerId>,
    asked: Vec<ServerId>,
    answers: u32,
}

impl CoreIo for ThreadedWorker {
    fn send(&mut self, to: PeerId, slices: &[IoSlice<'_>]) -> Backlog {
        match to {
            PeerId::Server(id) if slices[0][0] == b'Q' => self.asked.push(id),
            PeerId::Server(_) => {}
            PeerId::Client(_) => {
                self.answers += u32::from(slices.iter().any(|s| s.contains(&b'Z')));
            }
        }
        Backlog::Empty
    }

    fn pause(&mut self, _: PeerId) {}

    fn resume(&mut self, _: PeerId) {}

    fn close(&mut self, peer: PeerId) {
        if let PeerId::Server(id) = peer {
            self.sockets[id.index()] = None;
        }
    }

    fn open_server(&mut self, server: ServerId, _: PoolId) {
        self.opened.push(server);
    }

    fn send_cancel(&mut self, _: ServerId, _: PoolId, _: &CancelKey) {}

    fn request_server(&mut self, _: PoolId) {
        let others =
            self.messages.iter().enumerate().filter(|(to, _)| *to != usize::from(self.id.0));
        others.for_each(|(_, messages)| drop(messages.send(ThreadMessage::Wanted(self.id))));
    }

    fn request_idle_servers(&mut self, _: PoolId, servers_max: u32) {
        let others =
            self.messages.iter().enumerate().filter(|(to, _)| *to != usize::from(self.id.0));
        let message = || ThreadMessage::IdleWanted(self.id, servers_max);
        others.for_each(|(_, messages)| drop(messages.send(message())));
    }

    fn confirm_idle_servers(&mut self, _: PoolId, to: WorkerId) {
        let _ = self.messages[usize::from(to.0)].send(ThreadMessage::IdleConfirmed);
    }

    fn hand_over(&mut self, server: ServerId, to: WorkerId, transfer: Box<Transfer>) {
        let socket = self.sockets[server.index()].take().expect("this worker has the socket");
        let _ = self.messages[usize::from(to.0)].send(ThreadMessage::HandOver(transfer, socket));
    }
}

impl ThreadedWorker {
    fn insert_socket(&mut self, id: ServerId, socket: TestSocket) {
        if self.sockets.len() <= id.index() {
            self.sockets.resize_with(id.index() + 1, || None);
        }
        assert!(self.sockets[id.index()].replace(socket).is_none(), "the slot is free");
    }
}

/// In any interleaving, every query is answered, each server has one owner, and the limit holds.
#[test]
fn server_belongs_to_one_worker_at_a_time() {
    let limit = ConnectionLimit::new(SERVERS_MAX);
    let statements: Arc<StatementRegistry> = Arc::default();
    let held = Arc::new(Mutex::new(HashSet::new()));
    let (numbers, busy) = (AtomicU32::new(0), AtomicU32::new(u32::from(WORKERS)));
    let (senders, receivers): (Vec<_>, Vec<_>) = (0..WORKERS).map(|_| mpsc::channel()).unzip();
    thread::scope(|scope| {
        for (id, messages) in (0..WORKERS).zip(receivers) {
            let mut spec = PoolSpec::new(0);
            spec.server_limits = [Arc::clone(&limit)].into();
            // Threads count time on their own: a busy machine may stop the one with the server.
            spec.timeouts.query_wait = None;
            let mut core = Core::with_statements(WorkerId(id), Arc::clone(&statements));
            core.set_worker_count(u32::from(WORKERS));
            core.set_pool(POOL, Arc::new(spec));
            let worker = ThreadedWorker {
                id: WorkerId(id),
                sockets: Vec::new(),
                messages: senders.clone(),
                opened: Vec::new(),
                asked: Vec::new(),
                answers: 0,
            };
            let (held, limit, numbers, busy) = (&held, &limit, &numbers, &busy);
            scope.spawn(move || run_worker(core, worker, &messages, held, limit, numbers, busy));
        }
    });
    assert_eq!((limit.in_use(), held.lock().len()), (0, 0), "all permits and sockets are released");
}

/// Runs the transactions of one client, then serves the other workers until they have finished.
fn run_worker(
    mut core: Core,
    mut worker: ThreadedWorker,
    messages: &Receiver<ThreadMessage>,
    held: &Arc<Mutex<HashSet<u32>>>,
    limit: &ConnectionLimit,
    numbers: &AtomicU32,
    busy: &AtomicU32,
) {
    let secret = CancelSecret([0; 32]);
    let version = ProtocolVersion::V3_0;
    let login =
        ClientLogin { pool: POOL, user: None, version, secret, parameters: Vec::new(), role: None };
    let client = core.add_client(login).unwrap();
    core.finish_client_login(client, b"", Time(0), &mut worker);
    let (mut now, mut sent) = (Time(0), 0);
    loop {
        now = Time(now.0 + 1_000_000);
        assert!(
            now.0 < ITERATIONS_MAX * 1_000_000,
            "{:?} got {} answers",
            worker.id,
            worker.answers
        );
        assert!(limit.in_use() <= SERVERS_MAX && held.lock().len() <= SERVERS_MAX as usize);
        for id in std::mem::take(&mut worker.opened) {
            worker
                .insert_socket(id, TestSocket::open(numbers.fetch_add(1, Ordering::Relaxed), held));
            let login = ServerLogin { parameters: Vec::new(), cancel_key: None };
            core.handle(CoreEvent::ServerReady(id, login), now, &mut worker);
        }
        for id in std::mem::take(&mut worker.asked) {
            core.server_bytes(id, &message(b'Z', b"I"), now, &mut worker);
        }
        // The login's ReadyForQuery counts as one answer.
        if worker.answers == sent + 1 && sent < TRANSACTIONS {
            sent += 1;
            core.client_bytes(client, &message(b'Q', b"select 1\0"), now, &mut worker);
            if sent == TRANSACTIONS {
                busy.fetch_sub(1, Ordering::Relaxed);
            }
        }
        while let Ok(message_from_worker) = messages.try_recv() {
            match message_from_worker {
                ThreadMessage::Wanted(by) => {
                    core.handle(CoreEvent::ServerRequested(POOL, by), now, &mut worker);
                }
                ThreadMessage::IdleWanted(by, servers_max) => {
                    let event = CoreEvent::IdleServersRequested { pool: POOL, by, servers_max };
                    core.handle(event, now, &mut worker);
                }
                ThreadMessage::IdleConfirmed => {
                    core.handle(CoreEvent::IdleServersConfirmed(POOL), now, &mut worker);
                }
                ThreadMessage::HandOver(transfer, socket) => {
                    let id = core.adopt_server(transfer, now).unwrap();
                    worker.insert_socket(id, socket);
                    core.handle(CoreEvent::ServersAvailable(POOL), now, &mut worker);
                }
            }
        }
        core.tick(now, &mut worker);
        if busy.load(Ordering::Relaxed) == 0 && worker.answers == TRANSACTIONS + 1 {
            return;
        }
        thread::yield_now();
    }
}
