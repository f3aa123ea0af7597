//! [`Capacity`]: the number of sessions that a server can accept; and whether there is a pooler.

use std::fmt;

use howdah_connect::{Client, QueryError};

/// The connection slots of a server, and the number of them in use.
///
/// Source: PostgreSQL manual, "Connection Settings".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Total number of slots, `max_connections`.
    pub max: usize,
    /// Slots reserved for superusers and members of `pg_use_reserved_connections`.
    pub reserved: usize,
    /// Slots in use by other clients at the moment.
    pub in_use: usize,
}

/// Selects the fields of a [`Capacity`]. `reserved_connections` exists since PostgreSQL 16. A role
/// without `pg_read_all_stats` sees the rows of other roles' sessions, but not their
/// `backend_type`.
const CAPACITY_SQL: &str = "\
select pg_catalog.current_setting('max_connections'),
       pg_catalog.current_setting('superuser_reserved_connections')::int
       + coalesce(pg_catalog.current_setting('reserved_connections', true), '0')::int,
       (select pg_catalog.count(*) from pg_catalog.pg_stat_activity
        where datid is not null and pid <> pg_catalog.pg_backend_pid()
          and coalesce(backend_type, 'client backend') = 'client backend')";

impl Capacity {
    /// Queries the connection slots of a server. Returns `None` if the reply lacks a number, which
    /// may happen with a pooler.
    ///
    /// # Errors
    ///
    /// The server refused the query, or the connection is lost.
    pub fn query(client: &mut Client) -> Result<Option<Self>, QueryError> {
        let results = client.query(CAPACITY_SQL)?;
        let row = results.first().and_then(|result| result.rows.first());
        let number = |column| row.and_then(|row| row.text(column)?.parse().ok());
        Ok(match (number(0), number(1), number(2)) {
            (Some(max), Some(reserved), Some(in_use)) => Some(Self { max, reserved, in_use }),
            _ => None,
        })
    }

    /// Returns the number of connections left for sessions of ordinary roles.
    pub fn available(&self) -> usize {
        self.max.saturating_sub(self.reserved).saturating_sub(self.in_use)
    }
}

impl fmt::Display for Capacity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { max, reserved, in_use } = self;
        write!(f, "the target has room for {} (max_connections is {max}", self.available())?;
        if *reserved > 0 {
            write!(f, ", {reserved} are reserved for superusers")?;
        }
        if *in_use > 0 {
            write!(f, ", {in_use} are in use")?;
        }
        f.write_str(")")
    }
}

/// Whether a connection goes through a pooler, which gives its clients process ids that are not
/// those of backends. `backend` is the connection's `pg_backend_pid()`.
pub(crate) fn is_through_pooler(client: &Client, backend: Option<&str>) -> bool {
    let backend = backend.and_then(|backend| backend.parse::<i32>().ok());
    backend.is_none() || backend != client.process_id()
}
