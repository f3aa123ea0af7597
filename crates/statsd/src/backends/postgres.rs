//! The PostgreSQL backend: copies snapshots into a partitioned table with COPY, and events and
//! service checks into two more tables ([`messages`]).
//!
//! ```sql
//! create table statsd_samples (
//!   time timestamptz not null, kind text not null, name text not null,
//!   tags jsonb not null, field text not null, value double precision not null
//! ) partition by range (time);
//! ```
//!
//! The table with its index, the current partition and the next one are created if missing. Each
//! batch is one transaction. If the connection breaks during a commit, the next connection queries
//! the outcome of that transaction (`pg_xact_status`), so that the batch is neither lost nor
//! inserted twice.

mod messages;
mod rows;
mod table;

use std::{
    collections::BTreeSet,
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use howdah_connect::{
    Client, ConnParams, ConnectError, ConnectTarget, Environment, QueryError, ResolveError,
};

use self::{messages::MessageTables, table::SampleTable};
use super::{
    BackendError, BackendSpool, BackendStatus, MetricBackend, SnapshotRequirements,
    outbox::{BatchContent, DeliveryOutcome, Outbox, SendError, ValueBatch},
};
use crate::{
    flush::{FlushSnapshot, TimedMetric},
    settings,
};

/// Maximum time allowed for a flush, regardless of the interval.
const BUDGET_MAX: Duration = Duration::from_secs(30);
/// Maximum number of partitions that are created at once: a month of hours. The limit on the age of
/// timestamps is usually lower, and so is that on spooled values.
const PARTITIONS_MAX: usize = 31 * 24;
/// Minimum time allowed for a flush: creating a table and its partitions takes several round trips.
const BUDGET_MIN: Duration = Duration::from_secs(5);

/// The backend that copies snapshots into a table.
pub struct PostgresBackend {
    settings: settings::PostgresSettings,
    outbox: Outbox,
    link: CopyConnection,
    status: BackendStatus,
}

/// The reason why the settings of the PostgreSQL backend cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PostgresError {
    /// The connection string, or a service file or environment variable that completes it, is
    /// invalid.
    #[error("invalid connection string")]
    Connection(#[source] Box<ResolveError>),
    /// The name of the table or of its schema is empty, the name of the table is too long, or there
    /// is more than one dot.
    #[error(
        "{table:?} is not a valid table name: write table or schema.table, with at most 51 bytes in the table's name"
    )]
    Table {
        /// The configured name.
        table: String,
    },
    /// The same for the table of events or of service checks.
    #[error(
        "{table:?} is not a valid table name: write table or schema.table, with at most 54 bytes in the table's name, or \"\" for no table"
    )]
    MessageTable {
        /// The configured name.
        table: String,
    },
}

/// The connection to the server, opened on demand.
struct CopyConnection {
    target: ConnectTarget,
    table: SampleTable,
    client: Option<Client>,
    /// The timestamp of the latest interval.
    time: i64,
    /// The starts of the partitions for the values that are not delivered yet, the latest
    /// [`PARTITIONS_MAX`].
    needed_partitions: BTreeSet<i64>,
    /// The starts of the partitions that are known to exist.
    ready_partitions: BTreeSet<i64>,
    messages: MessageTables,
    /// Whether the tables of messages are known to exist.
    messages_ready: bool,
    /// The transaction of the first spooled batch, if its commit was sent but not answered.
    in_doubt: Option<String>,
}

impl PostgresBackend {
    /// Creates the backend. The connection is opened by the first flush.
    ///
    /// # Errors
    ///
    /// See [`PostgresError`].
    pub fn new(
        settings: settings::PostgresSettings,
        environment: &Environment,
    ) -> Result<Self, PostgresError> {
        let params = ConnParams::from_conninfo(settings.connection.clone());
        let target = ConnectTarget::resolve(&params, environment)
            .map_err(|error| PostgresError::Connection(Box::new(error)))?;
        let table = SampleTable::new(&settings)
            .ok_or_else(|| PostgresError::Table { table: settings.table.clone() })?;
        let messages = MessageTables::new(&settings, &table.name)
            .map_err(|table| PostgresError::MessageTable { table })?;
        let status = BackendStatus::default();
        status.set("flush_time", 0.0);
        status.set("flush_length", 0.0);
        Ok(Self {
            outbox: Outbox::new(settings.spool_bytes),
            link: CopyConnection {
                target,
                table,
                client: None,
                time: 0,
                needed_partitions: BTreeSet::new(),
                ready_partitions: BTreeSet::new(),
                messages,
                messages_ready: false,
                in_doubt: None,
            },
            settings,
            status,
        })
    }

    /// Returns the database and the tables, and the form in which it gets rows.
    pub(super) fn destination(&self) -> String {
        let settings::PostgresSettings { table, format, events_table, checks_table, .. } =
            &self.settings;
        format!("{} {table} {format:?} {events_table:?} {checks_table:?}", self.link.target)
    }

    /// Sends the spooled batches for the last time, within `timeout`.
    fn deliver_rest(&mut self, timeout: Duration) -> Result<(), BackendError> {
        let start = Instant::now();
        let deadline = start + timeout;
        let (link, mut bytes) = (&mut self.link, 0);
        let delivery =
            self.outbox.deliver_now(start, |batch| link.send(batch, deadline, &mut bytes));
        let delivered = self.finish_delivery(delivery);
        self.record_flush(start, bytes);
        delivered
    }

    fn record_flush(&self, start: Instant, bytes: usize) {
        if bytes > 0 {
            self.status.set("flush_time", start.elapsed().as_millis() as f64);
            self.status.set("flush_length", bytes as f64);
        }
        self.outbox.report(&self.status);
    }

    /// Returns an error if values were lost, as [`DeliveryOutcome::into_result`] does.
    fn finish_delivery(
        &mut self,
        delivery: DeliveryOutcome<CopyError>,
    ) -> Result<(), BackendError> {
        if delivery.has_evicted {
            // The batch of the unanswered commit was the first in the spool.
            self.link.in_doubt = None;
        }
        if self.outbox.is_empty() {
            self.link.needed_partitions.clear();
        }
        delivery.into_result(&self.link.target.to_string(), &self.status)
    }
}

impl fmt::Debug for PostgresBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresBackend").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl MetricBackend for PostgresBackend {
    fn name(&self) -> &'static str {
        "postgres"
    }

    fn requirements(&self) -> SnapshotRequirements {
        SnapshotRequirements {
            names_as_sent: true,
            messages: self.link.messages.is_used(),
            ..SnapshotRequirements::default()
        }
    }

    fn status(&self) -> BackendStatus {
        self.status.clone()
    }

    fn flush(&mut self, snapshot: &Arc<FlushSnapshot>) -> Result<(), BackendError> {
        let start = Instant::now();
        let deadline = start + snapshot.interval.clamp(BUDGET_MIN, BUDGET_MAX);
        let format = self.settings.format;
        self.link.time = snapshot.timestamp;
        self.link.require_partitions(snapshot.timestamp, &snapshot.timed);
        let (link, mut bytes) = (&mut self.link, 0);
        let mut batches = Vec::new();
        link.messages.encode(&snapshot.messages, &mut |batch| batches.push(batch));
        let delivery = self.outbox.flush(
            start,
            |sink| {
                rows::encode(snapshot, format, sink);
                batches.into_iter().for_each(sink);
            },
            |batch| link.send(batch, deadline, &mut bytes),
        );
        self.record_flush(start, bytes);
        self.finish_delivery(delivery)
    }

    fn finish(&mut self, timeout: Duration) -> Result<(), BackendError> {
        let delivered = self.deliver_rest(timeout);
        let abandoned = self.outbox.abandon(&self.link.target.to_string());
        self.outbox.report(&self.status);
        delivered.and(abandoned)
    }

    fn hand_over(
        &mut self,
        timeout: Duration,
        spool: &mut BackendSpool,
    ) -> Result<(), BackendError> {
        let delivered = self.deliver_rest(timeout);
        spool.batches = self.outbox.take_batches();
        spool.in_doubt = self.link.in_doubt.take();
        if !spool.batches.is_empty() {
            spool.partitions = self.link.needed_partitions.iter().copied().collect();
        }
        delivered
    }

    /// The batches come first, unless the first own one has an unanswered commit.
    fn adopt(&mut self, spool: BackendSpool) {
        let are_first = self.link.in_doubt.is_none();
        self.outbox.adopt(spool.batches, are_first);
        self.link.require_partition_starts(spool.partitions);
        if are_first {
            self.link.in_doubt = spool.in_doubt;
        }
        self.outbox.report(&self.status);
    }
}

impl CopyConnection {
    /// Makes sure that the next batch is sent only once the partitions of these values exist.
    fn require_partitions(&mut self, time: i64, timed: &[TimedMetric]) {
        let times = timed.iter().map(|metric| metric.time).chain([time]);
        let starts: Vec<i64> = times.map(|time| self.table.start_of(time)).collect();
        self.require_partition_starts(starts);
    }

    fn require_partition_starts(&mut self, starts: Vec<i64>) {
        self.needed_partitions.extend(starts);
        while self.needed_partitions.len() > PARTITIONS_MAX {
            self.needed_partitions.pop_first();
        }
    }

    /// Copies one batch. A refused batch is retried once after checking the table again, because a
    /// partition may have been dropped.
    fn send(
        &mut self,
        batch: &ValueBatch,
        deadline: Instant,
        bytes: &mut usize,
    ) -> Result<(), CopyError> {
        let mut result = self.attempt(batch, deadline);
        if result.as_ref().is_err_and(SendError::is_refusal) {
            self.ready_partitions.clear();
            self.messages_ready = false;
            result = self.attempt(batch, deadline);
        }
        *bytes += result.as_ref().map_or(0, |()| batch.bytes.len());
        result
    }

    fn attempt(&mut self, batch: &ValueBatch, deadline: Instant) -> Result<(), CopyError> {
        let mut client = match self.client.take() {
            Some(client) => client,
            None => Client::connect(&self.target)?,
        };
        client.set_timeout(Some(remaining(deadline)?));
        if let Some(transaction) = &self.in_doubt {
            let committed = was_committed(&mut client, transaction)?;
            self.in_doubt = None;
            if committed {
                self.client = Some(client);
                return Ok(());
            }
        }
        let time = self.time;
        if !self.needed_partitions.is_subset(&self.ready_partitions) {
            self.table.prepare(&mut client, time, &self.needed_partitions)?;
            self.ready_partitions.clone_from(&self.needed_partitions);
            // Expired messages are deleted when expired partitions are dropped.
            self.messages_ready = false;
        }
        if batch.content != BatchContent::Values && !self.messages_ready {
            self.messages.prepare(&mut client, time)?;
            self.messages_ready = true;
        }
        client.set_timeout(Some(remaining(deadline)?));
        match self.copy(&mut client, batch) {
            Ok(()) => {
                self.client = Some(client);
                Ok(())
            }
            Err(error) => {
                if !error.is_fatal() {
                    // On a fatal error, the server aborts the transaction with the connection.
                    client.query("rollback")?;
                    self.client = Some(client);
                }
                Err(error.into())
            }
        }
    }

    fn copy(&mut self, client: &mut Client, batch: &ValueBatch) -> Result<(), QueryError> {
        client.query("begin")?;
        let transaction = client.one_value("select pg_current_xact_id()")?;
        match batch.content {
            BatchContent::Values => {
                client.copy_in(&self.table.copy, &mut &batch.bytes[..])?;
            }
            BatchContent::Events | BatchContent::Checks => self.messages.insert(client, batch)?,
        }
        self.in_doubt = transaction;
        let committed = client.query("commit");
        // An error that leaves the connection usable is an answer: the commit failed.
        if committed.as_ref().map_or_else(|error| !error.is_fatal(), |_| true) {
            self.in_doubt = None;
        }
        committed.map(drop)
    }
}

/// Whether a transaction with an unanswered commit was committed. A transaction unknown to the
/// server was not.
fn was_committed(client: &mut Client, transaction: &str) -> Result<bool, CopyError> {
    let sql = "select pg_xact_status($1::xid8)";
    match client.query_with(sql, &[Some(transaction)]) {
        Ok(result) => match result.rows.first().and_then(|row| row.text(0)).as_deref() {
            Some("committed") => Ok(true),
            Some("in progress") => Err(CopyError::InProgress),
            _ => Ok(false),
        },
        // "transaction ID … is in the future": the server was restored from an earlier backup.
        Err(QueryError::Sql(error)) if error.sqlstate == "22023" => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn remaining(deadline: Instant) -> Result<Duration, CopyError> {
    match deadline.saturating_duration_since(Instant::now()) {
        Duration::ZERO => Err(CopyError::OutOfTime),
        remaining => Ok(remaining),
    }
}

/// The reason why a batch could not be copied.
#[derive(Debug, thiserror::Error)]
enum CopyError {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error(transparent)]
    Query(#[from] QueryError),
    #[error("an earlier transaction with the same batch is still in progress")]
    InProgress,
    #[error("the timeout of this flush has expired")]
    OutOfTime,
}

impl SendError for CopyError {
    /// Whether the server refused the batch for a reason that is not known to be temporary.
    fn is_refusal(&self) -> bool {
        let Self::Query(QueryError::Sql(error)) = self else { return false };
        // Connection exception, transaction rollback, invalid transaction state (read-only),
        // resources, object state, operator intervention, system error: these are temporary.
        // Source: the manual's appendix "PostgreSQL Error Codes".
        const TEMPORARY: [&str; 7] = ["08", "40", "25", "53", "55", "57", "58"];
        !TEMPORARY.iter().any(|class| error.sqlstate.starts_with(class))
    }
}

#[cfg(test)]
mod tests;
