//! Physical standbys, by the backup functions of SQL.
//!
//! `pg_basebackup` would do, but is a client program, which fetched archives do not have. A server
//! allows the same in a session: between `pg_backup_start` and `pg_backup_stop` its files may be
//! copied as they are, torn pages and all, because WAL from the first on makes them whole
//! (manual, "Making a Base Backup Using the Low Level API"). A temporary replication slot of that
//! session keeps this WAL until the standby has begun to stream it.

use std::{
    fs,
    path::{Path, PathBuf},
};

use howdah_connect::{Client, Environment, Target, Words};

use crate::{
    access,
    account::Account,
    binaries::{Binaries, Origin},
    cluster::Cluster,
    error::{Error, FileContext as _},
    files::{Take, copy_tree},
    labs::Lab,
    port::random,
    search::FindError,
    template::SUPERUSER,
};

/// What has to be known of a primary.
#[derive(Clone, Debug)]
pub(crate) struct Upstream {
    name: String,
    data: PathBuf,
    socket: PathBuf,
    port: u16,
    bin_dir: PathBuf,
    password: Option<String>,
}

impl Upstream {
    pub(crate) fn of_cluster(cluster: &Cluster) -> Self {
        Self {
            name: cluster.name().to_owned(),
            data: cluster.data_dir().to_owned(),
            socket: cluster.socket_dir().to_owned(),
            port: cluster.port(),
            bin_dir: cluster.binaries().dir().to_owned(),
            password: cluster.password().map(str::to_owned),
        }
    }

    pub(crate) fn of_lab(lab: &Lab) -> Self {
        Self {
            name: lab.name.clone(),
            data: lab.data_dir.clone(),
            socket: lab.socket_dir.clone(),
            port: lab.port,
            bin_dir: lab.bin_dir.clone(),
            // The socket of a lab asks for none.
            password: None,
        }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn password(&self) -> Option<&str> {
        self.password.as_deref()
    }

    /// Where the primary's password for TCP is, if it has one.
    pub(crate) fn passfile(&self) -> PathBuf {
        self.socket.join(access::PASSFILE)
    }

    /// Sets a password for TCP, unless there is one: standbys have it, too.
    pub(crate) fn ensure_password(&self) -> Result<(), Error> {
        match self.passfile().exists() {
            true => Ok(()),
            false => access::set_password(&self.socket, self.port),
        }
    }

    /// The programs it runs: a standby has to have the same.
    pub(crate) fn binaries(&self, account: &Account) -> Result<Binaries, Error> {
        let dir = &self.bin_dir;
        Binaries::at(dir, Origin::Given, account)
            .map_err(|unfit| FindError::Given { dir: dir.clone(), unfit }.into())
    }

    /// A connection string for a standby of this name.
    pub(crate) fn conninfo(&self, standby: &str) -> String {
        let (host, port) = (quoted(&self.socket.to_string_lossy()), self.port);
        let conninfo =
            format!("host={host} port={port} user={SUPERUSER} application_name={standby}");
        match &self.password {
            Some(password) => format!("{conninfo} password={}", quoted(password)),
            None => conninfo,
        }
    }

    fn connect(&self) -> Result<Client, Error> {
        let conninfo = format!("{} dbname=postgres", self.conninfo("howdah-lab"));
        let target = Target::resolve(&Words::from_conninfo(conninfo), &Environment::empty())
            .map_err(|error| failed("its address", error))?;
        Client::connect(&target).map_err(|error| failed("connecting", error))
    }
}

/// A value of a libpq connection string.
fn quoted(value: &str) -> String {
    format!("'{}'", value.replace('\\', r"\\").replace('\'', r"\'"))
}

/// A complete copy, and the session that keeps the WAL it needs on the primary.
pub(crate) struct Backup {
    _session: Client,
}

/// Copies a running primary's data directory, so that a server on the copy becomes its standby. How
/// it finds the primary is left to the settings.
pub(crate) fn take(upstream: &Upstream, data: &Path, account: &Account) -> Result<Backup, Error> {
    refuse_tablespaces(&upstream.data)?;
    let mut session = upstream.connect()?;
    let functions = Functions::of(session.server_version_num());
    let slot = format!("howdah_lab_{:016x}", random());
    run(
        &mut session,
        "reserving WAL",
        &format!("SELECT pg_create_physical_replication_slot('{slot}', true, true)"),
    )?;
    run(&mut session, "starting a backup", functions.start)?;
    copy_tree(&upstream.data, data, account, &part_of_backup)?;
    copy_control(&upstream.data, data, account)?;
    let label = run(&mut session, "ending the backup", functions.stop)?;
    for (name, content) in [("backup_label", label.as_str()), ("standby.signal", "")] {
        let path = data.join(name);
        fs::write(&path, content).and_then(|()| account.own(&path)).context("write", &path)?;
    }
    Ok(Backup { _session: session })
}

/// Runs a statement and gives the first value.
fn run(session: &mut Client, step: &'static str, sql: &str) -> Result<String, Error> {
    let value = session.one_value(sql).map_err(|error| failed(step, error))?;
    Ok(value.unwrap_or_default())
}

fn failed(step: &'static str, source: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::Backup { step, source: Box::new(source) }
}

/// The backup functions, by the names of the primary's version.
struct Functions {
    start: &'static str,
    stop: &'static str,
}

impl Functions {
    fn of(server_version_num: Option<u32>) -> Self {
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

/// What a base backup leaves out, as `basebackup.c` does; and the logs, which are the primary's own.
fn part_of_backup(below: &Path) -> Take {
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
        Some(below) if EMPTIED.contains(&below) => Take::Empty,
        Some(below) if LEFT_OUT.contains(&below) => Take::Nothing,
        _ if name.starts_with("pgsql_tmp") || name.starts_with("pg_internal.init") => Take::Nothing,
        _ => Take::All,
    }
}

const CONTROL: &str = "global/pg_control";

/// Copies the control file, which has to be newer than all others.
fn copy_control(from: &Path, to: &Path, account: &Account) -> Result<(), Error> {
    let (from, to) = (from.join(CONTROL), to.join(CONTROL));
    fs::copy(&from, &to).and_then(|_| account.own(&to)).context("copy", &from)
}

/// Refuses a cluster with data outside of its directory: a copy would write to the same files.
pub(crate) fn refuse_tablespaces(data: &Path) -> Result<(), Error> {
    let dir = data.join("pg_tblspc");
    for entry in fs::read_dir(&dir).context("read", &dir)? {
        let kind = entry.and_then(|entry| entry.file_type()).context("read", &dir)?;
        // A directory is a tablespace "in place", inside.
        if kind.is_symlink() {
            return Err(Error::Tablespaces { data: data.to_owned() });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_backup() {
        for (path, take) in [
            ("base", Take::All),
            ("base/5/1259", Take::All),
            ("base/pgsql_tmp", Take::Nothing),
            ("base/5/pg_internal.init", Take::Nothing),
            ("global/pg_control", Take::Nothing),
            ("pg_wal", Take::Empty),
            ("pg_xact", Take::All),
            ("postmaster.pid", Take::Nothing),
            ("lab.conf", Take::All),
        ] {
            assert_eq!(part_of_backup(Path::new(path)), take, "{path}");
        }
    }

    #[test]
    fn functions_were_renamed_in_15() {
        assert!(Functions::of(Some(140_024)).start.contains("pg_start_backup"));
        assert!(Functions::of(Some(150_000)).start.contains("pg_backup_start"));
        assert!(Functions::of(Some(180_001)).stop.contains("pg_backup_stop"));
    }

    #[test]
    fn conninfo_is_quoted() {
        let upstream = Upstream {
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
