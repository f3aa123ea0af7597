//! Server settings, and the file they are written to.
//!
//! A cluster's settings stand in `lab.conf` beside `postgresql.conf`, which includes it. There, and
//! not on the command line, they can still be changed by `ALTER SYSTEM` and a reload. Settings that
//! come later are appended: PostgreSQL takes the last one of a name.

use std::{
    fs,
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
};

use crate::{
    account::Account,
    error::{Error, FileContext as _},
    files::NO_FOLLOW,
};

/// The file in the data directory.
pub(crate) const FILE: &str = "lab.conf";

/// What a throw-away cluster does differently from PostgreSQL's defaults.
const DEFAULTS: &[(&str, &str)] = &[
    // The directory of the socket is private already; this is the second lock on the same door.
    ("unix_socket_permissions", "0700"),
    // The files do not outlive the machine's next crash, so nobody waits for the disk.
    ("fsync", "off"),
    ("full_page_writes", "off"),
    // Many clusters run side by side.
    ("shared_buffers", "32MB"),
    // A standby finds what it missed while it was restarted. The WAL stays below max_wal_size.
    ("wal_keep_size", "512MB"),
    // Tests and importers read the log.
    ("lc_messages", "C"),
];

/// Settings that say where the server lives; they are given on its command line.
const RESERVED: &[&str] = &["config_file", "data_directory", "port", "unix_socket_directories"];

/// Names and values, in the order given.
#[derive(Clone, Debug, Default)]
pub(crate) struct Settings(Vec<(String, String)>);

impl Settings {
    /// Adds one; a later one of the same name wins.
    pub(crate) fn push(&mut self, name: impl Into<String>, value: impl Into<String>) {
        self.0.push((name.into(), value.into()));
    }

    /// Checks the names. Values are for the server to judge. `is_tcp` says whether the server may
    /// be reached by TCP at all.
    pub(crate) fn check(&self, is_tcp: bool) -> Result<(), Error> {
        for (name, _) in &self.0 {
            if !is_name(name) {
                return Err(Error::BadSetting { name: name.clone() });
            }
            if RESERVED.iter().any(|reserved| reserved.eq_ignore_ascii_case(name)) {
                return Err(Error::ReservedSetting { name: name.clone() });
            }
            if !is_tcp && name.eq_ignore_ascii_case("listen_addresses") {
                return Err(Error::TcpNotEnabled);
            }
        }
        Ok(())
    }

    /// Adds others after these.
    pub(crate) fn extend(&mut self, others: &Self) {
        self.0.extend_from_slice(&others.0);
    }

    /// Makes a fresh data directory's `lab.conf` and has `postgresql.conf` include it.
    pub(crate) fn install(&self, data: &Path, account: &Account) -> Result<(), Error> {
        let file = data.join(FILE);
        fs::File::create_new(&file)
            .and_then(|mut out| {
                DEFAULTS.iter().try_for_each(|(name, value)| write_line(&mut out, name, value))
            })
            .and_then(|()| account.own(&file))
            .context("write", &file)?;
        self.append(data)?;
        let main = data.join("postgresql.conf");
        append(&main, |out| writeln!(out, "include '{FILE}'")).context("write", &main)
    }

    /// Adds these to the `lab.conf` that is there, and gives its length before.
    pub(crate) fn append_undoable(&self, data: &Path) -> Result<u64, Error> {
        let file = data.join(FILE);
        let before = fs::symlink_metadata(&file).context("read", &file)?.len();
        self.append(data)?;
        Ok(before)
    }

    /// Takes back what was added after `lab.conf` had this length.
    pub(crate) fn undo(data: &Path, before: u64) -> Result<(), Error> {
        let file = data.join(FILE);
        let mut options = fs::File::options();
        let open = options.write(true).custom_flags(NO_FOLLOW).open(&file);
        open.and_then(|open| open.set_len(before)).context("write", &file)
    }

    /// Adds these to the `lab.conf` that is there.
    pub(crate) fn append(&self, data: &Path) -> Result<(), Error> {
        let file = data.join(FILE);
        append(&file, |out| {
            self.0.iter().try_for_each(|(name, value)| write_line(out, name, value))
        })
        .context("write", &file)
    }
}

fn append(path: &Path, write: impl FnOnce(&mut fs::File) -> io::Result<()>) -> io::Result<()> {
    write(&mut fs::File::options().append(true).custom_flags(NO_FOLLOW).open(path)?)
}

fn write_line(out: &mut fs::File, name: &str, value: &str) -> io::Result<()> {
    writeln!(out, "{name} = {}", quoted(value))
}

/// A value between quotes, as `GUC_scanstr` in PostgreSQL's `guc-file.l` undoes them.
fn quoted(value: &str) -> String {
    let mut text = String::with_capacity(value.len() + 2);
    text.push('\'');
    for c in value.chars() {
        match c {
            '\'' => text.push_str("''"),
            '\\' => text.push_str(r"\\"),
            '\n' => text.push_str(r"\n"),
            '\r' => text.push_str(r"\r"),
            c => text.push(c),
        }
    }
    text.push('\'');
    text
}

/// `[A-Za-z_][A-Za-z0-9_$]*`, an extension's with a dot in between, as in `guc-file.l`.
fn is_name(name: &str) -> bool {
    !name.is_empty()
        && name.split('.').all(|part| {
            part.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
                && part.chars().all(|c| c.is_ascii_alphanumeric() || "_$".contains(c))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(name: &str) -> Result<(), Error> {
        let mut settings = Settings::default();
        settings.push(name, "on");
        settings.check(false)
    }

    #[test]
    fn names_of_settings() {
        for name in ["work_mem", "DateStyle", "auto_explain.log_min_duration", "a.b.c"] {
            assert!(check(name).is_ok(), "{name}");
        }
        for name in ["", "a b", "work_mem = '1'\nport", ".x", "x.", "1x", "größe"] {
            assert!(matches!(check(name), Err(Error::BadSetting { .. })), "{name}");
        }
    }

    #[test]
    fn where_the_server_lives_is_not_a_setting() {
        for name in ["port", "PORT", "data_directory", "unix_socket_directories"] {
            assert!(matches!(check(name), Err(Error::ReservedSetting { .. })), "{name}");
        }
    }

    #[test]
    fn listen_addresses_needs_tcp() {
        assert!(matches!(check("Listen_Addresses"), Err(Error::TcpNotEnabled)));
        let mut settings = Settings::default();
        settings.push("listen_addresses", "127.0.0.2");
        assert!(settings.check(true).is_ok());
    }

    #[test]
    fn values_are_quoted() {
        assert_eq!(quoted("%m '%a' \\x\n"), r"'%m ''%a'' \\x\n'");
    }

    #[test]
    fn later_settings_follow_the_defaults() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("postgresql.conf"), "# from initdb\n").unwrap();
        let mut settings = Settings::default();
        settings.push("fsync", "on");
        settings.install(dir.path(), &Account::for_servers().unwrap()).unwrap();
        let main = fs::read_to_string(dir.path().join("postgresql.conf")).unwrap();
        assert_eq!(main, "# from initdb\ninclude 'lab.conf'\n");
        let lab = fs::read_to_string(dir.path().join(FILE)).unwrap();
        let fsync: Vec<_> = lab.lines().filter(|line| line.starts_with("fsync")).collect();
        assert_eq!(fsync, ["fsync = 'off'", "fsync = 'on'"]);
    }
}
