//! The position up to which activity has been received, as timestamps of the server's own clock:
//! rows and fields from before need not be sent again.

use std::time::Instant;

use crate::record::parse_integer;

/// A timestamp before all others, which requests everything.
const NEVER: &str = "-infinity";

/// The position up to which activity has been received. Timestamps are in the server's own format;
/// data from before need not be sent again.
#[derive(Debug)]
pub(super) struct DeltaCursor {
    /// Sessions idle since before this time are usually sent by process id only. Slightly earlier
    /// than the sample, because a session reports the idle state slightly after the time it gives
    /// for it.
    pub(super) idle: String,
    /// Sessions started before this time are known. Much earlier than the sample, because a session
    /// is listed only once its login is complete.
    pub(super) sessions: String,
    /// Statements started before this time are known with their full text.
    pub(super) texts: String,
    /// The server's clock at the last sample, in microseconds since 1970; zero before the first.
    pub(super) taken_us: i64,
    /// Time at which the last sample was requested, by our clock; `None` if everything is
    /// requested.
    requested_at: Option<Instant>,
}

impl DeltaCursor {
    /// Creates a cursor that requests everything.
    pub(super) fn full_read(taken_us: i64) -> Self {
        let never = || NEVER.to_owned();
        Self { idle: never(), sessions: never(), texts: never(), taken_us, requested_at: None }
    }

    pub(super) fn is_full_read(&self) -> bool {
        self.sessions == NEVER
    }

    /// Parses the row of our own session, without its prefix.
    pub(super) fn parse(text: &[u8], requested_at: Instant) -> Option<Self> {
        let mut parts = str::from_utf8(text).ok()?.split('|');
        let taken_us = parse_integer(parts.next()?.as_bytes())?;
        let mut moment = || parts.next().map(str::to_owned);
        let (idle, sessions, texts) = (moment()?, moment()?, moment()?);
        Some(Self { idle, sessions, texts, taken_us, requested_at: Some(requested_at) })
    }

    /// Whether the server's clock was set back since `before`, so that new data may look old: it
    /// advanced less than our clock did, by more than network delays explain.
    pub(super) fn clock_regressed_since(&self, before: &Self) -> bool {
        let Some((now, then)) = self.requested_at.zip(before.requested_at) else { return false };
        let ours_us = i64::try_from(now.saturating_duration_since(then).as_micros());
        let theirs_us = self.taken_us.saturating_sub(before.taken_us);
        theirs_us < 0 || ours_us.map_or(true, |ours_us| theirs_us < ours_us - MAX_CLOCK_DRIFT_US)
    }
}

/// Maximum difference between the advances of two clocks from one sample to the next, in
/// microseconds. Shorter than the overlap with which sessions and texts are sent again.
const MAX_CLOCK_DRIFT_US: i64 = 1_000_000;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn cursor_is_parsed_from_own_row() {
        let cursor = DeltaCursor::parse(b"17|a b|c|d", Instant::now()).unwrap();
        assert_eq!(
            (cursor.taken_us, cursor.idle.as_str(), cursor.texts.as_str()),
            (17, "a b", "d")
        );
        assert!(DeltaCursor::parse(b"17|a|b", Instant::now()).is_none());
        assert!(DeltaCursor::full_read(5).is_full_read());
    }

    #[test]
    fn clock_set_back_is_detected() {
        let started = Instant::now();
        let at = |seconds: u64, theirs_us: i64| DeltaCursor {
            requested_at: Some(started + Duration::from_secs(seconds)),
            ..DeltaCursor::full_read(theirs_us)
        };
        let before = at(0, 1_000_000_000);
        assert!(!at(10, 1_010_000_000).clock_regressed_since(&before));
        assert!(!at(10, 1_009_500_000).clock_regressed_since(&before));
        assert!(at(10, 1_008_000_000).clock_regressed_since(&before));
        assert!(at(0, 999_999_999).clock_regressed_since(&before));
        // Set forward: old data still looks old.
        assert!(!at(10, 9_000_000_000).clock_regressed_since(&before));
        assert!(!at(10, 0).clock_regressed_since(&DeltaCursor::full_read(1_000_000_000)));
    }
}
