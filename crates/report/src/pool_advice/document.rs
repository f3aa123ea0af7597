//! The advice for programs: a versioned JSON document.
//!
//! Within a version, fields are never renamed or removed; new ones may be added.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use howdah_advise::{
    ClientAdvice, ConcurrencyFigures, FunctionCalls, LateSequenceReads, LeftState, PoolAdvice,
    PoolSizeAdvice, StateKind,
};
use serde::Serialize;

use super::{limits, reason_code, settings::settings};

/// Advice in the form that `--format json` prints.
#[derive(Debug, Serialize)]
pub struct PoolAdviceDocument {
    /// Always `howdah-pool-advice`.
    format: &'static str,
    version: u32,
    first: Option<String>,
    last: Option<String>,
    events: u64,
    servers: u64,
    session_mode_servers: u64,
    clients_total: usize,
    clients: Vec<ClientsDocument>,
    pools: Vec<PoolDocument>,
    functions: Vec<FunctionDocument>,
    limits: Vec<String>,
    settings: String,
}

#[derive(Debug, Serialize)]
struct ClientsDocument {
    database: Arc<str>,
    user: Arc<str>,
    application: Arc<str>,
    mode: &'static str,
    reason: &'static str,
    sessions: u64,
    sessions_max: u32,
    statements: u64,
    transactions: u64,
    open_transactions: FiguresDocument,
    session_us: u64,
    transaction_us: u64,
    pinned_sessions: u64,
    pinned_us: u64,
    states: Vec<StateDocument>,
    sequence_reads: Option<SequenceReadsDocument>,
}

#[derive(Debug, Serialize)]
struct FiguresDocument {
    p50: u32,
    p99: u32,
    max: u32,
}

#[derive(Debug, Serialize)]
struct StateDocument {
    kind: &'static str,
    /// The name of undetectable state.
    detail: Option<String>,
    pins: bool,
    lost_in_transaction_mode: bool,
    sessions: u64,
    count: u64,
    state_us: u64,
    names: BTreeMap<Arc<str>, u64>,
    example: Option<String>,
}

#[derive(Debug, Serialize)]
struct SequenceReadsDocument {
    sessions: u64,
    count: u64,
    example: String,
}

#[derive(Debug, Serialize)]
struct PoolDocument {
    database: Arc<str>,
    user: Arc<str>,
    mode: &'static str,
    pool_size: u32,
    reserve_size: u32,
    session_mode_size: u32,
    open_transactions: FiguresDocument,
    adaptive_servers: FiguresDocument,
}

#[derive(Debug, Serialize)]
struct FunctionDocument {
    name: Arc<str>,
    calls: u64,
    sessions: u64,
}

/// Converts advice to a document with at most `limit` groups of clients.
pub fn document(advice: &PoolAdvice, limit: usize) -> PoolAdviceDocument {
    let facts = &advice.facts;
    let (servers, session_mode_servers) = advice.servers();
    PoolAdviceDocument {
        format: "howdah-pool-advice",
        version: 1,
        first: facts.first.map(|time| time.to_string()),
        last: facts.first.map(|_| facts.last_end.to_string()),
        events: facts.events,
        servers,
        session_mode_servers,
        clients_total: advice.clients.len(),
        clients: advice.clients.iter().take(limit).map(ClientsDocument::from).collect(),
        pools: advice.pools.iter().map(PoolDocument::from).collect(),
        functions: advice.functions.iter().map(FunctionDocument::from).collect(),
        limits: limits(facts),
        settings: settings(advice),
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

impl From<&ClientAdvice> for ClientsDocument {
    fn from(it: &ClientAdvice) -> Self {
        Self {
            database: Arc::clone(&it.database),
            user: Arc::clone(&it.user),
            application: Arc::clone(&it.application),
            mode: it.mode.as_str(),
            reason: reason_code(it),
            sessions: it.sessions,
            sessions_max: it.sessions_max,
            statements: it.statements,
            transactions: it.transactions,
            open_transactions: it.open_transactions.into(),
            session_us: micros(it.session_time),
            transaction_us: micros(it.transaction_time),
            pinned_sessions: it.pinned_sessions,
            pinned_us: micros(it.pinned_time),
            states: it.states.iter().map(StateDocument::from).collect(),
            sequence_reads: it.sequence_reads.as_ref().map(SequenceReadsDocument::from),
        }
    }
}

impl From<ConcurrencyFigures> for FiguresDocument {
    fn from(it: ConcurrencyFigures) -> Self {
        Self { p50: it.p50, p99: it.p99, max: it.max }
    }
}

impl From<&LeftState> for StateDocument {
    fn from(it: &LeftState) -> Self {
        let is_undetectable = matches!(it.kind, StateKind::Undetectable(_));
        Self {
            kind: it.kind.code(),
            detail: is_undetectable.then(|| it.kind.to_string()),
            pins: it.kind.is_pinning(),
            lost_in_transaction_mode: it.kind.is_lost_in_transaction_mode(),
            sessions: it.sessions,
            count: it.count,
            state_us: micros(it.time),
            names: it.names.iter().cloned().collect(),
            example: it.example.clone(),
        }
    }
}

impl From<&LateSequenceReads> for SequenceReadsDocument {
    fn from(it: &LateSequenceReads) -> Self {
        Self { sessions: it.sessions, count: it.count, example: it.example.clone() }
    }
}

impl From<&PoolSizeAdvice> for PoolDocument {
    fn from(it: &PoolSizeAdvice) -> Self {
        Self {
            database: Arc::clone(&it.database),
            user: Arc::clone(&it.user),
            mode: it.mode.as_str(),
            pool_size: it.size,
            reserve_size: it.reserve,
            session_mode_size: it.session_mode_size,
            open_transactions: it.open_transactions.into(),
            adaptive_servers: it.adaptive_servers.into(),
        }
    }
}

impl From<&FunctionCalls> for FunctionDocument {
    fn from(it: &FunctionCalls) -> Self {
        Self { name: Arc::clone(&it.name), calls: it.calls, sessions: it.sessions }
    }
}
