//! Changes settings at run time, by reloading the file or by SET on the console.

use std::{
    num::NonZeroUsize,
    path::{Path, PathBuf},
    sync::{Arc, mpsc},
};

use howdah_connect::tls;
use howdah_pool_config::{Config, ConfigChange, ConfigReadError, Diagnostic, SetError};

use super::{
    PoolerStartError, control::PoolerHandle, directory::ServerTls, messages::WorkerMessage,
    tls as client_tls,
};
use crate::console::log_level;

/// The source of the settings, for reloading them.
#[derive(Clone, Debug)]
pub struct ConfigOrigin {
    /// Path of the configuration file.
    pub path: PathBuf,
    /// The number of workers from the command line, which overrides the file.
    pub workers: Option<NonZeroUsize>,
}

/// The reason why settings could not be reloaded; the previous ones stay in effect.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReloadError {
    /// The settings did not come from a file.
    #[error("cannot reload: the settings did not come from a file")]
    NoFile,
    /// The file cannot be read or has errors.
    #[error(transparent)]
    Read(#[from] ConfigReadError),
    /// A TLS file that the settings name cannot be used.
    #[error(transparent)]
    Use(#[from] PoolerStartError),
}

/// The result of a reload.
#[derive(Clone, Debug, Default)]
pub struct ReloadReport {
    /// The changed keys, including those that need a restart.
    pub changes: Vec<ConfigChange>,
    /// Warnings, such as those about settings that have no effect.
    pub warnings: Vec<Diagnostic>,
}

impl PoolerHandle {
    /// Opens the log file again, reloads either all settings or none, and logs the result. Clients
    /// whose pools remain are not disturbed. Waits at most 10 s until all workers have applied the
    /// settings.
    ///
    /// # Errors
    ///
    /// The settings did not come from a file, cannot be read or are invalid; nothing has changed.
    pub fn reload(&self) -> Result<ReloadReport, ReloadError> {
        log_level::reopen_log();
        let result = self.reload_file();
        match &result {
            Ok(reloaded) => {
                for warning in &reloaded.warnings {
                    tracing::warn!("{warning}");
                }
                for change in &reloaded.changes {
                    tracing::info!("settings: {change}");
                }
                tracing::info!(changes = reloaded.changes.len(), "settings reloaded");
            }
            Err(error) => tracing::error!("settings not changed: {}", error_chain(error)),
        }
        result
    }

    fn reload_file(&self) -> Result<ReloadReport, ReloadError> {
        // Held to the end, so that concurrent changes do not report each other's differences.
        let origin = self.shared.origin.lock();
        let Some(ConfigOrigin { path, workers }) = &*origin else {
            return Err(ReloadError::NoFile);
        };
        let read = Config::read(path)?;
        let mut config = read.config;
        config.workers = workers.or(config.workers);
        *self.shared.pending_tls.lock() = None;
        Ok(ReloadReport { changes: self.apply_config(config)?, warnings: read.warnings })
    }

    /// Sets one key until the next reload. The TLS settings must match each other: a value that
    /// conflicts with the others is set aside until all of them match, and RELOAD discards it.
    /// Returns notices for the administrator.
    ///
    /// # Errors
    ///
    /// The key cannot be set or the value is invalid; nothing has changed.
    pub(super) fn set(&self, name: &str, value: &str) -> Result<Vec<String>, SetFailure> {
        let origin = self.shared.origin.lock();
        let folder = origin.as_ref().and_then(|origin| origin.path.parent());
        let folder = folder.unwrap_or(Path::new(""));
        let key = Config::find_key(name).unwrap_or(name);
        let is_tls = key.starts_with("tls.");
        let mut held = self.shared.pending_tls.lock();
        let mut base = Config::clone(&self.shared.directory.config());
        if let Some(tls) = held.as_ref().filter(|_| is_tls) {
            base.tls = tls.clone();
        }
        let mut config = base.with_key_set(name, value, folder)?;
        if is_tls {
            check_tls_file(&mut config, key, name)?;
        }
        let misfit = match config.first_violation() {
            Some((rule, why)) if is_tls && rule.starts_with("tls.") => {
                Some(format!("{rule}: {why}"))
            }
            Some((rule, why)) => {
                let (name, why) = (name.to_owned(), format!("{rule}: {why}"));
                return Err(SetError::Invalid { name, why }.into());
            }
            None => None,
        };
        let tls = config.tls.clone();
        let misfit = match misfit {
            Some(misfit) => misfit,
            None => match self.apply_config(config) {
                Ok(changes) => {
                    if is_tls {
                        *held = None;
                    }
                    let changes = changes.iter().map(|change| {
                        tracing::info!("settings: {change}");
                        change.to_string()
                    });
                    return Ok(changes.collect());
                }
                // Each file is valid, but the files do not match.
                Err(
                    error @ (PoolerStartError::ClientTls { .. }
                    | PoolerStartError::ServerTls { .. }),
                ) => error_chain(&error),
                Err(error) => return Err(error.into()),
            },
        };
        let notice =
            format!("{key}: not used yet, held until the TLS settings are consistent: {misfit}");
        tracing::info!("settings: {notice}");
        *held = Some(tls);
        Ok(vec![notice])
    }

    /// Applies settings. Everything that can fail is done before the first change.
    fn apply_config(&self, mut config: Config) -> Result<Vec<ConfigChange>, PoolerStartError> {
        let before = self.shared.directory.config();
        let server = ServerTls::new(&config)?;
        let client = client_tls::server_config(&config.tls)?;
        let mut changes = before.diff(&config);
        let certificate_hash = |tls: &Option<client_tls::ClientTls>| {
            tls.as_ref().and_then(|tls| tls.end_point_hash.clone())
        };
        if before.tls.client.certificate == config.tls.client.certificate
            && certificate_hash(&self.shared.accept_settings().tls) != certificate_hash(&client)
        {
            let placeholder = || Some("a certificate".to_owned());
            let key = "tls.client.certificate".to_owned();
            changes.push(ConfigChange {
                key,
                before: placeholder(),
                now: placeholder(),
                needs_restart: false,
            });
        }
        config.retain_restart_keys(&before);
        self.shared.apply_config(Arc::new(config), server, client);
        self.notify_settings_changed();
        Ok(changes)
    }

    /// Notifies the workers and waits until they have applied the settings.
    fn notify_settings_changed(&self) {
        let (to, done) = mpsc::channel();
        self.broadcast(|| WorkerMessage::SettingsChanged(to.clone()));
        drop(to);
        self.wait_for_all(&done);
    }
}

/// Checks the file that a TLS key was set to.
fn check_tls_file(config: &mut Config, key: &str, name: &str) -> Result<(), SetError> {
    let Some(path) = config.file_key_mut(key) else { return Ok(()) };
    let checked = match key.rsplit('.').next() {
        Some("certificate") => tls::check_certificates(path),
        Some("key") => tls::check_private_key(path),
        _ => tls::check_authorities(path),
    };
    let wrong = |error| SetError::Invalid { name: name.to_owned(), why: error_chain(&error) };
    checked.map_err(wrong)
}

/// The reason why a SET command failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum SetFailure {
    #[error(transparent)]
    Set(#[from] SetError),
    #[error(transparent)]
    Use(#[from] PoolerStartError),
}

/// Formats an error with its causes in one line.
pub(super) fn error_chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
