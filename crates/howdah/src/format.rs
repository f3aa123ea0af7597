//! Output formats of commands: a table, or one JSON document.

use std::io::{self, Write};

use serde::Serialize;

/// Value of `--format`, for commands with these two formats.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    /// A table for people
    #[default]
    Table,
    /// One JSON document
    Json,
}

/// Writes the document for `--format json`.
pub(crate) fn write_json(out: &mut impl Write, document: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *out, document).map_err(io::Error::from)?;
    writeln!(out)
}
