//! One server, and the connection that reads it.

use std::time::Duration;

use howdah_connect::{Client, QueryError, Target};

use crate::{
    Activity, CollectError, Overview, Privileges, Reading, Version, View, WaitCounts, activity,
    prepared::Prepared,
    view::{Since, chosen},
};

/// Longest that one statement of ours may run or wait for a lock in the server.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(5);

/// Longest that we wait for an answer. Longer than the server's own limit, so that a slow server can say
/// that it is slow, and only one that says nothing loses the connection.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(8);

/// A connection that reads what a server does.
///
/// It is polite: its statements have time limits, are prepared once, and one tick is one statement for
/// each thing that is shown. It never writes.
#[derive(Debug)]
pub struct Server {
    client: Client,
    identity: Identity,
    privileges: Privileges,
    activity: activity::Reader,
    overview: Prepared,
    waits: Prepared,
    views: Vec<Prepared>,
}

/// What does not change while a connection lasts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// Its version.
    pub version: Version,
    /// When it was started, in microseconds since 1970 by its clock.
    pub started_us: i64,
    /// The host it was reached by.
    pub host: String,
    /// The port it was reached by.
    pub port: u16,
    /// The database of the connection.
    pub database: String,
    /// `max_connections`.
    pub connections_max: i64,
    /// Where its files are, if the role may know.
    pub data_directory: Option<String>,
    /// The process that serves the connection.
    pub backend: ServedBy,
}

/// The process that serves a connection, as the server knows it. A process of this host with that id and
/// that start is that process, whatever lies between: then the server is here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServedBy {
    /// Process id, in the server's own namespace.
    pub pid: i32,
    /// When it began, in microseconds since 1970 by the server's clock.
    pub started_us: i64,
}

impl Server {
    /// Connects, and finds out what this server is and what the role may read.
    ///
    /// # Errors
    ///
    /// No connection could be had, or what answers is not PostgreSQL.
    pub fn connect(target: &Target) -> Result<Self, CollectError> {
        let mut client = Client::connect(target)?;
        client.set_timeout(Some(ANSWER_TIMEOUT));
        let version = version(&mut client)?;
        set_up(&mut client, version)?;
        let identity = Identity::read(&mut client, version, target)?;
        let privileges = Privileges::read(&mut client, version)?;
        let query_bytes_max =
            setting(&mut client, "track_activity_query_size")?.and_then(|value| bytes_of(&value));
        let activity = activity::Reader::new(version, query_bytes_max);
        let overview = Prepared::new("overview", crate::overview::sql(version));
        let waits = Prepared::new("waits", crate::waits::sql(version));
        Ok(Self { client, identity, privileges, activity, overview, waits, views: Vec::new() })
    }

    /// What it is.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// What the role may read.
    pub fn privileges(&self) -> &Privileges {
        &self.privileges
    }

    /// Has [`Server::activity`] read the whole texts of all statements from now on. Else a statement that has not
    /// run for a second yet has its first 200 characters, and says that it is truncated.
    pub fn want_whole_texts(&mut self) {
        self.activity.want_whole_texts();
    }

    /// Who does what. `idle_texts`: also what idle sessions ran last.
    ///
    /// # Errors
    ///
    /// The statement failed, or the connection did.
    pub fn activity(&mut self, idle_texts: bool) -> Result<Activity, CollectError> {
        self.activity.read(&mut self.client, idle_texts)
    }

    /// What sessions at work wait for, counted in the server.
    ///
    /// # Errors
    ///
    /// As for [`Server::activity`].
    pub fn waits(&mut self) -> Result<WaitCounts, CollectError> {
        Ok(WaitCounts::of_result(&self.waits.run(&mut self.client, &[])?))
    }

    /// The figures of the whole cluster.
    ///
    /// # Errors
    ///
    /// As for [`Server::activity`].
    pub fn overview(&mut self) -> Result<Overview, CollectError> {
        let result = self.overview.run(&mut self.client, &[])?;
        Overview::of(&result).ok_or(CollectError::NotPostgres { what: "overview" })
    }

    /// Reads a view; `None` if a server of this version has no such thing.
    ///
    /// # Errors
    ///
    /// The statement failed: the role may not read it, or an extension is not there. Or the connection
    /// did.
    pub fn read(&mut self, view: &'static View) -> Result<Option<Reading>, CollectError> {
        let version = self.identity.version;
        let at = match self.views.iter().position(|known| known.name() == view.name) {
            Some(at) => at,
            None => {
                let Some(sql) = view.sql(version) else { return Ok(None) };
                self.views.push(Prepared::new(view.name, sql));
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
        Ok(Some(view.reading(&result, version)))
    }
}

impl Identity {
    fn read(client: &mut Client, version: Version, target: &Target) -> Result<Self, CollectError> {
        let sql = "SELECT (date_part('epoch', pg_postmaster_start_time()) * 1e6)::int8, \
            current_setting('max_connections'), current_database(), pg_backend_pid(), \
            (SELECT (date_part('epoch', backend_start) * 1e6)::int8 FROM pg_stat_activity \
            WHERE pid = pg_backend_pid())";
        let results = client.query(sql).map_err(CollectError::query("the server's start"))?;
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
            connections_max: number(1).unwrap_or(0),
            data_directory: setting(client, "data_directory")?,
            backend: ServedBy {
                pid: number(3).and_then(|pid| pid.try_into().ok()).unwrap_or(0),
                started_us: number(4).unwrap_or(0),
            },
        })
    }
}

/// The version of the server itself: a pooler in front may give another in its greeting.
fn version(client: &mut Client) -> Result<Version, CollectError> {
    let text = client
        .one_value("SELECT current_setting('server_version_num')")
        .map_err(CollectError::query("the server's version"))?;
    let number = text.and_then(|text| text.parse().ok());
    number.map(Version).ok_or(CollectError::NotPostgres { what: "version" })
}

/// Sets what the connection needs: limits for us, and bytes as they are. In `SQL_ASCII` the server sends
/// texts of other databases unconverted, where it would else refuse the whole row set for one bad byte.
fn set_up(client: &mut Client, version: Version) -> Result<(), CollectError> {
    const SETTINGS: &[&[Since]] = &[
        &[(9, "client_encoding = 'SQL_ASCII'")],
        &[(9, "default_transaction_read_only = on")],
        &[(9, "lock_timeout = '1s'")],
        // Before 12 the shortest exact form of a number had to be asked for.
        &[(9, "extra_float_digits = 3"), (12, "")],
        // Compiling costs more than such statements ever win by it.
        &[(9, ""), (11, "jit = off")],
        // The statements are read many times, and their plans do not depend on values.
        &[(9, ""), (12, "plan_cache_mode = force_generic_plan")],
    ];
    let mut sql = format!("SET statement_timeout = {}", STATEMENT_TIMEOUT.as_millis());
    for setting in SETTINGS.iter().filter_map(|list| chosen(list, version)) {
        sql.push_str("; SET ");
        sql.push_str(setting);
    }
    sql.push_str(KEEP_MEMORY);
    client.query(&sql).map(drop).map_err(CollectError::query("settings of the connection"))
}

/// Has the server's process keep the memory that a reading needs. The C library's allocator gives back what is free
/// at each statement's end, so that each reading touches megabytes of fresh pages: half of what it costs. It no longer
/// does once a block of that size was freed (mallopt(3), `M_MMAP_THRESHOLD`: "dynamic mmap threshold"); elsewhere than
/// with glibc this is a string that is made once.
const KEEP_MEMORY: &str = "; SELECT length(repeat(' ', 8388608))";

/// A setting; `None` if the server does not know it or the role may not.
fn setting(client: &mut Client, name: &str) -> Result<Option<String>, CollectError> {
    match client.one_value(&format!("SELECT current_setting('{name}')")) {
        Ok(value) => Ok(value),
        Err(QueryError::Sql(_)) => Ok(None),
        Err(error) => Err(CollectError::query("a setting")(error)),
    }
}

/// The bytes of a setting such as `1kB`, in the units that `SHOW` gives for bytes.
fn bytes_of(text: &str) -> Option<usize> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number: usize = text[..digits].parse().ok()?;
    let factor = match &text[digits..] {
        "" | "B" => 1,
        "kB" => 1 << 10,
        "MB" => 1 << 20,
        "GB" => 1 << 30,
        _ => return None,
    };
    number.checked_mul(factor)
}

#[test]
fn sizes_are_read_as_the_server_writes_them() {
    assert_eq!(bytes_of("1kB"), Some(1024));
    assert_eq!(bytes_of("1500B"), Some(1500));
    assert_eq!(bytes_of("1024"), Some(1024));
    assert_eq!(bytes_of("many"), None);
}
