//! A connection to one database that loads pieces, by whichever way is open.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use howdah_connect::{Client, QueryError, SqlError};

use super::{
    catalog::{Found, Kind},
    plan::Piece,
    report::Problem,
    way::{self, Mode, Statement, Way},
};
use crate::{dump::QueryFailure, image::Fork};

/// A connection to one database, ready to load.
pub(super) struct Session {
    client: Client,
    /// The database's number in the queue.
    pub(super) database: usize,
    /// The quoted schema of `pg_prewarm`, if it is there and may be called.
    pg_prewarm: Option<String>,
    /// Whether the server can ask its operating system for pages ahead, as far as is known.
    can_prefetch: bool,
    /// Whether reads are left to the server's I/O workers, as the server is used to.
    reads_by_workers: bool,
    /// Qualified names by oid.
    names: BTreeMap<u32, String>,
}

/// How a piece ended.
pub(super) enum Step {
    Loaded(Way),
    /// Not now: another session is in the way.
    Later,
    Failed(Problem),
    /// The relation ended before the piece.
    BeyondEnd(Box<SqlError>),
    /// A page cannot be read: which, is in the message, if it is in English.
    Damaged(Box<SqlError>),
    /// The connection is gone, the piece is not done.
    Lost(QueryFailure),
}

impl Session {
    pub(super) fn new(
        mut client: Client,
        database: usize,
        lock_timeout: Duration,
    ) -> Result<Self, QueryFailure> {
        let lock_timeout_ms = lock_timeout.as_millis().max(1);
        client.query(&format!("{LIMITS} SET lock_timeout = {lock_timeout_ms}; {PLANS}"))?;
        let pg_prewarm = client.one_value(PG_PREWARM)?;
        Ok(Self {
            client,
            database,
            pg_prewarm,
            can_prefetch: true,
            reads_by_workers: true,
            names: BTreeMap::new(),
        })
    }

    /// When the server was started, in its own words.
    pub(super) fn started(&mut self) -> Result<String, QueryFailure> {
        Ok(self.client.one_value(STARTED)?.unwrap_or_default())
    }

    /// How long a fork is now, in pages.
    pub(super) fn length(&mut self, oid: u32, fork: Fork) -> Result<u32, QueryFailure> {
        let (oid, fork) = (oid.to_string(), fork.name());
        let result = self.client.query_with(LENGTH, &[Some(&oid), Some(fork)])?;
        let text =
            result.rows.first().and_then(|row| row.text(0).map(std::borrow::Cow::into_owned));
        crate::dump::number("length of a relation", text)
    }

    /// Loads a piece of the relation `found`. `is_mostly_wanted`: half of the fork or more.
    pub(super) fn load(
        &mut self,
        found: &Found,
        piece: &Piece,
        mode: Mode,
        is_mostly_wanted: bool,
    ) -> Step {
        let mut denied = None;
        if let Some(schema) = self.pg_prewarm.clone() {
            match self.by_pg_prewarm(&schema, found.oid, piece, mode) {
                Ok(()) => return Step::Loaded(Way::PgPrewarm),
                // Some minors let only owners warm an index, whoever may read its table.
                Err(error) if error.sqlstate() == Some(DENIED) => denied = Some(error),
                Err(error) => return refused(error),
            }
        }
        let step = match (mode, found.kind, piece.fork) {
            (Mode::Buffer, Kind::Heap | Kind::Toast, Fork::Main) => {
                self.by_row_pointers(found.oid, piece)
            }
            (Mode::Buffer, Kind::Btree, Fork::Main) if is_mostly_wanted => {
                self.by_index_only_scan(found.oid)
            }
            (Mode::Buffer, Kind::Btree, Fork::Main) => no_way("a small part of an index"),
            (Mode::Buffer, ..) => no_way(way::beyond_queries(piece.fork)),
            _ => no_way("the operating system's cache"),
        };
        match (step, denied) {
            (Step::Failed(Problem::NoWay(_)), Some(error)) => refused(error),
            (step, _) => step,
        }
    }

    /// Pages that lie apart are asked for ahead: the disk then works on many of them at once. They are
    /// read by the session itself, for to have a worker read one page takes five times as long.
    fn by_pg_prewarm(
        &mut self,
        schema: &str,
        oid: u32,
        piece: &Piece,
        mode: Mode,
    ) -> Result<(), QueryError> {
        let is_sparse = mode == Mode::Buffer && piece.is_sparse();
        self.read_by_workers(!is_sparse)?;
        if is_sparse && self.can_prefetch {
            match self.run(&way::by_pg_prewarm(schema, oid, piece, Mode::Prefetch)) {
                Err(error) if error.sqlstate() == Some(NOT_SUPPORTED) => self.can_prefetch = false,
                result => result?,
            }
        }
        self.run(&way::by_pg_prewarm(schema, oid, piece, mode))
    }

    fn read_by_workers(&mut self, wanted: bool) -> Result<(), QueryError> {
        let has_workers = self.client.server_version_num().is_some_and(|it| it >= IO_WORKERS_SINCE);
        if has_workers && wanted != self.reads_by_workers {
            self.client.query(if wanted { READ_BY_WORKERS } else { READ_AT_ONCE })?;
            self.reads_by_workers = wanted;
        }
        Ok(())
    }

    fn by_row_pointers(&mut self, oid: u32, piece: &Piece) -> Step {
        let name = match self.name(oid) {
            Ok(Some(name)) => name,
            Ok(None) => return Step::Failed(Problem::Dropped),
            Err(error) => return refused(error),
        };
        match self.run(&way::by_row_pointers(&name, piece)) {
            Ok(()) => Step::Loaded(Way::RowPointers),
            Err(error) => refused(error),
        }
    }

    fn by_index_only_scan(&mut self, oid: u32) -> Step {
        match self.index_only_scan(oid) {
            Ok(Ok(())) => Step::Loaded(Way::IndexOnlyScan),
            Ok(Err(why)) => no_way(why),
            Err(error) => refused(error),
        }
    }

    /// Scans an index, or says what it lacks for that.
    fn index_only_scan(&mut self, oid: u32) -> Result<Result<(), &'static str>, QueryError> {
        let result = self.client.query_with(way::INDEX_ONLY_SCAN, &[Some(&oid.to_string())])?;
        let cell = |column| result.rows.first()?.text(column);
        let (Some(query), Some(name), Some(is_visible)) = (cell(0), cell(1), cell(2)) else {
            return Ok(Err("an index on expressions"));
        };
        if is_visible != "t" {
            return Ok(Err("an index of a table that was not vacuumed"));
        }
        let plan = self.client.query(&format!("EXPLAIN (COSTS off) {query}"))?;
        let lines: Vec<_> = plan.iter().flat_map(|result| &result.rows).collect();
        let lines: Vec<_> = lines.iter().filter_map(|row| row.text(0)).collect();
        if !way::is_index_only_scan(lines.iter().map(AsRef::as_ref), &name) {
            return Ok(Err("an index that no index-only scan reads"));
        }
        self.client.query(&query)?;
        Ok(Ok(()))
    }

    fn name(&mut self, oid: u32) -> Result<Option<String>, QueryError> {
        if let Some(name) = self.names.get(&oid) {
            return Ok(Some(name.clone()));
        }
        let result = self.client.query_with(way::NAME, &[Some(&oid.to_string())])?;
        let name =
            result.rows.first().and_then(|row| row.text(0)).map(std::borrow::Cow::into_owned);
        if let Some(name) = &name {
            self.names.insert(oid, name.clone());
        }
        Ok(name)
    }

    fn run(&mut self, statement: &Statement) -> Result<(), QueryError> {
        let values: Vec<_> = statement.values.iter().map(|value| Some(&**value)).collect();
        self.client.query_with(&statement.sql, &values).map(drop)
    }
}

/// When the server was started.
pub(super) const STARTED: &str = "SELECT pg_postmaster_start_time()::text";

/// Limits that are meant for users. Not every version has all of them.
const LIMITS: &str = "
    SELECT set_config(name, '0', false) FROM pg_settings WHERE name IN ('statement_timeout',
        'transaction_timeout', 'idle_session_timeout', 'idle_in_transaction_session_timeout');";

/// Parallel workers would share the pages out as they like, compilation costs more than the statements,
/// and scans that join others begin in the middle. A standby knows no serializable transactions. What
/// is switched off would keep the planner from the pages we want; it stays possible where there is no
/// other plan.
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

const LENGTH: &str = "
    SELECT pg_relation_size($1::oid::regclass, $2) / current_setting('block_size')::int8";

const IO_WORKERS_SINCE: u32 = 180_000;
/// Without concurrency a stream of reads waits for each: `read_stream_begin_impl()` in `read_stream.c`.
const READ_AT_ONCE: &str = "SET maintenance_io_concurrency = 0";
const READ_BY_WORKERS: &str = "RESET maintenance_io_concurrency";

const DENIED: &str = "42501";
/// feature_not_supported, of a server whose system has no such call.
const NOT_SUPPORTED: &str = "0A000";

fn no_way(to: &'static str) -> Step {
    Step::Failed(Problem::NoWay(to))
}

fn refused(error: QueryError) -> Step {
    let error = match error {
        QueryError::Sql(error) if !error.ends_session() => error,
        error => return Step::Lost(error.into()),
    };
    match error.sqlstate.as_str() {
        // lock_not_available; deadlock_detected; serialization_failure, which is how a standby ends a
        // query that is in the way of what it replays.
        "55P03" | "40P01" | "40001" => Step::Later,
        DENIED => Step::Failed(Problem::Denied(error)),
        // undefined_table
        "42P01" => Step::Failed(Problem::Dropped),
        // invalid_parameter_value
        "22023" => Step::BeyondEnd(error),
        // data_corrupted, index_corrupted
        "XX001" | "XX002" => Step::Damaged(error),
        _ => Step::Failed(Problem::Refused(error)),
    }
}

/// A problem of a connection that was lost again and again.
pub(super) fn lost(failure: QueryFailure) -> Problem {
    Problem::Lost(Arc::new(failure))
}
