//! The operating system account that runs servers and owns their files.

use std::{
    ffi::OsStr,
    fs, io,
    os::unix::{fs::lchown, process::CommandExt as _},
    path::Path,
    process::{Command, Stdio},
};

use crate::error::ClusterError;

/// The system account that runs root's clusters. It owns nothing else, so a superuser of such a
/// cluster has no access to other data of the host. Two existing accounts are unsuitable:
/// `postgres` owns the production cluster, and the usual account for unprivileged processes is
/// shared with other services.
pub const ACCOUNT_NAME: &str = "howdah-lab";

/// The account that runs initdb and the server, and owns their files.
///
/// PostgreSQL refuses to run as root, so root's clusters belong to [`ACCOUNT_NAME`], which is
/// created if missing. Other users' clusters belong to those users.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OsUser(Option<PasswdEntry>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct PasswdEntry {
    name: String,
    uid: u32,
    gid: u32,
}

impl OsUser {
    /// Returns the account for servers that the calling process starts. For root, the account is
    /// created if missing.
    ///
    /// # Errors
    ///
    /// [`ClusterError::UnusableAccount`] if root needs the account and it has user id 0 or cannot
    /// be created.
    pub fn for_servers() -> Result<Self, ClusterError> {
        if !rustix::process::geteuid().is_root() {
            return Ok(Self(None));
        }
        let os_user = match find_existing()? {
            Some(os_user) => os_user,
            None => create()?,
        };
        Ok(Self(Some(os_user)))
    }

    /// Returns the account's name; `None` for the account of the calling process.
    pub fn name(&self) -> Option<&str> {
        self.0.as_ref().map(|other| other.name.as_str())
    }

    /// Returns a command that runs as this account, in `/`, with English messages and without `PG…`
    /// variables, which would change the behaviour of PostgreSQL's programs.
    pub(crate) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        // The account may be unable to enter the current working directory.
        command.current_dir("/").env("LC_ALL", "C");
        for (name, _) in std::env::vars_os() {
            if name.as_encoded_bytes().starts_with(b"PG") {
                command.env_remove(name);
            }
        }
        if let Some(PasswdEntry { uid, gid, .. }) = &self.0 {
            // As root, `uid` also drops the supplementary groups.
            command.gid(*gid).uid(*uid).env("HOME", "/");
        }
        command
    }

    /// Returns the user id of the account, which owns the server's processes and files.
    pub(crate) fn uid(&self) -> u32 {
        let ours = || rustix::process::geteuid().as_raw();
        self.0.as_ref().map_or_else(ours, |other| other.uid)
    }

    /// Makes the account the owner of a file or directory. Symbolic links are not followed.
    pub(crate) fn chown(&self, path: &Path) -> io::Result<()> {
        match &self.0 {
            Some(PasswdEntry { uid, gid, .. }) => lchown(path, Some(*uid), Some(*gid)),
            None => Ok(()),
        }
    }

    /// Checks that the account can enter a directory and write in it.
    pub(crate) fn check_access(&self, dir: &Path) -> Result<(), ClusterError> {
        let Some(other) = &self.0 else { return Ok(()) };
        let program = "/bin/sh";
        let status = self
            .command(program)
            .args(["-c", r#"cd "$1" && test -w ."#, "sh"])
            .arg(dir)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .map_err(|source| ClusterError::Spawn { program: program.into(), source })?;
        if status.success() {
            Ok(())
        } else {
            Err(ClusterError::Unreachable { path: dir.to_owned(), os_user: other.name.clone() })
        }
    }
}

const PASSWD: &str = "/etc/passwd";

/// Programs that create a system account, and their arguments before its name: shadow-utils
/// (Debian, Red Hat, SUSE), then BusyBox (Alpine).
const CREATORS: [(&str, &[&str]); 2] = [
    (
        "useradd",
        &[
            "--system",
            "--user-group",
            "--no-create-home",
            "--home-dir=/nonexistent",
            "--shell=/usr/sbin/nologin",
            "--comment=throw-away PostgreSQL servers of howdah lab",
        ],
    ),
    ("adduser", &["-S", "-D", "-H", "-h", "/nonexistent", "-s", "/sbin/nologin"]),
];

/// The PATH for [`CREATORS`]. The PATH of a service or of `su` may lack these directories.
const CREATOR_DIRS: &str = "/usr/sbin:/sbin:/usr/bin:/bin";

/// Looks up [`ACCOUNT_NAME`] in `/etc/passwd`. Fails if the account has user id 0.
fn find_existing() -> Result<Option<PasswdEntry>, ClusterError> {
    let passwd = fs::read_to_string(PASSWD).unwrap_or_default();
    match parse_passwd(&passwd, ACCOUNT_NAME) {
        Some(PasswdEntry { uid: 0, .. }) => Err(ClusterError::UnusableAccount {
            reason: format!("{ACCOUNT_NAME} has user id 0 in {PASSWD}"),
        }),
        found => Ok(found),
    }
}

/// Creates the account. A lock ensures that only one of several processes does so.
fn create() -> Result<PasswdEntry, ClusterError> {
    let _lock = fs::File::open(PASSWD).and_then(|file| file.lock().map(|()| file));
    let mut reasons = Vec::new();
    for (program, arguments) in CREATORS {
        if let Some(os_user) = find_existing()? {
            return Ok(os_user);
        }
        let output = Command::new(program)
            .args(arguments)
            .arg(ACCOUNT_NAME)
            .current_dir("/")
            .env("PATH", CREATOR_DIRS)
            .env("LC_ALL", "C")
            .stdin(Stdio::null())
            .output();
        match output {
            Ok(output) if output.status.success() => {}
            Ok(output) => {
                let text = String::from_utf8_lossy(&output.stderr);
                let line = text.lines().next().unwrap_or("no reason given");
                reasons.push(format!("{program}: {line}"));
            }
            Err(error) => reasons.push(format!("{program}: {error}")),
        }
    }
    match find_existing()? {
        Some(os_user) => {
            tracing::info!("created the system account {ACCOUNT_NAME}");
            Ok(os_user)
        }
        None => Err(ClusterError::UnusableAccount { reason: reasons.join("; ") }),
    }
}

/// Finds an account's line, `name:password:uid:gid:…` (passwd(5)).
fn parse_passwd(passwd: &str, name: &str) -> Option<PasswdEntry> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        if fields.next() != Some(name) {
            return None;
        }
        let uid = fields.nth(1)?.parse().ok()?;
        let gid = fields.next()?.parse().ok()?;
        Some(PasswdEntry { name: name.to_owned(), uid, gid })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn malformed_passwd_line_is_ignored() {
        let passwd = "root:x:0:0:root:/root:/bin/bash\n\
                      postgresx:x:7:7::/:/bin/sh\n\
                      postgres:x:101:104:PostgreSQL administrator,,,:/var/lib/postgresql:/bin/bash\n\
                      nobody:x:many:65534::/:/bin/false\n";
        let postgres = PasswdEntry { name: "postgres".to_owned(), uid: 101, gid: 104 };
        assert_eq!(parse_passwd(passwd, "postgres"), Some(postgres));
        assert_eq!(parse_passwd(passwd, "nobody"), None, "malformed line");
        assert_eq!(parse_passwd(passwd, "daemon"), None);
    }

    #[test]
    fn command_has_no_pg_variables() {
        let os_user = OsUser(None);
        let command = os_user.command("/bin/true");
        assert!(command.get_envs().all(|(name, value)| {
            !name.as_encoded_bytes().starts_with(b"PG") || value.is_none()
        }));
        assert_eq!(command.get_current_dir(), Some(Path::new("/")));
    }
}
