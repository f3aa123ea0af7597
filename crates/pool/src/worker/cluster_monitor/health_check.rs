//! [`HealthCheck`]: queries a server's role and WAL position over a persistent connection.

use std::{io, sync::Arc, time::Instant};

use howdah_net::{Interest, Poller, Received, Stream, Token, Waker};
use howdah_pool_core::{HealthReport, ServerFailure, ServerId, end_of_wal};
use howdah_wire::{Frame, backend::BackendMessage, frontend::encode};

use crate::{
    auth::ServerReady,
    worker::{
        directory::{PoolEntry, ServerRoute},
        pending_login::{LoginProgress, PendingLogin, PendingServer},
        resolver_threads,
        shared_state::SharedState,
    },
};

/// The basic query. It takes a primary's timeline from the name of the current WAL file, because
/// the control file has the timeline of the last checkpoint, which may precede a promotion. A role
/// that may not read the statistics of other sessions still sees whether a WAL receiver or sender
/// exists, which is sufficient here.
macro_rules! query {
    () => {
        "SELECT pg_catalog.pg_is_in_recovery(), \
         CASE WHEN pg_catalog.pg_is_in_recovery() THEN '0' ELSE pg_catalog.substr(\
         pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_insert_lsn()), 1, 8) END, \
         pg_catalog.pg_wal_lsn_diff(CASE WHEN pg_catalog.pg_is_in_recovery() \
         THEN pg_catalog.pg_last_wal_replay_lsn() ELSE pg_catalog.pg_current_wal_lsn() END, '0/0'), \
         pg_catalog.pg_postmaster_start_time(), \
         CASE WHEN pg_catalog.pg_is_in_recovery() \
         THEN (SELECT pg_catalog.count(*) FROM pg_catalog.pg_stat_wal_receiver WHERE pid IS NOT NULL) \
         ELSE (SELECT pg_catalog.count(*) FROM pg_catalog.pg_stat_replication) END"
    };
}

/// The query for read-your-writes. It adds the WAL insert position and the WAL page size, and on a
/// standby the received timeline, which only members of `pg_read_all_stats` see.
macro_rules! read_your_writes_query {
    ($otherwise:literal) => {
        concat!(
            query!(),
            ", CASE WHEN NOT pg_catalog.pg_is_in_recovery() THEN \
             pg_catalog.pg_wal_lsn_diff(pg_catalog.pg_current_wal_insert_lsn(), '0/0') END, \
             pg_catalog.current_setting('wal_block_size'), \
             CASE WHEN pg_catalog.pg_is_in_recovery() THEN COALESCE(\
             (SELECT received_tli FROM pg_catalog.pg_stat_wal_receiver)",
            $otherwise,
            ") END"
        )
    };
}

/// The queries, from the most to the least detailed. If the server refuses one, the next is used.
///
/// The first query also reads a standby's timeline from the control file, which is updated some
/// time after a promotion. A CASE cannot replace the separate query: the privilege to call the
/// `pg_control_*` functions can be revoked, and is checked even in a branch that is not executed. A
/// standby with an unknown timeline counts as having replayed nothing.
const CHECK_QUERIES: [&str; 3] = [
    read_your_writes_query!(
        ", (SELECT GREATEST(timeline_id, min_recovery_end_timeline) \
         FROM pg_catalog.pg_control_checkpoint(), pg_catalog.pg_control_recovery())"
    ),
    read_your_writes_query!(""),
    query!(),
];

/// Query run once per connection: the identifier does not change while the server runs.
const SYSTEM_IDENTIFIER_QUERY: &str =
    "SELECT system_identifier FROM pg_catalog.pg_control_system()";

/// An id that belongs to no core.
const CONTROL_ID: ServerId = ServerId::new(0, 0);

/// Maximum length of a message in bytes.
const MESSAGE_BYTES_MAX: u32 = 64 << 10;

/// The reason why a health check failed.
#[derive(Debug, thiserror::Error)]
pub(in crate::worker) enum HealthCheckError {
    /// The server is down, accepts no connections, or did not reply properly in time.
    #[error("{0}")]
    Unreachable(String),
    /// The server is up, but the login or the query did not succeed.
    #[error("{0}")]
    Refused(String),
    #[error("there is no user yet to log in as: set cluster.check-user")]
    NoUser,
}

/// The reason why a login to a server failed.
#[derive(Debug, thiserror::Error)]
pub(in crate::worker) enum BlockingLoginError {
    /// The server cannot be reached or refuses the login.
    #[error("{}", .0.message)]
    Failed(ServerFailure),
    #[error("the login timed out")]
    Timeout,
    #[error(transparent)]
    Poll(#[from] io::Error),
}

impl From<BlockingLoginError> for HealthCheckError {
    fn from(error: BlockingLoginError) -> Self {
        match error {
            BlockingLoginError::Failed(ServerFailure { sqlstate, message }) => match &sqlstate {
                b"08006" | b"57P01" | b"57P02" | b"57P03" => Self::Unreachable(message),
                _ => Self::Refused(message),
            },
            BlockingLoginError::Timeout => Self::Unreachable("health check timed out".to_owned()),
            BlockingLoginError::Poll(error) => error.into(),
        }
    }
}

impl From<io::Error> for HealthCheckError {
    fn from(error: io::Error) -> Self {
        Self::Unreachable(error.to_string())
    }
}

/// Checks the health of one server, over a connection that stays open between checks.
#[derive(Debug)]
pub(super) struct HealthCheck {
    poller: Poller,
    connection: Option<HealthCheckConnection>,
    /// The error of the first refused query that read-your-writes needs, until
    /// [`HealthCheck::take_refusal`] returns it.
    refusal: Option<String>,
    is_limited: bool,
}

#[derive(Debug)]
struct HealthCheckConnection {
    stream: Stream,
    read: Vec<u8>,
    /// The pool whose login the connection used. After a configuration change, the connection is
    /// opened again.
    entry: Arc<PoolEntry>,
    /// The system identifier: `None` until queried, `Some(None)` if the query was refused.
    system: Option<Option<i64>>,
    /// Number of leading [`CHECK_QUERIES`] that the server refuses permanently.
    refused_queries: usize,
}

/// The reply to a check query.
#[derive(Debug, Default)]
struct CheckReply {
    row: Vec<String>,
    refused: Option<QueryRefusal>,
}

/// The error of a query that the server refused, although it is up.
#[derive(Debug)]
struct QueryRefusal {
    /// Whether the query would be refused again.
    is_permanent: bool,
    sqlstate: String,
    text: String,
}

/// A connection outside the pools for a few queries, as a pool's user.
#[derive(Debug)]
pub(in crate::worker) struct ControlConnection {
    poller: Poller,
    connection: HealthCheckConnection,
    deadline: Instant,
}

impl ControlConnection {
    /// Logs in to the server of a pool. The connection can be used until `deadline`.
    ///
    /// # Errors
    ///
    /// The server is unreachable or refuses the login.
    pub(in crate::worker) fn open(
        entry: &Arc<PoolEntry>,
        shared: &SharedState,
        deadline: Instant,
    ) -> Result<Self, HealthCheckError> {
        let server = PendingServer::new(CONTROL_ID, Arc::clone(entry));
        Self::log_in(entry, server, shared, deadline)
    }

    /// Like [`ControlConnection::open`], over one of these routes.
    ///
    /// # Errors
    ///
    /// See [`ControlConnection::open`].
    pub(in crate::worker) fn open_over(
        entry: &Arc<PoolEntry>,
        routes: Vec<ServerRoute>,
        shared: &SharedState,
        deadline: Instant,
    ) -> Result<Self, HealthCheckError> {
        let server = PendingServer::over(CONTROL_ID, Arc::clone(entry), routes);
        Self::log_in(entry, server, shared, deadline)
    }

    fn log_in(
        entry: &Arc<PoolEntry>,
        server: PendingServer,
        shared: &SharedState,
        deadline: Instant,
    ) -> Result<Self, HealthCheckError> {
        let mut poller = Poller::new()?;
        let connection = log_in(&mut poller, entry, server, shared, deadline)?;
        Ok(Self { poller, connection, deadline })
    }

    /// Runs a query that returns one row. Returns its cells, with an empty text for NULL, or the
    /// SQLSTATE with which the server refused it.
    ///
    /// # Errors
    ///
    /// The connection was lost, the reply was malformed, or the deadline has passed.
    pub(in crate::worker) fn query_row(
        &mut self,
        sql: &str,
    ) -> Result<Result<Vec<String>, String>, HealthCheckError> {
        let reply = self.connection.query(&mut self.poller, sql, self.deadline)?;
        Ok(match reply.refused {
            Some(refused) => Err(refused.sqlstate),
            None => Ok(reply.row),
        })
    }

    /// Sends Terminate, and closes the connection.
    pub(in crate::worker) fn close(mut self) {
        let mut terminate = Vec::new();
        encode::terminate(&mut terminate);
        // A courtesy: the server notices the end in any case.
        let _ = self.connection.stream.send(&terminate);
        self.connection.stream.close();
    }
}

impl HealthCheck {
    /// Creates health checks without a connection; the first check opens one.
    ///
    /// # Errors
    ///
    /// The poller cannot be created, for example because the process is out of file descriptors.
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self { poller: Poller::new()?, connection: None, refusal: None, is_limited: false })
    }

    /// Closes the connection; the next check opens another.
    pub(super) fn disconnect(&mut self) {
        self.connection = None;
    }

    /// Takes the error of a refused query that read-your-writes needs.
    pub(super) fn take_refusal(&mut self) -> Option<String> {
        self.refusal.take()
    }

    /// Returns a waker that interrupts [`HealthCheck::wait`].
    pub(super) fn waker(&self) -> io::Result<Waker> {
        self.poller.waker()
    }

    /// Waits for an event, at most until `until`. Returns whether the connection has ended, so that
    /// a restart of the server is detected before the next check.
    pub(super) fn wait(&mut self, until: Instant) -> bool {
        if self.poller.wait(Some(until), &mut Vec::new()).is_err() {
            std::thread::sleep(std::time::Duration::from_millis(1)); // Do not spin if polling fails.
        }
        let Some(connection) = &mut self.connection else { return false };
        let mut buffer = [0; 4096];
        loop {
            match connection.stream.receive(&mut buffer) {
                Ok(Received::Drained(0)) => return false,
                Ok(Received::Bytes(some) | Received::Drained(some)) => {
                    connection.read.extend_from_slice(&buffer[..some]);
                    let mut reply = CheckReply::default();
                    if connection.parse_messages(&mut reply).is_err() || reply.refused.is_some() {
                        break; // The server reports that it closes the connection.
                    }
                }
                Ok(Received::Closed) | Err(_) => break,
            }
        }
        self.connection = None;
        true
    }

    /// Checks a server over the open connection. Logs in first if none is open, and checks again
    /// over a new connection if the first check fails.
    ///
    /// # Errors
    ///
    /// The server is unreachable or refuses the check.
    pub(super) fn check(
        &mut self,
        entry: &Arc<PoolEntry>,
        shared: &SharedState,
        deadline: Instant,
        for_read_your_writes: bool,
    ) -> Result<HealthReport, HealthCheckError> {
        let current =
            self.connection.take().filter(|connection| Arc::ptr_eq(&connection.entry, entry));
        if let Some(mut connection) = current {
            // If only the old connection has ended, the server may have restarted: connect again.
            if let Ok(report) = self.check_on(&mut connection, for_read_your_writes, deadline) {
                self.connection = Some(connection);
                return Ok(report);
            }
        }
        let server = PendingServer::new(CONTROL_ID, Arc::clone(entry));
        let mut connection = log_in(&mut self.poller, entry, server, shared, deadline)?;
        let report = self.check_on(&mut connection, for_read_your_writes, deadline)?;
        self.connection = Some(connection);
        Ok(report)
    }

    fn check_on(
        &mut self,
        connection: &mut HealthCheckConnection,
        for_read_your_writes: bool,
        deadline: Instant,
    ) -> Result<HealthReport, HealthCheckError> {
        let system = match connection.system {
            Some(system) => system,
            None => {
                let reply =
                    connection.query(&mut self.poller, SYSTEM_IDENTIFIER_QUERY, deadline)?;
                let identifier = reply.row.first().and_then(|cell| cell.parse().ok());
                *connection.system.insert(identifier)
            }
        };
        let basic = CHECK_QUERIES.len() - 1;
        let mut at = if for_read_your_writes { connection.refused_queries } else { basic };
        loop {
            let reply = connection.query(&mut self.poller, CHECK_QUERIES[at], deadline)?;
            match reply.refused {
                None => return parse_report(&reply.row, system),
                Some(refused) if at == basic => {
                    return Err(HealthCheckError::Refused(refused.text));
                }
                Some(refused) => {
                    at += 1;
                    if refused.is_permanent {
                        connection.refused_queries = at;
                    }
                    if !std::mem::replace(&mut self.is_limited, true) {
                        self.refusal = Some(refused.text);
                    }
                }
            }
        }
    }
}

fn log_in(
    poller: &mut Poller,
    entry: &Arc<PoolEntry>,
    server: PendingServer,
    shared: &SharedState,
    deadline: Instant,
) -> Result<HealthCheckConnection, HealthCheckError> {
    let (stream, ready) = log_in_blocking(poller, server.for_pooler(), shared, deadline)?;
    Ok(HealthCheckConnection {
        stream,
        read: ready.received,
        entry: Arc::clone(entry),
        system: None,
        refused_queries: 0,
    })
}

/// Returns a login to the server of a pool, as one of the pooler's own connections.
pub(in crate::worker) fn pending_server(entry: &Arc<PoolEntry>) -> PendingServer {
    let id = ServerId::new(0, 0); // An id that belongs to no core.
    PendingServer::new(id, Arc::clone(entry)).for_pooler()
}

/// Logs in to a server. The stream is then registered with `poller`, under token 0.
///
/// # Errors
///
/// The login failed or was not complete at `deadline`.
pub(in crate::worker) fn log_in_blocking(
    poller: &mut Poller,
    server: PendingServer,
    shared: &SharedState,
    deadline: Instant,
) -> Result<(Stream, Box<ServerReady>), BlockingLoginError> {
    let mut pending = PendingLogin::server(server);
    loop {
        match pending.advance(shared, true) {
            LoginProgress::Server(_, ready, _) => {
                let stream = pending.stream.take();
                let stream = stream.ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected))?;
                if pending.watched.is_none() {
                    poller.add_with_interest(&stream, Token(0), Interest::Both)?;
                }
                return Ok((stream, ready));
            }
            LoginProgress::NoServer(_, failure) => return Err(BlockingLoginError::Failed(failure)),
            LoginProgress::FetchSecret => {
                pending.fetch_secret(shared);
                continue;
            }
            LoginProgress::Resolve => {
                resolver_threads::resolve_blocking(&mut pending, shared);
                continue;
            }
            // A login to a server has no other results.
            _ => {}
        }
        if let Some(stream) = pending.stream.as_ref().filter(|_| pending.watched.is_none()) {
            poller.add_with_interest(stream, Token(0), Interest::Both)?;
            pending.watched = Some(Interest::Both);
        }
        if Instant::now() >= deadline {
            return Err(BlockingLoginError::Timeout);
        }
        poller.wait(Some(deadline), &mut Vec::new())?;
    }
}

/// Waits until the stream may be ready; fails after `deadline`.
fn wait_readable(poller: &mut Poller, deadline: Instant) -> Result<(), HealthCheckError> {
    if Instant::now() >= deadline {
        return Err(HealthCheckError::Unreachable("health check timed out".to_owned()));
    }
    poller.wait(Some(deadline), &mut Vec::new())?;
    Ok(())
}

impl HealthCheckConnection {
    fn query(
        &mut self,
        poller: &mut Poller,
        text: &str,
        deadline: Instant,
    ) -> Result<CheckReply, HealthCheckError> {
        let mut query = Vec::new();
        let cannot_encode =
            |_| HealthCheckError::Refused("the query is too long to be sent".to_owned());
        encode::query(&mut query, text.as_bytes()).map_err(cannot_encode)?;
        let mut sent = 0;
        while sent < query.len() {
            let taken = self.stream.send(&query[sent..])?;
            sent += taken;
            if taken == 0 {
                wait_readable(poller, deadline)?;
            }
        }
        let mut reply = CheckReply::default();
        loop {
            if self.parse_messages(&mut reply)? {
                return Ok(reply);
            }
            let mut buffer = [0; 4096];
            match self.stream.receive(&mut buffer)? {
                Received::Closed => {
                    return Err(match reply.refused {
                        Some(refused) => HealthCheckError::Refused(refused.text),
                        None => io::Error::from(io::ErrorKind::UnexpectedEof).into(),
                    });
                }
                Received::Drained(0) => wait_readable(poller, deadline)?,
                Received::Bytes(some) | Received::Drained(some) => {
                    self.read.extend_from_slice(&buffer[..some]);
                }
            }
        }
    }

    /// Parses the complete messages in the buffer. Returns whether the reply is complete.
    fn parse_messages(&mut self, reply: &mut CheckReply) -> Result<bool, HealthCheckError> {
        let malformed =
            || HealthCheckError::Unreachable("the server sent a malformed message".to_owned());
        let read = std::mem::take(&mut self.read);
        let mut rest = &read[..];
        while let Some((frame, tail)) =
            Frame::split(rest, MESSAGE_BYTES_MAX).map_err(|_| malformed())?
        {
            rest = tail;
            match BackendMessage::parse(frame).map_err(|_| malformed())? {
                BackendMessage::DataRow(cells) => {
                    let text = |cell: Option<&[u8]>| {
                        String::from_utf8_lossy(cell.unwrap_or_default()).into_owned()
                    };
                    reply.row = cells.map(text).collect();
                }
                BackendMessage::ErrorResponse(error) => {
                    let text = String::from_utf8_lossy(error.message()).into_owned();
                    if error.sqlstate().starts_with(b"57P") {
                        return Err(HealthCheckError::Unreachable(text));
                    }
                    // Class 42: insufficient privilege, or an undefined function or view.
                    let is_permanent = error.sqlstate().starts_with(b"42");
                    let sqlstate = String::from_utf8_lossy(error.sqlstate()).into_owned();
                    reply.refused = Some(QueryRefusal { is_permanent, sqlstate, text });
                }
                BackendMessage::ReadyForQuery(_) => {
                    self.read = rest.to_vec();
                    return Ok(true);
                }
                _ => {}
            }
        }
        self.read = rest.to_vec();
        Ok(false)
    }
}

fn parse_report(row: &[String], system: Option<i64>) -> Result<HealthReport, HealthCheckError> {
    let read = || {
        let ([recovery, timeline, lsn, started, receivers], extra) = row.split_first_chunk()?;
        let is_in_recovery = recovery == "t";
        let mut report = HealthReport {
            is_in_recovery,
            timeline: u32::from_str_radix(timeline, 16).ok()?,
            // Null on a standby that has not replayed anything yet.
            lsn: lsn.parse().unwrap_or(0),
            insert_lsn: None,
            start_time: started.clone(),
            is_streaming: receivers != "0",
            system_identifier: system,
        };
        match extra {
            [] => {}
            [_, _, timeline] if is_in_recovery => report.timeline = timeline.parse().unwrap_or(0),
            [next, page_bytes, _] => {
                report.insert_lsn = Some(end_of_wal(next.parse().ok()?, page_bytes.parse().ok()?));
            }
            _ => return None,
        }
        Some(report)
    };
    read().ok_or_else(|| {
        HealthCheckError::Refused(format!("the health check returned an unexpected row: {row:?}"))
    })
}

#[test]
fn health_report_is_parsed() {
    let row = |cells: &[&str]| cells.iter().map(|cell| (*cell).to_owned()).collect::<Vec<_>>();
    let report = |row: &[String]| parse_report(row, Some(7));
    let primary = ["f", "0000000A", "50331968", "2026-01-01 00:00:00+00", "0"];
    let read = report(&row(&primary)).unwrap();
    assert_eq!((read.timeline, read.lsn, read.insert_lsn), (10, 50_331_968, None));
    assert!(!read.is_in_recovery && !read.is_streaming);
    let standby = ["t", "0", "", "x", "1"];
    let read = report(&row(&standby)).unwrap();
    assert!(read.is_in_recovery && read.is_streaming && read.timeline == 0);
    // The same reply with the columns for read-your-writes.
    let read = report(&row(&[&primary[..], &["50331688", "8192", ""]].concat())).unwrap();
    assert_eq!((read.timeline, read.insert_lsn), (10, Some(50_331_648)), "a page without a record");
    let read = report(&row(&[&standby[..], &["", "8192", "3"]].concat())).unwrap();
    assert_eq!((read.timeline, read.insert_lsn), (3, None));
    assert!(report(&row(&["f", "x", "1", "", "0"])).is_err() && report(&[]).is_err());
    assert!(report(&row(&[&primary[..], &["x", "8192", ""]].concat())).is_err());
}
