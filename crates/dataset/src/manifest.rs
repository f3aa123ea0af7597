//! The manifests: what a person, a script or a later howdah wants to know before reading rows.
//!
//! A manifest is rewritten after each finished file of rows, so at any moment it describes what is
//! on disk up to at most the newest file.

use std::{collections::BTreeMap, ops::RangeInclusive};

use howdah_traffic::{Kind, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::folder::DatasetKind;

/// Where the events of a capture came from, as far as it is known.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// The files that were read, as the user named them.
    #[serde(default)]
    pub files: Vec<String>,
    /// Log format: `stderr`, `csvlog`, `jsonlog`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<String>,
    /// The `log_line_prefix` that the lines were read with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
    /// The time zone that was assumed where lines named none that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timezone: Option<String>,
    /// The encoding of each captured database, where somebody said it; under the empty name, of all
    /// others.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub encodings: BTreeMap<String, String>,
}

/// `capture.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct CaptureManifest {
    /// Always `howdah-capture`.
    pub format: String,
    /// Version of the format, see [`DatasetKind::version`].
    pub version: u32,
    /// Version of the howdah that wrote it.
    pub howdah: String,
    /// When writing began.
    #[serde(with = "time")]
    pub created: Timestamp,
    /// Where the events came from.
    pub origin: Origin,
    /// Time of the earliest event.
    #[serde(with = "optional_time")]
    pub first: Option<Timestamp>,
    /// Time of the latest event.
    #[serde(with = "optional_time")]
    pub last: Option<Timestamp>,
    /// Number of events.
    pub events: u64,
    /// Number of events of each kind that occurs.
    #[serde(with = "kind_counts")]
    pub kinds: BTreeMap<Kind, u64>,
    /// Number of files of events.
    pub files: u32,
    /// Whether the writer came to its end. If not, the events after the last file are lost.
    pub finished: bool,
    /// What the importer had to say: what it skipped, and why. Null while not finished.
    pub report: Value,
}

impl CaptureManifest {
    pub(crate) fn new(origin: Origin) -> Self {
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
        }
    }

    /// Takes account of one more event.
    pub(crate) fn count(&mut self, time: Timestamp, kind: Kind) {
        self.count_all(time..=time, &[kind]);
    }

    /// Counts events between two times, both met, by their kinds.
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

/// `run.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RunManifest {
    /// Always `howdah-run`.
    pub format: String,
    /// Version of the format, see [`DatasetKind::version`].
    pub version: u32,
    /// Version of the howdah that wrote it.
    pub howdah: String,
    /// The capture or log that was replayed, as the user named it.
    pub capture: String,
    /// The server it was replayed against, without a password.
    pub target: String,
    /// The pace: a factor such as `1.5`, or `max`.
    pub rate: String,
    /// `server_version` of the target.
    pub server_version: String,
    /// When the first statement could be sent: the zero of `due_us` and `sent_us`.
    #[serde(with = "time")]
    pub started: Timestamp,
    /// Number of outcomes.
    pub outcomes: u64,
    /// Outcomes that the server answered without an error.
    pub done: u64,
    /// Outcomes that ended in an error.
    pub failed: u64,
    /// Outcomes that were never sent.
    pub skipped: u64,
    /// Number of distinct statements described.
    pub statements: u64,
    /// Number of files of outcomes.
    pub files: u32,
    /// Number of files of statements.
    pub statement_files: u32,
    /// Whether the writer came to its end. If not, the outcomes after the last file are lost.
    pub finished: bool,
    /// Whether the replay came to the end of what it was given, rather than being stopped.
    pub complete: bool,
    /// What the replay had to say. Null while not finished.
    pub summary: Value,
}

/// Written into manifests and files.
pub(crate) const HOWDAH_VERSION: &str = env!("CARGO_PKG_VERSION");

/// A time as RFC 3339 text, or as a number of microseconds if no calendar reaches it.
pub(crate) mod time {
    use howdah_traffic::Timestamp;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Written {
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
        match Written::deserialize(from)? {
            Written::Text(text) => text.parse().map_err(D::Error::custom),
            Written::Micros(micros) => Ok(Timestamp::from_micros(micros)),
        }
    }
}

/// The same, or null.
mod optional_time {
    use howdah_traffic::Timestamp;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    struct Wrapped(#[serde(with = "super::time")] Timestamp);

    pub(super) fn serialize<S: Serializer>(
        time: &Option<Timestamp>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        time.map(Wrapped).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<Timestamp>, D::Error> {
        Ok(Option::<Wrapped>::deserialize(from)?.map(|wrapped| wrapped.0))
    }
}

/// Counts under the kinds' own words, in the order that [`Kind`] declares.
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
            .map(|(word, count)| match Kind::from_word(&word) {
                Some(kind) => Ok((kind, count)),
                None => Err(D::Error::custom(format_args!("{word:?} is no kind of event"))),
            })
            .collect()
    }
}

#[test]
fn a_manifest_is_read_as_it_was_written() {
    let mut manifest = CaptureManifest::new(Origin {
        files: vec!["postgresql.log".to_owned()],
        format: Some("stderr".to_owned()),
        ..Origin::default()
    });
    manifest.count(Timestamp::from_micros(1_795_178_599_577_000), Kind::Simple);
    manifest.count(Timestamp::from_micros(i64::MAX), Kind::Connect);
    let text = serde_json::to_string(&manifest).unwrap();
    assert!(text.contains(r#""first":"2026-11-20T12:43:19.577000Z""#), "{text}");
    assert!(text.contains(r#""last":9223372036854775807"#), "{text}");
    assert!(text.contains(r#""kinds":{"connect":1,"simple":1}"#), "{text}");
    assert_eq!(serde_json::from_str::<CaptureManifest>(&text).unwrap(), manifest);
}
