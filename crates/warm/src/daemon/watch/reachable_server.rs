//! Connects to a server, and finds out when its cache was last empty and whether the server runs on
//! this host.

use std::{
    path::PathBuf,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use crate::dump::{DumpSource, local_server};
use howdah_connect::{Client, ConnectError, ConnectTarget, Endpoint, QueryError};

use super::postmaster::{self, LocalPostmaster};

/// A server that accepted our connection.
#[derive(Debug)]
pub(super) struct ReachableServer {
    pub(super) cold_since: CacheColdSince,
    /// The server's postmaster, if inspecting it was tried and succeeded.
    pub(super) postmaster: Option<LocalPostmaster>,
    /// Why the postmaster cannot be inspected, if that was tried.
    pub(super) not_local_reason: Option<String>,
}

/// The time at which a server's cache was last empty.
#[derive(Clone, Copy, Debug)]
pub(super) struct CacheColdSince {
    /// Time by our clock, in microseconds since 1970; comparable with the times of images.
    pub(super) at_us: i64,
    /// Time by the server's clock, in microseconds since 1970; constant as long as the cache
    /// exists.
    server_clock_us: i64,
}

impl CacheColdSince {
    /// Whether both values are of the same cache. Only the times by the server's clock are
    /// compared: those by our clock include the duration of a query, and a tolerance for that could
    /// hide a quick restart.
    pub(super) fn matches(self, other: Self) -> bool {
        self.server_clock_us == other.server_clock_us
    }
}

/// The reason why a server could not be connected to or queried.
#[derive(Debug, thiserror::Error)]
pub(super) enum ServerAccessError {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error(transparent)]
    Query(#[from] QueryError),
    #[error("the server returned an invalid start time: {0:?}")]
    InvalidStartTime(String),
}

impl ServerAccessError {
    fn sqlstate(&self) -> Option<&str> {
        match self {
            Self::Connect(error) => error.sqlstate(),
            Self::Query(error) => error.sqlstate(),
            Self::InvalidStartTime(_) => None,
        }
    }

    /// Whether the server rejects connections for now (`cannot_connect_now`), usually because it is
    /// starting.
    pub(super) fn is_starting(&self) -> bool {
        self.sqlstate() == Some("57P03")
    }

    /// Whether the server is probably unreachable, stopping or starting: it reported a SQLSTATE
    /// that begins with 57P, or the connection failed without one. A server that has no free
    /// connection slot or rejects our password is running.
    pub(super) fn is_server_down(&self) -> bool {
        match self.sqlstate() {
            Some(code) => code.starts_with("57P"),
            None => !matches!(self, Self::InvalidStartTime(_)),
        }
    }
}

/// Query for the age of the cache and the time of its creation, in microseconds. A crash of a
/// single session empties the cache as well, while the postmaster stays: the checkpointer, which
/// lives as long as shared memory, is then restarted. A role that may not see the checkpointer's
/// start time detects only restarts of the postmaster.
const COLD_SINCE_SQL: &str = "SELECT (extract(epoch FROM clock_timestamp() - created) * 1e6)::int8,
        (extract(epoch FROM created) * 1e6)::int8
    FROM (SELECT greatest(
        pg_postmaster_start_time(),
        (SELECT max(backend_start) FROM pg_stat_activity WHERE backend_type = 'checkpointer')
    )) c (created)";

/// Maximum time to wait for a server's reply, and to connect to it unless `connect_timeout` is set.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);

/// Connects to a server, and finds out when its cache was last empty. Unless `source` is
/// [`DumpSource::PgBuffercache`], also finds out whether its memory can be read.
pub(super) fn connect(
    target: &ConnectTarget,
    source: DumpSource,
) -> Result<ReachableServer, ServerAccessError> {
    let mut client = open_session(target)?;
    let cold_since = query_cold_since(&mut client)?;
    if source == DumpSource::PgBuffercache {
        return Ok(ReachableServer { cold_since, postmaster: None, not_local_reason: None });
    }
    // Try to read the memory now: during a shutdown it would be too late to report that it fails.
    let local = local_server(&mut client).map_err(|reason| reason.to_string()).and_then(|server| {
        server.buffers().map_err(|error| error.to_string())?;
        LocalPostmaster::new(server).map_err(|error| error.to_string())
    });
    let (postmaster, not_local_reason) = match local {
        Ok(postmaster) => (Some(postmaster), None),
        Err(reason) => (None, Some(reason)),
    };
    Ok(ReachableServer { cold_since, postmaster, not_local_reason })
}

/// Connects to the server and queries when its cache was last empty.
pub(super) fn cold_since(target: &ConnectTarget) -> Result<CacheColdSince, ServerAccessError> {
    query_cold_since(&mut open_session(target)?)
}

fn open_session(target: &ConnectTarget) -> Result<Client, ServerAccessError> {
    let timeout = target.connect_timeout().unwrap_or(RESPONSE_TIMEOUT);
    let target = target.with_application_name("howdah warm").with_connect_timeout(Some(timeout));
    let mut client = Client::connect(&target)?;
    client.set_timeout(Some(RESPONSE_TIMEOUT));
    Ok(client)
}

fn query_cold_since(client: &mut Client) -> Result<CacheColdSince, ServerAccessError> {
    let results = client.query(COLD_SINCE_SQL)?;
    let row = results.first().and_then(|result| result.rows.first());
    let number = |column| {
        let text = row.and_then(|row| row.text(column)).unwrap_or_default();
        text.parse::<i64>().map_err(|_| ServerAccessError::InvalidStartTime(text.into_owned()))
    };
    let (age_us, server_clock_us) = (number(0)?, number(1)?);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now_us = i64::try_from(now.as_micros()).unwrap_or(i64::MAX);
    Ok(CacheColdSince { at_us: now_us - age_us, server_clock_us })
}

/// Returns the data directory of a server whose address is a Unix socket; `None` for TCP, or if no
/// absolute path can be read from the socket's lock file.
pub(super) fn find_data_dir(target: &ConnectTarget) -> Option<PathBuf> {
    target.endpoints().iter().find_map(|endpoint| match endpoint {
        Endpoint::Unix { path } => postmaster::data_dir_from_socket(path),
        Endpoint::Tcp { .. } => None,
    })
}
