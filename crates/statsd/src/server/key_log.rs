//! The log of the busiest keys, in the form that each of the two servers writes.

use std::{
    fs::OpenOptions,
    io::{self, Write as _},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use super::Core;
use crate::{
    js,
    settings::{Dialect, KeyFlush},
};

/// When it is due.
#[derive(Debug)]
pub(super) struct KeyLog {
    last: Instant,
}

impl KeyLog {
    pub(super) fn new(now: Instant) -> Self {
        Self { last: now }
    }

    /// How long until it is; `None` if it is not wanted.
    pub(super) fn until_due(&self, settings: &KeyFlush, now: Instant) -> Option<Duration> {
        (!settings.interval.is_zero())
            .then(|| (self.last + settings.interval).saturating_duration_since(now))
    }

    /// Whether it is due; then it is due next an interval later.
    pub(super) fn take_due(&mut self, settings: &KeyFlush, now: Instant) -> bool {
        let due = self.until_due(settings, now).is_some_and(|wait| wait.is_zero());
        if due {
            self.last = now;
        }
        due
    }
}

/// Writes it to where the settings say, and begins to count again.
pub(super) fn write(core: &Core) {
    let settings = core.settings();
    let keys = core.running_interval().key_flush(settings.key_flush.percent);
    let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let date = js::Date(i64::try_from(time.as_secs()).unwrap_or_default());
    let date = match settings.dialect {
        Dialect::Etsy | Dialect::Dogstatsd => date.to_string(),
        Dialect::Perl => date.sortable(),
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
        tracing::error!(%error, path = %path.display(), "cannot write the log of busy keys");
    }
}
