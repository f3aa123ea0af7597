//! [`MachineSeries`]: measurements of the machine during a replay, in buckets of one second.
//!
//! The series is stored in `machine.json`, next to the run's manifest, with one array per column.
//! It has no figures of statements, because they can be computed from the outcomes.

mod summary;

use std::{collections::HashMap, io, path::Path};

use bytes::Bytes;
use serde::{
    Deserialize, Serialize, Serializer,
    de::DeserializeOwned,
    ser::{SerializeMap as _, SerializeSeq as _},
};
use serde_json::value::RawValue;

pub use summary::MachineSummary;

use crate::{
    error::{Corruption, ReadError},
    manifest::HOWDAH_VERSION,
    storage,
};

/// File name within the folder of a run.
pub(crate) const FILE_NAME: &str = "machine.json";

/// The `format` in the file.
const FORMAT: &str = "howdah-machine";

/// Version of the file's format.
const VERSION: u32 = 1;

/// Maximum size of the file in bytes, about twice the size of the longest series.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// Measurements of the machine during a run.
///
/// Times are microseconds since the start of the replay, like
/// [`ReplayOutcome::due_us`](super::ReplayOutcome::due_us).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineSeries {
    /// Length of a bucket in microseconds. At least 1.
    pub bucket_us: u64,
    /// Whether the server was reached by a unix socket or a loopback address. If so, the figures of
    /// this host are also those of the server's host, except when the address belongs to a tunnel.
    pub is_server_local: bool,
    /// Number of processors of the host, if known.
    pub processors: Option<u32>,
    /// The measurement of the target's speed.
    pub calibration: CalibrationInfo,
    /// The buckets from the start of the replay. Bucket *n* begins at *n* × `bucket_us`; the last
    /// one may be shorter.
    pub buckets: Vec<MachineBucket>,
}

/// The measurement of the target's speed: a fixed statement is executed at regular intervals.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CalibrationInfo {
    /// Time from the start of one execution to that of the next, in microseconds, unless an
    /// execution takes longer.
    pub interval_us: u64,
    /// The reason why executions stopped before the end of the run, or could not start; `None` if
    /// there is none.
    pub end: Option<CalibrationEnd>,
}

/// The reason why the calibration statement was not executed, or not until the end of the run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CalibrationEnd {
    /// The cause, for programs.
    pub reason: CalibrationEndReason,
    /// The cause as a message for people.
    pub message: String,
    /// End of the last execution, in microseconds since the start of the replay; `None` if there
    /// were none.
    pub at_us: Option<u64>,
}

/// The cause of a [`CalibrationEnd`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CalibrationEndReason {
    /// The user switched calibration off.
    Disabled,
    /// The captured sessions may need the connection slot, the role or database has a connection
    /// limit, or the number of slots is unknown.
    NoFreeSlot,
    /// The server refused the login, or could not be reached.
    LoginFailed,
    /// The connection goes through a pooler, which may have fewer connections than the server.
    Pooler,
    /// A statement of the calibration failed, took too long, or lost its connection.
    StatementFailed,
}

/// Figures of one bucket. Counters are differences within the bucket; `None` if not measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MachineBucket {
    /// Median duration of the calibration statement in microseconds, as its client saw it.
    pub calibration_p50_us: Option<u64>,
    /// Maximum duration of the calibration statement, in microseconds.
    pub calibration_max_us: Option<u64>,
    /// Number of executions of the calibration statement that started in the bucket and succeeded.
    pub calibration_count: Option<u64>,
    /// Mean delay of wake-ups in microseconds, measured by a thread that is to wake up every 10 ms.
    pub wakeup_delay_mean_us: Option<u64>,
    /// Maximum delay of a wake-up, in microseconds.
    pub wakeup_delay_max_us: Option<u64>,
    /// Number of wake-ups whose delay was measured.
    pub wakeup_count: Option<u64>,
    /// Time covered by the figures that follow, in microseconds: more or less than the bucket's
    /// length if the counters were not read exactly at its boundaries.
    pub interval_us: Option<u64>,
    /// Time during which some task waited for a processor, in microseconds.
    pub cpu_some_us: Option<u64>,
    /// Time during which all tasks waited for a processor, in microseconds; 0 for a whole host.
    pub cpu_full_us: Option<u64>,
    /// Time during which some task waited for a disk, in microseconds.
    pub io_some_us: Option<u64>,
    /// Time during which all non-idle tasks waited for a disk, in microseconds.
    pub io_full_us: Option<u64>,
    /// Time during which some task waited for memory, in microseconds.
    pub memory_some_us: Option<u64>,
    /// Time during which all non-idle tasks waited for memory, in microseconds.
    pub memory_full_us: Option<u64>,
    /// Total time of all processors, in microseconds.
    pub cpu_total_us: Option<u64>,
    /// Time in which processors ran tasks, handled interrupts or ran guests, in microseconds.
    pub cpu_busy_us: Option<u64>,
    /// Time in which a hypervisor ran other guests, in microseconds.
    pub cpu_steal_us: Option<u64>,
    /// Time in which processors were idle while a task waited for a disk, in microseconds.
    pub cpu_iowait_us: Option<u64>,
    /// Processor time that the replay's process used, in microseconds.
    pub replay_cpu_us: Option<u64>,
}

/// A column of the file.
struct BucketColumn {
    name: &'static str,
    get: fn(&MachineBucket) -> Option<u64>,
    set: fn(&mut MachineBucket, Option<u64>),
}

macro_rules! columns {
    ($($name:ident)*) => {
        &[$(BucketColumn {
            name: stringify!($name),
            get: |bucket| bucket.$name,
            set: |bucket, value| bucket.$name = value,
        }),*]
    };
}

/// All columns, in the order of the reference page.
const COLUMNS: &[BucketColumn] = columns! {
    calibration_p50_us calibration_max_us calibration_count
    wakeup_delay_mean_us wakeup_delay_max_us wakeup_count
    interval_us
    cpu_some_us cpu_full_us io_some_us io_full_us memory_some_us memory_full_us
    cpu_total_us cpu_busy_us cpu_steal_us cpu_iowait_us
    replay_cpu_us
};

impl MachineSeries {
    /// Length of the buckets that replays write: one second.
    pub const BUCKET_US: u64 = 1_000_000;

    /// Maximum number of buckets: two days of one second each. A longer run has no figures for the
    /// time after that.
    pub const BUCKETS_MAX: usize = 172_800;

    /// Computes the figures of the whole run.
    pub fn summary(&self) -> MachineSummary {
        MachineSummary::new(&self.buckets)
    }

    /// Appends the measurements of another worker of the same run, up to [`Self::BUCKETS_MAX`].
    pub(crate) fn append(&mut self, other: Self) {
        self.is_server_local &= other.is_server_local;
        self.calibration.end = self.calibration.end.take().or(other.calibration.end);
        let room = Self::BUCKETS_MAX.saturating_sub(self.buckets.len());
        self.buckets.extend(other.buckets.into_iter().take(room));
    }

    /// Serializes the series as the content of the file.
    pub(crate) fn to_json(&self) -> serde_json::Result<Vec<u8>> {
        serde_json::to_vec(&MachineDocument {
            format: FORMAT,
            version: VERSION,
            howdah: HOWDAH_VERSION,
            bucket_us: self.bucket_us,
            server_is_local: self.is_server_local,
            processors: self.processors,
            calibration: &self.calibration,
            buckets: BucketColumns(&self.buckets),
        })
    }

    /// Reads the file; `None` if it does not exist.
    pub(crate) fn read(path: &Path) -> Result<Option<Self>, ReadError> {
        let damaged = |source| ReadError::Damaged { path: path.to_owned(), source };
        let Some(text) = read_bounded(path)? else { return Ok(None) };
        let object = JsonObject::parse(&text, "").map_err(damaged)?;
        let format: String = object.value("format").map_err(damaged)?;
        if format != FORMAT {
            return Err(damaged(Corruption::Format { expected: FORMAT, found: format }));
        }
        match object.value("version").map_err(damaged)? {
            VERSION => Self::from_object(&object).map_err(damaged).map(Some),
            found => Err(ReadError::Version { path: path.to_owned(), found, supported: VERSION }),
        }
    }

    fn from_object(object: &JsonObject<'_>) -> Result<Self, Corruption> {
        let bucket_us = object.value("bucket_us")?;
        if bucket_us == 0 {
            return Err(Corruption::OutOfRange { column: "bucket_us", value: 0 });
        }
        Ok(Self {
            bucket_us,
            is_server_local: object.value("server_is_local")?,
            processors: object.value("processors")?,
            calibration: object.value("calibration")?,
            buckets: buckets_from_object(&object.object("buckets")?)?,
        })
    }
}

#[derive(Serialize)]
struct MachineDocument<'a> {
    format: &'a str,
    version: u32,
    howdah: &'a str,
    bucket_us: u64,
    server_is_local: bool,
    processors: Option<u32>,
    calibration: &'a CalibrationInfo,
    buckets: BucketColumns<'a>,
}

/// Writes buckets as an object with an array per column.
struct BucketColumns<'a>(&'a [MachineBucket]);

impl Serialize for BucketColumns<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(COLUMNS.len()))?;
        for column in COLUMNS {
            map.serialize_entry(column.name, &ColumnValues { buckets: self.0, get: column.get })?;
        }
        map.end()
    }
}

struct ColumnValues<'a> {
    buckets: &'a [MachineBucket],
    get: fn(&MachineBucket) -> Option<u64>,
}

impl Serialize for ColumnValues<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut array = serializer.serialize_seq(Some(self.buckets.len()))?;
        for bucket in self.buckets {
            array.serialize_element(&(self.get)(bucket))?;
        }
        array.end()
    }
}

/// Reads the columns, which must all have the same length.
fn buckets_from_object(object: &JsonObject<'_>) -> Result<Vec<MachineBucket>, Corruption> {
    let mut buckets = Vec::new();
    for (index, column) in COLUMNS.iter().enumerate() {
        let values = object.column(column.name)?;
        if index == 0 {
            buckets = vec![MachineBucket::default(); values.len()];
        }
        let (found, expected) = (values.len(), buckets.len());
        if found != expected {
            return Err(Corruption::ListLength { column: column.name, found, expected });
        }
        for (bucket, value) in buckets.iter_mut().zip(values) {
            (column.set)(bucket, value);
        }
    }
    Ok(buckets)
}

/// An object whose values are parsed one by one, so that errors name the key.
struct JsonObject<'a> {
    /// The path of the object, with a dot at its end; empty for the document.
    prefix: &'a str,
    values: HashMap<&'a str, &'a RawValue>,
}

impl<'a> JsonObject<'a> {
    fn parse(text: &'a [u8], prefix: &'a str) -> Result<Self, Corruption> {
        Ok(Self { prefix, values: serde_json::from_slice(text)? })
    }

    fn value<T: DeserializeOwned>(&self, key: &str) -> Result<T, Corruption> {
        serde_json::from_str(self.raw(key)?.get()).map_err(|source| self.error(key, source))
    }

    fn object(&self, key: &str) -> Result<JsonObject<'a>, Corruption> {
        let values = serde_json::from_str(self.raw(key)?.get());
        let values = values.map_err(|source| self.error(key, source))?;
        Ok(JsonObject { prefix: "buckets.", values })
    }

    fn column(&self, key: &str) -> Result<Vec<Option<u64>>, Corruption> {
        let text = self.raw(key)?.get();
        // The length is checked before parsing: a parsed entry takes eight times the memory of its
        // shortest text.
        let limit = MachineSeries::BUCKETS_MAX;
        if text.bytes().filter(|byte| *byte == b',').count() >= limit {
            return Err(Corruption::TooLong { key: self.path(key), limit });
        }
        serde_json::from_str(text).map_err(|source| self.error(key, source))
    }

    fn raw(&self, key: &str) -> Result<&'a RawValue, Corruption> {
        self.values.get(key).copied().ok_or_else(|| Corruption::MissingKey { key: self.path(key) })
    }

    fn error(&self, key: &str, source: serde_json::Error) -> Corruption {
        Corruption::Key { key: self.path(key), source }
    }

    fn path(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }
}

/// Reads a file of at most [`FILE_BYTES_MAX`]; `None` if it does not exist.
fn read_bounded(path: &Path) -> Result<Option<Bytes>, ReadError> {
    let text = match storage::read(path, FILE_BYTES_MAX) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(ReadError::Io { path: path.to_owned(), source }),
    };
    if text.len() as u64 > FILE_BYTES_MAX {
        let source = Corruption::TooLarge { limit: FILE_BYTES_MAX };
        return Err(ReadError::Damaged { path: path.to_owned(), source });
    }
    Ok(Some(text))
}

#[cfg(test)]
mod tests;
