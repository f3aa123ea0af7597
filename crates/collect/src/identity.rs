//! [`PhysicalIdentity`]: facts that identify a server, and its position in the WAL.

use std::{fmt, str::FromStr};

use howdah_connect::{Client, QueryError, ResultRow};

/// A position in the WAL, as PostgreSQL writes it: `0/16B3748`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lsn(pub u64);

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:X}/{:X}", self.0 >> 32, self.0 & 0xFFFF_FFFF)
    }
}

/// The error for a text that is not a position in the WAL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a WAL position: write two hexadecimal numbers, such as 0/16B3748")]
pub struct ParseLsnError;

impl FromStr for Lsn {
    type Err = ParseLsnError;

    fn from_str(text: &str) -> Result<Self, ParseLsnError> {
        let half = |digits: &str| u32::from_str_radix(digits, 16).map_err(|_| ParseLsnError);
        let (high, low) = text.split_once('/').ok_or(ParseLsnError)?;
        Ok(Self(u64::from(half(high)?) << 32 | u64::from(half(low)?)))
    }
}

/// Facts that distinguish a server from its copies, and its present position in the WAL. An
/// optional fact is `None` if it could not be read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PhysicalIdentity {
    /// `system_identifier` of `pg_control_system()`, which physical copies share.
    pub system_identifier: Option<String>,
    /// The WAL timeline. A copy that was promoted has a new one.
    pub timeline: Option<u32>,
    /// `pg_postmaster_start_time()`, in microseconds since 1970.
    pub postmaster_start_us: Option<i64>,
    /// The last position that was written, or replayed if the server is in recovery.
    pub lsn: Option<Lsn>,
    /// `now()` when the position was read, in microseconds since 1970.
    pub time_us: Option<i64>,
    /// Whether the server is in recovery: a standby, or a copy before its promotion. False if the
    /// server refused the query.
    pub is_in_recovery: bool,
    /// The statement by which a superuser allows the role to read the system identifier, and the
    /// database to run it in; `None` if no grant is missing.
    pub missing_grant: Option<String>,
}

/// A query's only row, with an empty text for NULL, or the SQLSTATE with which the server refused
/// the query.
pub type IdentityRow = Result<Vec<String>, String>;

/// Queries the facts that need no privilege. The timeline of a primary is that of its current WAL
/// file, because the control file has that of the last checkpoint, which may precede a promotion.
const POSITION_SQL: &str = "\
SELECT pg_catalog.pg_is_in_recovery(), \
CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_last_wal_replay_lsn() \
ELSE pg_catalog.pg_current_wal_lsn() END, \
CASE WHEN NOT pg_catalog.pg_is_in_recovery() THEN pg_catalog.substr(\
pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_insert_lsn()), 1, 8) END, \
(extract(epoch FROM pg_catalog.now()) * 1000000)::bigint, \
(extract(epoch FROM pg_catalog.pg_postmaster_start_time()) * 1000000)::bigint, \
pg_catalog.quote_ident(current_user), pg_catalog.current_database()";

/// Queries the system identifier, separately because the privilege to call the function can be
/// revoked.
pub(crate) const SYSTEM_IDENTIFIER_SQL: &str =
    "SELECT system_identifier FROM pg_catalog.pg_control_system()";

/// Queries the timeline of a server in recovery, where `pg_walfile_name()` is not available. It is
/// that of the control file, which can be older than what was replayed.
const RECOVERY_TIMELINE_SQL: &str = "\
SELECT GREATEST(timeline_id, min_recovery_end_timeline) \
FROM pg_catalog.pg_control_checkpoint(), pg_catalog.pg_control_recovery()";

impl PhysicalIdentity {
    /// Queries the facts over any connection: `run` runs one query.
    ///
    /// # Errors
    ///
    /// Any error of `run`. A query that the server refuses is not an error.
    pub fn query_by<E>(mut run: impl FnMut(&str) -> Result<IdentityRow, E>) -> Result<Self, E> {
        let mut identity = Self::default();
        let Ok(row) = run(POSITION_SQL)? else { return Ok(identity) };
        let cell = |at: usize| row.get(at).map_or("", String::as_str);
        identity.is_in_recovery = cell(0) == "t";
        identity.lsn = cell(1).parse().ok();
        identity.timeline = u32::from_str_radix(cell(2), 16).ok();
        identity.time_us = cell(3).parse().ok();
        identity.postmaster_start_us = cell(4).parse().ok();
        match run(SYSTEM_IDENTIFIER_SQL)? {
            Ok(row) => identity.system_identifier = row.into_iter().next(),
            Err(sqlstate) if sqlstate == INSUFFICIENT_PRIVILEGE => {
                identity.missing_grant = Some(format!(
                    "GRANT EXECUTE ON FUNCTION pg_catalog.pg_control_system() TO {} \
                     (in database {})",
                    cell(5),
                    cell(6)
                ));
            }
            Err(_) => {}
        }
        if identity.is_in_recovery
            && let Ok(row) = run(RECOVERY_TIMELINE_SQL)?
        {
            identity.timeline = row.first().and_then(|timeline| timeline.parse().ok());
        }
        Ok(identity)
    }

    /// Queries the facts over `client`.
    ///
    /// # Errors
    ///
    /// The connection is lost. A query that the server refuses is not an error.
    pub fn query(client: &mut Client) -> Result<Self, QueryError> {
        Self::query_by(|sql| match client.query(sql) {
            Ok(results) => {
                let row = results.iter().find_map(|result| result.rows.first());
                let cells = row.map_or(0, ResultRow::len);
                let cell = |at| row.and_then(|row| row.text(at)).unwrap_or_default().into_owned();
                Ok(Ok((0..cells).map(cell).collect()))
            }
            Err(error) if error.is_fatal() => Err(error),
            Err(error) => Ok(Err(error.sqlstate().unwrap_or_default().to_owned())),
        })
    }
}

/// The SQLSTATE of a query that the role may not run.
const INSUFFICIENT_PRIVILEGE: &str = "42501";

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    fn query(replies: &[IdentityRow]) -> PhysicalIdentity {
        let mut replies = replies.iter();
        let next = |_: &str| Ok::<_, Infallible>(replies.next().expect("a reply").clone());
        let Ok(identity) = PhysicalIdentity::query_by(next);
        identity
    }

    fn row(cells: &[&str]) -> IdentityRow {
        Ok(cells.iter().map(|cell| (*cell).to_owned()).collect())
    }

    #[test]
    fn positions_are_parsed_and_written() {
        for text in ["0/16B3748", "A/0", "FFFFFFFF/FFFFFFFF"] {
            assert_eq!(text.parse::<Lsn>().unwrap().to_string(), text);
        }
        assert_eq!("1/10".parse(), Ok(Lsn((1 << 32) + 16)));
        for text in ["", "1", "1/", "/1", "x/1", "1/123456789"] {
            assert_eq!(text.parse::<Lsn>(), Err(ParseLsnError), "{text}");
        }
    }

    #[test]
    fn primary_and_standby_are_read() {
        let primary = ["f", "0/3000060", "0000000A", "7", "5", "app", "shop"];
        let identity = query(&[row(&primary), row(&["7301"])]);
        assert_eq!((identity.timeline, identity.lsn), (Some(10), Some(Lsn(0x300_0060))));
        assert_eq!((identity.time_us, identity.postmaster_start_us), (Some(7), Some(5)));
        assert_eq!(identity.system_identifier.as_deref(), Some("7301"));
        let standby = ["t", "0/3000060", "", "7", "5", "app", "shop"];
        let identity = query(&[row(&standby), row(&["7301"]), row(&["3"])]);
        assert!(identity.is_in_recovery && identity.timeline == Some(3));
    }

    #[test]
    fn refused_function_names_its_grant() {
        let primary = ["f", "0/3000060", "00000001", "7", "5", "\"App\"", "shop"];
        let identity = query(&[row(&primary), Err("42501".to_owned())]);
        assert_eq!(identity.system_identifier, None);
        let grant = identity.missing_grant.unwrap();
        assert!(grant.ends_with("pg_control_system() TO \"App\" (in database shop)"), "{grant}");
        assert_eq!(query(&[Err("42883".to_owned())]), PhysicalIdentity::default());
    }
}
