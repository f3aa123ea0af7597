//! Converts PostgreSQL server logs to [events](howdah_traffic::Event).
//!
//! An [`Importer`] takes bytes and returns events. It uses no file, clock or thread, so the same
//! code imports a finished log and follows a log that is still being written. [`read_files`] feeds
//! files and pipes to an importer.
//!
//! ```text
//! bytes ─► format reader (stderr | csv | json) ─► records ─► sessions ─► events
//!          frames, unescapes, groups lines          one per      what each client is doing,
//!          by the line prefix                       message      names, outcomes
//! ```
//!
//! [`read_files`] first unpacks archives and removes the envelopes that services put around a log.
//!
//! Bad data never stops an import: everything unreadable is counted by [`ProblemReason`], with
//! samples in the [`ImportSummary`]. An input is an error only if it is not a log that a server
//! wrote, is in a language other than English, or is not in the given format or any known one.
//!
//! This crate reads the logs of PostgreSQL 12 to 18. It does not store events.
//!
//! # Example
//!
//! ```
//! use howdah_logs::{ImportOptions, Importer};
//!
//! let mut importer = Importer::new(ImportOptions::default())?;
//! importer.start_file("postgresql.log");
//! importer.feed(b"2026-11-20 12:43:20.896 UTC [7] al@shop LOG:  statement: select 1\n")?;
//! importer.feed(b"2026-11-20 12:43:20.898 UTC [7] al@shop LOG:  duration: 1.520 ms\n")?;
//! importer.finish()?;
//! let events: Vec<_> = std::iter::from_fn(|| importer.poll_event()).collect();
//! assert_eq!(events[1].action.sql().map(|sql| sql.to_string()), Some("select 1".to_owned()));
//! assert_eq!(events[1].outcome.duration_us, Some(1520));
//! let prefix = importer.summary().prefix.as_ref().map(|prefix| prefix.text.as_str());
//! assert_eq!(prefix, Some("%m [%p] %q%u@%d "));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod clock;
mod collections;
pub mod diagnosis;
mod error;
mod formats;
mod importer;
mod language;
mod options;
mod prefix;
mod reading;
mod record;
mod scan;
mod server_log_format;
mod summary;
mod tracker;

pub use collections::intern::Interner;
pub use error::{ImportError, OptionsError};
pub use howdah_log_input::{Compression, CsvObstacle, Envelope, EnvelopeReader, LogSeverity};
pub use importer::Importer;
pub use language::Language;
pub use options::{Emit, ImportOptions};
pub use prefix::{Confidence, LogLinePrefix, PrefixOrigin};
pub use reading::{
    LogStream, ReadFilesError, ReadPlanError, ReadProgress, ReceiverGone, StreamPosition,
    read_files, visit_files,
};
pub use server_log_format::ServerLogFormat;
pub use summary::{
    Completeness, FileOrder, Gap, GapKind, ImportProblem, ImportSummary, Inputs, LogFacts, LogFile,
    OmittedInput, ProblemReason, ProblemSample,
};
