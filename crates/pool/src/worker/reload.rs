//! Settings that change while clients are there: read again, or set one by one at the console.

use std::{
    num::NonZeroUsize,
    path::{Path, PathBuf},
    sync::{Arc, PoisonError, mpsc},
};

use howdah_connect::tls;

use super::{
    StartError, control::Control, directory::ServerTls, mail::WorkerMessage, tls as client_tls,
};
use crate::config::{Change, Config, ReadError, Remark, SetError};

/// Where settings came from, so that they can be read again.
#[derive(Clone, Debug)]
pub struct Origin {
    /// The file.
    pub path: PathBuf,
    /// How many workers somebody asked for beside the file.
    pub workers: Option<NonZeroUsize>,
}

/// Settings were not changed; those of before hold.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReloadError {
    /// They are not from a file.
    #[error("the settings did not come from a file that could be read again")]
    NoFile,
    /// The file cannot be read, or says what cannot be.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// What they name cannot be used.
    #[error(transparent)]
    Use(#[from] StartError),
}

/// What came of reading settings again.
#[derive(Clone, Debug, Default)]
pub struct Reloaded {
    /// Keys that have another value than before, those that need a restart among them.
    pub changes: Vec<Change>,
    /// What is understood and not acted upon.
    pub warnings: Vec<Remark>,
}

impl Control {
    /// Reads the settings again and has them followed, as a whole or not at all. Clients of pools that
    /// stay notice nothing. Returns when all workers follow them. What comes of it is logged.
    ///
    /// # Errors
    ///
    /// They cannot be had, or cannot be; nothing has changed.
    pub fn reload(&self) -> Result<Reloaded, ReloadError> {
        let result = self.read_again();
        match &result {
            Ok(reloaded) => {
                for warning in &reloaded.warnings {
                    tracing::warn!("{warning}");
                }
                for change in &reloaded.changes {
                    tracing::info!("settings: {change}");
                }
                tracing::info!(changes = reloaded.changes.len(), "settings read again");
            }
            Err(error) => tracing::error!("settings not changed: {}", chain(error)),
        }
        result
    }

    fn read_again(&self) -> Result<Reloaded, ReloadError> {
        // Held to the end: what two at once are told would be wrong.
        let origin = self.front.origin.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(Origin { path, workers }) = &*origin else { return Err(ReloadError::NoFile) };
        let read = Config::read(path)?;
        let mut config = read.config;
        config.workers = workers.or(config.workers);
        *self.front.held_tls.lock().unwrap_or_else(PoisonError::into_inner) = None;
        Ok(Reloaded { changes: self.change(config)?, warnings: read.warnings })
    }

    /// Changes one key, until settings are read again. Keys of TLS mean something together only: one
    /// that does not fit the others is held until they do, and RELOAD forgets it. Gives what there is to
    /// tell the operator.
    ///
    /// # Errors
    ///
    /// The key cannot be set, or its value cannot be; nothing has changed.
    pub(super) fn set(&self, name: &str, value: &str) -> Result<Vec<String>, SetFailure> {
        let origin = self.front.origin.lock().unwrap_or_else(PoisonError::into_inner);
        let folder = origin.as_ref().and_then(|origin| origin.path.parent());
        let folder = folder.unwrap_or(Path::new(""));
        let key = Config::key_named(name).unwrap_or(name);
        let is_tls = key.starts_with("tls.");
        let mut held = self.front.held_tls.lock().unwrap_or_else(PoisonError::into_inner);
        let mut base = Config::clone(&self.front.directory.config());
        if let Some(tls) = held.as_ref().filter(|_| is_tls) {
            base.tls = tls.clone();
        }
        let mut config = base.edited(name, value, folder)?;
        if is_tls {
            check_tls_file(&mut config, key, name)?;
        }
        let misfit = match config.broken_rule() {
            Some((rule, why)) if is_tls && rule.starts_with("tls.") => {
                Some(format!("{rule}: {why}"))
            }
            Some((rule, why)) => {
                let (name, why) = (name.to_owned(), format!("{rule}: {why}"));
                return Err(SetError::Wrong { name, why }.into());
            }
            None => None,
        };
        let tls = config.tls.clone();
        let misfit = match misfit {
            Some(misfit) => misfit,
            None => match self.change(config) {
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
                // Each file is good by itself: they do not go together.
                Err(error @ (StartError::ClientTls { .. } | StartError::ServerTls { .. })) => {
                    chain(&error)
                }
                Err(error) => return Err(error.into()),
            },
        };
        let notice = format!("{key}: held until TLS settings fit together, not used yet: {misfit}");
        tracing::info!("settings: {notice}");
        *held = Some(tls);
        Ok(vec![notice])
    }

    /// Has settings followed. What can fail comes before what cannot be taken back.
    fn change(&self, mut config: Config) -> Result<Vec<Change>, StartError> {
        let before = self.front.directory.config();
        let server = ServerTls::new(&config)?;
        let client = client_tls::server_config(&config.tls)?;
        let mut changes = before.changes(&config);
        let shown = |tls: &Option<client_tls::ClientTls>| {
            tls.as_ref().and_then(|tls| tls.end_point_hash.clone())
        };
        if before.tls.client.certificate == config.tls.client.certificate
            && shown(&self.front.doors().tls) != shown(&client)
        {
            let word = || Some("a certificate".to_owned());
            let key = "tls.client.certificate".to_owned();
            changes.push(Change { key, before: word(), now: word(), needs_restart: false });
        }
        config.keep_fixed(&before);
        self.front.change(Arc::new(config), server, client);
        self.tell_of_settings();
        Ok(changes)
    }

    /// Returns when every worker that is there has done what it is told.
    fn tell_of_settings(&self) {
        let (to, done) = mpsc::channel();
        self.tell(|| WorkerMessage::Settings(to.clone()));
        drop(to);
        self.wait_for_all(&done);
    }
}

/// Whether the file that a key of TLS was set to holds what it should.
fn check_tls_file(config: &mut Config, key: &str, name: &str) -> Result<(), SetError> {
    let Some(path) = config.file_of(key) else { return Ok(()) };
    let checked = match key.rsplit('.').next() {
        Some("certificate") => tls::check_certificates(path),
        Some("key") => tls::check_private_key(path),
        _ => tls::check_authorities(path),
    };
    let wrong = |error| SetError::Wrong { name: name.to_owned(), why: chain(&error) };
    checked.map_err(wrong)
}

/// A key was not changed.
#[derive(Debug, thiserror::Error)]
pub(super) enum SetFailure {
    #[error(transparent)]
    Set(#[from] SetError),
    #[error(transparent)]
    Use(#[from] StartError),
}

/// An error with what caused it, in one line.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
