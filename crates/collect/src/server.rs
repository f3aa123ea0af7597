//! The connection that reads a server's activity and statistics.

use std::time::Duration;

use howdah_connect::{Client, ConnectTarget, QueryError, ResultSet};
use howdah_settings::parse_size;

use crate::{
    Activity, CollectError, Overview, Privileges, ServerVersion, SessionDetails, StatsView,
    ViewSample, WaitCounts, activity,
    identity::SYSTEM_IDENTIFIER_SQL,
    prepared_query::{OWN_COMMENT, PreparedQuery},
    session_details,
    view::{VersionedSql, sql_for_version},
};

/// `statement_timeout` of the connection, which includes lock waits.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum time to wait for a response. Longer than the server's own limit, so that a slow server
/// can report a timeout, and only an unresponsive one loses the connection.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(8);

/// A connection that reads a server's activity and statistics.
///
/// It limits its own cost: statements have timeouts, and those of samples are prepared once. It
/// never writes.
#[derive(Debug)]
pub struct MonitorConnection {
    client: Client,
    info: ServerInfo,
    privileges: Privileges,
    activity: activity::ActivityReader,
    overview: PreparedQuery,
    waits: PreparedQuery,
    /// Statements of views and of [`Self::run_named`].
    views: Vec<PreparedQuery>,
}

/// Properties of the server that do not change during a connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerInfo {
    /// Version of the server itself, even if a pooler reports another one.
    pub version: ServerVersion,
    /// Start time of the server, in microseconds since 1970 by its clock.
    pub started_us: i64,
    /// Host to which the client is connected.
    pub host: String,
    /// Port to which the client is connected.
    pub port: u16,
    /// Database that the connection uses.
    pub database: String,
    /// The setting `max_connections`.
    pub max_connections: i64,
    /// Data directory, if the role may see it.
    pub data_directory: Option<String>,
    /// The backend that serves the connection.
    pub backend: BackendProcess,
}

/// The backend that serves a connection, as the server knows it. If a process on this host has the
/// same id and start time, the server runs on this host, whatever network lies in between.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BackendProcess {
    /// Process id in the server's pid namespace.
    pub pid: i32,
    /// Start time in microseconds since 1970 by the server's clock.
    pub started_us: i64,
}

impl MonitorConnection {
    /// Connects and reads the server's properties and the role's privileges.
    ///
    /// # Errors
    ///
    /// The connection could not be established or failed, a statement failed, or the peer is not
    /// PostgreSQL.
    pub fn connect(target: &ConnectTarget) -> Result<Self, CollectError> {
        let mut client = Client::connect(target)?;
        client.set_timeout(Some(RESPONSE_TIMEOUT));
        let version = query_version(&mut client)?;
        apply_settings(&mut client, version)?;
        let identity = ServerInfo::read(&mut client, version, target)?;
        let privileges = Privileges::read(&mut client, version)?;
        let query_bytes_max = setting(&mut client, "track_activity_query_size")?
            .and_then(|value| parse_size(&value)?.try_into().ok());
        let activity = activity::ActivityReader::new(version, query_bytes_max);
        let overview = crate::overview::sql(version, privileges.can_list_temp_files);
        let overview = PreparedQuery::new("overview", overview);
        let waits = PreparedQuery::new("waits", crate::waits::sql(version));
        Ok(Self {
            client,
            info: identity,
            privileges,
            activity,
            overview,
            waits,
            views: Vec::new(),
        })
    }

    /// Returns the properties of the server, read when connecting.
    pub fn info(&self) -> &ServerInfo {
        &self.info
    }

    /// Returns the privileges of the connection's role, read when connecting.
    pub fn privileges(&self) -> &Privileges {
        &self.privileges
    }

    /// Makes [`Self::activity`] read complete statement texts from now on. Otherwise a statement
    /// that has run for less than a second has at most its first 200 bytes, marked as truncated if
    /// there may be more.
    pub fn request_full_texts(&mut self) {
        self.activity.request_full_texts();
    }

    /// Reads all sessions. With `idle_texts`, idle sessions include their last statement.
    ///
    /// # Errors
    ///
    /// The statement or the connection failed.
    pub fn activity(&mut self, idle_texts: bool) -> Result<Activity, CollectError> {
        self.activity.read(&mut self.client, idle_texts)
    }

    /// Counts the wait events of working sessions, aggregated in the server.
    ///
    /// # Errors
    ///
    /// The same as for [`Self::activity`].
    pub fn waits(&mut self) -> Result<WaitCounts, CollectError> {
        Ok(WaitCounts::from_result(&self.waits.run(&mut self.client, &[])?))
    }

    /// Reads the cluster-wide figures.
    ///
    /// # Errors
    ///
    /// The statement or the connection failed, or the response lacks the figures.
    pub fn overview(&mut self) -> Result<Overview, CollectError> {
        let result = self.overview.run(&mut self.client, &[])?;
        Overview::from_result(&result).ok_or(CollectError::NotPostgres { what: "statistics" })
    }

    /// Reads the size of all databases in bytes; `None` if the role may not read one of them. The
    /// server looks at every file, so this may take seconds.
    ///
    /// # Errors
    ///
    /// The statement or the connection failed.
    pub fn database_bytes(&mut self) -> Result<Option<i64>, CollectError> {
        let sql = crate::overview::sizes_sql(self.privileges.can_read_all_stats);
        let result = self.run_named("database sizes", |_| sql)?;
        Ok(result.rows.first().and_then(|row| row.text(0)?.parse().ok()))
    }

    /// Reads the system identifier, which the server shares with its physical copies; `None` if the
    /// role may not read it.
    ///
    /// # Errors
    ///
    /// The connection failed.
    pub fn system_identifier(&mut self) -> Result<Option<String>, CollectError> {
        let result = self.run_named("system identifier", |_| SYSTEM_IDENTIFIER_SQL.to_owned());
        match result {
            Ok(result) => {
                let row = result.rows.first();
                Ok(row.and_then(|row| Some(row.text(0)?.into_owned())))
            }
            Err(error) if error.is_fatal() => Err(error),
            Err(_) => Ok(None),
        }
    }

    /// Reads what a session's page shows beside its activity: its locks, progress and I/O.
    ///
    /// # Errors
    ///
    /// A statement or the connection failed.
    pub fn session_details(&mut self, pid: i32) -> Result<SessionDetails, CollectError> {
        let text = pid.to_string();
        let values = [Some(text.as_str())];
        let mut run =
            |name, sql: fn(ServerVersion) -> String| self.run_named_with(name, sql, &values);
        let locks = run("locks of a session", session_details::locks_sql)?;
        let progress = run("progress of a session", session_details::progress_sql)?;
        let io_and_wal = if self.info.version.major() >= 18 {
            let io = self.run_named_with(
                "I/O of a session",
                |_| session_details::IO_SQL.to_owned(),
                &values,
            )?;
            let wal = self.run_named_with(
                "WAL of a session",
                |_| session_details::WAL_SQL.to_owned(),
                &values,
            )?;
            Some((io, wal))
        } else {
            None
        };
        Ok(SessionDetails::from_results(pid, &locks, &progress, io_and_wal))
    }

    /// Reads a view; `None` if this server version does not have it.
    ///
    /// # Errors
    ///
    /// The statement failed, for example for lack of a privilege or of an extension, or the
    /// connection failed.
    pub fn read(&mut self, view: &'static StatsView) -> Result<Option<ViewSample>, CollectError> {
        let version = self.info.version;
        let at = match self.views.iter().position(|known| known.name() == view.name) {
            Some(at) => at,
            None => {
                let Some(sql) = view.sql(version) else { return Ok(None) };
                self.views.push(PreparedQuery::new(view.name, sql));
                self.views.len() - 1
            }
        };
        // undefined_table: all other tables that views read are the server's own.
        let result = self.views[at].run(&mut self.client, &[]).map_err(|error| {
            match (view.extension, error.sqlstate()) {
                (Some(extension), Some("42P01")) => CollectError::NoExtension { extension },
                _ => error,
            }
        })?;
        Ok(Some(view.sample(&result, version)))
    }

    /// Runs a statement without parameters, which is built and prepared on its first use.
    pub(crate) fn run_named(
        &mut self,
        name: &'static str,
        sql: impl FnOnce(ServerVersion) -> String,
    ) -> Result<ResultSet, CollectError> {
        self.run_named_with(name, sql, &[])
    }

    /// Runs a statement with parameters, which is built and prepared on its first use.
    pub(crate) fn run_named_with(
        &mut self,
        name: &'static str,
        sql: impl FnOnce(ServerVersion) -> String,
        values: &[Option<&str>],
    ) -> Result<ResultSet, CollectError> {
        let at = match self.views.iter().position(|known| known.name() == name) {
            Some(at) => at,
            None => {
                self.views.push(PreparedQuery::new(name, sql(self.info.version)));
                self.views.len() - 1
            }
        };
        self.views[at].run(&mut self.client, values)
    }
}

impl ServerInfo {
    fn read(
        client: &mut Client,
        version: ServerVersion,
        target: &ConnectTarget,
    ) -> Result<Self, CollectError> {
        let sql = "SELECT (date_part('epoch', pg_postmaster_start_time()) * 1e6)::int8, \
            current_setting('max_connections'), current_database(), pg_backend_pid(), \
            (SELECT (date_part('epoch', backend_start) * 1e6)::int8 FROM pg_stat_activity \
            WHERE pid = pg_backend_pid())";
        let sql = format!("{sql}{OWN_COMMENT}");
        let results = client.query(&sql).map_err(CollectError::query("the server's start time"))?;
        let row = results.first().and_then(|result| result.rows.first());
        let row = row.ok_or(CollectError::NotPostgres { what: "start time" })?;
        let number = |at| row.text(at).and_then(|text| text.parse().ok());
        let endpoint = client.endpoint();
        Ok(Self {
            version,
            started_us: number(0).ok_or(CollectError::NotPostgres { what: "start time" })?,
            host: endpoint.host().into_owned(),
            port: endpoint.port(),
            database: row
                .text(2)
                .map_or_else(|| target.database().to_owned(), std::borrow::Cow::into_owned),
            max_connections: number(1).unwrap_or(0),
            data_directory: setting(client, "data_directory")?,
            backend: BackendProcess {
                pid: number(3).and_then(|pid| pid.try_into().ok()).unwrap_or(0),
                started_us: number(4).unwrap_or(0),
            },
        })
    }
}

/// Returns the version of the server itself: a pooler in between may report another one in its
/// startup messages.
fn query_version(client: &mut Client) -> Result<ServerVersion, CollectError> {
    let text = client
        .one_value(&format!("SELECT current_setting('server_version_num'){OWN_COMMENT}"))
        .map_err(CollectError::query("the server's version"))?;
    let number = text.and_then(|text| text.parse().ok());
    number.map(ServerVersion).ok_or(CollectError::NotPostgres { what: "version" })
}

/// Applies the connection's settings: limits on our own statements, and texts as raw bytes. With
/// `SQL_ASCII` the server sends texts of other databases unconverted; otherwise one invalid byte
/// would fail the whole result.
fn apply_settings(client: &mut Client, version: ServerVersion) -> Result<(), CollectError> {
    const SETTINGS: &[&[VersionedSql]] = &[
        &[(9, "client_encoding = 'SQL_ASCII'")],
        &[(9, "default_transaction_read_only = on")],
        &[(9, "lock_timeout = '1s'")],
        // Before version 12 the shortest exact form of a float had to be requested.
        &[(9, "extra_float_digits = 3"), (12, "")],
        // JIT compilation costs more than it can save for such statements.
        &[(9, ""), (11, "jit = off")],
        // The statements run many times, and their plans do not depend on parameter values.
        &[(9, ""), (12, "plan_cache_mode = force_generic_plan")],
    ];
    let mut sql = format!("SET statement_timeout = {}", STATEMENT_TIMEOUT.as_millis());
    for setting in SETTINGS.iter().filter_map(|list| sql_for_version(list, version)) {
        sql.push_str("; SET ");
        sql.push_str(setting);
    }
    sql.push_str(RAISE_MMAP_THRESHOLD);
    client.query(&sql).map(drop).map_err(CollectError::query("the response to SET"))
}

/// Makes the backend keep the memory that a sample needs. By default malloc returns free memory to
/// the system at the end of each statement, so that each sample faults in megabytes of fresh pages,
/// which is half of its cost. Freeing one block of this size raises the threshold for returning
/// memory (mallopt(3), `M_MMAP_THRESHOLD`: "dynamic mmap threshold"). Without glibc, the statement
/// only builds a string once.
const RAISE_MMAP_THRESHOLD: &str = "; SELECT length(repeat(' ', 8388608))";

/// Returns the value of a setting; `None` if the server does not know it or the role may not read
/// it.
fn setting(client: &mut Client, name: &str) -> Result<Option<String>, CollectError> {
    match client.one_value(&format!("SELECT current_setting('{name}'){OWN_COMMENT}")) {
        Ok(value) => Ok(value),
        Err(QueryError::Sql(_)) => Ok(None),
        Err(error) => Err(CollectError::query("a setting")(error)),
    }
}
