//! [`StartState`]: the positions of both servers before their first run, compared with the start of
//! the capture, and ways to restore copies to that start.

use std::fmt;

use howdah_traffic::Timestamp;
use serde::Serialize;

use super::{BothSides, RehearsalSide};
use crate::text;

/// Maximum distance after the start of the capture that is expected, in bytes of WAL: one segment
/// of the default size. A server writes some WAL even without clients.
pub const START_DISTANCE_MAX: u64 = 16 << 20;

/// The state of the captured server at the start of the capture, to which copies can be restored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecoveryTarget {
    /// Position in the WAL, such as `0/16B3748`; unknown if the capture was made from logs.
    pub lsn: Option<String>,
    /// The WAL timeline of the position.
    pub timeline: Option<u32>,
    /// The time at that position; without a position, the time of the first event.
    pub time: Option<Timestamp>,
}

impl RecoveryTarget {
    /// Returns the settings for recovery from a base backup and archived WAL, as lines of
    /// `postgresql.conf`.
    ///
    /// PostgreSQL stops after the first record that starts at the position or later, or before it
    /// if the target is exclusive. Records from the position on are those of the capture.
    ///
    /// Source: PostgreSQL manual, "Recovery Target".
    pub fn settings(&self) -> Vec<String> {
        let mut lines = Vec::new();
        match (&self.lsn, self.time) {
            (Some(lsn), _) => {
                lines.push(format!("recovery_target_lsn = '{lsn}'"));
                lines.push("recovery_target_inclusive = off".to_owned());
            }
            (None, Some(time)) => {
                lines.push(format!("recovery_target_time = '{}'", postgres_time(time)));
            }
            (None, None) => return lines,
        }
        let timeline = self.timeline.iter();
        lines.extend(timeline.map(|number| format!("recovery_target_timeline = '{number}'")));
        lines.push("recovery_target_action = 'promote'".to_owned());
        lines
    }

    /// Returns the setting for recovery to the time, as an alternative to the position; `None`
    /// unless both are known.
    fn alternative(&self) -> Option<String> {
        let time = self.time.filter(|_| self.lsn.is_some())?;
        Some(format!("recovery_target_time = '{}'", postgres_time(time)))
    }

    /// Returns the command for pgBackRest, without the stanza; `None` if neither position nor time
    /// is known.
    ///
    /// Source: pgBackRest's command reference, "Restore Command".
    pub fn pgbackrest(&self) -> Option<String> {
        let target = match (&self.lsn, self.time) {
            (Some(lsn), _) => format!("--type=lsn --target={lsn} --target-exclusive"),
            (None, Some(time)) => format!("--type=time --target='{}'", postgres_time(time)),
            (None, None) => return None,
        };
        let timeline = self
            .timeline
            .map_or_else(String::new, |timeline| format!(" --target-timeline={timeline}"));
        Some(format!("pgbackrest restore {target}{timeline} --target-action=promote"))
    }

    /// Renders the target and, indented below it, all ways to restore a copy to it. Empty if
    /// neither position nor time is known.
    pub fn lines(&self) -> Vec<String> {
        let Some(pgbackrest) = self.pgbackrest() else { return Vec::new() };
        let mut lines = vec![format!("recovery target of both copies: {self}")];
        lines.push("  a base backup (pg_basebackup) and archived WAL:".to_owned());
        lines.extend(self.settings().into_iter().map(|line| format!("    {line}")));
        if let Some(time) = self.alternative() {
            lines.push(format!("    # or, instead of the first two lines: {time}"));
        }
        lines.push(format!("  pgBackRest: {pgbackrest}"));
        lines.push(format!("  storage snapshots: {}", self.snapshot()));
        lines
    }

    /// Returns a sentence on how to restore copies from storage snapshots.
    fn snapshot(&self) -> String {
        let moment = match self.time {
            Some(time) => format!("{} UTC", utc(time)),
            None => "the start of the capture".to_owned(),
        };
        format!(
            "restore the last one before {moment} and let it recover with the settings above, or \
             start from the first one after it and accept that its data is newer"
        )
    }
}

/// Writes `LSN 0/16B3748 on timeline 1, 2026-11-20 12:43:19.577000 UTC`.
impl fmt::Display for RecoveryTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lsn = self.lsn.iter().map(|lsn| match self.timeline {
            Some(timeline) => format!("LSN {lsn} on timeline {timeline}"),
            None => format!("LSN {lsn}"),
        });
        let time = self.time.map(|time| format!("{} UTC", utc(time)));
        let parts: Vec<String> = lsn.chain(time).collect();
        f.write_str(&parts.join(", "))
    }
}

/// The WAL position of a server before its first run, relative to the start of the capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StartPosition {
    /// This many bytes of WAL after the start of the capture; before it if negative.
    Distance {
        /// The distance in bytes.
        bytes: i64,
        /// Whether the position is where the server's timeline branched off from the captured one:
        /// the end of its recovery. Otherwise it is the server's position at the time of the check,
        /// which includes what the server itself has written.
        is_exact: bool,
    },
    /// The server has another system identifier, so it is not a physical copy.
    OtherSystem,
    /// The server's timeline does not descend from the captured one.
    OtherTimeline {
        /// The server's timeline.
        timeline: u32,
    },
    /// The system identifier or the position of the server or of the capture is unknown.
    Unknown,
}

impl StartPosition {
    /// Returns the kind of position, as it is named in JSON.
    pub const fn kind(self) -> &'static str {
        match self {
            Self::Distance { .. } => "distance",
            Self::OtherSystem => "other_system",
            Self::OtherTimeline { .. } => "other_timeline",
            Self::Unknown => "unknown",
        }
    }

    /// Returns the distance in bytes, if it is known.
    pub const fn distance(self) -> Option<i64> {
        match self {
            Self::Distance { bytes, .. } => Some(bytes),
            _ => None,
        }
    }

    /// Whether the server seems to start from another state than the capture: before it, far after
    /// it, or on an unrelated timeline.
    pub fn is_unexpected(self) -> bool {
        match self {
            Self::Distance { bytes, .. } => {
                u64::try_from(bytes).map_or(true, |bytes| bytes > START_DISTANCE_MAX)
            }
            Self::OtherTimeline { .. } => true,
            Self::OtherSystem | Self::Unknown => false,
        }
    }

    /// Describes the position of a side in one sentence, without a full stop.
    pub fn sentence(self, side: RehearsalSide) -> String {
        match self {
            Self::Distance { bytes, is_exact } => {
                let amount = wal(bytes.unsigned_abs());
                let place = match bytes {
                    0 => "exactly at the start of the capture".to_owned(),
                    ..0 => format!("{amount} before the start of the capture"),
                    _ => format!("{amount} after the start of the capture"),
                };
                let meaning = match (bytes, is_exact) {
                    (..0, _) => ": rows that captured statements use may be missing",
                    _ if !self.is_unexpected() => "",
                    (_, true) => ": it may contain what captured statements write",
                    (_, false) => {
                        ": it may contain what captured statements write, or has written as much \
                         itself"
                    }
                };
                format!("{side} stands {place}{meaning}")
            }
            Self::OtherSystem => format!(
                "{side} has another system identifier than the captured server, as after a dump, \
                 logical replication or pg_upgrade: whether it starts from the state of the \
                 capture cannot be checked"
            ),
            Self::OtherTimeline { timeline } => format!(
                "{side} is on timeline {timeline}, which did not branch off from the captured one: \
                 it was not restored to the start of the capture"
            ),
            Self::Unknown => format!(
                "whether {side} starts from the state of the capture cannot be checked: a system \
                 identifier or WAL position is not known"
            ),
        }
    }
}

/// Formats an amount of WAL.
fn wal(bytes: u64) -> String {
    match bytes {
        ..1024 => format!("{bytes} bytes of WAL"),
        bytes => format!("{} of WAL", text::bytes(bytes)),
    }
}

/// The start of the capture, and both servers compared with it and with each other.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StartState {
    /// The start of the capture, if the capture has its position or time.
    pub target: Option<RecoveryTarget>,
    /// Positions of the servers; `None` if they were not compared, for example because the capture
    /// has no position.
    pub positions: BothSides<Option<StartPosition>>,
    /// Distance between the servers in bytes of WAL, if it is known.
    pub apart: Option<u64>,
}

impl StartState {
    /// Returns one sentence on each server whose position was compared, and one on their distance.
    pub fn sentences(&self) -> Vec<String> {
        let sides = [
            (RehearsalSide::Base, self.positions.base),
            (RehearsalSide::Change, self.positions.change),
        ];
        let sides = sides.into_iter();
        let sentence =
            |(side, position): (_, Option<StartPosition>)| Some(position?.sentence(side));
        let mut sentences: Vec<String> = sides.filter_map(sentence).collect();
        sentences.extend(self.apart.map(apart_sentence));
        sentences
    }

    /// Returns the sentences that a user should see before trusting the result.
    pub fn warnings(&self) -> Vec<String> {
        let sides = [
            (RehearsalSide::Base, self.positions.base),
            (RehearsalSide::Change, self.positions.change),
        ];
        let unexpected = |(side, position): (_, Option<StartPosition>)| {
            Some(position.filter(|position| position.is_unexpected())?.sentence(side))
        };
        let mut warnings: Vec<String> = sides.into_iter().filter_map(unexpected).collect();
        let apart = self.apart.filter(|bytes| *bytes > START_DISTANCE_MAX);
        warnings.extend(apart.map(apart_sentence));
        warnings
    }

    /// Renders the target and the sentences as lines of text.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = self.target.as_ref().map(RecoveryTarget::lines).unwrap_or_default();
        lines.extend(self.sentences());
        lines
    }
}

fn apart_sentence(bytes: u64) -> String {
    match bytes {
        0 => "both servers start from the same WAL position".to_owned(),
        bytes => format!("the servers start {} apart", wal(bytes)),
    }
}

/// [`StartState`] in JSON.
#[derive(Debug, Serialize)]
pub(super) struct StartRow {
    recovery_target: Option<RecoveryTargetRow>,
    base: Option<PositionRow>,
    change: Option<PositionRow>,
    apart_bytes: Option<u64>,
}

#[derive(Debug, Serialize)]
struct RecoveryTargetRow {
    lsn: Option<String>,
    timeline: Option<u32>,
    time: Option<String>,
    settings: Vec<String>,
    pgbackrest: Option<String>,
}

#[derive(Debug, Serialize)]
struct PositionRow {
    kind: &'static str,
    bytes: Option<i64>,
    is_unexpected: bool,
    text: String,
}

impl From<&StartState> for StartRow {
    fn from(state: &StartState) -> Self {
        let position = |side, position: Option<StartPosition>| {
            position.map(|position| PositionRow {
                kind: position.kind(),
                bytes: position.distance(),
                is_unexpected: position.is_unexpected(),
                text: position.sentence(side),
            })
        };
        Self {
            recovery_target: state.target.as_ref().map(|target| RecoveryTargetRow {
                lsn: target.lsn.clone(),
                timeline: target.timeline,
                time: target.time.map(|time| time.to_string()),
                settings: target.settings(),
                pgbackrest: target.pgbackrest(),
            }),
            base: position(RehearsalSide::Base, state.positions.base),
            change: position(RehearsalSide::Change, state.positions.change),
            apart_bytes: state.apart,
        }
    }
}

/// Formats a time as PostgreSQL reads it in any time zone: `2026-11-20 12:43:19.577000+00`.
fn postgres_time(time: Timestamp) -> String {
    format!("{}+00", utc(time))
}

fn utc(time: Timestamp) -> String {
    time.to_string().replace('T', " ").trim_end_matches('Z').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target() -> RecoveryTarget {
        RecoveryTarget {
            lsn: Some("0/16B3748".to_owned()),
            timeline: Some(2),
            time: Some(Timestamp::from_micros(1_795_178_599_577_000)),
        }
    }

    #[test]
    fn target_is_given_for_each_tool() {
        assert_eq!(
            target().lines(),
            [
                "recovery target of both copies: LSN 0/16B3748 on timeline 2, 2026-11-20 \
                 12:43:19.577000 UTC",
                "  a base backup (pg_basebackup) and archived WAL:",
                "    recovery_target_lsn = '0/16B3748'",
                "    recovery_target_inclusive = off",
                "    recovery_target_timeline = '2'",
                "    recovery_target_action = 'promote'",
                "    # or, instead of the first two lines: recovery_target_time = '2026-11-20 \
                 12:43:19.577000+00'",
                "  pgBackRest: pgbackrest restore --type=lsn --target=0/16B3748 --target-exclusive \
                 --target-timeline=2 --target-action=promote",
                "  storage snapshots: restore the last one before 2026-11-20 12:43:19.577000 UTC \
                 and let it recover with the settings above, or start from the first one after it \
                 and accept that its data is newer",
            ]
        );
        let by_time = RecoveryTarget { lsn: None, timeline: None, ..target() };
        assert_eq!(
            by_time.pgbackrest().unwrap(),
            "pgbackrest restore --type=time --target='2026-11-20 12:43:19.577000+00' \
             --target-action=promote"
        );
        assert_eq!(by_time.settings()[0], "recovery_target_time = '2026-11-20 12:43:19.577000+00'");
        let nothing = RecoveryTarget { lsn: None, timeline: Some(1), time: None };
        assert!(nothing.lines().is_empty());
    }

    #[test]
    fn distances_beyond_a_segment_are_warnings() {
        let at = |bytes| StartPosition::Distance { bytes, is_exact: true };
        let state = |base, change| StartState {
            positions: BothSides { base: Some(base), change: Some(change) },
            ..StartState::default()
        };
        assert!(state(at(0), at(16 << 20)).warnings().is_empty());
        assert!(state(StartPosition::OtherSystem, StartPosition::Unknown).warnings().is_empty());
        assert_eq!(
            state(at(-96), at((16 << 20) + 1)).warnings(),
            [
                "base stands 96 bytes of WAL before the start of the capture: rows that captured \
                 statements use may be missing",
                "change stands 16.00 MiB of WAL after the start of the capture: it may contain what \
                 captured statements write",
            ]
        );
        let apart = StartState { apart: Some(20 << 20), ..StartState::default() };
        assert_eq!(apart.warnings().len(), 1);
        assert!(StartState { apart: Some(96), ..apart }.warnings().is_empty());
    }
}
