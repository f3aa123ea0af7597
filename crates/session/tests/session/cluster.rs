//! A PostgreSQL server for all tests of this binary, and connections to it.

#![allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "tests own their sockets")]

use std::{
    io::{Read, Write},
    os::unix::net::UnixStream,
    sync::OnceLock,
    time::Duration,
};

use howdah_lab::Cluster;
use howdah_session::{ClientSession, Login, Secret};

use crate::describe::describe;

/// Roles other than the superuser are named after their authentication method; all have this
/// password.
pub(crate) const PASSWORD: &str = "s\u{e9}same \u{2168}";

/// The authentication method of each role. The first matching line applies.
const HBA: &str = "\
local all scram scram-sha-256
local all md5   md5
local all clear password
local all all   trust
";

/// The server, or `None` without PostgreSQL. It stops with the process.
pub(crate) fn cluster() -> Option<&'static Cluster> {
    static CLUSTER: OnceLock<Option<Cluster>> = OnceLock::new();
    CLUSTER.get_or_init(start).as_ref()
}

fn start() -> Option<Cluster> {
    let started = Cluster::builder().start();
    let mut cluster = howdah_lab::skip_without_postgres("session against a server", started)?;
    let mut admin = TestConnection::open(&cluster, "postgres", None);
    admin.until_ready();
    for (role, encryption) in [("scram", "scram-sha-256"), ("md5", "md5"), ("clear", "md5")] {
        let sql = format!(
            "set password_encryption = '{encryption}'; create role {role} login password '{PASSWORD}'"
        );
        admin.client.query(sql.as_bytes()).unwrap();
        assert_eq!(admin.until_ready().last().unwrap(), "Ready Idle");
    }
    drop(admin);
    std::fs::write(cluster.data_dir().join("pg_hba.conf"), HBA).unwrap();
    cluster.restart().unwrap();
    Some(cluster)
}

/// A minimal driver: one blocking socket.
pub(crate) struct TestConnection {
    pub(crate) stream: UnixStream,
    pub(crate) client: ClientSession,
    /// All bytes written and read.
    pub(crate) sent: Vec<u8>,
    pub(crate) received: Vec<u8>,
}

impl TestConnection {
    pub(crate) fn open(cluster: &Cluster, user: &str, password: Option<&str>) -> Self {
        let login = Login {
            user: user.into(),
            database: "postgres".into(),
            password: password.map(Secret::from),
            parameters: vec![("application_name".into(), "session".into())],
            channel_binding: None,
        };
        // Not random, since the connection cannot be eavesdropped on.
        let client = ClientSession::new(login, [7; 18]);
        Self { stream: socket(cluster), client, sent: Vec::new(), received: Vec::new() }
    }

    /// A connection that is logged in as superuser.
    pub(crate) fn ready(cluster: &Cluster) -> Self {
        let mut connection = Self::open(cluster, "postgres", None);
        connection.until("LoggedIn");
        connection
    }

    /// Events up to the next Ready, or to the end of the connection.
    pub(crate) fn until_ready(&mut self) -> Vec<String> {
        self.run(|client, line| client.pending_ready_count() == 0 && line.starts_with(['R', 'L']))
    }

    /// Events up to one that starts with `beginning`, or to the end of the connection.
    pub(crate) fn until(&mut self, beginning: &str) -> Vec<String> {
        self.run(|_, line| line.starts_with(beginning))
    }

    fn run(&mut self, is_last: impl Fn(&ClientSession, &str) -> bool) -> Vec<String> {
        let mut lines = Vec::new();
        loop {
            self.flush();
            let mut piece = [0; 8192];
            let bytes = self.stream.read(&mut piece).unwrap();
            if bytes == 0 {
                lines.push(format!("End {:?}", self.client.handle_eof()));
                return lines;
            }
            self.received.extend_from_slice(&piece[..bytes]);
            self.client.handle_input(&piece[..bytes]);
            while let Some(event) = self.client.poll_event().unwrap() {
                lines.push(describe(&event));
            }
            if lines.last().is_some_and(|line| is_last(&self.client, line)) {
                return lines;
            }
        }
    }

    pub(crate) fn flush(&mut self) {
        let bytes = self.client.transmit();
        self.stream.write_all(bytes).unwrap();
        self.sent.extend_from_slice(bytes);
        self.client.transmitted(bytes.len());
    }
}

/// A connection on which nothing has been sent. A server that sends nothing for a minute fails the
/// test instead of hanging it.
pub(crate) fn socket(cluster: &Cluster) -> UnixStream {
    let path = cluster.socket_dir().join(format!(".s.PGSQL.{}", cluster.port()));
    let stream = UnixStream::connect(path).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream
}
