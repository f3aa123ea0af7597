//! Fixture with a PostgreSQL server and a pooler in front of it, and a client for raw messages.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::{Command, Output},
    time::Duration,
};

use howdah_connect::{Client, ConnParams, ConnectError, ConnectTarget, Environment};
use howdah_lab::{Builder, Cluster, client_tool, skip_without_postgres};
use howdah_pool::Pooler;
use howdah_pool_config::Config;

/// How long tests wait for an event that normally takes moments.
pub(crate) const WAIT_TIMEOUT: Duration = Duration::from_secs(60);

/// A server with a pooler in front of it.
pub(crate) struct PoolFixture {
    pub(crate) server: Cluster,
    pub(crate) pooler: Pooler,
}

impl PoolFixture {
    /// Starts both, with `more` as additional lines of `[pool]`. Prints a message and returns
    /// `None` if PostgreSQL is not installed.
    pub(crate) fn start(test: &str, more: &str) -> Option<Self> {
        Self::start_with(test, Cluster::builder(), more)
    }

    /// Like [`PoolFixture::start`], with a server of this major version.
    pub(crate) fn start_major(test: &str, major: u32, more: &str) -> Option<Self> {
        Self::start_with(test, Cluster::builder().major(major), more)
    }

    fn start_with(test: &str, builder: Builder, more: &str) -> Option<Self> {
        let server = skip_without_postgres(test, builder.setting("max_connections", "60").start())?;
        let pooler = start_pooler(&server, more);
        Some(Self { server, pooler })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.pooler.addresses()[0]
    }

    /// Runs one of PostgreSQL's programs through the pooler.
    pub(crate) fn run_program(&self, program: &str, args: &[&str]) -> Output {
        self.command(program).args(args).output().unwrap()
    }

    pub(crate) fn command(&self, program: &str) -> Command {
        let address = self.address();
        let mut command = Command::new(self.program(program));
        command
            .env_clear()
            .env("PGHOST", address.ip().to_string())
            .env("PGPORT", address.port().to_string())
            .env("PGUSER", "postgres")
            .env("PGDATABASE", "postgres")
            .env("PGCONNECT_TIMEOUT", "60");
        command
    }

    /// A client program of the server's version, or of another version if it has none.
    fn program(&self, name: &str) -> PathBuf {
        let own = self.server.binaries().program(name);
        if own.is_file() { own } else { client_tool(name).expect("psql and pgbench are installed") }
    }

    /// Runs statements by `psql` through the pooler, and returns its output.
    pub(crate) fn psql(&self, statements: &[&str]) -> String {
        let mut args = vec!["-XAtq", "-v", "ON_ERROR_STOP=1"];
        args.extend(statements.iter().flat_map(|statement| ["-c", statement]));
        checked_stdout(self.run_program("psql", &args))
    }

    /// Runs a statement by `psql` directly at the server, and returns its output.
    pub(crate) fn query_server(&self, statement: &str) -> String {
        let mut psql = Command::new(self.program("psql"));
        psql.args(["-XAtq", &self.server.uri("postgres"), "-c", statement]);
        checked_stdout(psql.output().unwrap())
    }
}

/// Starts a pooler in transaction mode in front of `server`.
pub(crate) fn start_pooler(server: &Cluster, more: &str) -> Pooler {
    start_pooler_in_mode(server, "transaction", more)
}

/// Starts a pooler in front of `server`.
pub(crate) fn start_pooler_in_mode(server: &Cluster, mode: &str, more: &str) -> Pooler {
    PoolerSettings { mode, more, ..PoolerSettings::default() }.start(server)
}

/// The settings of a pooler in front of one server.
pub(crate) struct PoolerSettings<'a> {
    pub(crate) mode: &'a str,
    pub(crate) workers: u32,
    /// Additional lines of `[pool]`.
    pub(crate) more: &'a str,
    /// Additional lines of the database.
    pub(crate) database: &'a str,
}

impl Default for PoolerSettings<'_> {
    fn default() -> Self {
        Self { mode: "transaction", workers: 1, more: "", database: "" }
    }
}

impl PoolerSettings<'_> {
    pub(crate) fn start(&self, server: &Cluster) -> Pooler {
        start_pooler_with(&self.to_toml(server))
    }

    pub(crate) fn to_toml(&self, server: &Cluster) -> String {
        let Self { mode, workers, more, database } = self;
        format!(
            r#"
            [pool]
            mode = "{mode}"
            workers = {workers}
            {more}
            [pool.listen]
            addresses = ["127.0.0.1"]
            port = 0
            unix-directories = []
            [pool.auth]
            type = "trust"
            [pool.users.postgres]
            secret = ""
            [pool.databases."*"]
            hosts = ["127.0.0.1"]
            port = {}
            {database}
            "#,
            server.port()
        )
    }
}

/// Starts a pooler with this configuration.
pub(crate) fn start_pooler_with(text: &str) -> Pooler {
    let parsed = Config::read_str(text, Path::new("test.toml")).unwrap();
    Pooler::start(parsed.config).unwrap()
}

/// Connects with a libpq connection string.
pub(crate) fn connect(words: &str) -> Result<Client, ConnectError> {
    let words = ConnParams::from_conninfo(words);
    let target =
        ConnectTarget::resolve(&words, &Environment::empty().with_os_user("tester")).unwrap();
    Client::connect(&target)
}

/// The standard output of a program. Panics if it has failed.
pub(crate) fn checked_stdout(output: Output) -> String {
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {err}", output.status);
    String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
}

/// A client that sends and receives raw protocol messages.
pub(crate) struct RawClient(pub(crate) TcpStream);

impl RawClient {
    /// Connects without sending anything.
    pub(crate) fn connect(address: SocketAddr) -> Self {
        let socket = TcpStream::connect(address).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        Self(socket)
    }

    /// Connects and logs in.
    pub(crate) fn log_in(address: SocketAddr) -> Self {
        Self::log_in_with(address, &[])
    }

    /// Connects and logs in with startup parameters.
    pub(crate) fn log_in_with(address: SocketAddr, parameters: &[(&str, &str)]) -> Self {
        let mut raw = Self::connect(address);
        let pairs = parameters.iter().map(|(name, value)| format!("{name}\0{value}\0"));
        raw.send_startup(0, &pairs.collect::<String>());
        raw.read_until(b'Z');
        raw
    }

    /// Sends a startup packet for protocol 3.`minor`, with `more` parameters, each `name\0value\0`.
    pub(crate) fn send_startup(&mut self, minor: u16, more: &str) {
        self.start_as(minor, "postgres", more);
    }

    /// Sends a startup packet for protocol 3.0 and another database.
    pub(crate) fn send_startup_for_database(&mut self, database: &str, more: &str) {
        self.start_as(0, database, more);
    }

    /// Sends a startup packet for another user and database.
    pub(crate) fn send_startup_for_user(&mut self, user: &str, database: &str) {
        self.start_packet(0, user, database, "");
    }

    fn start_as(&mut self, minor: u16, database: &str, more: &str) {
        self.start_packet(minor, "postgres", database, more);
    }

    fn start_packet(&mut self, minor: u16, user: &str, database: &str, more: &str) {
        let mut packet = vec![0, 0, 0, 0, 0, 3];
        packet.extend_from_slice(&minor.to_be_bytes());
        packet.extend_from_slice(format!("user\0{user}\0database\0{database}\0").as_bytes());
        packet.extend_from_slice(more.as_bytes());
        packet.push(0);
        let length = u32::try_from(packet.len()).unwrap();
        packet[..4].copy_from_slice(&length.to_be_bytes());
        self.0.write_all(&packet).unwrap();
    }

    pub(crate) fn send(&mut self, tag: u8, body: &[u8]) {
        let mut message = vec![tag];
        message.extend_from_slice(&u32::try_from(body.len() + 4).unwrap().to_be_bytes());
        message.extend_from_slice(body);
        self.0.write_all(&message).unwrap();
    }

    /// Sends a query; fails if the connection is closed.
    pub(crate) fn try_send_query(&mut self, sql: &str) -> std::io::Result<()> {
        let bytes = u32::try_from(sql.len() + 5).unwrap().to_be_bytes();
        self.0.write_all(&[&b"Q"[..], &bytes, sql.as_bytes(), b"\0"].concat())
    }

    pub(crate) fn send_query(&mut self, sql: &str) {
        self.send(b'Q', format!("{sql}\0").as_bytes());
    }

    /// Reads one message: tag and body.
    pub(crate) fn read_message(&mut self) -> std::io::Result<(u8, Vec<u8>)> {
        let mut header = [0; 5];
        self.0.read_exact(&mut header)?;
        let length = u32::from_be_bytes(header[1..].try_into().unwrap());
        let mut body = vec![0; length as usize - 4];
        self.0.read_exact(&mut body)?;
        Ok((header[0], body))
    }

    /// Reads messages up to one with this tag, and returns them all.
    pub(crate) fn read_until(&mut self, tag: u8) -> Vec<(u8, Vec<u8>)> {
        let mut messages = Vec::new();
        loop {
            let message = self.read_message().unwrap_or_else(|error| {
                let bodies = messages.iter().map(|(_, body): &(u8, Vec<u8>)| body.escape_ascii());
                panic!(
                    "{error} after {:?}",
                    bodies.map(|body| body.to_string()).collect::<Vec<_>>()
                )
            });
            let found = message.0 == tag;
            messages.push(message);
            if found {
                return messages;
            }
        }
    }

    /// Reads and discards messages until the connection ends. Returns whether the pooler closed it.
    pub(crate) fn is_disconnected(&mut self) -> bool {
        let mut rest = [0; 4096];
        loop {
            match self.0.read(&mut rest) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(error) => return error.kind() == std::io::ErrorKind::ConnectionReset,
            }
        }
    }
}

/// Sends a signal to every process of a server, `-STOP` or `-CONT`.
pub(crate) fn signal_all_processes(postmaster: u32, signal: &str) {
    let kill = |pid: u32| {
        let _ = Command::new("kill").args([signal, &pid.to_string()]).output();
    };
    kill(postmaster); // First, so that it starts no more processes.
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Ok(pid) = entry.file_name().to_string_lossy().parse() else { continue };
        let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        let after_name = stat.rsplit(')').next().unwrap_or_default();
        let parent = after_name.split_whitespace().nth(1);
        if parent == Some(&postmaster.to_string()) {
            kill(pid);
        }
    }
}
