//! A connection to one database that loads chunks by an available method.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use howdah_connect::{Client, QueryError, SqlError};
use howdah_inspect::OsProcess;

use super::{
    backend_cpu::BackendCpu,
    catalog::{LocatedRelation, RelationKind},
    method::{self, LoadMethod, LoadStatement, PrewarmMode},
    plan::{
        LoadChunk,
        touches::{TouchChunk, TouchMethod},
    },
    report::RelationProblem,
};
use crate::{dump::QueryFailure, image::Fork};

/// A connection to one database, ready to load.
pub(super) struct LoadSession {
    client: Client,
    /// The database's index in the queue.
    pub(super) database: usize,
    /// The quoted schema of `pg_prewarm`, if it is installed and may be called.
    pg_prewarm: Option<String>,
    /// Whether to use prefetching: true until the server reports that it is not supported.
    can_prefetch: bool,
    /// Whether I/O workers may perform the session's reads, which is the default since version 18.
    reads_by_workers: bool,
    /// Cache of qualified and quoted relation names, by oid.
    names: BTreeMap<u32, String>,
    /// Measures the session's CPU time, if the server runs on this host.
    cpu: Option<BackendCpu>,
}

/// The result of an attempt to load a chunk, which decides whether it is retried.
pub(super) enum ChunkResult {
    Loaded(LoadMethod),
    /// The chunk is blocked by another session, or on a standby by recovery, and must be retried.
    Deferred,
    Failed(RelationProblem),
    /// The relation ends before the end of the chunk.
    BeyondEnd(Box<SqlError>),
    /// A page is corrupted; the message, if in English, usually names it.
    Damaged(Box<SqlError>),
    /// The connection was lost or could not be made before the chunk was loaded.
    ConnectionLost(QueryFailure),
}

impl LoadSession {
    /// Prepares a session in one round trip, and returns it with the start time of the server.
    /// `postmaster` is the server's process, if it runs on this host.
    pub(super) fn new(
        mut client: Client,
        database: usize,
        lock_timeout: Duration,
        postmaster: Option<OsProcess>,
    ) -> Result<(Self, String), QueryFailure> {
        let results =
            client.query(&format!("{}; {START_TIME}; {PG_PREWARM}", set_up_sql(lock_timeout)))?;
        // The last two results.
        let mut values = results.iter().rev().map(|result| {
            result.rows.first().and_then(|row| row.text(0)).map(std::borrow::Cow::into_owned)
        });
        let pg_prewarm = values.next().flatten();
        let started = values.next().flatten().unwrap_or_default();
        let cpu = postmaster.and_then(|postmaster| BackendCpu::open(&client, postmaster));
        let session = Self {
            client,
            database,
            pg_prewarm,
            can_prefetch: true,
            reads_by_workers: true,
            names: BTreeMap::new(),
            cpu,
        };
        Ok((session, started))
    }

    /// Returns the CPU time that the server has used for this session since the last call; `None`
    /// if it cannot be measured.
    pub(super) fn lap_cpu(&mut self) -> Option<Duration> {
        self.cpu.as_mut().and_then(BackendCpu::lap)
    }

    /// Queries the current length of a fork, in pages.
    pub(super) fn length(&mut self, oid: u32, fork: Fork) -> Result<u32, QueryFailure> {
        let (oid, fork) = (oid.to_string(), fork.name());
        let result = self.client.query_with(FORK_LENGTH, &[Some(&oid), Some(fork)])?;
        let text =
            result.rows.first().and_then(|row| row.text(0).map(std::borrow::Cow::into_owned));
        crate::dump::parse_number("length of a relation", text)
    }

    /// Loads a chunk of the relation `found`. With `is_mostly_wanted`, at least half of the
    /// relation's pages are requested, so that a btree may be read as a whole.
    pub(super) fn load(
        &mut self,
        found: &LocatedRelation,
        chunk: &LoadChunk,
        mode: PrewarmMode,
        is_mostly_wanted: bool,
    ) -> ChunkResult {
        let mut denied = None;
        if let Some(schema) = self.pg_prewarm.clone() {
            match self.load_by_pg_prewarm(&schema, found.oid, chunk, mode) {
                Ok(()) => return ChunkResult::Loaded(LoadMethod::PgPrewarm),
                // Some minor versions require ownership to prewarm an index.
                Err(error) if error.sqlstate() == Some(DENIED) => denied = Some(error),
                Err(error) => return classify_error(error),
            }
        }
        let step = match (mode, found.kind, chunk.fork) {
            (PrewarmMode::Buffer, RelationKind::Heap | RelationKind::Toast, Fork::Main) => {
                self.load_by_row_pointers(found.oid, chunk)
            }
            (PrewarmMode::Buffer, RelationKind::Btree, Fork::Main) if is_mostly_wanted => {
                self.load_by_index_only_scan(found.oid)
            }
            (PrewarmMode::Buffer, RelationKind::Btree, Fork::Main) => {
                no_method("a small part of an index")
            }
            (PrewarmMode::Buffer, ..) => no_method(method::unreachable_by_query(chunk.fork)),
            _ => no_method("pages into the operating system's cache"),
        };
        match (step, denied) {
            (ChunkResult::Failed(RelationProblem::NoMethod(_)), Some(error)) => {
                classify_error(error)
            }
            (step, _) => step,
        }
    }

    /// Loads a chunk with `pg_prewarm()`. Scattered pages are prefetched first, so that the disk
    /// works on many of them at once. They are read by the session itself: having an I/O worker
    /// read a single page takes five times as long.
    fn load_by_pg_prewarm(
        &mut self,
        schema: &str,
        oid: u32,
        chunk: &LoadChunk,
        mode: PrewarmMode,
    ) -> Result<(), QueryError> {
        let is_sparse = mode == PrewarmMode::Buffer && chunk.is_sparse();
        self.set_read_by_workers(!is_sparse)?;
        if is_sparse && self.can_prefetch {
            match self.run(&method::pg_prewarm_statement(schema, oid, chunk, PrewarmMode::Prefetch))
            {
                Err(error) if error.sqlstate() == Some(NOT_SUPPORTED) => self.can_prefetch = false,
                result => result?,
            }
        }
        self.run(&method::pg_prewarm_statement(schema, oid, chunk, mode))
    }

    /// Touches pages that are in the cache. If one method is not available or permitted, the other
    /// one is used; a btree is never scanned as a whole for it.
    pub(super) fn touch(&mut self, found: &LocatedRelation, touch: &TouchChunk) -> ChunkResult {
        let chunk = &touch.chunk;
        let has_rows = matches!(found.kind, RelationKind::Heap | RelationKind::Toast)
            && chunk.fork == Fork::Main;
        let schema = self.pg_prewarm.clone();
        let mut result = no_method(method::unreachable_by_query(chunk.fork));
        let methods = match touch.method {
            TouchMethod::Ranges => [TouchMethod::Ranges, TouchMethod::RowPointers],
            TouchMethod::RowPointers => [TouchMethod::RowPointers, TouchMethod::Ranges],
        };
        for method in methods {
            result = match (method, &schema) {
                (TouchMethod::RowPointers, _) if has_rows => {
                    self.load_by_row_pointers(found.oid, chunk)
                }
                (TouchMethod::Ranges, Some(schema)) => {
                    let mode = PrewarmMode::Buffer;
                    let statement = method::pg_prewarm_statement(schema, found.oid, chunk, mode);
                    match self.run(&statement) {
                        Ok(()) => ChunkResult::Loaded(LoadMethod::PgPrewarm),
                        Err(error) => classify_error(error),
                    }
                }
                _ => continue,
            };
            if !matches!(result, ChunkResult::Failed(RelationProblem::Denied(_))) {
                break;
            }
        }
        result
    }

    fn set_read_by_workers(&mut self, requested: bool) -> Result<(), QueryError> {
        let has_workers = self.client.server_version_num().is_some_and(|it| it >= IO_WORKERS_SINCE);
        if has_workers && requested != self.reads_by_workers {
            self.client.query(if requested { READ_BY_WORKERS } else { READ_DIRECTLY })?;
            self.reads_by_workers = requested;
        }
        Ok(())
    }

    fn load_by_row_pointers(&mut self, oid: u32, chunk: &LoadChunk) -> ChunkResult {
        let name = match self.quoted_name(oid) {
            Ok(Some(name)) => name,
            Ok(None) => return ChunkResult::Failed(RelationProblem::Dropped),
            Err(error) => return classify_error(error),
        };
        match self.run(&method::row_pointer_statement(&name, chunk)) {
            Ok(()) => ChunkResult::Loaded(LoadMethod::RowPointers),
            Err(error) => classify_error(error),
        }
    }

    fn load_by_index_only_scan(&mut self, oid: u32) -> ChunkResult {
        match self.index_only_scan(oid) {
            Ok(Ok(())) => ChunkResult::Loaded(LoadMethod::IndexOnlyScan),
            Ok(Err(why)) => no_method(why),
            Err(error) => classify_error(error),
        }
    }

    /// Scans an index, or returns why it cannot be scanned.
    fn index_only_scan(&mut self, oid: u32) -> Result<Result<(), &'static str>, QueryError> {
        let result = self.client.query_with(method::INDEX_ONLY_SCAN, &[Some(&oid.to_string())])?;
        let cell = |column| result.rows.first()?.text(column);
        let (Some(query), Some(name), Some(is_visible)) = (cell(0), cell(1), cell(2)) else {
            return Ok(Err("an index that is invalid or on expressions"));
        };
        if is_visible != "t" {
            return Ok(Err("an index of a table that was not vacuumed recently"));
        }
        let plan = self.client.query(&format!("EXPLAIN (COSTS off) {query}"))?;
        let lines: Vec<_> = plan.iter().flat_map(|result| &result.rows).collect();
        let lines: Vec<_> = lines.iter().filter_map(|row| row.text(0)).collect();
        if !method::is_index_only_scan(lines.iter().map(AsRef::as_ref), &name) {
            return Ok(Err("an index that no index-only scan reads"));
        }
        self.client.query(&query)?;
        Ok(Ok(()))
    }

    fn quoted_name(&mut self, oid: u32) -> Result<Option<String>, QueryError> {
        if let Some(name) = self.names.get(&oid) {
            return Ok(Some(name.clone()));
        }
        let result = self.client.query_with(method::QUOTED_NAME, &[Some(&oid.to_string())])?;
        let name =
            result.rows.first().and_then(|row| row.text(0)).map(std::borrow::Cow::into_owned);
        if let Some(name) = &name {
            self.names.insert(oid, name.clone());
        }
        Ok(name)
    }

    fn run(&mut self, statement: &LoadStatement) -> Result<(), QueryError> {
        let values: Vec<_> = statement.values.iter().map(|value| Some(&**value)).collect();
        self.client.query_with(&statement.sql, &values).map(drop)
    }
}

/// Sets limits of waiting, and how statements are planned.
pub(super) fn set_up(client: &mut Client, lock_timeout: Duration) -> Result<(), QueryFailure> {
    client.query(&set_up_sql(lock_timeout))?;
    Ok(())
}

fn set_up_sql(lock_timeout: Duration) -> String {
    let lock_timeout_ms = lock_timeout.as_millis().max(1);
    format!("{LIMITS} SET lock_timeout = {lock_timeout_ms}; {PLANS}")
}

/// Query for the start time of the server.
pub(super) const START_TIME: &str = "SELECT pg_postmaster_start_time()::text";

/// Disables timeouts meant for users. Not every version has all of them.
const LIMITS: &str = "
    SELECT set_config(name, '0', false) FROM pg_settings WHERE name IN ('statement_timeout',
        'transaction_timeout', 'idle_session_timeout', 'idle_in_transaction_session_timeout');";

/// Settings that make plans load the requested pages. Parallel workers would distribute the pages
/// arbitrarily, compilation costs more than the statements, and synchronized scans start in the
/// middle. A standby does not support serializable transactions. Disabled scan types would bypass
/// the pages to be loaded; the planner uses them only as a last resort.
const PLANS: &str = "
    SET max_parallel_workers_per_gather = 0; SET jit = off; SET synchronize_seqscans = off;
    SET default_transaction_isolation = 'read committed';
    SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_sort = off;
    SET enable_tidscan = on; SET enable_indexonlyscan = on";

const PG_PREWARM: &str = "
    SELECT quote_ident(n.nspname) FROM pg_extension e
    JOIN pg_namespace n ON n.oid = e.extnamespace
    JOIN pg_proc p ON p.pronamespace = n.oid AND p.proname = 'pg_prewarm'
    WHERE e.extname = 'pg_prewarm' AND has_function_privilege(p.oid, 'EXECUTE')
    AND has_schema_privilege(n.oid, 'USAGE')";

const FORK_LENGTH: &str = "
    SELECT pg_relation_size($1::oid::regclass, $2) / current_setting('block_size')::int8";

const IO_WORKERS_SINCE: u32 = 180_000;
/// Makes the session read synchronously, as it does without I/O concurrency:
/// `read_stream_begin_impl()` in `read_stream.c`.
const READ_DIRECTLY: &str = "SET maintenance_io_concurrency = 0";
const READ_BY_WORKERS: &str = "RESET maintenance_io_concurrency";

const DENIED: &str = "42501";
/// feature_not_supported: the operating system has no prefetch call.
const NOT_SUPPORTED: &str = "0A000";

fn no_method(to: &'static str) -> ChunkResult {
    ChunkResult::Failed(RelationProblem::NoMethod(to))
}

fn classify_error(error: QueryError) -> ChunkResult {
    let error = match error {
        QueryError::Sql(error) if !error.closes_connection() => error,
        error => return ChunkResult::ConnectionLost(error.into()),
    };
    match error.sqlstate.as_str() {
        // lock_not_available, deadlock_detected, serialization_failure. A standby uses
        // serialization_failure to cancel a query that conflicts with recovery.
        "55P03" | "40P01" | "40001" => ChunkResult::Deferred,
        DENIED => ChunkResult::Failed(RelationProblem::Denied(error)),
        // undefined_table
        "42P01" => ChunkResult::Failed(RelationProblem::Dropped),
        // invalid_parameter_value
        "22023" => ChunkResult::BeyondEnd(error),
        // data_corrupted, index_corrupted
        "XX001" | "XX002" => ChunkResult::Damaged(error),
        _ => ChunkResult::Failed(RelationProblem::Refused(error)),
    }
}

/// Creates the problem of a relation for which the connection was lost repeatedly.
pub(super) fn connection_lost(failure: QueryFailure) -> RelationProblem {
    RelationProblem::ConnectionLost(Arc::new(failure))
}
