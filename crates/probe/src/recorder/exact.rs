//! Exact probes for a few seconds: how long single calls take, while a trigger's reason lasts.
//!
//! They live in a thread of their own. Attaching takes some milliseconds each, in which nobody would look
//! at waits.

use std::{
    collections::{BTreeMap, HashMap},
    mem,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use howdah_inspect::Server;

use super::{budget::Budget, record::Exact, spread::Spread};
use crate::{
    calibrate::HitCost,
    durations::{Call, Durations, Figure, Subject},
};

/// Probes that are attached for a while. Dropping it takes them away.
#[derive(Debug)]
pub(super) struct ExactProbes {
    told: Receiver<Told>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// What the probes have to tell.
#[derive(Debug)]
pub(super) enum Told {
    /// Calls of a second, but for the moment when it began, which is so long after the first.
    Second(Duration, Exact),
    /// In words: a figure could not be had, or not any longer.
    Note(String),
    /// Calls that were lost.
    Lost(u64),
}

/// How long they stay.
pub(super) const LENGTH: Duration = Duration::from_secs(10);
/// From one look at the kernel's rings to the next.
const EVERY: Duration = Duration::from_millis(50);
/// What suits: none of these is called for every row or page in the cache.
const FIGURES: [Figure; 3] = [Figure::Io, Figure::Wal, Figure::Locks];
/// Seconds, operations and notes that may wait to be fetched.
const WAITING_MAX: usize = 1024;
/// Subjects of an operation that are told apart in a second, and that are told of.
const SUBJECTS_MAX: usize = 4096;
const SUBJECTS_TOLD: usize = 3;

impl ExactProbes {
    /// Begins. `hit`: what a hit costs here.
    pub(super) fn attach(server: Server, hit: HitCost, budget: f64) -> std::io::Result<Self> {
        let (tell, told) = sync_channel(WAITING_MAX);
        let stop = Arc::<AtomicBool>::default();
        let shared = Arc::clone(&stop);
        let thread = thread::Builder::new()
            .name("recorder-exact".to_owned())
            .spawn(move || run(&server, hit, budget, &tell, &shared))?;
        Ok(Self { told, stop, thread: Some(thread) })
    }

    /// Whether they have gone. What they told before is still there.
    pub(super) fn is_over(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// What came since the last time.
    pub(super) fn told(&self) -> impl Iterator<Item = Told> {
        self.told.try_iter()
    }

    /// Takes them away now; true, for they are gone then.
    pub(super) fn detach(&mut self) -> bool {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It told all it had to tell.
            let _ = thread.join();
        }
        true
    }
}

impl Drop for ExactProbes {
    fn drop(&mut self) {
        self.detach();
    }
}

/// A figure that is attached.
struct Attached {
    figure: Figure,
    durations: Durations,
    budget: Budget,
    operations: BTreeMap<&'static str, Operation>,
}

#[derive(Default)]
struct Operation {
    calls: Spread,
    subjects: HashMap<Subject, (u64, Duration)>,
}

fn run(server: &Server, hit: HitCost, budget: f64, tell: &SyncSender<Told>, stop: &AtomicBool) {
    // Who is not listened to goes on; there is room for more than can come.
    let tell = |told| drop(tell.try_send(told));
    let mut attached = Vec::new();
    for figure in FIGURES {
        match Durations::attach_at_cost(server, figure, hit) {
            Ok(durations) => attached.push(Attached {
                figure,
                durations,
                // Each has its part, so that all together keep to it.
                budget: Budget::new(budget / FIGURES.len() as f64),
                operations: BTreeMap::new(),
            }),
            Err(error) => {
                tell(Told::Note(format!("calls of {} are not traced: {error}", figure.name())));
            }
        }
    }
    let (began, mut second) = (Instant::now(), 0);
    while second < LENGTH.as_secs() && !stop.load(Ordering::Relaxed) && !attached.is_empty() {
        thread::sleep(EVERY);
        attached.iter_mut().for_each(Attached::drain);
        let is_full = began.elapsed() >= Duration::from_secs(second + 1);
        attached.retain_mut(|one| {
            let is_used_up = one.budget.is_used_up();
            if is_full || is_used_up {
                one.tell(Duration::from_secs(second), tell);
            }
            if is_used_up {
                let name = one.figure.name();
                tell(Told::Note(format!("calls of {name} are no longer traced: over budget")));
                one.tell_losses(tell);
            }
            !is_used_up
        });
        second += u64::from(is_full);
    }
    for mut one in attached {
        one.drain();
        one.tell(Duration::from_secs(second), tell);
        one.tell_losses(tell);
    }
}

impl Attached {
    fn drain(&mut self) {
        let (operations, budget) = (&mut self.operations, &mut self.budget);
        let cost = self.durations.cost_of_call();
        self.durations.drain(|call: Call| {
            budget.spend(cost);
            let operation = operations.entry(call.operation).or_default();
            operation.calls.add(call.duration);
            let is_known = operation.subjects.contains_key(&call.subject);
            if call.subject != Subject::None
                && (is_known || operation.subjects.len() < SUBJECTS_MAX)
            {
                let sums = operation.subjects.entry(call.subject).or_default();
                sums.0 += 1;
                sums.1 += call.duration;
            }
        });
    }

    fn tell(&mut self, since: Duration, tell: impl Fn(Told)) {
        self.budget.next_second();
        for (operation, Operation { calls, subjects }) in mem::take(&mut self.operations) {
            let mut subjects: Vec<_> = subjects.into_iter().collect();
            subjects.sort_by_key(|(subject, (_, total))| (std::cmp::Reverse(*total), *subject));
            subjects.truncate(SUBJECTS_TOLD);
            let in_words = |(subject, (calls, total)): (Subject, (u64, Duration))| {
                let us = u64::try_from(total.as_micros()).unwrap_or(u64::MAX);
                (words(subject), (calls, us))
            };
            let exact = Exact {
                at_us: 0,
                figure: self.figure.name().to_owned(),
                operation: operation.to_owned(),
                calls,
                subjects: subjects.into_iter().map(in_words).collect(),
            };
            tell(Told::Second(since, exact));
        }
    }

    fn tell_losses(&self, tell: impl Fn(Told)) {
        if let Ok(lost @ 1..) = self.durations.lost() {
            tell(Told::Lost(lost));
        }
    }
}

/// `extend 5/16384`, `5/file 16390`: by numbers, for nobody is asked for names here.
fn words(subject: Subject) -> String {
    match subject {
        Subject::None => String::new(),
        Subject::Lock(tag) => match tag.relation {
            Some((database, relation)) => format!("{} {database}/{relation}", tag.kind),
            None => tag.kind.to_owned(),
        },
        Subject::Wait(event) => event.name(),
        Subject::File { database, filenode, .. } => format!("{database}/file {filenode}"),
    }
}
