//! [`LagPolicy`]: the treatment of sessions that are late.

use std::{fmt, str::FromStr, time::Duration};

use howdah_settings::parse_duration;

/// The treatment of a session whose next statement is due while its previous one still runs, or
/// that is late for another reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LagPolicy {
    /// The session stays late: the times between the end of a statement and the start of the next
    /// are at least as long as in the capture.
    Keep,
    /// The session catches up by leaving out the times between its statements.
    #[default]
    SkipThink,
    /// Transactions, and statements outside of one, are dropped if they are later than this.
    DropLate(Duration),
    /// The replay ends when a statement is later than this.
    Abort(Duration),
}

impl LagPolicy {
    /// Whether the due times of a session's events depend on when its previous statement ended, and
    /// not on the schedule alone: the session stays late, or has think times.
    pub(crate) fn depends_on_previous(self, think_time: Option<f64>) -> bool {
        self == Self::Keep || think_time.is_some()
    }
}

/// How late a statement may be before `drop-late` without a time drops it.
const DROP_LATE_AFTER: Duration = Duration::from_secs(1);

impl fmt::Display for LagPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Keep => f.write_str("keep"),
            Self::SkipThink => f.write_str("skip-think"),
            Self::DropLate(limit) => write!(f, "drop-late>{}s", limit.as_secs_f64()),
            Self::Abort(limit) => write!(f, "abort>{}s", limit.as_secs_f64()),
        }
    }
}

/// The error for a text that is not a [`LagPolicy`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is not a policy for late sessions: use keep, skip-think, drop-late, drop-late>TIME or abort>TIME, such as abort>10s"
)]
pub struct ParseLagPolicyError {
    text: String,
}

impl FromStr for LagPolicy {
    type Err = ParseLagPolicyError;

    /// Accepts `:` instead of `>`, which a shell treats as a redirection.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (name, limit) = match text.split_once(['>', ':']) {
            Some((name, limit)) => (name, Some(limit)),
            None => (text, None),
        };
        let error = || ParseLagPolicyError { text: text.to_owned() };
        let limit = limit.map(|limit| parse_duration(limit).map_err(|_| error())).transpose()?;
        match (name, limit) {
            ("keep", None) => Ok(Self::Keep),
            ("skip-think", None) => Ok(Self::SkipThink),
            ("drop-late", limit) => Ok(Self::DropLate(limit.unwrap_or(DROP_LATE_AFTER))),
            ("abort", Some(limit)) => Ok(Self::Abort(limit)),
            _ => Err(error()),
        }
    }
}

#[test]
fn policies_round_trip_through_text() {
    let seconds = Duration::from_secs;
    for (text, expected) in [
        ("keep", LagPolicy::Keep),
        ("skip-think", LagPolicy::SkipThink),
        ("drop-late>0.5s", LagPolicy::DropLate(Duration::from_millis(500))),
        ("abort>90s", LagPolicy::Abort(seconds(90))),
    ] {
        assert_eq!(text.parse(), Ok(expected));
        assert_eq!(expected.to_string(), text);
    }
    assert_eq!("drop-late".parse(), Ok(LagPolicy::DropLate(seconds(1))));
    assert_eq!("abort:2m".parse(), Ok(LagPolicy::Abort(seconds(120))));
    for bad in ["", "abort", "keep>1s", "drop-late>", "abort>-1s", "abort>soon", "drop"] {
        let error = bad.parse::<LagPolicy>().unwrap_err().to_string();
        assert!(error.contains("abort>10s"), "{error}");
    }
}
