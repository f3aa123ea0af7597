//! Captures and runs on disk: folders of Parquet files with a small JSON manifest.
//!
//! A *capture* holds [`howdah_traffic::Event`]s and is written by [`CaptureWriter`] and read by
//! [`Capture`]. A *run* holds what came of replaying one: [`ReplayOutcome`]s and the [`Statement`]s
//! they speak of, written by [`RunWriter`] and read by [`Run`]. Columns, units, versions and what
//! survives a crash are in `docs/src/reference/capture-format.md`; any Parquet reader can open the
//! files.
//!
//! This crate stores; it neither produces events nor judges outcomes.
//!
//! ```
//! use howdah_dataset::{Capture, CaptureSettings, CaptureWriter};
//! use howdah_traffic::{Action, Event, Outcome, Source, Timestamp};
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
//!     outcome: Outcome { duration_us: Some(250), ..Outcome::default() },
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
mod error;
mod folder;
mod manifest;
mod run;
mod table;
mod words;

pub use capture::{Capture, CaptureSettings, CaptureWriter, Events};
pub use error::{Damage, ReadError, WriteError};
pub use folder::DatasetKind;
pub use manifest::{CaptureManifest, Origin, RunManifest};
pub use run::{Disposition, Outcomes, ReplayOutcome, Run, RunSettings, RunWriter, Statement};

/// The largest event, outcome or statement a dataset takes, counting the bytes of all its texts.
///
/// Arrow and Parquet count the bytes of a column in 31 bits, and text that is not UTF-8 may triple
/// when it is made readable. PostgreSQL itself takes no message over 1 GiB.
pub const ROW_BYTES_MAX: usize = 256 << 20;
