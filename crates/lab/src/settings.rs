//! The server's settings, which are stored in the file `lab.conf`.
//!
//! `postgresql.conf` includes this file. Unlike settings on the command line, these can still be
//! changed by `ALTER SYSTEM` and a reload. Later settings are appended, because PostgreSQL uses the
//! last one of each name.

use std::{
    fs,
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
};

use crate::{
    error::{ClusterError, FileContext as _},
    files::NO_FOLLOW,
    os_user::OsUser,
};

/// Name of the file in the data directory.
pub(crate) const FILE: &str = "lab.conf";

/// The settings in which a throw-away cluster differs from PostgreSQL's defaults.
const DEFAULTS: &[(&str, &str)] = &[
    // The socket's directory is already private; this is a second line of defence.
    ("unix_socket_permissions", "0700"),
    // The data need not survive a crash of the machine.
    ("fsync", "off"),
    ("full_page_writes", "off"),
    // Many clusters run side by side.
    ("shared_buffers", "32MB"),
    // Keeps the WAL that a standby misses during a restart. This stays below max_wal_size.
    ("wal_keep_size", "512MB"),
    // Tests and importers read the log.
    ("lc_messages", "C"),
];

/// Settings that decide where the server listens and keeps its files; the lab controls them by the
/// server's options `-D`, `-k` and `-p`.
const RESERVED: &[&str] = &["config_file", "data_directory", "port", "unix_socket_directories"];

/// Settings to write to `lab.conf`: names and values, in the order given.
#[derive(Clone, Debug, Default)]
pub(crate) struct ServerSettings(Vec<(String, String)>);

impl ServerSettings {
    /// Adds a setting. The last one of each name applies.
    pub(crate) fn push(&mut self, name: impl Into<String>, value: impl Into<String>) {
        self.0.push((name.into(), value.into()));
    }

    /// Checks the names; values are left to the server. `is_tcp` allows `listen_addresses`.
    pub(crate) fn check(&self, is_tcp: bool) -> Result<(), ClusterError> {
        for (name, _) in &self.0 {
            if !is_name(name) {
                return Err(ClusterError::BadSetting { name: name.clone() });
            }
            if RESERVED.iter().any(|reserved| reserved.eq_ignore_ascii_case(name)) {
                return Err(ClusterError::ReservedSetting { name: name.clone() });
            }
            if !is_tcp && name.eq_ignore_ascii_case("listen_addresses") {
                return Err(ClusterError::TcpNotEnabled);
            }
        }
        Ok(())
    }

    /// Appends other settings, which take precedence.
    pub(crate) fn extend(&mut self, others: &Self) {
        self.0.extend_from_slice(&others.0);
    }

    /// Creates `lab.conf` in a new data directory and includes it in `postgresql.conf`.
    pub(crate) fn install(&self, data: &Path, os_user: &OsUser) -> Result<(), ClusterError> {
        let file = data.join(FILE);
        fs::File::create_new(&file)
            .and_then(|mut out| {
                DEFAULTS.iter().try_for_each(|(name, value)| write_line(&mut out, name, value))
            })
            .and_then(|()| os_user.chown(&file))
            .context("write", &file)?;
        self.append(data)?;
        let main = data.join("postgresql.conf");
        append(&main, |out| writeln!(out, "include '{FILE}'")).context("write", &main)
    }

    /// Appends the settings to an existing `lab.conf`, and returns its previous length for
    /// [`ServerSettings::undo`].
    pub(crate) fn append_undoable(&self, data: &Path) -> Result<u64, ClusterError> {
        let file = data.join(FILE);
        let before = fs::symlink_metadata(&file).context("read", &file)?.len();
        self.append(data)?;
        Ok(before)
    }

    /// Truncates `lab.conf` to its previous length.
    pub(crate) fn undo(data: &Path, before: u64) -> Result<(), ClusterError> {
        let file = data.join(FILE);
        let mut options = fs::File::options();
        let open = options.write(true).custom_flags(NO_FOLLOW).open(&file);
        open.and_then(|open| open.set_len(before)).context("write", &file)
    }

    /// Appends the settings to an existing `lab.conf`.
    pub(crate) fn append(&self, data: &Path) -> Result<(), ClusterError> {
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

/// Quotes a value; the inverse of `DeescapeQuotedString` in PostgreSQL's `guc-file.l`.
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

/// Whether a name is valid: `[A-Za-z_][A-Za-z0-9_$]*`, or several of these with dots in between for
/// an extension, as in `guc-file.l`.
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

    fn check(name: &str) -> Result<(), ClusterError> {
        let mut settings = ServerSettings::default();
        settings.push(name, "on");
        settings.check(false)
    }

    #[test]
    fn invalid_setting_name_is_refused() {
        for name in ["work_mem", "DateStyle", "auto_explain.log_min_duration", "a.b.c"] {
            assert!(check(name).is_ok(), "{name}");
        }
        for name in ["", "a b", "work_mem = '1'\nport", ".x", "x.", "1x", "größe"] {
            assert!(matches!(check(name), Err(ClusterError::BadSetting { .. })), "{name}");
        }
    }

    #[test]
    fn reserved_setting_is_refused() {
        for name in ["port", "PORT", "data_directory", "unix_socket_directories"] {
            assert!(matches!(check(name), Err(ClusterError::ReservedSetting { .. })), "{name}");
        }
    }

    #[test]
    fn listen_addresses_requires_tcp() {
        assert!(matches!(check("Listen_Addresses"), Err(ClusterError::TcpNotEnabled)));
        let mut settings = ServerSettings::default();
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
        let mut settings = ServerSettings::default();
        settings.push("fsync", "on");
        settings.install(dir.path(), &OsUser::for_servers().unwrap()).unwrap();
        let main = fs::read_to_string(dir.path().join("postgresql.conf")).unwrap();
        assert_eq!(main, "# from initdb\ninclude 'lab.conf'\n");
        let lab = fs::read_to_string(dir.path().join(FILE)).unwrap();
        let fsync: Vec<_> = lab.lines().filter(|line| line.starts_with("fsync")).collect();
        assert_eq!(fsync, ["fsync = 'off'", "fsync = 'on'"]);
    }
}
