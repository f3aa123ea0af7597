//! Captures and runs: folders of Parquet files with a small JSON manifest, on the local disk or in
//! an object store.
//!
//! A *capture* contains [`howdah_traffic::Event`]s; [`CaptureWriter`] writes it and [`Capture`]
//! reads it. A *run* contains the result of a replay: [`ReplayOutcome`]s, the [`StatementInfo`]s
//! they refer to, and a [`MachineSeries`] with measurements of the machine; [`RunWriter`] writes it
//! and [`ReplayRun`] reads it. `docs/src/reference/capture-format.md` specifies columns, units,
//! versions and crash safety; any Parquet reader can open the files.
//!
//! This crate only stores datasets; it neither produces events nor assesses outcomes.
//!
//! ```
//! use howdah_dataset::{Capture, CaptureSettings, CaptureWriter};
//! use howdah_traffic::{Action, CapturedOutcome, Event, Source, Timestamp};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let scratch = tempfile::tempdir()?;
//! # let dir = scratch.path().join("capture");
//! let mut writer = CaptureWriter::create(&dir, CaptureSettings::default())?;
//! writer.write(Event {
//!     time: Timestamp::from_micros(1_795_178_599_577_000),
//!     session: "656a1b2c.4d2".into(),
//!     user: "app".into(),
//!     database: "shop".into(),
//!     application: "".into(),
//!     action: Action::Simple { sql: "select 1".into() },
//!     outcome: CapturedOutcome { duration_us: Some(250), ..CapturedOutcome::default() },
//!     source: Source::Duration,
//!     vxid: None,
//!     query_id: None,
//!     pipeline: None,
//!     wire: None,
//! })?;
//! writer.finish(serde_json::Value::Null)?;
//!
//! let capture = Capture::open(&dir)?;
//! assert_eq!(capture.manifest().events, 1);
//! for event in capture.events() {
//!     println!("{}", event?.session);
//! }
//! # Ok(())
//! # }
//! ```

mod buffer;
mod capture;
mod chunk;
mod columns;
mod dictionary;
mod error;
mod folder;
mod kind;
mod manifest;
mod part;
mod run;
mod storage;
mod table;

pub use capture::{
    BucketWriter, Capture, CaptureMergeError, CaptureSettings, CaptureWriter, Events, ImportPart,
    MergedCaptures, MergedEvents, SameNameSessions,
};
pub use error::{Corruption, ReadError, WriteError};
pub use kind::DatasetKind;
pub use manifest::{CaptureManifest, CaptureOrigin, CapturedServer, RunManifest, RunPart};
pub use part::{CapturePart, ParseShareError, SessionShare};
pub use run::{
    CalibrationEnd, CalibrationEndReason, CalibrationInfo, Disposition, MachineBucket,
    MachineSeries, MachineSummary, Outcomes, ReplayOutcome, ReplayRun, ResultCheck, RunSettings,
    RunWriter, StatementInfo,
};
pub use storage::is_store_url;

/// Maximum size of an event, outcome or statement: the bytes of all its texts.
///
/// Arrow and Parquet count the bytes of a column in 31 bits, and text that is not UTF-8 may triple
/// in size when it is made readable. PostgreSQL itself rejects messages over 1 GiB.
pub const ROW_BYTES_MAX: usize = 256 << 20;
