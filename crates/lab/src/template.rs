//! initdb, and templates that spare most clusters the wait for it.
//!
//! initdb takes a second or more, a copy of its result a few hundredths. So the result of each
//! PostgreSQL build is kept in the cache. All copies share a system identifier, as physical copies
//! do; whoever depends on its being unique asks for one that is (`Builder::own_system`).

use std::{
    ffi::OsStr,
    fs,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    io::{self, Write as _},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, SystemTime},
};

use crate::{
    account::Account,
    binaries::Binaries,
    cache::{self, Cache},
    error::{Error, FileContext as _},
    files::{self, Take, copy_tree},
    janitor::Reaper,
    port::random,
};

/// The superuser of every cluster.
pub(crate) const SUPERUSER: &str = "postgres";

const OPTIONS: &[&str] =
    &["--username", SUPERUSER, "--encoding", "UTF8", "--locale", "C", "--no-sync"];

/// Makes a data directory, from a template where one is or can be had.
pub(crate) fn make_data_dir(
    data: &Path,
    binaries: &Binaries,
    account: &Account,
    cache: &Cache,
    janitor: &mut Reaper,
) -> Result<(), Error> {
    match template(binaries, account, cache) {
        Ok(template) => copy_tree(&template, data, account, &|_| Take::All),
        // A cache that cannot be written costs time and nothing else.
        Err(error @ Error::File { .. }) => {
            tracing::debug!(%error, "no initdb template");
            initdb(data, binaries, account, None, janitor)
        }
        Err(error) => Err(error),
    }
}

/// A password that clients of a cluster have to give, and a private file for telling it to initdb.
#[derive(Clone, Copy)]
pub(crate) struct Password<'a> {
    pub(crate) secret: &'a str,
    pub(crate) file: &'a Path,
}

/// Runs initdb. With a password, clients have to give it (SCRAM); without one all are trusted.
pub(crate) fn initdb(
    data: &Path,
    binaries: &Binaries,
    account: &Account,
    password: Option<Password<'_>>,
    janitor: &mut Reaper,
) -> Result<(), Error> {
    let mut arguments: Vec<&OsStr> = vec!["--pgdata".as_ref(), data.as_ref()];
    arguments.extend(OPTIONS.iter().map(OsStr::new));
    if let Some(Password { secret, file }) = password {
        write_secret(file, secret, account).context("write", file)?;
        arguments.extend(["--auth=scram-sha-256", "--pwfile"].map(OsStr::new));
        arguments.push(file.as_ref());
    } else {
        arguments.push("--auth=trust".as_ref());
    }
    let program = binaries.program("initdb");
    let failed = |source| Error::Spawn { program: program.clone(), source };
    let mut said = tempfile::tempfile().map_err(failed)?;
    let output = Stdio::from(said.try_clone().map_err(failed)?);
    let mut process = janitor.launch(account, &program, &arguments, output)?;
    let status = process.wait().map_err(failed)?;
    janitor.forget_program();
    if let Some(Password { file, .. }) = password {
        fs::remove_file(file).context("remove", file)?;
    }
    match status.success() {
        true => Ok(()),
        false => Err(Error::Initdb { status, output: files::last_lines_of(&mut said) }),
    }
}

fn write_secret(path: &Path, secret: &str, account: &Account) -> io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt as _;
    let mut file = fs::OpenOptions::new().create_new(true).write(true).mode(0o600).open(path)?;
    account.own(path)?;
    file.write_all(secret.as_bytes())
}

/// The template's directory; initdb is run when it is the first use.
fn template(binaries: &Binaries, account: &Account, cache: &Cache) -> Result<PathBuf, Error> {
    let templates = cache.templates();
    let name = template_name(binaries, account);
    let complete = templates.join(&name);
    if !complete.exists() {
        cache::make_dir(&templates).context("create", &templates)?;
        let _lock = cache::lock(&templates, &name).context("lock", &templates)?;
        if !complete.exists() {
            make_template(&complete, binaries, account)?;
            remove_old(&templates);
        }
    }
    // Its age is the time since it was last used.
    let used = fs::File::open(&complete).and_then(|dir| dir.set_modified(SystemTime::now()));
    if let Err(error) = used {
        tracing::debug!(%error, "cannot mark an initdb template as used");
    }
    Ok(complete)
}

/// Makes it in a directory of its own, so that it appears complete or not at all.
fn make_template(complete: &Path, binaries: &Binaries, account: &Account) -> Result<(), Error> {
    let work = complete.with_file_name(format!(".new-{:016x}", random()));
    let mut janitor = Reaper::hire([&work])?;
    files::make_dir(&work, 0o700, account).context("create", &work)?;
    account.check_reach(&work)?;
    let data = work.join("data");
    initdb(&data, binaries, account, None, &mut janitor)?;
    fs::rename(&data, complete).context("rename", &data)?;
    janitor.dismiss();
    Ok(())
}

/// `17-` and a hash of all that the result depends on: another build, account or set of options is
/// another template.
fn template_name(binaries: &Binaries, account: &Account) -> String {
    let mut hasher = DefaultHasher::new();
    (binaries.dir(), binaries.version().text(), OPTIONS, account.name()).hash(&mut hasher);
    if let Ok(metadata) = fs::metadata(binaries.program("postgres")) {
        (metadata.ino(), metadata.len(), metadata.mtime(), metadata.mtime_nsec()).hash(&mut hasher);
    }
    format!("{}-{:016x}", binaries.version().major(), hasher.finish())
}

/// Removes templates that were not used for a month: those of replaced builds, mostly.
fn remove_old(templates: &Path) {
    const MONTH: Duration = Duration::from_secs(30 * 24 * 3600);
    for entry in fs::read_dir(templates).into_iter().flatten().flatten() {
        let used = entry.metadata().and_then(|metadata| metadata.modified());
        let age = used.ok().and_then(|used| used.elapsed().ok()).unwrap_or_default();
        // Locks stay: somebody may hold one that others could not see any more.
        let is_lock = entry.path().extension().is_some_and(|extension| extension == "lock");
        if !is_lock && age > MONTH {
            // Nobody reads it: who does has marked it as used first.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_unused_for_a_month_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let (old, new) = (dir.path().join("15-00"), dir.path().join("17-00"));
        for path in [&old, &new] {
            fs::create_dir(path).unwrap();
        }
        let two_months_ago = SystemTime::now() - Duration::from_secs(60 * 24 * 3600);
        fs::File::open(&old).unwrap().set_modified(two_months_ago).unwrap();
        remove_old(dir.path());
        assert!(!old.exists() && new.exists());
    }
}
