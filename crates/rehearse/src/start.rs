//! The WAL positions of both servers before their first run, compared with the start of the
//! capture.

use howdah_collect::{Lsn, PhysicalIdentity};
use howdah_connect::{Client, QueryError};
use howdah_dataset::{CaptureManifest, CapturedServer};
use howdah_report::rehearsal::{BothSides, RecoveryTarget, StartPosition, StartState};
use serde::{Deserialize, Serialize};

/// The position of a server in its WAL before its first run, as the journal stores it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WalPosition {
    system_identifier: Option<String>,
    timeline: Option<u32>,
    /// The last position written or replayed.
    lsn: Option<String>,
    /// The timelines from which that of the server descends, the oldest first, and where each was
    /// left; `None` if they are unknown, for example because the role may not read the history
    /// file.
    history: Option<Vec<(u32, String)>>,
}

/// Queries the position of a server.
///
/// # Errors
///
/// The connection is lost.
pub(crate) fn query_position(client: &mut Client) -> Result<WalPosition, QueryError> {
    let identity = PhysicalIdentity::query(client)?;
    Ok(WalPosition {
        history: query_history(client, identity.timeline)?,
        system_identifier: identity.system_identifier,
        timeline: identity.timeline,
        lsn: identity.lsn.map(|lsn| lsn.to_string()),
    })
}

/// Reads the history file of a timeline; `None` if it is unknown, for example because the role may
/// not execute `pg_read_file`. The first timeline has no history.
fn query_history(
    client: &mut Client,
    timeline: Option<u32>,
) -> Result<Option<Vec<(u32, String)>>, QueryError> {
    let timeline = match timeline {
        None => return Ok(None),
        Some(1) => return Ok(Some(Vec::new())),
        Some(timeline) => timeline,
    };
    let sql = format!(
        "select pg_catalog.pg_read_file('pg_wal/{timeline:08X}.history', 0, {HISTORY_BYTES_MAX}, \
         true)"
    );
    match client.one_value(&sql) {
        Ok(text) => Ok(text.map(|text| parse_history(&text))),
        Err(error) if error.is_fatal() => Err(error),
        Err(_) => Ok(None),
    }
}

/// Maximum number of bytes read of a history file. A line has some fifty bytes.
const HISTORY_BYTES_MAX: u32 = 1 << 20;

/// Parses a history file: lines of a timeline, the position at which it was left, and a reason,
/// separated by tabs.
///
/// Source: `readTimeLineHistory` in PostgreSQL's `timeline.c`.
fn parse_history(text: &str) -> Vec<(u32, String)> {
    let line = |line: &str| {
        let mut fields = line.split_whitespace();
        let timeline = fields.next()?.parse().ok()?;
        let lsn: Lsn = fields.next()?.parse().ok()?;
        Some((timeline, lsn.to_string()))
    };
    text.lines().filter_map(line).collect()
}

/// A server's position on a timeline. WAL that it wrote after leaving the timeline does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct StartPoint {
    timeline: u32,
    lsn: Lsn,
    /// Whether the server left the timeline at this position. Otherwise this is where the server
    /// was when it was checked.
    is_exact: bool,
}

impl WalPosition {
    /// Returns the position at which the server left the given timeline, or its present position if
    /// it is still on that timeline or its history is not known.
    fn point_on(&self, timeline: u32) -> Option<StartPoint> {
        let left = self.history.iter().flatten().find(|(left, _)| *left == timeline);
        if let Some((_, lsn)) = left {
            return Some(StartPoint { timeline, lsn: lsn.parse().ok()?, is_exact: true });
        }
        // Without the history, the best guess is the present position.
        let is_possible = self.timeline == Some(timeline) || self.history.is_none();
        let lsn = self.lsn.as_ref().filter(|_| is_possible)?.parse().ok()?;
        Some(StartPoint { timeline, lsn, is_exact: false })
    }

    /// Returns the position at which the server left its previous timeline, or its present position
    /// if it is on its first; `None` if its history is not known.
    fn last_point(&self) -> Option<StartPoint> {
        let left = self.history.as_ref()?.last().map(|(timeline, _)| *timeline);
        self.point_on(left.or(self.timeline)?)
    }

    /// Compares the position with the start of the capture.
    fn compare(&self, captured: &CapturedServer) -> StartPosition {
        match (&self.system_identifier, &captured.system_identifier) {
            (Some(own), Some(captured)) if own != captured => return StartPosition::OtherSystem,
            (Some(_), Some(_)) => {}
            _ => return StartPosition::Unknown,
        }
        let start = captured.lsn.as_ref().and_then(|lsn| lsn.parse::<Lsn>().ok());
        let (Some(start), Some(timeline)) = (start, captured.timeline.or(self.timeline)) else {
            return StartPosition::Unknown;
        };
        match (self.point_on(timeline), self.timeline) {
            (Some(point), _) => StartPosition::Distance {
                bytes: (i128::from(point.lsn.0) - i128::from(start.0))
                    .try_into()
                    .unwrap_or(i64::MAX),
                is_exact: point.is_exact,
            },
            (None, Some(own)) if own != timeline => StartPosition::OtherTimeline { timeline: own },
            (None, _) => StartPosition::Unknown,
        }
    }
}

/// Returns the start of a capture; `None` if the capture has no time. The WAL position is included
/// if the capture has it.
pub(crate) fn recovery_target(manifest: &CaptureManifest) -> Option<RecoveryTarget> {
    let server = manifest.origin.server.as_ref();
    // The manifest may come from a stranger, and commands are made of its text.
    let lsn = server.and_then(|server| server.lsn.as_ref()?.parse::<Lsn>().ok());
    let lsn = lsn.map(|lsn| lsn.to_string());
    let time = server.and_then(|server| server.time).or(manifest.first)?;
    // For logs, the timeline is that at the time of the import.
    let timeline = server.and_then(|server| server.timeline).filter(|_| lsn.is_some());
    Some(RecoveryTarget { lsn, timeline, time: Some(time) })
}

/// Compares both servers with the start of the capture and with each other.
pub(crate) fn start_state(
    manifest: &CaptureManifest,
    positions: &BothSides<Option<WalPosition>>,
) -> StartState {
    let captured = manifest.origin.server.as_ref().filter(|server| server.lsn.is_some());
    let compare = |position: &Option<WalPosition>| Some(position.as_ref()?.compare(captured?));
    StartState {
        target: recovery_target(manifest),
        positions: BothSides { base: compare(&positions.base), change: compare(&positions.change) },
        apart: apart(captured, positions),
    }
}

/// Returns the distance between both servers in bytes of WAL, if they are copies of one server.
/// Without a captured position, only positions at which both left a timeline are compared: servers
/// that were not restored have written WAL of their own.
fn apart(
    captured: Option<&CapturedServer>,
    positions: &BothSides<Option<WalPosition>>,
) -> Option<u64> {
    let (base, change) = (positions.base.as_ref()?, positions.change.as_ref()?);
    let system = base.system_identifier.as_ref()?;
    let of_captured = captured.and_then(|captured| captured.system_identifier.as_ref());
    if change.system_identifier.as_ref() != Some(system)
        || of_captured.is_some_and(|captured| captured != system)
    {
        return None;
    }
    let point = |position: &WalPosition| match captured.and_then(|captured| captured.timeline) {
        Some(timeline) => position.point_on(timeline),
        None => position.last_point(),
    };
    let (base, change) = (point(base)?, point(change)?);
    let is_comparable = base.timeline == change.timeline
        && (captured.is_some() || (base.is_exact && change.is_exact));
    is_comparable.then(|| base.lsn.0.abs_diff(change.lsn.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn position(timeline: u32, lsn: &str, history: Option<&[(u32, &str)]>) -> WalPosition {
        let entry = |(timeline, lsn): &(u32, &str)| (*timeline, (*lsn).to_owned());
        WalPosition {
            system_identifier: Some("7".to_owned()),
            timeline: Some(timeline),
            lsn: Some(lsn.to_owned()),
            history: history.map(|entries| entries.iter().map(entry).collect()),
        }
    }

    fn captured() -> CapturedServer {
        CapturedServer {
            system_identifier: Some("7".to_owned()),
            timeline: Some(2),
            lsn: Some("1/1000".to_owned()),
            ..CapturedServer::default()
        }
    }

    fn exact(bytes: i64) -> StartPosition {
        StartPosition::Distance { bytes, is_exact: true }
    }

    #[test]
    fn history_file_is_parsed() {
        let text = "1\t0/3000060\tno recovery target specified\n\n2\t1/1100\tbefore LSN 1/1100\n";
        let expected = [(1, "0/3000060".to_owned()), (2, "1/1100".to_owned())];
        assert_eq!(parse_history(text), expected);
        assert!(parse_history("x\t0/0\n1\n").is_empty());
    }

    #[test]
    fn promoted_copy_stands_where_it_left_the_timeline() {
        let history = [(1, "0/3000060"), (2, "1/1100")];
        // It has since written a gigabyte of WAL itself.
        let copy = position(3, "1/40000000", Some(&history));
        assert_eq!(copy.compare(&captured()), exact(256));
        let early = position(3, "1/40000000", Some(&[(2, "1/F00")]));
        assert_eq!(early.compare(&captured()), exact(-256));
    }

    #[test]
    fn copy_on_the_captured_timeline_stands_at_its_position() {
        let inexact = |bytes| StartPosition::Distance { bytes, is_exact: false };
        assert_eq!(position(2, "1/1000", Some(&[])).compare(&captured()), inexact(0));
        // The role may not read the history.
        assert_eq!(position(3, "1/2000", None).compare(&captured()), inexact(4096));
    }

    #[test]
    fn other_servers_are_not_compared() {
        let branch = position(5, "1/2000", Some(&[(1, "0/3000060")]));
        assert_eq!(branch.compare(&captured()), StartPosition::OtherTimeline { timeline: 5 });
        let system_identifier = Some("8".to_owned());
        let logical = WalPosition { system_identifier, ..branch.clone() };
        assert_eq!(logical.compare(&captured()), StartPosition::OtherSystem);
        let hidden = WalPosition { system_identifier: None, ..branch };
        assert_eq!(hidden.compare(&captured()), StartPosition::Unknown);
    }

    #[test]
    fn copies_are_compared_with_each_other() {
        let both = |base: &WalPosition, change: &WalPosition| BothSides {
            base: Some(base.clone()),
            change: Some(change.clone()),
        };
        let first = position(3, "1/5000", Some(&[(2, "1/1100")]));
        let second = position(4, "1/9000", Some(&[(2, "1/1200")]));
        assert_eq!(apart(Some(&captured()), &both(&first, &second)), Some(256));
        assert_eq!(apart(None, &both(&first, &second)), Some(256));
        let fresh = position(2, "1/5000", Some(&[]));
        assert_eq!(apart(None, &both(&fresh, &fresh)), None);
        let system_identifier = Some("8".to_owned());
        let logical = WalPosition { system_identifier, ..first.clone() };
        assert_eq!(apart(Some(&captured()), &both(&first, &logical)), None);
        assert_eq!(apart(Some(&captured()), &both(&logical, &logical)), None);
    }
}
