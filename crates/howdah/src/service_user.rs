//! [`ServiceUser`]: the user that a service changes to when it is started as root.

use std::ffi::CString;

use anyhow::{Context as _, anyhow, bail};
use nix::unistd::{User, geteuid, initgroups, setgid, setuid};

/// A user of the operating system.
#[derive(Debug)]
pub(crate) struct ServiceUser(User);

impl ServiceUser {
    /// Finds a user of the system by name.
    ///
    /// # Errors
    ///
    /// No such user exists, or the user database cannot be read.
    pub(crate) fn find(name: &str) -> anyhow::Result<Self> {
        let found = User::from_name(name).with_context(|| format!("cannot look up user {name}"))?;
        found.map(Self).ok_or_else(|| anyhow!("there is no user {name} on this system"))
    }

    /// Changes all threads of the process to this user, with its groups. Does nothing if the
    /// process runs as this user already.
    ///
    /// # Errors
    ///
    /// The process runs neither as this user nor as root, or the change failed.
    pub(crate) fn change_to(&self) -> anyhow::Result<()> {
        let Self(user) = self;
        if geteuid() == user.uid {
            return Ok(());
        }
        if !geteuid().is_root() {
            bail!("only root can change to user {}: start the command as that user", user.name);
        }
        let change = || -> anyhow::Result<()> {
            initgroups(&CString::new(user.name.as_str())?, user.gid)?;
            setgid(user.gid)?;
            Ok(setuid(user.uid)?)
        };
        change().with_context(|| format!("cannot change to user {}", user.name))
    }
}
