//! [`Advisor`]: reads the events of a capture, and sums up what its clients need of a pool.
//!
//! Events arrive in the order of their start times. Transactions end later, so their ends wait in a
//! schedule, and are processed before the next event that starts after them. In memory are the open
//! sessions, with a limited amount of state for each, and the sums of a limited number of groups.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use howdah_sql::{Analyzed, ParameterizedCache, normalize};
use howdah_traffic::{Action, Bound, Event, Kind, Source, Timestamp};

use crate::{
    advice::{CaptureFacts, FunctionCalls, PoolAdvice},
    client_group::{ClientGroup, PoolSums},
    concurrency::Concurrency,
    session::{
        CapturedSession, CapturedTransaction, FUNCTIONS_MAX, PendingChange, lasting_changes,
        resolved_name, resolved_removal,
    },
    state_kind::StateKind,
    text_effects::{StateName, TextEffects, TextStep},
};

/// Reads the events of a capture; [`Self::finish`] returns the advice.
pub struct Advisor {
    effects: ParameterizedCache<Arc<TextEffects>>,
    sessions: SessionSlab,
    /// When transactions end, by session.
    ends: BTreeSet<(Timestamp, usize)>,
    groups: GroupTable,
    functions: HashMap<Arc<str>, FunctionCalls>,
    /// Functions that leave no state, according to the user.
    stateless_functions: Vec<String>,
    facts: CaptureFacts,
}

/// The build has no grammar, by which state is recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this build cannot parse statements (build with --features grammar)")]
pub struct GrammarMissing;

/// Open sessions, by number and by name.
#[derive(Default)]
struct SessionSlab {
    slots: Vec<Option<CapturedSession>>,
    free: Vec<usize>,
    by_name: HashMap<Arc<str>, usize>,
}

/// Groups of clients and pools, by number and by name.
#[derive(Default)]
struct GroupTable {
    groups: Vec<ClientGroup>,
    group_numbers: HashMap<[Arc<str>; 3], usize>,
    pools: Vec<PoolSums>,
    pool_numbers: HashMap<[Arc<str>; 2], usize>,
}

/// Size of the cache of analyzed texts.
const CACHE_BYTES: usize = 64 << 20;

/// Maximum number of open sessions; servers have far fewer connections.
const SESSIONS_MAX: usize = 1 << 20;

/// Maximum number of groups, and of pools. Clients beyond it share one without names.
const GROUPS_MAX: usize = 1_000;

/// Maximum number of functions that are counted.
const FUNCTION_NAMES_MAX: usize = 10_000;

/// Maximum length of a statement that is stored as an example.
const EXAMPLE_BYTES_MAX: usize = 4_096;

impl Advisor {
    /// Creates an advisor. `stateless_functions` are functions that leave no state in their
    /// session, as `name` or `schema.name`, in the form in which statements call them.
    ///
    /// # Errors
    ///
    /// The crate was built without its feature `grammar`.
    pub fn new(stateless_functions: Vec<String>) -> Result<Self, GrammarMissing> {
        if !cfg!(feature = "grammar") {
            return Err(GrammarMissing);
        }
        Ok(Self {
            effects: ParameterizedCache::with_capacity(CACHE_BYTES),
            sessions: SessionSlab::default(),
            ends: BTreeSet::new(),
            groups: GroupTable::default(),
            functions: HashMap::new(),
            stateless_functions,
            facts: CaptureFacts::default(),
        })
    }

    /// Processes the next event of the capture.
    pub fn observe(&mut self, event: &Event) {
        self.facts.observe(event);
        let now = event.time;
        self.end_transactions(now);
        match event.action.kind() {
            Kind::Cancel => {}
            Kind::Connect => {
                self.close_session(&event.session, now);
                if let Some(number) = self.open_session(event) {
                    self.facts.inferred_sessions += u64::from(event.source == Source::Inferred);
                    // In a log, the application is not known yet.
                    if event.source == Source::Wire {
                        self.set_group(number, event);
                    }
                }
            }
            Kind::Disconnect => {
                // The application of a session without statements.
                if let Some(number) = self.sessions.number(&event.session) {
                    self.set_group(number, event);
                }
                self.close_session(&event.session, now);
            }
            kind => {
                let known = self.sessions.number(&event.session);
                if known.is_none() {
                    self.facts.inferred_sessions += 1;
                }
                let Some(number) = known.or_else(|| self.open_session(event)) else { return };
                self.set_group(number, event);
                self.observe_request(number, event, kind);
            }
        }
    }

    /// Ends all sessions at the end of the capture, and returns the advice.
    pub fn finish(mut self) -> PoolAdvice {
        self.end_transactions(Timestamp::from_micros(i64::MAX));
        let end = self.facts.last_end;
        for number in 0..self.sessions.slots.len() {
            if self.sessions.slots[number].is_some() {
                self.facts.unended_sessions += 1;
                self.close(number, end);
            }
        }
        let mut functions: Vec<_> = self.functions.into_values().collect();
        functions.sort_by(|a, b| b.calls.cmp(&a.calls).then_with(|| a.name.cmp(&b.name)));
        PoolAdvice::new(&self.groups.groups, &self.groups.pools, functions, &self.facts)
    }

    fn observe_request(&mut self, number: usize, event: &Event, kind: Kind) {
        let now = event.time;
        let pipeline = event.pipeline;
        let Some(session) = self.sessions.get(number) else { return };
        let continues = session.transaction.as_ref().is_some_and(|transaction| {
            transaction.is_block || pipeline.is_some() && transaction.pipeline == pipeline
        });
        if !continues {
            self.end_transaction(number, now, true);
            self.start_transaction(number, now, pipeline);
        }
        let end = event.captured_end();
        let has_failed = event.outcome.failed();
        let effects = event
            .action
            .sql()
            .filter(|_| kind.is_execution() && kind != Kind::Fetch)
            .map(|sql| self.analyzed(sql.as_bytes()));
        let Some(session) = self.sessions.get(number) else { return };
        let Some(transaction) = &mut session.transaction else { return };
        transaction.end = transaction.end.max(end);
        transaction.pipeline = pipeline.or(transaction.pipeline);
        if kind.is_execution() {
            transaction.executions += 1;
            let is_first = transaction.executions == 1;
            if let Some(group) = session.group {
                self.groups.groups[group].statements += 1;
            }
            if is_first {
                let concurrencies = self.groups.concurrencies(session.pool, session.group);
                concurrencies.for_each(Concurrency::sample);
            }
        }
        let steps = effects.as_deref().map_or(&[][..], |effects| &effects.steps);
        if has_failed {
            self.observe_failure(number, steps, end);
        } else {
            self.facts.unreadable_texts +=
                u64::from(effects.as_ref().is_some_and(|effects| !effects.is_readable));
            self.apply_steps(number, event, steps, end);
        }
        self.schedule_end(number);
    }

    /// Processes a text that failed: it changes nothing, except that a COMMIT rolls back.
    fn observe_failure(&mut self, number: usize, steps: &[TextStep], end: Timestamp) {
        let Some(transaction) = self.transaction(number) else { return };
        transaction.has_failed = true;
        match steps {
            [TextStep::Commit { .. } | TextStep::Rollback { .. }] if transaction.is_block => {
                transaction.is_block = false;
                self.resolve_changes(number, end, false);
            }
            // A later statement of the text has failed.
            [TextStep::Begin, _, ..] => transaction.is_block = true,
            _ => {}
        }
    }

    /// Processes the effects of a text in their order.
    fn apply_steps(&mut self, number: usize, event: &Event, steps: &[TextStep], end: Timestamp) {
        let bound = match &event.action {
            Action::Execute(bound) => Some(bound),
            _ => None,
        };
        for step in steps {
            let Some(transaction) = self.transaction(number) else { return };
            match step {
                TextStep::Begin => transaction.is_block = true,
                TextStep::Commit { chain } | TextStep::Rollback { chain } => {
                    let commits =
                        matches!(step, TextStep::Commit { .. }) && !transaction.has_failed;
                    let was_block = transaction.is_block;
                    transaction.is_block = *chain && was_block;
                    self.resolve_changes(number, end, commits);
                }
                TextStep::Savepoint(name) => {
                    transaction.push(PendingChange::Savepoint(name.clone()));
                }
                TextStep::Release(name) => transaction.release(name),
                TextStep::RollbackTo(name) => transaction.roll_back_to(name),
                TextStep::Leave(kind, name) => {
                    self.record_left(number, event, bound, *kind, name);
                }
                TextStep::Remove(removal) => {
                    let removal = resolved_removal(removal, event, bound);
                    transaction.push(PendingChange::Remove(removal));
                }
                TextStep::MayAdvanceSequence => transaction.may_have_advanced_sequence = true,
                TextStep::ReadsSequence if !transaction.may_have_advanced_sequence => {
                    self.count_sequence_read(number, event);
                }
                TextStep::ReadsSequence => {}
            }
        }
    }

    /// Records state that a statement leaves if its transaction commits.
    fn record_left(
        &mut self,
        number: usize,
        event: &Event,
        bound: Option<&Bound>,
        kind: StateKind,
        name: &StateName,
    ) {
        let name = resolved_name(name, event, bound);
        if kind == StateKind::Function
            && let Some(name) = &name
        {
            if self.stateless_functions.iter().any(|it| **it == **name) {
                return;
            }
            self.count_function(number, name);
        }
        let Some(session) = self.sessions.get(number) else { return };
        let group = session.group.map(|group| &self.groups.groups[group]);
        let needs_example = group.is_some_and(|group| group.needs_example(kind));
        let example = needs_example.then(|| example(event));
        if let Some(transaction) = &mut session.transaction {
            transaction.push(PendingChange::Leave { kind, name, example });
        }
    }

    fn count_function(&mut self, number: usize, name: &Arc<str>) {
        if self.functions.len() >= FUNCTION_NAMES_MAX && !self.functions.contains_key(name) {
            return;
        }
        let calls = self.functions.entry(Arc::clone(name)).or_insert_with(|| FunctionCalls {
            name: Arc::clone(name),
            calls: 0,
            sessions: 0,
        });
        calls.calls += 1;
        if let Some(session) = self.sessions.get(number)
            && session.functions.len() < FUNCTIONS_MAX
            && !session.functions.contains(name)
        {
            session.functions.push(Arc::clone(name));
            calls.sessions += 1;
        }
    }

    fn count_sequence_read(&mut self, number: usize, event: &Event) {
        let Some(session) = self.sessions.get(number) else { return };
        let Some(group) = session.group.map(|group| &mut self.groups.groups[group]) else { return };
        let reads = &mut group.sequence_reads;
        reads.count += 1;
        reads.sessions += u64::from(!session.has_read_sequence);
        session.has_read_sequence = true;
        if reads.example.is_none() {
            reads.example = Some(example(event));
        }
    }

    /// Returns the effects of a text, from the cache if possible.
    fn analyzed(&mut self, sql: &[u8]) -> Arc<TextEffects> {
        self.effects.get_or_analyze(sql, |sql, parameterized| {
            let value = text_effects(sql);
            let is_exact = value.depends_on_constants || !parameterized.is_complete();
            Analyzed { value: Arc::new(value), is_exact }
        })
    }

    /// Opens the session of an event; `None` if there are too many.
    fn open_session(&mut self, event: &Event) -> Option<usize> {
        let pool = self.groups.pool(&event.database, &event.user);
        let session = CapturedSession::new(Arc::clone(&event.session), pool, event.time);
        let number = self.sessions.insert(session);
        match number {
            Some(_) => self.groups.pools[pool].concurrency.sessions.increment(),
            None => self.facts.uncounted_sessions += 1,
        }
        number
    }

    /// Assigns a session to the group of an event's client, unless it has a group.
    fn set_group(&mut self, number: usize, event: &Event) {
        let Some(session) = self.sessions.get(number) else { return };
        if session.group.is_none() {
            let group = self.groups.group(session.pool, &event.application);
            self.groups.groups[group].sessions += 1;
            self.groups.groups[group].concurrency.sessions.increment();
            session.group = Some(group);
        }
    }

    fn close_session(&mut self, name: &Arc<str>, at: Timestamp) {
        if let Some(number) = self.sessions.number(name) {
            self.end_transaction(number, at, true);
            self.close(number, at);
        }
    }

    /// Closes a session, which rolls back a block that is still open.
    fn close(&mut self, number: usize, at: Timestamp) {
        self.end_transaction(number, at, false);
        let Some(session) = self.sessions.remove(number) else { return };
        let group = session.group.unwrap_or_else(|| {
            let group = self.groups.group(session.pool, &Arc::default());
            self.groups.groups[group].sessions += 1;
            self.groups.groups[group].concurrency.sessions.increment();
            group
        });
        for concurrency in self.groups.concurrencies(session.pool, Some(group)) {
            concurrency.sessions.decrement();
            if session.has_server {
                concurrency.servers.decrement();
            }
        }
        let group = &mut self.groups.groups[group];
        group.session_time += at.saturating_since(session.start);
        let (pinned, periods) = session.states.end(at);
        group.pinned_time += pinned;
        group.count_periods(periods);
    }

    fn transaction(&mut self, number: usize) -> Option<&mut CapturedTransaction> {
        self.sessions.get(number)?.transaction.as_mut()
    }

    fn start_transaction(&mut self, number: usize, at: Timestamp, pipeline: Option<u32>) {
        let Some(session) = self.sessions.get(number) else { return };
        session.transaction = Some(CapturedTransaction::new(at, pipeline));
        for concurrency in self.groups.concurrencies(session.pool, session.group) {
            concurrency.transactions.increment();
        }
        self.update_server(number);
    }

    /// Enters the end of a session's transaction in the schedule, unless a block is open.
    fn schedule_end(&mut self, number: usize) {
        let Some(session) = self.sessions.get(number) else { return };
        let Some(transaction) = &session.transaction else { return };
        let (end, is_block) = (transaction.end, transaction.is_block);
        if let Some(scheduled) = session.scheduled_end.take() {
            self.ends.remove(&(scheduled, number));
        }
        if !is_block {
            session.scheduled_end = Some(end);
            self.ends.insert((end, number));
        }
    }

    /// Ends all transactions that are due.
    fn end_transactions(&mut self, now: Timestamp) {
        while let Some((end, number)) = self.ends.first().copied().filter(|(end, _)| *end <= now) {
            self.ends.pop_first();
            if let Some(session) = self.sessions.get(number) {
                session.scheduled_end = None;
            }
            self.end_transaction(number, end, true);
        }
    }

    /// Ends a session's transaction, if it has one. A block that is still open is rolled back.
    fn end_transaction(&mut self, number: usize, at: Timestamp, commits: bool) {
        let Some(session) = self.sessions.get(number) else { return };
        if let Some(scheduled) = session.scheduled_end.take() {
            self.ends.remove(&(scheduled, number));
        }
        let Some(transaction) = &session.transaction else { return };
        let commits = commits && !transaction.is_block && !transaction.has_failed;
        let at = at.max(transaction.start);
        self.resolve_changes(number, at, commits);
        let Some(session) = self.sessions.get(number) else { return };
        session.transaction = None;
        for concurrency in self.groups.concurrencies(session.pool, session.group) {
            concurrency.transactions.decrement();
        }
        self.update_server(number);
    }

    /// Applies the pending changes of a transaction, and counts it. What follows in the same text
    /// or pipeline is another transaction.
    fn resolve_changes(&mut self, number: usize, at: Timestamp, commits: bool) {
        let Some(session) = self.sessions.get(number) else { return };
        let Some(transaction) = &mut session.transaction else { return };
        let pending = std::mem::take(&mut transaction.pending);
        let executions = std::mem::take(&mut transaction.executions);
        let duration = at.saturating_since(transaction.start);
        transaction.start = transaction.start.max(at);
        transaction.has_failed = false;
        transaction.may_have_advanced_sequence = false;
        let Some(group) = session.group.map(|group| &mut self.groups.groups[group]) else { return };
        group.transactions += u64::from(executions > 0);
        group.transaction_time += duration;
        let (removals, left) = lasting_changes(pending, commits);
        for removal in &removals {
            session.states.remove(removal, at);
        }
        for object in left {
            let is_first = !session.states.has_had(object.kind);
            group.count_left(object.kind, object.name.as_ref(), object.example, is_first);
            session.states.add(object.kind, object.name, at);
        }
        if session.states.is_pinned() && !session.has_been_pinned {
            session.has_been_pinned = true;
            group.pinned_sessions += 1;
        }
    }

    /// Counts whether a session needs a server in adaptive mode.
    fn update_server(&mut self, number: usize) {
        let Some(session) = self.sessions.get(number) else { return };
        let needs = session.transaction.is_some() || session.states.is_pinned();
        if needs == session.has_server {
            return;
        }
        session.has_server = needs;
        for concurrency in self.groups.concurrencies(session.pool, session.group) {
            if needs {
                concurrency.servers.increment();
            } else {
                concurrency.servers.decrement();
            }
        }
    }
}

impl std::fmt::Debug for Advisor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Advisor").field("facts", &self.facts).finish_non_exhaustive()
    }
}

impl SessionSlab {
    fn number(&self, name: &Arc<str>) -> Option<usize> {
        self.by_name.get(name).copied()
    }

    fn get(&mut self, number: usize) -> Option<&mut CapturedSession> {
        self.slots.get_mut(number)?.as_mut()
    }

    /// Adds a session; `None` if there are too many.
    fn insert(&mut self, session: CapturedSession) -> Option<usize> {
        if self.by_name.len() >= SESSIONS_MAX {
            return None;
        }
        let name = Arc::clone(&session.name);
        let number = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        self.slots[number] = Some(session);
        self.by_name.insert(name, number);
        Some(number)
    }

    fn remove(&mut self, number: usize) -> Option<CapturedSession> {
        let session = self.slots.get_mut(number)?.take()?;
        self.by_name.remove(&session.name);
        self.free.push(number);
        Some(session)
    }
}

impl GroupTable {
    /// Returns the number of the pool of a user in a database.
    fn pool(&mut self, database: &Arc<str>, user: &Arc<str>) -> usize {
        let is_full = self.pools.len() >= GROUPS_MAX;
        let mut key = [Arc::clone(database), Arc::clone(user)];
        if is_full && !self.pool_numbers.contains_key(&key) {
            key = Default::default();
        }
        let [database, user] = key.clone();
        *self.pool_numbers.entry(key).or_insert_with(|| {
            let concurrency = Concurrency::default();
            self.pools.push(PoolSums { database, user, concurrency, groups: Vec::new() });
            self.pools.len() - 1
        })
    }

    /// Returns the number of the group of an application that uses a pool.
    fn group(&mut self, pool: usize, application: &Arc<str>) -> usize {
        let sums = &self.pools[pool];
        let (database, user) = (&sums.database, &sums.user);
        let mut key = [Arc::clone(database), Arc::clone(user), Arc::clone(application)];
        if self.groups.len() >= GROUPS_MAX && !self.group_numbers.contains_key(&key) {
            key[2] = Arc::default();
        }
        let [database, user, application] = key.clone();
        *self.group_numbers.entry(key).or_insert_with(|| {
            let number = self.groups.len();
            self.groups.push(ClientGroup::new(database, user, application));
            self.pools[pool].groups.push(number);
            number
        })
    }

    /// Returns the counts of a session's pool and group.
    fn concurrencies(
        &mut self,
        pool: usize,
        group: Option<usize>,
    ) -> impl Iterator<Item = &mut Concurrency> {
        let group = group.map(|group| &mut self.groups[group].concurrency);
        [&mut self.pools[pool].concurrency].into_iter().chain(group)
    }
}

/// Returns the statement of an event without its constants.
fn example(event: &Event) -> String {
    let sql = event.action.sql().map_or(&[][..], |sql| sql.as_bytes());
    normalize(&sql[..sql.len().min(EXAMPLE_BYTES_MAX)])
}

#[cfg(feature = "grammar")]
fn text_effects(sql: &[u8]) -> TextEffects {
    crate::text_effects_of::text_effects(sql)
}

/// Never called: see [`Advisor::new`].
#[cfg(not(feature = "grammar"))]
fn text_effects(_: &[u8]) -> TextEffects {
    TextEffects::default()
}

#[cfg(test)]
mod tests;
