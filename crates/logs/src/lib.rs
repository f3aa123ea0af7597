//! PostgreSQL server logs into [events](howdah_traffic::Event).
//!
//! An [`Importer`] is fed bytes and gives events: no file, clock or thread inside, so that the same
//! code imports a finished log and follows one that is still being written. [`read_files`] is the
//! short loop around it for files and pipes.
//!
//! ```text
//! bytes ─► format reader (stderr | csv | json) ─► records ─► sessions ─► events
//!          frames, unescapes, groups lines          one per      what each client is doing,
//!          by the line prefix                       message      names, outcomes
//! ```
//!
//! [`read_files`] takes archives, and what services wrap around a log, off before that.
//!
//! Bad data never stops an import: what cannot be read is counted by [`Reason`] with samples in the
//! [`Summary`]. Only an input that is no log at all, or in a shape nobody described, is an error.
//!
//! Logs of PostgreSQL 12 to 18 are read. This crate does not store events, nor judge SQL.
//!
//! # Example
//!
//! ```
//! use howdah_logs::{Importer, Options};
//!
//! let mut importer = Importer::new(Options::default())?;
//! importer.begin_file("postgresql.log");
//! importer.feed(b"2026-11-20 12:43:20.896 UTC [7] al@shop LOG:  statement: select 1\n")?;
//! importer.feed(b"2026-11-20 12:43:20.898 UTC [7] al@shop LOG:  duration: 1.520 ms\n")?;
//! importer.finish()?;
//! let events: Vec<_> = std::iter::from_fn(|| importer.poll_event()).collect();
//! assert_eq!(events[1].action.sql().map(|sql| sql.to_string()), Some("select 1".to_owned()));
//! assert_eq!(events[1].outcome.duration_us, Some(1520));
//! assert_eq!(importer.summary().prefix.as_ref().map(|p| p.text.as_str()), Some("%m [%p] %q%u@%d "));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod buffer;
mod clock;
mod completeness;
mod crew;
mod csv;
mod detect;
mod error;
mod files;
mod frame;
mod hashing;
mod importer;
mod input;
mod intern;
mod json;
mod language;
mod marks;
mod masks;
mod message;
mod names;
mod options;
mod parameters;
mod pieces;
mod prefix;
mod reader;
mod record;
mod seen;
mod splits;
mod sql;
mod stderr;
mod stream;
mod summary;
mod tracker;
#[cfg(target_arch = "x86_64")]
mod vector;

pub use completeness::{Completeness, Gap, GapKind};
pub use error::ImportError;
pub use files::{Progress, ReadFilesError, read_files, visit_files};
pub use importer::Importer;
pub use input::{
    Compression, Envelope, EnvelopeReader, Inputs, LeftOut, LogFile, Order, PlanError,
};
pub use intern::Interner;
pub use language::Language;
pub use options::{Emit, Format, Options, OptionsError};
pub use record::Severity;
pub use stream::{LogStream, NotTaken};
pub use summary::{Confidence, Facts, Origin, Prefix, Problem, Reason, Sample, Summary};
