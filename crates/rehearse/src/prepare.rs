//! Prepares a server for a run: resets the data, applies the migration, runs VACUUM and CHECKPOINT,
//! loads the cache image, and waits for autovacuum.

use std::{
    collections::BTreeSet,
    error::Error,
    fs::File,
    io,
    os::unix::process::CommandExt as _,
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use howdah_connect::{Client, ConnectTarget};
use howdah_replay::IdentityMap;
use howdah_report::rehearsal::RehearsalSide;
use howdah_warm::{
    CacheImage,
    load::{LoadObserver, LoadOptions, load},
};
use rustix::process::{Pid, Signal, kill_process_group};

use crate::{
    copies,
    error::RehearsalError,
    options::{ChangeSource, RehearsalOptions, ResetHooks, ResetMode},
    sql::{
        APPLICATION_NAME, check_stopped, connect, connect_after_restart, query_error,
        query_until_stopped,
    },
};

/// Time between checks of a running command or of autovacuum.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Maximum wait for the autovacuum workers of a server.
const AUTOVACUUM_TIMEOUT: Duration = Duration::from_secs(600);

/// Minimum share of a cache image that must be in the cache after loading; a smaller share causes a
/// warning.
const WARM_SHARE_MIN: f64 = 0.9;

/// Name of the file in the output folder for the output of reset commands.
const RESET_LOG: &str = "reset.log";

/// The context in which servers are prepared for their runs.
pub(crate) struct Preparation<'a> {
    pub(crate) options: &'a RehearsalOptions,
    pub(crate) image: Option<&'a CacheImage>,
    pub(crate) stop: &'a AtomicBool,
}

impl Preparation<'_> {
    /// Resets the data of a side, and applies the migration if the side has one. `originals` are
    /// the databases to copy. Returns a warning for each that does not exist.
    pub(crate) fn reset(
        &self,
        side: RehearsalSide,
        working: &ConnectTarget,
        originals: &BTreeSet<String>,
    ) -> Result<Vec<String>, RehearsalError> {
        let mut warnings = Vec::new();
        match &self.options.reset {
            ResetMode::None => {}
            ResetMode::Copy => {
                for original in originals {
                    if !copies::create(side, self.options.target(side), original, self.stop)? {
                        warnings.push(format!("database {original} does not exist on {side}"));
                    }
                    check_stopped(self.stop)?;
                }
            }
            ResetMode::Hooks(hooks) => {
                if let Some(command) = hooks.command(side) {
                    self.run_hook(side, command, hooks)?;
                }
            }
        }
        if let (RehearsalSide::Change, ChangeSource::Migration { sql, .. }) =
            (side, &self.options.change)
        {
            let mut client = connect(side, working)?;
            query_until_stopped(&mut client, sql, self.stop)
                .map_err(query_error(side, "apply the migration"))?;
        }
        Ok(warnings)
    }

    /// Vacuums the databases of the runs if that is enabled, runs a checkpoint, and loads the cache
    /// image if there is one. Returns warnings, for the report, if VACUUM or CHECKPOINT failed, or
    /// if much of the image was not loaded.
    pub(crate) fn prepare(
        &self,
        side: RehearsalSide,
        working: &ConnectTarget,
        databases: &BTreeSet<String>,
        identities: &IdentityMap,
    ) -> Result<Vec<String>, RehearsalError> {
        let mut warnings = Vec::new();
        let mut client = connect_after_restart(side, working, self.stop)?;
        if self.options.vacuum {
            for database in databases {
                if let Err(error) = self.vacuum(&working.with_database(database)) {
                    warnings
                        .push(format!("VACUUM of database {database} failed on {side}: {error}"));
                }
                check_stopped(self.stop)?;
            }
        }
        let checkpoint = query_until_stopped(&mut client, "checkpoint", self.stop);
        check_stopped(self.stop)?;
        if let Err(error) = checkpoint {
            warnings.push(format!(
                "no CHECKPOINT on {side} before its runs, so a run may include one: {error}"
            ));
        }
        drop(client);
        if let Some(image) = self.image {
            warnings.extend(self.load_image(side, working, image, identities)?);
            check_stopped(self.stop)?;
        }
        Ok(warnings)
    }

    fn vacuum(&self, target: &ConnectTarget) -> Result<(), Box<dyn Error>> {
        let mut client = Client::connect(&target.with_application_name(APPLICATION_NAME))?;
        query_until_stopped(&mut client, "vacuum (analyze)", self.stop)?;
        Ok(())
    }

    /// Waits until no autovacuum worker is active on a server. Returns a warning if that took too
    /// long.
    pub(crate) fn wait_for_autovacuum(
        &self,
        side: RehearsalSide,
        working: &ConnectTarget,
    ) -> Result<Option<String>, RehearsalError> {
        let mut client = connect_after_restart(side, working, self.stop)?;
        let deadline = Instant::now() + AUTOVACUUM_TIMEOUT;
        while is_vacuuming(side, &mut client)? {
            check_stopped(self.stop)?;
            if Instant::now() >= deadline {
                let minutes = AUTOVACUUM_TIMEOUT.as_secs() / 60;
                return Ok(Some(format!(
                    "autovacuum was still active on {side} after {minutes} minutes"
                )));
            }
            thread::sleep(POLL_INTERVAL);
        }
        Ok(None)
    }

    fn load_image(
        &self,
        side: RehearsalSide,
        working: &ConnectTarget,
        image: &CacheImage,
        identities: &IdentityMap,
    ) -> Result<Option<String>, RehearsalError> {
        let original = self.options.target(RehearsalSide::Base).database();
        let mut options = LoadOptions { evict: true, ..LoadOptions::default() };
        options.database_names.extend(identities.databases.clone());
        if working.database() != original {
            let renaming = (original.to_owned(), working.database().to_owned());
            options.database_names.extend([renaming]);
        }
        let loaded = load(image, working, &options, &LoadInterrupt(self.stop))
            .map_err(|source| RehearsalError::Warm { side, source: Box::new(source) })?;
        let share = loaded.share();
        Ok((share < WARM_SHARE_MIN).then(|| {
            format!("only {:.0} % of the cache image is in the cache of {side}", share * 100.0)
        }))
    }

    /// Runs a reset command and waits until it ends. Kills it, with its children, after the time
    /// limit or if the rehearsal is stopped.
    fn run_hook(
        &self,
        side: RehearsalSide,
        command: &str,
        hooks: &ResetHooks,
    ) -> Result<(), RehearsalError> {
        let log = self.options.dir.join(RESET_LOG);
        let start = || -> io::Result<Child> {
            let output = open_log(&log)?;
            Command::new("sh")
                .args(["-c", command])
                .env("HOWDAH_REHEARSAL_SIDE", side.as_str())
                .stdin(Stdio::null())
                .stdout(output.try_clone()?)
                .stderr(output)
                // A process group of its own, so that its children can be killed with it.
                .process_group(0)
                .spawn()
        };
        let mut child = start().map_err(|source| RehearsalError::ResetStart { side, source })?;
        let deadline = Instant::now() + hooks.timeout;
        let status = loop {
            let status =
                child.try_wait().map_err(|source| RehearsalError::ResetStart { side, source })?;
            if let Some(status) = status {
                break status;
            }
            let is_stopped = self.stop.load(Ordering::Relaxed);
            if is_stopped || Instant::now() >= deadline {
                kill(&mut child);
                check_stopped(self.stop)?;
                return Err(RehearsalError::ResetTimeout { side, timeout: hooks.timeout });
            }
            thread::sleep(POLL_INTERVAL);
        };
        match status {
            status if status.success() => Ok(()),
            status => Err(RehearsalError::Reset { side, status: status_text(status), log }),
        }
    }
}

/// Whether autovacuum workers are active. Roles without `pg_read_all_stats` cannot see them.
fn is_vacuuming(side: RehearsalSide, client: &mut Client) -> Result<bool, RehearsalError> {
    const SQL: &str = "select pg_catalog.count(*) from pg_catalog.pg_stat_activity \
                       where backend_type = 'autovacuum worker'";
    let count = client.one_value(SQL).map_err(query_error(side, "look for autovacuum workers"))?;
    Ok(count.is_some_and(|count| count != "0"))
}

fn open_log(path: &Path) -> io::Result<File> {
    howdah_files::options().append(true).create(true).open(path)
}

/// Kills a command and its children.
fn kill(child: &mut Child) {
    let group = Pid::from_child(child);
    if let Err(error) = kill_process_group(group, Signal::KILL) {
        tracing::debug!(%error, "cannot kill the reset command");
    }
    // The child has been killed, so this returns soon.
    let _ = child.wait();
}

fn status_text(status: ExitStatus) -> String {
    match status.code() {
        Some(code) => format!("exit code {code}"),
        None => status.to_string(),
    }
}

/// An observer that stops a load when the rehearsal is stopped.
struct LoadInterrupt<'a>(&'a AtomicBool);

impl LoadObserver for LoadInterrupt<'_> {
    fn should_stop(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
