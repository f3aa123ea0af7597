//! [`ReplayLoop`]: replays one capture again and again, and counts the rows that each writes.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    thread::JoinHandle,
};

use howdah_lab::Cluster;
use parking_lot::{Mutex, MutexGuard};

use super::{howdah, text, value};

/// A thread that replays `captures/soak` against a server until it is stopped.
pub(super) struct ReplayLoop {
    thread: JoinHandle<()>,
    target: Arc<Mutex<Cluster>>,
    completed: Arc<AtomicU32>,
    stop: Arc<AtomicBool>,
}

impl ReplayLoop {
    pub(super) fn start(folder: &Path, target: Cluster) -> Self {
        let target = Arc::new(Mutex::new(target));
        let (completed, stop) = (Arc::<AtomicU32>::default(), Arc::<AtomicBool>::default());
        let thread = {
            let (folder, target) = (folder.to_owned(), Arc::clone(&target));
            let (completed, stop) = (Arc::clone(&completed), Arc::clone(&stop));
            std::thread::spawn(move || run(&folder, &target, &completed, &stop))
        };
        Self { thread, target, completed, stop }
    }

    /// Waits for the running replay to end; no other starts while the guard is held.
    pub(super) fn pause(&self) -> MutexGuard<'_, Cluster> {
        self.target.lock()
    }

    /// Returns the number of completed replays.
    pub(super) fn finish(self) -> u32 {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap();
        self.completed.load(Ordering::Relaxed)
    }
}

fn run(folder: &Path, target: &Mutex<Cluster>, completed: &AtomicU32, stop: &AtomicBool) {
    let mut expected = None;
    while !stop.load(Ordering::Relaxed) {
        let target = target.lock();
        value(&target, "truncate ledger");
        let output = howdah(folder)
            .args(["replay", "captures/soak", "-o", "run", "--force", "--rate", "2"])
            .args(["--target", &target.uri("postgres")])
            // The session that has emptied the table may not have ended yet.
            .args(["--allow-production", "postgres"])
            .output()
            .unwrap();
        assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
        let rows = value(&target, "select count(*) from ledger");
        assert_ne!(rows, "0", "the capture contains writes");
        assert_eq!(rows, *expected.get_or_insert_with(|| rows.clone()), "rows of a replay");
        completed.fetch_add(1, Ordering::Relaxed);
        MutexGuard::unlock_fair(target);
    }
}
