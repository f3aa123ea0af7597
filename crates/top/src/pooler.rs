//! Who is behind a server's sessions, asked of poolers in front of it.
//!
//! Each pooler's console has a thread, which asks when somebody wants to know and otherwise rests. A sampler
//! asks just before it reads its server, and waits only for a moment: a pooler that hangs costs the names of
//! its clients, and nothing else.

use std::{
    collections::HashMap,
    io,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use howdah_collect::{Backend, Held, Pooler, PoolerClient};
use howdah_connect::Target;

use crate::{kill::APPLICATION, sampler::with_causes};

/// Longest that a sampler waits for a pooler.
const PATIENCE: Duration = Duration::from_millis(250);

/// How long to wait until a console that could not be reached is tried again.
const PAUSE: Duration = Duration::from_secs(2);

/// The clients of all poolers at one moment.
#[derive(Clone, Debug, Default)]
pub struct Pooled {
    /// All of them.
    pub clients: Vec<PoolerClient>,
    /// Poolers that did not answer, and why.
    pub troubles: Vec<String>,
    /// Places in `clients`, by what they hold.
    holders: HashMap<Held, usize>,
}

impl Pooled {
    /// These clients, and nothing that went wrong.
    pub fn new(clients: Vec<PoolerClient>) -> Self {
        let held = |(at, client): (usize, &PoolerClient)| client.holds.map(|held| (held, at));
        let holders = clients.iter().enumerate().filter_map(held).collect();
        Self { clients, troubles: Vec::new(), holders }
    }

    /// Who is behind a session.
    pub fn behind(&self, backend: &Backend) -> Option<&PoolerClient> {
        let held = Held { pid: backend.pid, client_port: backend.client_port? };
        self.holders.get(&held).and_then(|&at| self.clients.get(at))
    }
}

/// Poolers that can be asked. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Poolers(Vec<Arc<Shared>>);

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    /// How often somebody asked.
    asked: u64,
    /// Up to which of these it was answered.
    answered: u64,
    answer: Result<Arc<[PoolerClient]>, String>,
}

impl Poolers {
    /// Starts to ask the consoles of `poolers`, each with what to call it.
    ///
    /// # Errors
    ///
    /// The operating system has no thread for one.
    pub fn start(poolers: Vec<(String, Target)>) -> io::Result<Self> {
        let start = |(name, target): (String, Target)| {
            let state = State {
                asked: 0,
                answered: 0,
                answer: Err(format!("pooler {name}: not read yet")),
            };
            let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() });
            let asker = Asker {
                name,
                target: target.with_application_name(APPLICATION),
                shared: Arc::clone(&shared),
            };
            std::thread::Builder::new().name("pooler".to_owned()).spawn(|| asker.run())?;
            Ok(shared)
        };
        poolers.into_iter().map(start).collect::<io::Result<_>>().map(Self)
    }

    /// Asks all of them, and waits a moment; `None` if there are none.
    pub(crate) fn read(&self) -> Option<Arc<Pooled>> {
        if self.0.is_empty() {
            return None;
        }
        let questions: Vec<u64> = self.0.iter().map(|pooler| pooler.ask()).collect();
        let until = Instant::now() + PATIENCE;
        let (mut clients, mut troubles) = (Vec::new(), Vec::new());
        for (pooler, question) in self.0.iter().zip(questions) {
            match pooler.answer(question, until) {
                Ok(answer) => clients.extend(answer.iter().cloned()),
                Err(trouble) => troubles.push(trouble),
            }
        }
        Some(Arc::new(Pooled { troubles, ..Pooled::new(clients) }))
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // Each change is whole when its lock is given back.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ask(&self) -> u64 {
        let mut state = self.state();
        state.asked += 1;
        self.changed.notify_all();
        state.asked
    }

    /// The answer to a question, if it comes in time: an older one would name who has gone since.
    fn answer(&self, question: u64, until: Instant) -> Result<Arc<[PoolerClient]>, String> {
        let mut state = self.state();
        while state.answered < question {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return match &state.answer {
                    Ok(_) => Err("a pooler does not answer in time".to_owned()),
                    Err(trouble) => Err(trouble.clone()),
                };
            }
            let waited = self.changed.wait_timeout(state, left);
            (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
        state.answer.clone()
    }
}

/// The thread of one console.
struct Asker {
    name: String,
    target: Target,
    shared: Arc<Shared>,
}

impl Asker {
    fn run(self) {
        let mut console: Option<Pooler> = None;
        while let Some(question) = self.next() {
            let answer = match &mut console {
                Some(console) => console.clients(),
                none => Pooler::connect(&self.target)
                    .and_then(|connected| none.insert(connected).clients()),
            };
            let answer = answer
                .map(|read| read.clients.into())
                .map_err(|error| format!("pooler {}: {}", self.name, with_causes(&error)));
            let is_away = answer.is_err();
            let mut state = self.shared.state();
            (state.answered, state.answer) = (question, answer);
            self.shared.changed.notify_all();
            drop(state);
            if is_away {
                console = None;
                std::thread::sleep(PAUSE);
            }
        }
    }

    /// Waits for a question; `None` when nobody can ask any more.
    fn next(&self) -> Option<u64> {
        let mut state = self.shared.state();
        loop {
            if state.asked > state.answered {
                return Some(state.asked);
            }
            // The other half of the pair is the askers'.
            if Arc::strong_count(&self.shared) == 1 {
                return None;
            }
            let waited = self.shared.changed.wait_timeout(state, PAUSE);
            (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }
}
