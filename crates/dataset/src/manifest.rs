//! The manifests: a summary of a dataset for people, scripts and later versions of Howdah.
//!
//! A manifest is rewritten after each finished file of rows, so at any time it describes all files
//! on disk, except perhaps the newest of each table.

use std::{collections::BTreeMap, fmt, ops::RangeInclusive};

use howdah_traffic::{Kind, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{kind::DatasetKind, part::CapturePart};

/// The origin of the events of a capture. Fields are empty if unknown.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CaptureOrigin {
    /// The input files, as the user named them; for the format `wire`, the capturing process.
    #[serde(default)]
    pub files: Vec<String>,
    /// Format of the logs: `stderr`, `csvlog` or `jsonlog`; `wire` if a pooler captured the events.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<String>,
    /// The `log_line_prefix` used to parse the lines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
    /// The time zone assumed for lines whose time zone is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timezone: Option<String>,
    /// The encodings that the user specified, by database; the empty key applies to all other
    /// databases.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub encodings: BTreeMap<String, String>,
    /// The captured server, if the writer could query it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<CapturedServer>,
}

/// The identity of the captured server, so that a replay can refuse to run against it, and its
/// position in the WAL at the start of the capture, so that copies can be restored to that state.
/// Every field may be unknown.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CapturedServer {
    /// `system_identifier` of `pg_control_system()`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system_identifier: Option<String>,
    /// The WAL timeline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeline: Option<u32>,
    /// The server's address as the writer reached it: `host:port`, or the path of a unix socket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// `pg_postmaster_start_time()`: a server with another one may be the same after a restart, but
    /// a server with this one is the captured one, whatever its address.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "optional_time")]
    pub postmaster_start: Option<Timestamp>,
    /// Position in the WAL at the start of the capture, such as `0/16B3748`. A replay should start
    /// from the server's state at this position. Unknown if the events are from logs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lsn: Option<String>,
    /// The server's `now()` when it was at `lsn`.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "optional_time")]
    pub time: Option<Timestamp>,
}

impl CapturedServer {
    /// Returns the server without its position at the start of the capture, for a capture of which
    /// only a later part remains.
    #[must_use]
    pub fn without_position(self) -> Self {
        Self { lsn: None, time: None, ..self }
    }
}

/// Describes the server in one line: `system identifier 7301…, timeline 1, at db:5432`.
impl fmt::Display for CapturedServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.system_identifier {
            Some(identifier) => write!(f, "system identifier {identifier}")?,
            None => f.write_str("system identifier unknown")?,
        }
        if let Some(timeline) = self.timeline {
            write!(f, ", timeline {timeline}")?;
        }
        if let Some(address) = &self.address {
            write!(f, ", at {address}")?;
        }
        Ok(())
    }
}

/// The manifest of a capture, `capture.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct CaptureManifest {
    /// Always `howdah-capture`.
    pub format: String,
    /// Version of the format; see [`DatasetKind::version`].
    pub version: u32,
    /// Version of Howdah that wrote the capture.
    pub howdah: String,
    /// Time at which writing started.
    #[serde(with = "time")]
    pub created: Timestamp,
    /// The origin of the events.
    pub origin: CaptureOrigin,
    /// Time of the earliest event.
    #[serde(with = "optional_time")]
    pub first: Option<Timestamp>,
    /// Time of the latest event.
    #[serde(with = "optional_time")]
    pub last: Option<Timestamp>,
    /// Number of events of all kinds.
    pub events: u64,
    /// Number of events of each kind that occurs.
    #[serde(with = "kind_counts")]
    pub kinds: BTreeMap<Kind, u64>,
    /// Number of files of events.
    pub files: u32,
    /// Whether the capture is complete. False while it is being written; it stays false, and later
    /// events are missing, if the writer is killed or the writer or its source fails.
    pub finished: bool,
    /// The producer's report on the events, such as what an importer skipped, and why. Null until
    /// the producer provides one.
    pub report: Value,
    /// Which part this is, if the capture is a part of another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part: Option<CapturePart>,
}

impl CaptureManifest {
    pub(crate) fn new(origin: CaptureOrigin) -> Self {
        Self {
            format: DatasetKind::Capture.format().to_owned(),
            version: DatasetKind::Capture.version(),
            howdah: HOWDAH_VERSION.to_owned(),
            created: Timestamp::now(),
            origin,
            first: None,
            last: None,
            events: 0,
            kinds: BTreeMap::new(),
            files: 0,
            finished: false,
            report: Value::Null,
            part: None,
        }
    }

    /// Adds the counts of another part.
    pub(crate) fn add_part(&mut self, part: &Self) {
        self.created = self.created.min(part.created);
        self.first = self.first.into_iter().chain(part.first).min();
        self.last = self.last.max(part.last);
        self.events += part.events;
        for (kind, count) in &part.kinds {
            *self.kinds.entry(*kind).or_default() += count;
        }
        self.files += part.files;
        self.finished &= part.finished;
    }

    pub(crate) fn count(&mut self, time: Timestamp, kind: Kind) {
        self.count_all(time..=time, &[kind]);
    }

    /// Counts events of these kinds. `times` is from the earliest to the latest of them.
    pub(crate) fn count_all(&mut self, times: RangeInclusive<Timestamp>, kinds: &[Kind]) {
        let (from, to) = times.into_inner();
        self.first = Some(self.first.map_or(from, |first| first.min(from)));
        self.last = Some(self.last.map_or(to, |last| last.max(to)));
        self.events += kinds.len() as u64;
        for kind in Kind::ALL {
            let count = kinds.iter().filter(|one| *one == kind).count() as u64;
            if count > 0 {
                *self.kinds.entry(*kind).or_default() += count;
            }
        }
    }
}

/// The manifest of a run, `run.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RunManifest {
    /// Always `howdah-run`.
    pub format: String,
    /// Version of the format; see [`DatasetKind::version`].
    pub version: u32,
    /// Version of Howdah that wrote the run.
    pub howdah: String,
    /// The capture or the logs that were replayed, as the user named them.
    pub capture: String,
    /// The server that the capture was replayed against, without a password.
    pub target: String,
    /// The pace: a factor such as `1.5`, or `max`.
    pub rate: String,
    /// `server_version` of the target.
    pub server_version: String,
    /// Time at which the run was created. The replay, from whose start `due_us` and `sent_us`
    /// count, begins after it.
    #[serde(with = "time")]
    pub started: Timestamp,
    /// Number of outcomes, the sum of `done`, `failed`, `skipped` and `dropped`.
    pub outcomes: u64,
    /// Number of events that were replayed without an error.
    pub done: u64,
    /// Number of events whose replay failed with an error.
    pub failed: u64,
    /// Number of events that were not sent, or still running when the replay ended or was
    /// interrupted.
    pub skipped: u64,
    /// Number of events that were not sent because of a policy for late sessions or a limit on
    /// memory.
    #[serde(default)]
    pub dropped: u64,
    /// Number of distinct statements described.
    pub statements: u64,
    /// Number of files of outcomes.
    pub files: u32,
    /// Number of files of statements.
    pub statement_files: u32,
    /// Whether the writer has finished. If it was killed, the outcomes after the last file are
    /// lost.
    pub finished: bool,
    /// Whether the replay reached the end of its input, and all outcomes were written.
    pub complete: bool,
    /// The replay's summary. Null while not finished.
    pub summary: Value,
    /// Which part this is, if the run is a part of another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part: Option<RunPart>,
}

/// The part of a run: what one of several workers replayed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunPart {
    /// The name that the workers of one run have in common.
    pub run_id: String,
    /// The number of the worker, from 0.
    pub worker: u32,
    /// The number of workers.
    pub workers: u32,
    /// When the first event of the capture was due, by the clock of the target.
    #[serde(with = "time")]
    pub start: Timestamp,
    /// The clock of the target minus that of the worker, in microseconds.
    pub clock_offset_us: i64,
    /// The shortest time of a query for the target's clock, in microseconds: the offset is exact to
    /// half of it.
    pub clock_round_trip_us: u64,
}

/// The version of Howdah that is written to manifests and files.
pub(crate) const HOWDAH_VERSION: &str = env!("CARGO_PKG_VERSION");

/// Serde module for a time: RFC 3339 text, or a number of microseconds if RFC 3339 cannot represent
/// the time.
pub(crate) mod time {
    use howdah_traffic::Timestamp;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    #[derive(Deserialize)]
    #[serde(untagged)]
    enum TimeRepr {
        Text(String),
        Micros(i64),
    }

    pub(crate) fn serialize<S: Serializer>(time: &Timestamp, to: S) -> Result<S::Ok, S::Error> {
        let text = time.to_string();
        if text.parse() == Ok(*time) {
            to.serialize_str(&text)
        } else {
            to.serialize_i64(time.as_micros())
        }
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Timestamp, D::Error> {
        match TimeRepr::deserialize(from)? {
            TimeRepr::Text(text) => text.parse().map_err(D::Error::custom),
            TimeRepr::Micros(micros) => Ok(Timestamp::from_micros(micros)),
        }
    }
}

/// Serde module for an optional time, in the form of `time`, or null.
mod optional_time {
    use howdah_traffic::Timestamp;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    struct TimeWrapper(#[serde(with = "super::time")] Timestamp);

    pub(super) fn serialize<S: Serializer>(
        time: &Option<Timestamp>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        time.map(TimeWrapper).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<Timestamp>, D::Error> {
        Ok(Option::<TimeWrapper>::deserialize(from)?.map(|wrapped| wrapped.0))
    }
}

/// Serde module for counts by the names of kinds, in the order of [`Kind`].
mod kind_counts {
    use std::collections::BTreeMap;

    use howdah_traffic::Kind;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(
        counts: &BTreeMap<Kind, u64>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.collect_map(counts.iter().map(|(kind, count)| (kind.as_str(), count)))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<BTreeMap<Kind, u64>, D::Error> {
        BTreeMap::<String, u64>::deserialize(from)?
            .into_iter()
            .map(|(word, count)| match Kind::parse(&word) {
                Some(kind) => Ok((kind, count)),
                None => Err(D::Error::custom(format_args!("{word:?} is not a kind of event"))),
            })
            .collect()
    }
}

#[test]
fn manifest_round_trips() {
    let server = CapturedServer {
        system_identifier: Some("7301".to_owned()),
        lsn: Some("0/16B3748".to_owned()),
        time: Some(Timestamp::from_micros(1_795_178_599_577_000)),
        ..CapturedServer::default()
    };
    let mut manifest = CaptureManifest::new(CaptureOrigin {
        files: vec!["postgresql.log".to_owned()],
        format: Some("stderr".to_owned()),
        server: Some(server),
        ..CaptureOrigin::default()
    });
    manifest.count(Timestamp::from_micros(1_795_178_599_577_000), Kind::Simple);
    manifest.count(Timestamp::from_micros(i64::MAX), Kind::Connect);
    let text = serde_json::to_string(&manifest).unwrap();
    assert!(text.contains(r#""first":"2026-11-20T12:43:19.577000Z""#), "{text}");
    assert!(text.contains(r#""last":9223372036854775807"#), "{text}");
    assert!(text.contains(r#""kinds":{"connect":1,"simple":1}"#), "{text}");
    assert_eq!(serde_json::from_str::<CaptureManifest>(&text).unwrap(), manifest);
}
