//! [`PoolAdvice`]: the pool modes and sizes that suit the clients of a capture, and the figures on
//! which they are based.

use std::{sync::Arc, time::Duration};

use howdah_traffic::{Event, Source, Timestamp};

use crate::{
    client_group::{ClientGroup, KindSums, PoolSums},
    concurrency::ConcurrencyFigures,
    state_kind::StateKind,
};

/// The advice for all clients of a capture.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolAdvice {
    /// Facts about the capture, which limit what the advice can say.
    pub facts: CaptureFacts,
    /// Groups of clients, those with the longest time in transactions first.
    pub clients: Vec<ClientAdvice>,
    /// Pools, in the order of database and user.
    pub pools: Vec<PoolSizeAdvice>,
    /// Functions that are not PostgreSQL's own, those with the most calls first.
    pub functions: Vec<FunctionCalls>,
}

/// Facts about a capture: its extent, and the events that show less than others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CaptureFacts {
    /// Start of the first event.
    pub first: Option<Timestamp>,
    /// End of the last event.
    pub last_end: Timestamp,
    /// Number of events.
    pub events: u64,
    /// Executions from a log, in which a transaction is known only by its BEGIN and COMMIT.
    pub logged_executions: u64,
    /// Executions whose duration is not known.
    pub untimed_executions: u64,
    /// Sessions that were open when the capture began.
    pub inferred_sessions: u64,
    /// Sessions that were open when the capture ended.
    pub unended_sessions: u64,
    /// Events of sessions that are not counted, because too many were open.
    pub uncounted_sessions: u64,
    /// Executions of texts that PostgreSQL's grammar rejects.
    pub unreadable_texts: u64,
}

/// The advice for the clients of one database, user and application.
#[derive(Clone, Debug, PartialEq)]
pub struct ClientAdvice {
    /// The database; empty if unknown.
    pub database: Arc<str>,
    /// The user; empty if unknown.
    pub user: Arc<str>,
    /// The `application_name`; empty if unknown.
    pub application: Arc<str>,
    /// Number of sessions.
    pub sessions: u64,
    /// Number of sessions open at once.
    pub sessions_max: u32,
    /// Number of executions.
    pub statements: u64,
    /// Number of transactions, those of single statements among them.
    pub transactions: u64,
    /// How many transactions were open at once.
    pub open_transactions: ConcurrencyFigures,
    /// The sum over the sessions of their time.
    pub session_time: Duration,
    /// The sum over the sessions of their time in transactions.
    pub transaction_time: Duration,
    /// Number of sessions that adaptive mode would have pinned to their server.
    pub pinned_sessions: u64,
    /// For how long, over all sessions.
    pub pinned_time: Duration,
    /// State that transactions left, longest time first.
    pub states: Vec<LeftState>,
    /// Calls of `currval` and `lastval` in later transactions than `nextval`.
    pub sequence_reads: Option<LateSequenceReads>,
    /// The mode that suits these clients.
    pub mode: SuitableMode,
    /// The property of the clients that decided on the mode.
    pub reason: ModeReason,
}

/// State of one kind that the sessions of a group had after the end of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftState {
    /// All of this is state of one kind.
    pub kind: StateKind,
    /// Number of sessions that had such state.
    pub sessions: u64,
    /// How often a transaction left such state.
    pub count: u64,
    /// For how long it existed, over all sessions.
    pub time: Duration,
    /// Names of settings, channels, functions and objects, and how often they were left; the most
    /// frequent first. Keys of locks are not listed.
    pub names: Vec<(Arc<str>, u64)>,
    /// The first statement that left such state, without its constants.
    pub example: Option<String>,
}

/// Calls of `currval` or `lastval` in a later transaction than `nextval`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LateSequenceReads {
    /// Number of sessions with such calls.
    pub sessions: u64,
    /// Number of statements with such calls.
    pub count: u64,
    /// The first statement, without its constants.
    pub example: String,
}

/// The pool modes that are suggested, from the one that needs the fewest servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SuitableMode {
    /// Servers are assigned for a transaction: `transaction`.
    Transaction,
    /// The same, and clients with state that cannot follow them are pinned: `adaptive`.
    Adaptive,
    /// Servers are assigned for a session: `session`.
    Session,
}

/// The reason why a mode suits a group of clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModeReason {
    /// Their transactions leave nothing that transaction mode would lose.
    NoState,
    /// Their transactions leave settings, which follow them in adaptive mode.
    StateFollows,
    /// They are pinned in adaptive mode for a part of their time.
    PartlyPinned,
    /// They are pinned in adaptive mode for nearly all of their time.
    MostlyPinned,
    /// They call `currval` or `lastval` in later transactions than `nextval`, which adaptive mode
    /// does not detect.
    SequenceReads,
}

/// The mode and the size that suit a pool: one user in one database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolSizeAdvice {
    /// The database; empty if unknown.
    pub database: Arc<str>,
    /// The user; empty if unknown.
    pub user: Arc<str>,
    /// The mode that suits all of its clients.
    pub mode: SuitableMode,
    /// Server connections with which 99 % of the transactions get one at once.
    pub size: u32,
    /// Further connections with which all of them do.
    pub reserve: u32,
    /// Server connections needed in session mode: as many as sessions were open at once.
    pub session_mode_size: u32,
    /// How many transactions were open at once.
    pub open_transactions: ConcurrencyFigures,
    /// How many servers adaptive mode would have used at once.
    pub adaptive_servers: ConcurrencyFigures,
}

/// A function that is not PostgreSQL's own, and how often it was called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionCalls {
    /// The name as in the statements, with a schema if they name one; `do` for code blocks.
    pub name: Arc<str>,
    /// Number of statements that call it.
    pub calls: u64,
    /// Number of sessions that call it.
    pub sessions: u64,
}

/// Share of session time from which pinning leaves adaptive mode without an advantage.
const MOSTLY_PINNED: f64 = 0.9;

impl PoolAdvice {
    pub(crate) fn new(
        groups: &[ClientGroup],
        pools: &[PoolSums],
        functions: Vec<FunctionCalls>,
        facts: &CaptureFacts,
    ) -> Self {
        let advised: Vec<_> = groups.iter().map(ClientAdvice::from_group).collect();
        let pools = pools.iter().filter(|pool| !pool.groups.is_empty());
        let mut pools: Vec<_> = pools.map(|pool| PoolSizeAdvice::new(pool, &advised)).collect();
        pools.sort_by(|a, b| (&a.database, &a.user).cmp(&(&b.database, &b.user)));
        let mut clients = advised;
        clients.sort_by(|a, b| {
            let name = |it: &ClientAdvice| {
                [Arc::clone(&it.database), Arc::clone(&it.user), Arc::clone(&it.application)]
            };
            b.transaction_time.cmp(&a.transaction_time).then_with(|| name(a).cmp(&name(b)))
        });
        Self { facts: facts.clone(), clients, pools, functions }
    }

    /// Returns the sum over the pools of the server connections: as advised, and in session mode.
    pub fn servers(&self) -> (u64, u64) {
        let advised = self.pools.iter().map(|pool| u64::from(pool.size) + u64::from(pool.reserve));
        let in_session_mode = self.pools.iter().map(|pool| u64::from(pool.session_mode_size));
        (advised.sum(), in_session_mode.sum())
    }
}

impl CaptureFacts {
    /// Processes the next event.
    pub(crate) fn observe(&mut self, event: &Event) {
        self.events += 1;
        self.first = self.first.or(Some(event.time));
        self.last_end = self.last_end.max(event.captured_end());
        if event.action.kind().is_execution() {
            self.logged_executions += u64::from(event.source != Source::Wire);
            self.untimed_executions += u64::from(event.outcome.duration_us.is_none());
        }
    }
}

impl ClientAdvice {
    fn from_group(group: &ClientGroup) -> Self {
        let mut states: Vec<_> = group.states.iter().map(LeftState::from_sums).collect();
        states.sort_by(|a, b| b.time.cmp(&a.time).then(b.count.cmp(&a.count)));
        let reads = &group.sequence_reads;
        let sequence_reads = (reads.count > 0).then(|| LateSequenceReads {
            sessions: reads.sessions,
            count: reads.count,
            example: reads.example.clone().unwrap_or_default(),
        });
        let mut advice = Self {
            database: Arc::clone(&group.database),
            user: Arc::clone(&group.user),
            application: Arc::clone(&group.application),
            sessions: group.sessions,
            sessions_max: group.concurrency.sessions.figures().max,
            statements: group.statements,
            transactions: group.transactions,
            open_transactions: group.concurrency.transactions.figures(),
            session_time: group.session_time,
            transaction_time: group.transaction_time,
            pinned_sessions: group.pinned_sessions,
            pinned_time: group.pinned_time,
            states,
            sequence_reads,
            mode: SuitableMode::Transaction,
            reason: ModeReason::NoState,
        };
        (advice.mode, advice.reason) = advice.suitable_mode();
        advice
    }

    fn suitable_mode(&self) -> (SuitableMode, ModeReason) {
        if self.sequence_reads.is_some() {
            return (SuitableMode::Session, ModeReason::SequenceReads);
        }
        if !self.states.iter().any(|state| state.kind.is_lost_in_transaction_mode()) {
            return (SuitableMode::Transaction, ModeReason::NoState);
        }
        match self.pinned_share() {
            share if share >= MOSTLY_PINNED => (SuitableMode::Session, ModeReason::MostlyPinned),
            _ if self.pinned_sessions > 0 => (SuitableMode::Adaptive, ModeReason::PartlyPinned),
            _ => (SuitableMode::Adaptive, ModeReason::StateFollows),
        }
    }

    /// Returns the share of the session time in transactions, from 0 to 1.
    pub fn transaction_share(&self) -> f64 {
        self.share(self.transaction_time)
    }

    /// Returns the share of the session time for which adaptive mode would have pinned clients to
    /// their servers, from 0 to 1.
    pub fn pinned_share(&self) -> f64 {
        self.share(self.pinned_time)
    }

    /// Returns the share of the session time, from 0 to 1.
    pub fn share(&self, time: Duration) -> f64 {
        match self.session_time {
            Duration::ZERO => 0.0,
            all => (time.as_secs_f64() / all.as_secs_f64()).min(1.0),
        }
    }
}

impl LeftState {
    fn from_sums(sums: &KindSums) -> Self {
        let mut names: Vec<_> =
            sums.names.iter().map(|(name, count)| (Arc::clone(name), *count)).collect();
        names.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        Self {
            kind: sums.kind,
            sessions: sums.sessions,
            count: sums.count,
            time: sums.time,
            names,
            example: sums.example.clone(),
        }
    }
}

impl PoolSizeAdvice {
    fn new(pool: &PoolSums, clients: &[ClientAdvice]) -> Self {
        let modes = pool.groups.iter().map(|group| clients[*group].mode);
        let mode = modes.max().unwrap_or(SuitableMode::Transaction);
        let sessions = pool.concurrency.sessions.figures().max;
        let open_transactions = pool.concurrency.transactions.figures();
        let adaptive_servers = pool.concurrency.servers.figures();
        let (size, max) = match mode {
            SuitableMode::Transaction => (open_transactions.p99, open_transactions.max),
            SuitableMode::Adaptive => (adaptive_servers.p99, adaptive_servers.max),
            SuitableMode::Session => (sessions, sessions),
        };
        // A size of 0 would mean no limit.
        let size = size.max(1);
        Self {
            database: Arc::clone(&pool.database),
            user: Arc::clone(&pool.user),
            mode,
            size,
            reserve: max.saturating_sub(size),
            session_mode_size: sessions,
            open_transactions,
            adaptive_servers,
        }
    }
}

impl SuitableMode {
    /// Returns the value of the setting `mode`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Transaction => "transaction",
            Self::Adaptive => "adaptive",
            Self::Session => "session",
        }
    }
}
