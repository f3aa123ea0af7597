//! The log of the busiest keys, in the format of etsy's or the Perl server.

use std::{
    fs::OpenOptions,
    io::{self, Write as _},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use super::ServerCore;
use crate::{
    js,
    settings::{KeyFlush, StatsdDialect},
};

/// The schedule of the key log.
#[derive(Debug)]
pub(super) struct KeyLog {
    last: Instant,
}

impl KeyLog {
    pub(super) fn new(now: Instant) -> Self {
        Self { last: now }
    }

    /// Continues the schedule of another process, which wrote last before `since`.
    pub(super) fn continued(now: Instant, since: Duration) -> Self {
        Self { last: now.checked_sub(since).unwrap_or(now) }
    }

    /// Returns the time since the last write.
    pub(super) fn elapsed(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.last)
    }

    /// Returns the time until the next write; `None` if the key log is off.
    pub(super) fn time_until_write(&self, settings: &KeyFlush, now: Instant) -> Option<Duration> {
        (!settings.interval.is_zero())
            .then(|| (self.last + settings.interval).saturating_duration_since(now))
    }

    /// Whether it is time to write; if so, schedules the next write.
    pub(super) fn poll_write(&mut self, settings: &KeyFlush, now: Instant) -> bool {
        let is_expired = self.time_until_write(settings, now).is_some_and(|wait| wait.is_zero());
        if is_expired {
            self.last = now;
        }
        is_expired
    }
}

/// Writes the key log to the configured destination and restarts the counts.
pub(super) fn write(core: &ServerCore) {
    let settings = core.settings();
    let keys = core.running_interval().key_flush(settings.key_flush.percent);
    let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let date = js::JsDate(i64::try_from(time.as_secs()).unwrap_or_default());
    let date = match settings.dialect {
        StatsdDialect::Etsy | StatsdDialect::Dogstatsd => date.to_string(),
        StatsdDialect::Perl => date.sortable(),
    };
    let mut text = String::new();
    for (name, count) in keys {
        text += &format!("{date} count={count} key={name}\n");
    }
    let written = match &settings.key_flush.log {
        Some(path) => OpenOptions::new()
            .append(true)
            .create(true)
            .open(path)
            .and_then(|mut file| file.write_all(text.as_bytes())),
        None => io::stdout().lock().write_all(text.as_bytes()),
    };
    if let Err(error) = written {
        let path = settings.key_flush.log.as_deref().unwrap_or("standard output".as_ref());
        tracing::error!(%error, path = %path.display(), "cannot write the key log");
    }
}
