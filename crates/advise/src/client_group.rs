//! [`ClientGroup`]: sums over the sessions of one database, user and application.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use crate::{concurrency::Concurrency, session_states::KindPeriod, state_kind::StateKind};

/// The sums of a group of clients.
#[derive(Debug, Default)]
pub(crate) struct ClientGroup {
    pub(crate) database: Arc<str>,
    pub(crate) user: Arc<str>,
    pub(crate) application: Arc<str>,
    pub(crate) sessions: u64,
    pub(crate) statements: u64,
    pub(crate) transactions: u64,
    pub(crate) session_time: Duration,
    pub(crate) transaction_time: Duration,
    pub(crate) pinned_time: Duration,
    pub(crate) pinned_sessions: u64,
    pub(crate) concurrency: Concurrency,
    pub(crate) states: Vec<KindSums>,
    pub(crate) sequence_reads: SequenceReads,
}

/// The sums of a pool: one user in one database.
#[derive(Debug)]
pub(crate) struct PoolSums {
    pub(crate) database: Arc<str>,
    pub(crate) user: Arc<str>,
    pub(crate) concurrency: Concurrency,
    /// Numbers of its groups.
    pub(crate) groups: Vec<usize>,
}

/// The sums over the state of one kind.
#[derive(Debug)]
pub(crate) struct KindSums {
    pub(crate) kind: StateKind,
    pub(crate) sessions: u64,
    /// Number of objects that were left at the end of a transaction.
    pub(crate) count: u64,
    pub(crate) time: Duration,
    pub(crate) names: BTreeMap<Arc<str>, u64>,
    pub(crate) example: Option<String>,
}

/// Calls of `currval` or `lastval` in a later transaction than `nextval`.
#[derive(Debug, Default)]
pub(crate) struct SequenceReads {
    pub(crate) sessions: u64,
    pub(crate) count: u64,
    pub(crate) example: Option<String>,
}

/// Maximum number of names of objects of one kind that are counted.
const NAMES_MAX: usize = 200;

impl ClientGroup {
    pub(crate) fn new(database: Arc<str>, user: Arc<str>, application: Arc<str>) -> Self {
        Self { database, user, application, ..Self::default() }
    }

    /// Whether no statement is stored yet that leaves state of this kind.
    pub(crate) fn needs_example(&self, kind: StateKind) -> bool {
        self.states.iter().all(|sums| sums.kind != kind || sums.example.is_none())
    }

    /// Counts an object that was left at the end of a transaction.
    pub(crate) fn count_left(
        &mut self,
        kind: StateKind,
        name: Option<&Arc<str>>,
        example: Option<String>,
        is_first_of_session: bool,
    ) {
        let sums = self.kind_sums(kind);
        sums.count += 1;
        sums.sessions += u64::from(is_first_of_session);
        sums.example = sums.example.take().or(example);
        // The keys of locks are values.
        if let Some(name) = name
            && kind != StateKind::AdvisoryLock
            && (sums.names.len() < NAMES_MAX || sums.names.contains_key(name))
        {
            *sums.names.entry(Arc::clone(name)).or_default() += 1;
        }
    }

    pub(crate) fn count_periods(&mut self, periods: Vec<KindPeriod>) {
        for period in periods {
            self.kind_sums(period.kind).time += period.total;
        }
    }

    fn kind_sums(&mut self, kind: StateKind) -> &mut KindSums {
        let index = self.states.iter().position(|sums| sums.kind == kind);
        let index = index.unwrap_or_else(|| {
            self.states.push(KindSums {
                kind,
                sessions: 0,
                count: 0,
                time: Duration::ZERO,
                names: BTreeMap::new(),
                example: None,
            });
            self.states.len() - 1
        });
        &mut self.states[index]
    }
}
