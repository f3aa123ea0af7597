//! The sessions that wait for locks at one moment, those that block them, and what they wait for.

use std::time::Duration;

use howdah_collect::{
    Activity, BackendActivity, BackendState, BackendType, Blocker, BlockingNode, BlockingTrees,
    CollectError, MonitorConnection, WaitedLock, sanitized_line,
};

use crate::RelationNames;

/// A snapshot of lock waits, as trees: each session is below one that blocks it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LockGraph {
    /// The sessions in depth-first order, the largest tree first.
    pub nodes: Vec<LockGraphNode>,
}

/// A session, or a prepared transaction, that waits for a lock or blocks one that does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockGraphNode {
    /// Process id; `None` for a prepared transaction.
    pub pid: Option<i32>,
    /// Number of ancestors in the tree; 0 for a root.
    pub depth: usize,
    /// Number of sessions that wait for this one, directly or indirectly.
    pub victims: usize,
    /// Whether the tree's root waits as well: the sessions wait in a circle.
    pub is_in_cycle: bool,
    /// All that block the session, the tree's parent first; `None` for a prepared transaction.
    pub blockers: Vec<Option<i32>>,
    /// Role, database, application and client, as far as known and visible.
    pub session: [Option<String>; 4],
    /// Kind of the process, unless it is a client's session.
    pub kind: Option<String>,
    /// State of the session, as in `pg_stat_activity.state`.
    pub state: Option<&'static str>,
    /// Time since the session's transaction began.
    pub transaction_age: Option<Duration>,
    /// Present statement, or the last one of an idle session, on one line.
    pub statement: Option<String>,
    /// The lock that the session waits for, if it waits for one.
    pub wait: Option<LockWait>,
}

/// A session's wait for a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockWait {
    /// The kind of lock, as in `pg_locks.locktype`.
    pub kind: String,
    /// The requested mode, as in `pg_locks.mode`.
    pub mode: String,
    /// The relation by name, if the lock is on one, on a row of one, or on the transaction that has
    /// changed a row of one.
    pub relation: Option<String>,
    /// Page and number of the row.
    pub row: Option<(u32, u16)>,
    /// Id of the transaction that is waited for.
    pub transaction: Option<u32>,
    /// Time since the wait began.
    pub age: Option<Duration>,
}

impl LockGraph {
    /// Reads the present graph.
    ///
    /// # Errors
    ///
    /// A statement or the connection failed.
    pub fn read(
        server: &mut MonitorConnection,
        names: &mut RelationNames,
    ) -> Result<Self, CollectError> {
        let activity = server.activity(true)?;
        let has_waits = activity.backends.iter().any(|backend| !backend.blockers.is_empty());
        let locks = if has_waits { server.waited_locks()? } else { Vec::new() };
        let trees = BlockingTrees::from_activity(&activity);
        let mut nodes = Vec::with_capacity(trees.nodes.len());
        // The path of pids from the root to the last node.
        let mut path: Vec<Option<i32>> = Vec::new();
        for node in &trees.nodes {
            path.truncate(node.depth);
            let parent = path.last().copied();
            path.push(pid_of(node.process));
            nodes.push(graph_node(node, parent, &activity, &locks, names));
        }
        Ok(Self { nodes })
    }
}

fn pid_of(process: Blocker) -> Option<i32> {
    match process {
        Blocker::Process(pid) => Some(pid),
        Blocker::Prepared => None,
    }
}

fn graph_node(
    node: &BlockingNode,
    parent: Option<Option<i32>>,
    activity: &Activity,
    locks: &[WaitedLock],
    names: &mut RelationNames,
) -> LockGraphNode {
    let pid = pid_of(node.process);
    let others = node.other_blockers.iter().copied().map(pid_of);
    let age = |since_us: i64| {
        Duration::from_micros(activity.taken_us.saturating_sub(since_us).max(0).unsigned_abs())
    };
    let backend = node.backend.and_then(|at| activity.backends.get(at));
    let lock = locks.iter().find(|lock| Some(lock.pid) == pid);
    let wait = lock.map(|lock| LockWait {
        kind: lock.kind.clone(),
        mode: lock.mode.clone(),
        relation: lock.relation.map(|(database, relation)| names.name(database, relation)),
        row: lock.row,
        transaction: lock.transaction,
        age: backend.and_then(|backend| backend.blocked_since_us).map(age),
    });
    let client = backend.and_then(BackendActivity::client_name).map(str::to_owned);
    let text = |name: fn(&BackendActivity) -> Option<&str>| {
        backend.and_then(name).map(|text| sanitized_line(text).into_owned())
    };
    LockGraphNode {
        pid,
        depth: node.depth,
        victims: node.victims,
        is_in_cycle: node.is_in_cycle,
        blockers: parent.into_iter().chain(others).collect(),
        session: [
            text(|backend| backend.user.as_deref()),
            text(|backend| backend.database.as_deref()),
            text(|backend| backend.application.as_deref()),
            client,
        ],
        kind: backend
            .and_then(|backend| backend.kind.as_ref())
            .filter(|kind| **kind != BackendType::Client)
            .map(|kind| kind.as_str().to_owned()),
        state: backend.and_then(|backend| backend.state).map(BackendState::as_str),
        transaction_age: backend.and_then(|backend| backend.transaction_started_us).map(age),
        statement: backend
            .and_then(|backend| backend.query.as_ref())
            .map(|query| query.to_shared_line().to_string())
            .filter(|text| !text.is_empty()),
        wait,
    }
}
