//! The operating system account that servers run as.

use std::{
    ffi::OsStr,
    fs, io,
    os::unix::{fs::lchown, process::CommandExt as _},
    path::Path,
    process::{Command, Stdio},
};

use crate::error::Error;

/// Who runs initdb and the server, and owns their files.
///
/// PostgreSQL refuses to run as root. So root's clusters belong to `postgres` if there is such an
/// account in `/etc/passwd`, else to `nobody`; everybody else's belong to themselves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account(Option<Other>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Other {
    name: String,
    uid: u32,
    gid: u32,
}

impl Account {
    /// The account for servers that this process starts.
    ///
    /// # Errors
    ///
    /// [`Error::NoAccount`] for root on a machine with neither account.
    pub fn for_servers() -> Result<Self, Error> {
        if !rustix::process::geteuid().is_root() {
            return Ok(Self(None));
        }
        let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
        match find(&passwd, "postgres").or_else(|| find(&passwd, "nobody")) {
            Some(other) => Ok(Self(Some(other))),
            None => Err(Error::NoAccount),
        }
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
