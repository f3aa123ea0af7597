//! The cluster that tests share: TLS is on, and each role has a different authentication method.

use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt, chown},
    path::Path,
    sync::LazyLock,
};

use howdah_connect::Client;
use howdah_lab::{Cluster, skip_without_postgres};

use crate::{certificates::Certificates, target};

/// The shared cluster. It is removed when the test process ends.
pub(crate) struct SharedCluster {
    cluster: Cluster,
    certificates: Certificates,
}

/// The role's name is its authentication method. Every password is [`PASSWORD`].
const RULES: &str = "\
local   all  postgres                 trust
host    all  postgres   127.0.0.1/32  trust
local   all  scram                    scram-sha-256
host    all  scram      127.0.0.1/32  scram-sha-256
host    all  md5        127.0.0.1/32  md5
host    all  plain      127.0.0.1/32  password
hostssl all  tls        127.0.0.1/32  trust
hostnossl all no_tls    127.0.0.1/32  trust
hostssl all  cert       127.0.0.1/32  cert
host    all  read_only  127.0.0.1/32  trust
local   replication  postgres                trust
host    replication  postgres  127.0.0.1/32  trust
";

const ROLES: &str = "\
create role scram login password 'it''s % a secret';
set password_encryption = md5;
create role md5 login password 'it''s % a secret';
reset password_encryption;
create role plain login password 'it''s % a secret';
create role tls login;
create role no_tls login;
create role cert login;
create role read_only login;
alter role read_only set default_transaction_read_only = on;
alter system set ssl = on;
alter system set ssl_ca_file = 'root.crt';
";

pub(crate) const PASSWORD: &str = "it's % a secret";

static SHARED: LazyLock<Option<SharedCluster>> = LazyLock::new(start);

/// The shared cluster; `None`, with a message, where it cannot be started.
pub(crate) fn shared() -> Option<&'static SharedCluster> {
    SHARED.as_ref()
}

fn start() -> Option<SharedCluster> {
    let certificates = Certificates::new("all tests with a cluster")?;
    certificates.self_signed("root", "howdah test root", &[]);
    certificates.signed("server", "unused", "root", "subjectAltName=DNS:localhost\n");
    certificates.signed("cert", "cert", "root", "extendedKeyUsage=clientAuth\n");
    let built = Cluster::builder().name("connect").start();
    let mut cluster = skip_without_postgres("all tests with a cluster", built)?;
    let data = cluster.data_dir().to_owned();
    for file in ["root.crt", "server.crt", "server.key"] {
        let text = fs::read_to_string(certificates.path(file)).unwrap();
        write_for_server(&data, file, &text);
    }
    write_for_server(&data, "pg_hba.conf", RULES);
    // `alter system` cannot be one of several statements of a query.
    let mut client = Client::connect(&target(&cluster.uri("postgres"))).unwrap();
    for statement in ROLES.split_terminator(";\n") {
        client.query(statement).unwrap();
    }
    client.close();
    cluster.restart().unwrap();
    Some(SharedCluster { cluster, certificates })
}

/// Writes a file that belongs to the server's account, as its data directory does.
fn write_for_server(data: &Path, name: &str, text: &str) {
    let owner = fs::metadata(data).unwrap();
    let path = data.join(name);
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    chown(&path, Some(owner.uid()), Some(owner.gid())).unwrap();
}

impl SharedCluster {
    /// A connection string for a role, by TCP, with the settings in `more`.
    pub(crate) fn by_tcp(&self, user: &str, more: &str) -> String {
        let port = self.cluster.port();
        format!("host=localhost hostaddr=127.0.0.1 port={port} dbname=postgres user={user} {more}")
    }

    /// A connection string for a role, by the unix socket.
    pub(crate) fn by_socket(&self, user: &str, more: &str) -> String {
        let (directory, port) = (self.cluster.socket_dir().display(), self.cluster.port());
        format!("host={directory} port={port} dbname=postgres user={user} {more}")
    }

    pub(crate) fn port(&self) -> u16 {
        self.cluster.port()
    }

    pub(crate) fn certificates(&self) -> &Certificates {
        &self.certificates
    }

    pub(crate) fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// A connection as superuser.
    pub(crate) fn client(&self) -> Client {
        crate::connect(&self.by_tcp("postgres", "")).unwrap()
    }
}
