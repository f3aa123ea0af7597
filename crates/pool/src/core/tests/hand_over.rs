//! Workers on threads of their own, which hand servers to each other as fast as they can.

use std::{
    collections::HashSet,
    io::IoSlice,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
        mpsc::{self, Receiver, Sender},
    },
    thread,
};

use howdah_wire::startup::{CancelKey, ProtocolVersion};

use super::{POOL, message};
use crate::{
    Backlog, CancelSecret, ClientLogin, Core, Io, Limit, Peer, PoolId, PoolSpec, ServerId,
    ServerLogin, Statements, Time, Transfer, WorkerId,
};

const WORKERS: u8 = 4;
const SERVERS_MAX: u32 = 3;
const TRANSACTIONS: u32 = 3000;
/// Turns of a loop after which it has gone wrong.
const TURNS_MAX: u64 = 20_000_000;

enum Letter {
    HandOver(Box<Transfer>, Socket),
    Wanted(WorkerId),
}

/// A server's socket. There is one for each server, so it can be in one place only, and who has the
/// place is the only one to speak to it.
struct Socket {
    number: u32,
    held: Arc<Mutex<HashSet<u32>>>,
}

impl Socket {
    fn open(number: u32, held: &Arc<Mutex<HashSet<u32>>>) -> Self {
        assert!(held.lock().unwrap().insert(number));
        Self { number, held: Arc::clone(held) }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        assert!(self.held.lock().unwrap().remove(&self.number));
    }
}

/// A worker's loop, with sockets that answer each query when they are asked what there is.
struct Worker {
    id: WorkerId,
    sockets: Vec<Option<Socket>>,
    letters: Vec<Sender<Letter>>,
    opened: Vec<ServerId>,
    asked: Vec<ServerId>,
    answers: u32,
}

impl Io for Worker {
    fn send(&mut self, to: Peer, slices: &[IoSlice<'_>]) -> Backlog {
        match to {
            Peer::Server(id) if slices[0][0] == b'Q' => self.asked.push(id),
            Peer::Server(_) => {}
            Peer::Client(_) => self.answers += u32::from(slices.iter().any(|s| s.contains(&b'Z'))),
        }
        Backlog::Empty
    }

    fn pause(&mut self, _: Peer) {}

    fn resume(&mut self, _: Peer) {}

    fn close(&mut self, peer: Peer) {
        if let Peer::Server(id) = peer {
            self.sockets[id.index()] = None;
        }
    }

    fn open_server(&mut self, server: ServerId, _: PoolId) {
        self.opened.push(server);
    }

    fn send_cancel(&mut self, _: ServerId, _: PoolId, _: &CancelKey) {}

    fn want_server(&mut self, _: PoolId) {
        let others =
            self.letters.iter().enumerate().filter(|(to, _)| *to != usize::from(self.id.0));
        others.for_each(|(_, letters)| drop(letters.send(Letter::Wanted(self.id))));
    }

    fn hand_over(&mut self, server: ServerId, to: WorkerId, transfer: Box<Transfer>) {
        let socket = self.sockets[server.index()].take().expect("it is here");
        let _ = self.letters[usize::from(to.0)].send(Letter::HandOver(transfer, socket));
    }
}

impl Worker {
    fn place(&mut self, id: ServerId, socket: Socket) {
        if self.sockets.len() <= id.index() {
            self.sockets.resize_with(id.index() + 1, || None);
        }
        assert!(self.sockets[id.index()].replace(socket).is_none(), "one to a place");
    }
}

/// Every query is answered, no server is in two places, and there are never too many: whoever wants
/// one, and however they meet.
#[test]
fn a_server_is_with_one_worker_at_a_time() {
    let limit = Limit::new(SERVERS_MAX);
    let statements: Arc<Statements> = Arc::default();
    let held = Arc::new(Mutex::new(HashSet::new()));
    let (numbers, busy) = (AtomicU32::new(0), AtomicU32::new(u32::from(WORKERS)));
    let (senders, receivers): (Vec<_>, Vec<_>) = (0..WORKERS).map(|_| mpsc::channel()).unzip();
    thread::scope(|scope| {
        for (id, letters) in (0..WORKERS).zip(receivers) {
            let mut spec = PoolSpec::new(0);
            spec.server_limits = [Arc::clone(&limit)].into();
            let mut core = Core::sharing(WorkerId(id), Arc::clone(&statements));
            core.set_pool(POOL, Arc::new(spec));
            let worker = Worker {
                id: WorkerId(id),
                sockets: Vec::new(),
                letters: senders.clone(),
                opened: Vec::new(),
                asked: Vec::new(),
                answers: 0,
            };
            let (held, limit, numbers, busy) = (&held, &limit, &numbers, &busy);
            scope.spawn(move || work(core, worker, &letters, held, limit, numbers, busy));
        }
    });
    assert_eq!((limit.taken(), held.lock().unwrap().len()), (0, 0), "nothing is lost");
}

/// Runs transactions of one client until there were enough, and serves the others until they are
/// through, too.
fn work(
    mut core: Core,
    mut worker: Worker,
    letters: &Receiver<Letter>,
    held: &Arc<Mutex<HashSet<u32>>>,
    limit: &Limit,
    numbers: &AtomicU32,
    busy: &AtomicU32,
) {
    let secret = CancelSecret([0; 32]);
    let version = ProtocolVersion::V3_0;
    let login =
        ClientLogin { pool: POOL, user: None, version, secret, settings: Vec::new(), role: None };
    let client = core.add_client(login).unwrap();
    core.greet_client(client, b"", Time(0), &mut worker);
    let (mut now, mut sent) = (Time(0), 0);
    loop {
        now = Time(now.0 + 1_000_000);
        assert!(now.0 < TURNS_MAX * 1_000_000, "{:?} got {} answers", worker.id, worker.answers);
        assert!(limit.taken() <= SERVERS_MAX && held.lock().unwrap().len() <= SERVERS_MAX as usize);
        for id in std::mem::take(&mut worker.opened) {
            worker.place(id, Socket::open(numbers.fetch_add(1, Ordering::Relaxed), held));
            let login = ServerLogin { parameters: Vec::new(), cancel_key: None };
            core.server_ready(id, login, now, &mut worker);
        }
        for id in std::mem::take(&mut worker.asked) {
            core.server_bytes(id, &message(b'Z', b"I"), now, &mut worker);
        }
        // The greeting is an answer, too.
        if worker.answers == sent + 1 && sent < TRANSACTIONS {
            sent += 1;
            core.client_bytes(client, &message(b'Q', b"select 1\0"), now, &mut worker);
            if sent == TRANSACTIONS {
                busy.fetch_sub(1, Ordering::Relaxed);
            }
        }
        while let Ok(letter) = letters.try_recv() {
            match letter {
                Letter::Wanted(by) => core.server_wanted(POOL, by, now, &mut worker),
                Letter::HandOver(transfer, socket) => {
                    let id = core.adopt_server(transfer, now).unwrap();
                    worker.place(id, socket);
                    core.serve_waiting(POOL, now, &mut worker);
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
