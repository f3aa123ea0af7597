//! A partitioned table in PostgreSQL, filled by COPY.
//!
//! ```sql
//! create table statsd_samples (
//!   time timestamptz not null, kind text not null, name text not null,
//!   tags jsonb not null, field text not null, value double precision not null
//! ) partition by range (time);
//! ```
//!
//! Table, index and partitions are made when they are missing, partitions ahead of time, so that no
//! flush waits for one. Each batch is a transaction of its own. If the connection breaks while a
//! commit is on its way, the next connection asks the server what became of that transaction
//! (`pg_xact_status`), so a batch is neither lost nor there twice.

mod rows;
mod table;

use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use howdah_connect::{Client, ConnectError, Environment, QueryError, ResolveError, Target, Words};

use self::table::Table;
use super::{
    Backend, BackendError, Needs, Status,
    outbox::{Batch, Delivery, Outbox, SendError},
};
use crate::{flush::Snapshot, settings};

/// Longest that one flush may take, however long the interval is.
const BUDGET_MAX: Duration = Duration::from_secs(30);
/// Shortest: making a table and its partitions takes several round trips.
const BUDGET_MIN: Duration = Duration::from_secs(5);

/// Copies snapshots into a table.
pub struct Postgres {
    settings: settings::Postgres,
    outbox: Outbox,
    link: Link,
    status: Status,
}

/// The settings of this backend cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PostgresError {
    /// The connection words say nothing that can be connected to.
    #[error("the connection of the postgres backend is not usable")]
    Connection(#[source] Box<ResolveError>),
    /// The table's name is empty, too long, or has more than one point.
    #[error("{table:?} is no name for a table: write table or schema.table")]
    Table {
        /// The name.
        table: String,
    },
}

/// The way to the server.
struct Link {
    target: Target,
    table: Table,
    client: Option<Client>,
    /// The table and the partitions up to then are known to be there.
    ready_until: Option<i64>,
    /// The transaction of the first batch that waits, if its commit was never answered.
    in_doubt: Option<String>,
}

impl Postgres {
    /// A backend for these settings. The connection is made by the first flush.
    ///
    /// # Errors
    ///
    /// The connection words or the table's name make no sense.
    pub fn new(
        settings: settings::Postgres,
        environment: &Environment,
    ) -> Result<Self, PostgresError> {
        let words = Words::from_conninfo(settings.connection.clone());
        let target = Target::resolve(&words, environment)
            .map_err(|error| PostgresError::Connection(Box::new(error)))?;
        let table = Table::new(&settings)
            .ok_or_else(|| PostgresError::Table { table: settings.table.clone() })?;
        let status = Status::default();
        status.set("flush_time", 0.0);
        status.set("flush_length", 0.0);
        Ok(Self {
            outbox: Outbox::new(settings.spool_bytes),
            link: Link { target, table, client: None, ready_until: None, in_doubt: None },
            settings,
            status,
        })
    }

    fn account(&self, start: Instant, bytes: usize) {
        if bytes > 0 {
            self.status.set("flush_time", start.elapsed().as_millis() as f64);
            self.status.set("flush_length", bytes as f64);
        }
        self.outbox.report(&self.status);
    }

    /// Says what became of batches.
    fn tell(&mut self, delivery: Delivery<Refusal>) -> Result<(), BackendError> {
        if delivery.lost > 0 {
            // The batch in doubt may be among those that went.
            self.link.in_doubt = None;
        }
        delivery.tell(&self.link.target.to_string(), &self.status)
    }
}

impl fmt::Debug for Postgres {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Postgres").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl Backend for Postgres {
    fn name(&self) -> &'static str {
        "postgres"
    }

    fn needs(&self) -> Needs {
        Needs { names_as_sent: true, ..Needs::default() }
    }

    fn status(&self) -> Status {
        self.status.clone()
    }

    fn flush(&mut self, snapshot: &Arc<Snapshot>) -> Result<(), BackendError> {
        let start = Instant::now();
        let deadline = start + snapshot.interval.clamp(BUDGET_MIN, BUDGET_MAX);
        let (format, time) = (self.settings.format, snapshot.timestamp);
        let (link, mut bytes) = (&mut self.link, 0);
        let delivery = self.outbox.flush(
            start,
            |sink| rows::encode(snapshot, format, sink),
            |batch| link.send(batch, time, deadline, &mut bytes),
        );
        self.account(start, bytes);
        self.tell(delivery)
    }

    fn finish(&mut self, patience: Duration) -> Result<(), BackendError> {
        let start = Instant::now();
        let deadline = start + patience;
        let (link, mut bytes) = (&mut self.link, 0);
        let time = link.ready_until.unwrap_or_default();
        let delivery =
            self.outbox.deliver_now(start, |batch| link.send(batch, time, deadline, &mut bytes));
        let delivered = self.tell(delivery);
        let abandoned = self.outbox.abandon(&self.link.target.to_string());
        self.account(start, bytes);
        delivered.and(abandoned)
    }
}

impl Link {
    /// Copies one batch. What a server that is there refuses is tried a second time, with the table
    /// looked at again: somebody may have dropped a partition.
    fn send(
        &mut self,
        batch: &Batch,
        time: i64,
        deadline: Instant,
        bytes: &mut usize,
    ) -> Result<(), Refusal> {
        let mut result = self.attempt(batch, time, deadline);
        if result.as_ref().is_err_and(SendError::is_refusal) {
            self.ready_until = None;
            result = self.attempt(batch, time, deadline);
        }
        *bytes += result.as_ref().map_or(0, |()| batch.bytes.len());
        result
    }

    fn attempt(&mut self, batch: &Batch, time: i64, deadline: Instant) -> Result<(), Refusal> {
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
        if self.ready_until.is_none_or(|until| time >= until) {
            self.ready_until = Some(self.table.prepare(&mut client, time)?);
        }
        client.set_timeout(Some(remaining(deadline)?));
        match self.copy(&mut client, batch) {
            Ok(()) => {
                self.client = Some(client);
                Ok(())
            }
            Err(error) => {
                if !error.is_fatal() {
                    // The transaction is over in any case: the server ends it with the connection.
                    client.query("rollback")?;
                    self.client = Some(client);
                }
                Err(error.into())
            }
        }
    }

    fn copy(&mut self, client: &mut Client, batch: &Batch) -> Result<(), QueryError> {
        client.query("begin")?;
        let transaction = client.one_value("select pg_current_xact_id()")?;
        client.copy_in(&self.table.copy, &mut &batch.bytes[..])?;
        self.in_doubt = transaction;
        let committed = client.query("commit");
        // An error that leaves the connection standing is an answer: it was not committed.
        if committed.as_ref().map_or_else(|error| !error.is_fatal(), |_| true) {
            self.in_doubt = None;
        }
        committed.map(drop)
    }
}

/// Whether a transaction, whose commit was sent and never answered, was committed. One that the
/// server knows nothing of was not.
fn was_committed(client: &mut Client, transaction: &str) -> Result<bool, Refusal> {
    let sql = "select pg_xact_status($1::xid8)";
    match client.query_with(sql, &[Some(transaction)]) {
        Ok(result) => match result.rows.first().and_then(|row| row.text(0)).as_deref() {
            Some("committed") => Ok(true),
            Some("in progress") => Err(Refusal::InProgress),
            _ => Ok(false),
        },
        // "transaction ID … is in the future": a server restored from before it.
        Err(QueryError::Sql(error)) if error.sqlstate == "22023" => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn remaining(deadline: Instant) -> Result<Duration, Refusal> {
    match deadline.saturating_duration_since(Instant::now()) {
        Duration::ZERO => Err(Refusal::OutOfTime),
        remaining => Ok(remaining),
    }
}

/// Why a batch was not copied.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error(transparent)]
    Query(#[from] QueryError),
    #[error("the server still works on the batch before")]
    InProgress,
    #[error("no time is left in this flush")]
    OutOfTime,
}

impl SendError for Refusal {
    /// Errors that say something about the rows, and not about the state of the server.
    fn is_refusal(&self) -> bool {
        let Self::Query(QueryError::Sql(error)) = self else { return false };
        // Connection, rollback by the server, read-only, resources, not in this state, intervention,
        // system: they pass. Source: the manual's appendix "PostgreSQL Error Codes".
        const PASSING: [&str; 7] = ["08", "40", "25", "53", "55", "57", "58"];
        !PASSING.iter().any(|class| error.sqlstate.starts_with(class))
    }
}

#[cfg(test)]
mod tests;
