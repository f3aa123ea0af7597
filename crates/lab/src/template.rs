//! Creates data directories with initdb, and caches its results as templates.
//!
//! initdb takes a second or more; copying its result takes a few hundredths of a second. So the
//! cache contains one result per PostgreSQL build. All copies share a system identifier; callers
//! that need a unique one set `Builder::unique_system_identifier`.

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
    binaries::Binaries,
    cache::{self, LabCache},
    error::{ClusterError, FileContext as _},
    files::{self, CopyRule, copy_tree},
    os_user::OsUser,
    port::random,
    reaper::Reaper,
};

/// The superuser of every cluster.
pub(crate) const SUPERUSER: &str = "postgres";

const OPTIONS: &[&str] =
    &["--username", SUPERUSER, "--encoding", "UTF8", "--locale", "C", "--no-sync"];

/// Creates a data directory, from a template if possible.
pub(crate) fn make_data_dir(
    data: &Path,
    binaries: &Binaries,
    os_user: &OsUser,
    cache: &LabCache,
    reaper: &mut Reaper,
) -> Result<(), ClusterError> {
    match template(binaries, os_user, cache) {
        Ok(template) => copy_tree(&template, data, os_user, &|_| CopyRule::Copy),
        // A cache that cannot be written costs only time: initdb runs for each cluster.
        Err(error @ ClusterError::File { .. }) => {
            tracing::debug!(%error, "no initdb template");
            initdb(data, binaries, os_user, None, reaper)
        }
        Err(error) => Err(error),
    }
}

/// The superuser's password, and the path of a private file that passes it to initdb.
#[derive(Clone, Copy)]
pub(crate) struct Password<'a> {
    pub(crate) secret: &'a str,
    pub(crate) file: &'a Path,
}

/// Runs initdb. With a password, clients must log in with it (SCRAM); without one, all are trusted.
pub(crate) fn initdb(
    data: &Path,
    binaries: &Binaries,
    os_user: &OsUser,
    password: Option<Password<'_>>,
    reaper: &mut Reaper,
) -> Result<(), ClusterError> {
    let mut arguments: Vec<&OsStr> = vec!["--pgdata".as_ref(), data.as_ref()];
    arguments.extend(OPTIONS.iter().map(OsStr::new));
    if let Some(Password { secret, file }) = password {
        write_secret(file, secret, os_user).context("write", file)?;
        arguments.extend(["--auth=scram-sha-256", "--pwfile"].map(OsStr::new));
        arguments.push(file.as_ref());
    } else {
        arguments.push("--auth=trust".as_ref());
    }
    let program = binaries.program("initdb");
    let failed = |source| ClusterError::Spawn { program: program.clone(), source };
    let mut output_file = tempfile::tempfile().map_err(failed)?;
    let output = Stdio::from(output_file.try_clone().map_err(failed)?);
    let mut process = reaper.launch(os_user, &program, &arguments, output)?;
    let status = process.wait().map_err(failed)?;
    reaper.program_exited();
    if let Some(Password { file, .. }) = password {
        fs::remove_file(file).context("remove", file)?;
    }
    if status.success() {
        Ok(())
    } else {
        Err(ClusterError::Initdb { status, output: files::last_lines_of(&mut output_file) })
    }
}

fn write_secret(path: &Path, secret: &str, os_user: &OsUser) -> io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt as _;
    let mut file = fs::OpenOptions::new().create_new(true).write(true).mode(0o600).open(path)?;
    os_user.chown(path)?;
    file.write_all(secret.as_bytes())
}

/// Returns the template's directory. The first use runs initdb.
fn template(
    binaries: &Binaries,
    os_user: &OsUser,
    cache: &LabCache,
) -> Result<PathBuf, ClusterError> {
    let templates = cache.templates();
    let name = template_name(binaries, os_user);
    let complete = templates.join(&name);
    if !complete.exists() {
        cache::make_dir(&templates).context("create", &templates)?;
        let _lock = cache::lock(&templates, &name).context("lock", &templates)?;
        if !complete.exists() {
            make_template(&complete, binaries, os_user)?;
            remove_old(&templates);
        }
    }
    // `remove_old` uses the modification time as the time of the last use.
    let used = fs::File::open(&complete).and_then(|dir| dir.set_modified(SystemTime::now()));
    if let Err(error) = used {
        tracing::debug!(%error, "cannot mark an initdb template as used");
    }
    Ok(complete)
}

/// Creates a template in a work directory and renames it, so that it appears complete or not at
/// all.
fn make_template(
    complete: &Path,
    binaries: &Binaries,
    os_user: &OsUser,
) -> Result<(), ClusterError> {
    let work = complete.with_file_name(format!(".new-{:016x}", random()));
    let mut reaper = Reaper::spawn([&work])?;
    files::make_dir(&work, 0o700, os_user).context("create", &work)?;
    os_user.check_access(&work)?;
    let data = work.join("data");
    initdb(&data, binaries, os_user, None, &mut reaper)?;
    fs::rename(&data, complete).context("rename", &data)?;
    reaper.finish();
    Ok(())
}

/// Returns the name of a template: the major version and a hash of everything that initdb's result
/// depends on, which is the build, the account and the options.
fn template_name(binaries: &Binaries, os_user: &OsUser) -> String {
    let mut hasher = DefaultHasher::new();
    (binaries.dir(), binaries.version().text(), OPTIONS, os_user.name()).hash(&mut hasher);
    if let Ok(metadata) = fs::metadata(binaries.program("postgres")) {
        (metadata.ino(), metadata.len(), metadata.mtime(), metadata.mtime_nsec()).hash(&mut hasher);
    }
    format!("{}-{:016x}", binaries.version().major(), hasher.finish())
}

/// Removes templates unused for a month, mostly those of replaced builds.
fn remove_old(templates: &Path) {
    const MONTH: Duration = Duration::from_secs(30 * 24 * 3600);
    for entry in fs::read_dir(templates).into_iter().flatten().flatten() {
        let used = entry.metadata().and_then(|metadata| metadata.modified());
        let age = used.ok().and_then(|used| used.elapsed().ok()).unwrap_or_default();
        // Lock files stay: a removed one could be held while another process creates a new one.
        let is_lock = entry.path().extension().is_some_and(|extension| extension == "lock");
        if !is_lock && age > MONTH {
            // Safe without a lock: readers set the modification time first.
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
