//! Who was before whom in the queues for heavyweight locks. A wait that has ended does not tell, so it is asked
//! for by a session of its own while they wait, [`EVERY`] so often.

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        mpsc::{self, RecvTimeoutError, Sender},
    },
    thread::{self, JoinHandle},
    time::{Duration, SystemTime},
};

use howdah_collect::{CollectError, Server, VIEWS};
use howdah_connect::Target;

/// From one question to the next. Each takes the server's lock tables for a moment, so it is not asked more often;
/// a wait that is shorter may have been missed.
pub(super) const EVERY: Duration = Duration::from_millis(200);

/// Looks at one who waits that are kept: rows of waits come a second after their end at most.
const LOOKS_MAX: usize = 32;

/// Who was seen waiting lately, and behind whom.
#[derive(Debug, Default)]
struct Looks(HashMap<u32, VecDeque<Look>>);

#[derive(Debug)]
struct Look {
    at: SystemTime,
    /// Process ids, 0 for a prepared transaction, as `pg_blocking_pids()` has them.
    blocked_by: String,
}

impl Looks {
    fn add(&mut self, at: SystemTime, waiting: impl Iterator<Item = (u32, String)>) {
        for (pid, blocked_by) in waiting.filter(|(_, blocked_by)| !blocked_by.is_empty()) {
            let looks = self.0.entry(pid).or_default();
            looks.push_back(Look { at, blocked_by });
            if looks.len() > LOOKS_MAX {
                looks.pop_front();
            }
        }
        let is_recent = |look: &Look| {
            at.duration_since(look.at).is_ok_and(|since| since < EVERY * LOOKS_MAX as u32)
        };
        self.0.retain(|_, looks| looks.back().is_some_and(is_recent));
    }

    /// Behind whom `pid` was last seen in a wait that took so long and ended then.
    fn of(&self, pid: u32, ended_at: SystemTime, waited: Duration) -> Option<&str> {
        let began = ended_at.checked_sub(waited)?;
        let within = |look: &&Look| began <= look.at && look.at <= ended_at;
        self.0.get(&pid)?.iter().rev().find(within).map(|look| &*look.blocked_by)
    }
}

/// A session that asks, until this is ended or dropped.
#[derive(Debug)]
pub(super) struct Blockers {
    looks: Arc<Mutex<Looks>>,
    stop: Sender<()>,
    asking: JoinHandle<Result<(), CollectError>>,
}

impl Blockers {
    /// Begins to ask the server at `target`.
    pub(super) fn ask(target: Target) -> Self {
        let looks: Arc<Mutex<Looks>> = Arc::default();
        let (stop, stopped) = mpsc::channel();
        let told = Arc::clone(&looks);
        let asking = thread::spawn(move || {
            let mut server = Server::connect(&target)?;
            while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(EVERY) {
                // Who waits now did so when the question was sent.
                let at = SystemTime::now();
                let waiting = waiting(&mut server)?;
                locked(&told).add(at, waiting.into_iter());
            }
            Ok(())
        });
        Self { looks, stop, asking }
    }

    /// The process ids that a wait was seen behind.
    pub(super) fn of(&self, pid: u32, ended_at: SystemTime, waited: Duration) -> Option<String> {
        locked(&self.looks).of(pid, ended_at, waited).map(str::to_owned)
    }

    /// Ends asking.
    ///
    /// # Errors
    ///
    /// The server did not answer, or no more, or the role may not see who waits.
    pub(super) fn end(self) -> Result<(), CollectError> {
        drop(self.stop);
        self.asking.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

fn locked(looks: &Mutex<Looks>) -> MutexGuard<'_, Looks> {
    looks.lock().unwrap_or_else(PoisonError::into_inner)
}

fn waiting(server: &mut Server) -> Result<Vec<(u32, String)>, CollectError> {
    let view = VIEWS.iter().find(|view| view.name == "waiting").expect("it is a view");
    let Some(reading) = server.read(view)? else { return Ok(Vec::new()) };
    let column = |name| view.column(name).expect("the view has it");
    let (pid, blocked_by) = (column("pid"), column("blocked_by"));
    let told = reading.rows.iter().filter_map(|row| {
        Some((row[pid].text()?.parse().ok()?, row[blocked_by].text()?.to_owned()))
    });
    Ok(told.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_belongs_to_the_wait_that_it_fell_into() {
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let mut looks = Looks::default();
        looks.add(at(10), [(7, "3".to_owned()), (8, String::new())].into_iter());
        looks.add(at(11), [(7, "4 3".to_owned())].into_iter());
        assert_eq!(looks.of(7, at(12), Duration::from_secs(4)), Some("4 3"));
        assert_eq!(looks.of(7, at(10), Duration::from_secs(1)), Some("3"));
        assert_eq!(looks.of(7, at(13), Duration::from_secs(1)), None, "a later wait");
        assert_eq!(looks.of(8, at(10), Duration::from_secs(1)), None, "behind nobody");
        looks.add(at(60), std::iter::empty());
        assert_eq!(looks.of(7, at(12), Duration::from_secs(4)), None, "long ago");
    }

    #[test]
    fn looks_at_one_who_waits_for_long_do_not_add_up() {
        let mut looks = Looks::default();
        for tenth in 0..1000 {
            let at = SystemTime::UNIX_EPOCH + Duration::from_millis(100 * tenth);
            looks.add(at, [(7, "3".to_owned())].into_iter());
        }
        assert_eq!(looks.0[&7].len(), LOOKS_MAX);
    }
}
