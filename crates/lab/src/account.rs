//! The operating system account that servers run as.

use std::{
    ffi::OsStr,
    fs, io,
    os::unix::{fs::lchown, process::CommandExt as _},
    path::Path,
    process::{Command, Stdio},
};

use crate::error::Error;

/// The system account that runs root's clusters. It owns nothing else, so whoever gets into such a
/// cluster as its superuser reaches no other data of the host: `postgres` owns the production
/// cluster, and `nobody` is shared with other services.
pub const ACCOUNT_NAME: &str = "howdah-lab";

/// The account that runs initdb and the server, and owns their files.
///
/// PostgreSQL refuses to run as root, so root's clusters belong to [`ACCOUNT_NAME`], which is made
/// when it is missing. Clusters of other users belong to those users.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account(Option<Other>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Other {
    name: String,
    uid: u32,
    gid: u32,
}

impl Account {
    /// The account for servers that this process starts. Root's is made if it is missing.
    ///
    /// # Errors
    ///
    /// [`Error::NoAccount`] when root needs the account and it cannot be made.
    pub fn for_servers() -> Result<Self, Error> {
        if !rustix::process::geteuid().is_root() {
            return Ok(Self(None));
        }
        let account = match existing()? {
            Some(account) => account,
            None => create()?,
        };
        Ok(Self(Some(account)))
    }

    /// Its name, when it is not the one we run as.
    pub fn name(&self) -> Option<&str> {
        self.0.as_ref().map(|other| other.name.as_str())
    }

    /// A command that will run as this account, in `/`, with messages in English and without the
    /// `PG…` variables that would change what PostgreSQL's programs do.
    pub(crate) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        // Our own working directory may be one that the account cannot enter.
        command.current_dir("/").env("LC_ALL", "C");
        for (name, _) in std::env::vars_os() {
            if name.as_encoded_bytes().starts_with(b"PG") {
                command.env_remove(name);
            }
        }
        if let Some(Other { uid, gid, .. }) = &self.0 {
            // As root, `uid` also drops the supplementary groups.
            command.gid(*gid).uid(*uid).env("HOME", "/");
        }
        command
    }

    /// The user number of its processes and files.
    pub(crate) fn uid(&self) -> u32 {
        let ours = || rustix::process::geteuid().as_raw();
        self.0.as_ref().map_or_else(ours, |other| other.uid)
    }

    /// Gives it a file or directory; a symbolic link itself, not what it points to.
    pub(crate) fn own(&self, path: &Path) -> io::Result<()> {
        match &self.0 {
            Some(Other { uid, gid, .. }) => lchown(path, Some(*uid), Some(*gid)),
            None => Ok(()),
        }
    }

    /// Checks that it can write in a directory.
    pub(crate) fn check_reach(&self, dir: &Path) -> Result<(), Error> {
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
            .map_err(|source| Error::Spawn { program: program.into(), source })?;
        match status.success() {
            true => Ok(()),
            false => Err(Error::Unreachable { path: dir.to_owned(), account: other.name.clone() }),
        }
    }
}

const PASSWD: &str = "/etc/passwd";

/// Programs that make a system account, and their arguments before its name: of shadow-utils
/// (Debian, Red Hat, SUSE), then of BusyBox (Alpine).
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

/// Where those programs are; the PATH of a service or of `su` may lack these directories.
const CREATOR_DIRS: &str = "/usr/sbin:/sbin:/usr/bin:/bin";

/// The account, if there is one already.
fn existing() -> Result<Option<Other>, Error> {
    let passwd = fs::read_to_string(PASSWD).unwrap_or_default();
    match find(&passwd, ACCOUNT_NAME) {
        Some(Other { uid: 0, .. }) => {
            Err(Error::NoAccount { reason: format!("{ACCOUNT_NAME} in {PASSWD} is root itself") })
        }
        found => Ok(found),
    }
}

/// Makes the account. Of several processes that begin at once, one makes it and the others find it.
fn create() -> Result<Other, Error> {
    let _lock = fs::File::open(PASSWD).and_then(|file| file.lock().map(|()| file));
    let mut reasons = Vec::new();
    for (program, arguments) in CREATORS {
        if let Some(account) = existing()? {
            return Ok(account);
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
    match existing()? {
        Some(account) => {
            tracing::info!("made the system account {ACCOUNT_NAME}");
            Ok(account)
        }
        None => Err(Error::NoAccount { reason: reasons.join("; ") }),
    }
}

/// Finds an account's line, `name:password:uid:gid:…`, as passwd(5) has it.
fn find(passwd: &str, name: &str) -> Option<Other> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        if fields.next() != Some(name) {
            return None;
        }
        let uid = fields.nth(1)?.parse().ok()?;
        let gid = fields.next()?.parse().ok()?;
        Some(Other { name: name.to_owned(), uid, gid })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwd_lines() {
        let passwd = "root:x:0:0:root:/root:/bin/bash\n\
                      postgresx:x:7:7::/:/bin/sh\n\
                      postgres:x:101:104:PostgreSQL administrator,,,:/var/lib/postgresql:/bin/bash\n\
                      nobody:x:many:65534::/:/bin/false\n";
        let postgres = Other { name: "postgres".to_owned(), uid: 101, gid: 104 };
        assert_eq!(find(passwd, "postgres"), Some(postgres));
        assert_eq!(find(passwd, "nobody"), None, "a line that makes no sense is no account");
        assert_eq!(find(passwd, "daemon"), None);
    }

    #[test]
    fn postgresql_variables_do_not_reach_the_programs() {
        let account = Account(None);
        let command = account.command("/bin/true");
        assert!(command.get_envs().all(|(name, value)| {
            !name.as_encoded_bytes().starts_with(b"PG") || value.is_none()
        }));
        assert_eq!(command.get_current_dir(), Some(Path::new("/")));
    }
}
