//! Creates physical standbys with PostgreSQL's low-level backup API.
//!
//! `pg_basebackup` is a client program, which fetched archives do not contain. A session can do the
//! same: between `pg_backup_start` and `pg_backup_stop` the server's files may be copied as they
//! are, torn pages included, because replaying the WAL written since the start repairs them
//! (manual, "Making a Base Backup Using the Low Level API"). A temporary replication slot of that
//! session retains this WAL until the standby streams it.

use std::{
    fs,
    path::{Path, PathBuf},
};

use howdah_connect::{Client, ConnParams, ConnectTarget, Environment};

use crate::{
    access,
    binaries::{Binaries, BinariesOrigin},
    cluster::Cluster,
    error::{ClusterError, FileContext as _},
    files::{CopyRule, copy_tree},
    find_error::FindError,
    labs::Lab,
    os_user::OsUser,
    port::random,
    template::SUPERUSER,
};

/// Properties of a primary that its standby needs.
#[derive(Clone, Debug)]
pub(crate) struct PrimaryInfo {
    name: String,
    data: PathBuf,
    socket: PathBuf,
    port: u16,
    bin_dir: PathBuf,
    password: Option<String>,
}

impl PrimaryInfo {
    pub(crate) fn from_cluster(cluster: &Cluster) -> Self {
        Self {
            name: cluster.name().to_owned(),
            data: cluster.data_dir().to_owned(),
            socket: cluster.socket_dir().to_owned(),
            port: cluster.port(),
            bin_dir: cluster.binaries().dir().to_owned(),
            password: cluster.password().map(str::to_owned),
        }
    }

    pub(crate) fn from_lab(lab: &Lab) -> Self {
        Self {
            name: lab.name.clone(),
            data: lab.data_dir.clone(),
            socket: lab.socket_dir.clone(),
            port: lab.port,
            bin_dir: lab.bin_dir.clone(),
            // The socket of a lab requires no password.
            password: None,
        }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn password(&self) -> Option<&str> {
        self.password.as_deref()
    }

    /// Returns the path of the primary's password file for TCP, which may not exist.
    pub(crate) fn passfile(&self) -> PathBuf {
        self.socket.join(access::PASSFILE)
    }

    /// Sets a password for TCP, unless the primary has one; it is valid on standbys, too.
    pub(crate) fn ensure_password(&self) -> Result<(), ClusterError> {
        if self.passfile().exists() {
            Ok(())
        } else {
            access::set_password(&self.socket, self.port)
        }
    }

    /// Returns the primary's programs: a standby must run the same version.
    pub(crate) fn binaries(&self, os_user: &OsUser) -> Result<Binaries, ClusterError> {
        let dir = &self.bin_dir;
        Binaries::at(dir, BinariesOrigin::Given, os_user)
            .map_err(|reason| FindError::Given { dir: dir.clone(), reason }.into())
    }

    /// Returns the `primary_conninfo` for a standby of this name.
    pub(crate) fn conninfo(&self, standby: &str) -> String {
        let (host, port) = (quoted(&self.socket.to_string_lossy()), self.port);
        let conninfo =
            format!("host={host} port={port} user={SUPERUSER} application_name={standby}");
        match &self.password {
            Some(password) => format!("{conninfo} password={}", quoted(password)),
            None => conninfo,
        }
    }

    fn connect(&self) -> Result<Client, ClusterError> {
        let conninfo = format!("{} dbname=postgres", self.conninfo("howdah-lab"));
        let target =
            ConnectTarget::resolve(&ConnParams::from_conninfo(conninfo), &Environment::empty())
                .map_err(|error| failed("resolve the address of the primary", error))?;
        Client::connect(&target).map_err(|error| failed("connect to the primary", error))
    }
}

/// Quotes a value for a libpq connection string.
fn quoted(value: &str) -> String {
    format!("'{}'", value.replace('\\', r"\\").replace('\'', r"\'"))
}

/// A complete base backup. Until it is dropped, its session retains the required WAL on the
/// primary.
pub(crate) struct Backup {
    _session: Client,
}

/// Copies a running primary's data directory, so that a server started on the copy is a standby.
/// The caller sets `primary_conninfo`.
pub(crate) fn back_up(
    upstream: &PrimaryInfo,
    data: &Path,
    os_user: &OsUser,
) -> Result<Backup, ClusterError> {
    reject_tablespaces(&upstream.data)?;
    let mut session = upstream.connect()?;
    let functions = BackupFunctions::for_version(session.server_version_num());
    let slot = format!("howdah_lab_{:016x}", random());
    run(
        &mut session,
        "create a replication slot on the primary",
        &format!("SELECT pg_create_physical_replication_slot('{slot}', true, true)"),
    )?;
    run(&mut session, "start a base backup of the primary", functions.start)?;
    copy_tree(&upstream.data, data, os_user, &backup_rule)?;
    copy_control(&upstream.data, data, os_user)?;
    let label = run(&mut session, "stop the base backup of the primary", functions.stop)?;
    for (name, content) in [("backup_label", label.as_str()), ("standby.signal", "")] {
        let path = data.join(name);
        fs::write(&path, content).and_then(|()| os_user.chown(&path)).context("write", &path)?;
    }
    Ok(Backup { _session: session })
}

/// Runs a statement and returns the first value of its result.
fn run(session: &mut Client, step: &'static str, sql: &str) -> Result<String, ClusterError> {
    let value = session.one_value(sql).map_err(|error| failed(step, error))?;
    Ok(value.unwrap_or_default())
}

fn failed(
    step: &'static str,
    source: impl std::error::Error + Send + Sync + 'static,
) -> ClusterError {
    ClusterError::Backup { step, source: Box::new(source) }
}

/// Calls of the backup functions, which PostgreSQL 15 renamed.
struct BackupFunctions {
    start: &'static str,
    stop: &'static str,
}

impl BackupFunctions {
    fn for_version(server_version_num: Option<u32>) -> Self {
        match server_version_num {
            Some(..150_000) => Self {
                start: "SELECT pg_start_backup('howdah lab', true, false)",
                stop: "SELECT labelfile FROM pg_stop_backup(false, false)",
            },
            _ => Self {
                start: "SELECT pg_backup_start('howdah lab', true)",
                stop: "SELECT labelfile FROM pg_backup_stop(false)",
            },
        }
    }
}

/// Decides how to copy an entry: omits most of those that `basebackup.c` omits, and the primary's
/// logs.
fn backup_rule(below: &Path) -> CopyRule {
    const EMPTIED: &[&str] = &[
        "log",
        "pg_dynshmem",
        "pg_notify",
        "pg_replslot",
        "pg_serial",
        "pg_snapshots",
        "pg_stat_tmp",
        "pg_subtrans",
        "pg_wal",
    ];
    const LEFT_OUT: &[&str] = &[
        "backup_label",
        "backup_manifest",
        "current_logfiles",
        "current_logfiles.tmp",
        "postgresql.auto.conf.tmp",
        "postmaster.opts",
        "postmaster.pid",
        "tablespace_map",
        CONTROL,
    ];
    let name = below.file_name().unwrap_or_default().to_string_lossy();
    match below.to_str() {
        Some(below) if EMPTIED.contains(&below) => CopyRule::EmptyDir,
        Some(below) if LEFT_OUT.contains(&below) => CopyRule::Skip,
        _ if name.starts_with("pgsql_tmp") || name.starts_with("pg_internal.init") => {
            CopyRule::Skip
        }
        _ => CopyRule::Copy,
    }
}

const CONTROL: &str = "global/pg_control";

/// Copies the control file; it must be copied last.
fn copy_control(from: &Path, to: &Path, os_user: &OsUser) -> Result<(), ClusterError> {
    let (from, to) = (from.join(CONTROL), to.join(CONTROL));
    fs::copy(&from, &to).and_then(|_| os_user.chown(&to)).context("copy", &from)
}

/// Fails if a cluster has data outside its directory, because a copy would write to the same files.
pub(crate) fn reject_tablespaces(data: &Path) -> Result<(), ClusterError> {
    let dir = data.join("pg_tblspc");
    for entry in fs::read_dir(&dir).context("read", &dir)? {
        let kind = entry.and_then(|entry| entry.file_type()).context("read", &dir)?;
        // A directory is an in-place tablespace, inside the data directory.
        if kind.is_symlink() {
            return Err(ClusterError::Tablespaces { data: data.to_owned() });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backup_skips_temporary_files_and_wal() {
        for (path, rule) in [
            ("base", CopyRule::Copy),
            ("base/5/1259", CopyRule::Copy),
            ("base/pgsql_tmp", CopyRule::Skip),
            ("base/5/pg_internal.init", CopyRule::Skip),
            ("global/pg_control", CopyRule::Skip),
            ("pg_wal", CopyRule::EmptyDir),
            ("pg_xact", CopyRule::Copy),
            ("postmaster.pid", CopyRule::Skip),
            ("lab.conf", CopyRule::Copy),
        ] {
            assert_eq!(backup_rule(Path::new(path)), rule, "{path}");
        }
    }

    #[test]
    fn backup_functions_depend_on_version() {
        assert!(BackupFunctions::for_version(Some(140_024)).start.contains("pg_start_backup"));
        assert!(BackupFunctions::for_version(Some(150_000)).start.contains("pg_backup_start"));
        assert!(BackupFunctions::for_version(Some(180_001)).stop.contains("pg_backup_stop"));
    }

    #[test]
    fn conninfo_values_are_quoted() {
        let upstream = PrimaryInfo {
            name: "a".into(),
            data: "/d".into(),
            socket: "/it's here".into(),
            port: 5,
            bin_dir: "/b".into(),
            password: Some(r"back\slash".into()),
        };
        assert_eq!(
            upstream.conninfo("b"),
            r"host='/it\'s here' port=5 user=postgres application_name=b password='back\\slash'"
        );
    }
}
