//! Configures how clients reach a cluster: listening addresses, `pg_hba.conf`, and the password for
//! TCP.
//!
//! A PostgreSQL superuser can run programs as the server's account (`COPY … TO PROGRAM`), and a
//! port of 127.0.0.1 is open to every user of the host. So a cluster listens only on a unix socket
//! in a directory that no other user can enter. TCP must be requested, and requires a password
//! unless the caller trusts all users of the host.

use std::{
    fs::{self, File},
    io::{self, Read as _, Write as _},
    num::NonZeroU32,
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
};

use howdah_connect::{Client, ConnParams, ConnectTarget, Environment};
use howdah_wire::auth::scram::ScramVerifier;

use crate::{
    error::{ClusterError, FileContext as _},
    files,
    os_user::OsUser,
    settings::ServerSettings,
    template::SUPERUSER,
};

/// The ways in which clients can reach a cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Access {
    /// The unix socket only.
    #[default]
    Socket,
    /// The unix socket and 127.0.0.1, the latter with a password (SCRAM).
    TcpWithPassword,
    /// The unix socket and 127.0.0.1, without a password unless [`crate::Builder::password`] is
    /// set: every user of the host is superuser of the cluster.
    TcpTrusted,
}

impl Access {
    /// Whether the server listens on 127.0.0.1.
    pub(crate) fn is_tcp(self) -> bool {
        self != Self::Socket
    }

    /// Adds the setting `listen_addresses`. Every start needs it, because a kept cluster may have
    /// run with another kind of access before.
    pub(crate) fn push_settings(self, settings: &mut ServerSettings) {
        settings.push("listen_addresses", if self.is_tcp() { "127.0.0.1" } else { "" });
    }

    /// Writes `pg_hba.conf` for a new cluster. With `has_password`, all connections require the
    /// password, even those through the unix socket and trusted TCP.
    pub(crate) fn write_rules(
        self,
        data: &Path,
        os_user: &OsUser,
        has_password: bool,
    ) -> Result<(), ClusterError> {
        let local = if has_password { "scram-sha-256" } else { "trust" };
        let host = if self == Self::TcpTrusted { local } else { "scram-sha-256" };
        let mut text = String::from("# written by howdah lab\n");
        for databases in ["all", "replication"] {
            text += &format!("local {databases} all {local}\n");
            for address in ["127.0.0.1/32", "::1/128"] {
                text += &format!("host {databases} all {address} {host}\n");
            }
        }
        let path = data.join(HBA_FILE);
        files::replace(&path, text.as_bytes(), os_user).context("write", &path)
    }

    /// Updates `pg_hba.conf` of a reused or copied cluster: unless TCP is trusted, replaces `trust`
    /// with `scram-sha-256` in the rules for TCP. All other rules are kept.
    pub(crate) fn tighten_rules(self, data: &Path, os_user: &OsUser) -> Result<(), ClusterError> {
        if self == Self::TcpTrusted {
            return Ok(());
        }
        let path = data.join(HBA_FILE);
        let text = fs::read_to_string(&path).context("read", &path)?;
        let tightened = tightened(&text);
        if tightened == text {
            return Ok(());
        }
        files::replace(&path, tightened.as_bytes(), os_user).context("write", &path)
    }
}

const HBA_FILE: &str = "pg_hba.conf";

/// Replaces `trust` with `scram-sha-256` in all rules except those for the socket. A continuation
/// line counts as a rule for TCP. A database or role name that contains `trust` is changed as well:
/// connections to it then match a later rule or none, and no later rule for TCP uses `trust`
/// either.
fn tightened(rules: &str) -> String {
    let mut text = String::with_capacity(rules.len());
    for line in rules.split_inclusive('\n') {
        if line.trim_start().starts_with(['#', 'l']) {
            text += line;
        } else {
            text += &line.replace("trust", "scram-sha-256");
        }
    }
    text
}

/// Name of the password file, in the directory of the socket.
pub(crate) const PASSFILE: &str = "pgpass";

/// Sets a new random password for the superuser, and writes it to a file only the caller can read.
///
/// The server receives a SCRAM verifier, so the password is in neither its log nor its catalogs.
pub(crate) fn set_password(socket: &Path, port: u16) -> Result<(), ClusterError> {
    let secret = random_password().context("read", Path::new(RANDOM))?;
    let salt = random_bytes::<16>().context("read", Path::new(RANDOM))?;
    let iterations = NonZeroU32::new(4096).unwrap_or(NonZeroU32::MIN);
    let verifier = ScramVerifier::from_password(secret.as_bytes(), &salt, iterations).to_text();
    let host = socket.to_string_lossy().replace('\\', r"\\").replace('\'', r"\'");
    let words = ConnParams::from_conninfo(format!(
        "host='{host}' port={port} user={SUPERUSER} dbname=postgres application_name=howdah-lab"
    ));
    let failed =
        |source: Box<dyn std::error::Error + Send + Sync>| ClusterError::SetPassword { source };
    let target =
        ConnectTarget::resolve(&words, &Environment::empty()).map_err(|e| failed(e.into()))?;
    let mut client = Client::connect(&target).map_err(|error| failed(error.into()))?;
    client
        .query(&format!("ALTER ROLE {SUPERUSER} PASSWORD '{verifier}'"))
        .map_err(|error| failed(error.into()))?;
    // Written last, so that a password file always matches its data directory.
    let path = socket.join(PASSFILE);
    write_passfile(&path, &secret).context("write", &path)
}

/// Writes a password file for a standby, with the password in its primary's file `from`.
pub(crate) fn copy_password(from: &Path, socket: &Path) -> Result<(), ClusterError> {
    let text = fs::read_to_string(from).context("read", from)?;
    // Nothing in the line is escaped: neither the address nor the password contains a colon.
    let secret = text.trim_end().rsplit(':').next().unwrap_or_default();
    let path = socket.join(PASSFILE);
    write_passfile(&path, secret).context("write", &path)
}

fn write_passfile(path: &Path, secret: &str) -> io::Result<()> {
    files::ignore_not_found(fs::remove_file(path))?;
    let mut options = fs::OpenOptions::new();
    let mut file = options.create_new(true).write(true).mode(0o600).open(path)?;
    // Only this cluster's URI names the file, so wildcards for address and port are enough.
    writeln!(file, "*:*:*:{SUPERUSER}:{secret}")
}

const RANDOM: &str = "/dev/urandom";

fn random_bytes<const COUNT: usize>() -> io::Result<[u8; COUNT]> {
    let mut bytes = [0; COUNT];
    File::open(RANDOM)?.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Generates a password of 40 hexadecimal digits, from 160 random bits.
fn random_password() -> io::Result<String> {
    let bytes = random_bytes::<20>()?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tcp_rules_require_scram_after_tightening() {
        let rules = "# TYPE DATABASE USER ADDRESS METHOD\n\
                     local   all   all                  trust\n\
                     host    all   all   127.0.0.1/32   trust\n\
                     hostssl all   ann   samehost       \"trust\"# why\n\
                     host    all   bob \\\n  samenet trust\n\
                     host    all   all   ::1/128        cert\n";
        let expected = "# TYPE DATABASE USER ADDRESS METHOD\n\
                        local   all   all                  trust\n\
                        host    all   all   127.0.0.1/32   scram-sha-256\n\
                        hostssl all   ann   samehost       \"scram-sha-256\"# why\n\
                        host    all   bob \\\n  samenet scram-sha-256\n\
                        host    all   all   ::1/128        cert\n";
        assert_eq!(tightened(rules), expected);
        assert_eq!(tightened(expected), expected);
    }

    #[test]
    fn passwords_differ_and_need_no_escaping() {
        let (first, second) = (random_password().unwrap(), random_password().unwrap());
        assert_ne!(first, second);
        assert!(first.len() == 40 && first.bytes().all(|byte| byte.is_ascii_alphanumeric()));
    }

    #[test]
    fn passfile_is_private_and_replaces_an_older_one() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(PASSFILE);
        fs::write(&path, "old").unwrap();
        write_passfile(&path, "secret").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "*:*:*:postgres:secret\n");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let standby = tempfile::tempdir().unwrap();
        copy_password(&path, standby.path()).unwrap();
        let copy = fs::read_to_string(standby.path().join(PASSFILE)).unwrap();
        assert_eq!(copy, "*:*:*:postgres:secret\n");
    }
}
