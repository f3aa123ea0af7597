//! What the server was heard to say, as moments of its own clock in its own words: what is from before them need not
//! be said again.

use std::time::Instant;

use crate::record::number;

/// What the server has for "nothing is known".
const NEVER: &str = "-infinity";

/// Moments by the server's clock, in its words: what is from before them was told.
#[derive(Debug)]
pub(super) struct Told {
    /// Sessions that have idled since before are known to. A little before the reading, since a session says that it
    /// idles a little after the moment that it gives for it.
    pub(super) idle: String,
    /// Sessions that began before are known. Longer before: a session is listed when its login is through.
    pub(super) sessions: String,
    /// Statements that began before are known whole.
    pub(super) texts: String,
    /// The last reading's clock, in microseconds since 1970; zero before the first.
    pub(super) taken_us: i64,
    /// When it was asked, by ours.
    asked: Option<Instant>,
}

impl Told {
    /// Nothing was told, whatever the clock said.
    pub(super) fn nothing(taken_us: i64) -> Self {
        let never = || NEVER.to_owned();
        Self { idle: never(), sessions: never(), texts: never(), taken_us, asked: None }
    }

    pub(super) fn is_nothing(&self) -> bool {
        self.sessions == NEVER
    }

    /// Reads what our own session told, behind its first word.
    pub(super) fn parse(text: &[u8], asked: Instant) -> Option<Self> {
        let mut parts = str::from_utf8(text).ok()?.split('|');
        let taken_us = number(parts.next()?.as_bytes())?;
        let mut moment = || parts.next().map(str::to_owned);
        let (idle, sessions, texts) = (moment()?, moment()?, moment()?);
        Some(Self { idle, sessions, texts, taken_us, asked: Some(asked) })
    }

    /// Whether the server's clock was set back since `before`: then what is new may look old. It is not, if it went on
    /// as ours did, but for what a network takes.
    pub(super) fn is_set_back(&self, before: &Self) -> bool {
        let Some((now, then)) = self.asked.zip(before.asked) else { return false };
        let ours_us = i64::try_from(now.saturating_duration_since(then).as_micros());
        let theirs_us = self.taken_us.saturating_sub(before.taken_us);
        theirs_us < 0 || ours_us.map_or(true, |ours_us| theirs_us < ours_us - DRIFT_US)
    }
}

/// What two clocks may differ in between two readings. Less than the times before a reading from which on sessions
/// and texts are told again.
const DRIFT_US: i64 = 1_000_000;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_our_own_session_tells_is_read() {
        let told = Told::parse(b"17|a b|c|d", Instant::now()).unwrap();
        assert_eq!((told.taken_us, told.idle.as_str(), told.texts.as_str()), (17, "a b", "d"));
        assert!(Told::parse(b"17|a|b", Instant::now()).is_none());
        assert!(Told::nothing(5).is_nothing());
    }

    #[test]
    fn a_clock_that_was_set_back_is_noticed() {
        let begun = Instant::now();
        let at = |seconds: u64, theirs_us: i64| Told {
            asked: Some(begun + Duration::from_secs(seconds)),
            ..Told::nothing(theirs_us)
        };
        let before = at(0, 1_000_000_000);
        assert!(!at(10, 1_010_000_000).is_set_back(&before));
        assert!(!at(10, 1_009_500_000).is_set_back(&before));
        assert!(at(10, 1_008_000_000).is_set_back(&before));
        assert!(at(0, 999_999_999).is_set_back(&before));
        // Set forward: what is old looks old.
        assert!(!at(10, 9_000_000_000).is_set_back(&before));
        assert!(!at(10, 0).is_set_back(&Told::nothing(1_000_000_000)));
    }
}
