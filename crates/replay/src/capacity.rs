//! How many sessions a server has room for.

use std::fmt;

use howdah_connect::{Client, QueryError};

/// Connections of a server: how many there can be, and who has them.
///
/// Source: PostgreSQL manual, "Connection Settings".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// `max_connections`.
    pub max: usize,
    /// Kept back for superusers and for members of `pg_use_reserved_connections`.
    pub reserved: usize,
    /// Taken by other clients at the moment.
    pub in_use: usize,
}

/// `reserved_connections` is there since PostgreSQL 16. Who is not a superuser sees of other sessions
/// that they are there, and not what kind they are.
const ASK: &str = "\
select pg_catalog.current_setting('max_connections'),
       pg_catalog.current_setting('superuser_reserved_connections')::int
       + coalesce(pg_catalog.current_setting('reserved_connections', true), '0')::int,
       (select pg_catalog.count(*) from pg_catalog.pg_stat_activity
        where datid is not null and pid <> pg_catalog.pg_backend_pid()
          and coalesce(backend_type, 'client backend') = 'client backend')";

impl Capacity {
    /// Asks the server. `None` where the answer makes no sense: a pooler, for instance.
    ///
    /// # Errors
    ///
    /// The server refused to answer.
    pub fn ask(client: &mut Client) -> Result<Option<Self>, QueryError> {
        let results = client.query(ASK)?;
        let row = results.first().and_then(|result| result.rows.first());
        let number = |column| row.and_then(|row| row.text(column)?.parse().ok());
        Ok(match (number(0), number(1), number(2)) {
            (Some(max), Some(reserved), Some(in_use)) => Some(Self { max, reserved, in_use }),
            _ => None,
        })
    }

    /// Sessions of ordinary roles that there is room for.
    pub fn free(&self) -> usize {
        self.max.saturating_sub(self.reserved).saturating_sub(self.in_use)
    }
}

impl fmt::Display for Capacity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { max, reserved, in_use } = self;
        write!(f, "the target has room for {} (max_connections is {max}", self.free())?;
        if *reserved > 0 {
            write!(f, ", {reserved} are reserved for superusers")?;
        }
        if *in_use > 0 {
            write!(f, ", {in_use} are in use")?;
        }
        f.write_str(")")
    }
}
