//! Renders measurements of probes as they arrive: lines for people, or rows for programs.
//!
//! Each printer takes the updates of a probe's loop as its
//! [`ProbeOutput`](howdah_probe::live::ProbeOutput), renders them to a writer, and adds the totals,
//! if any, at the end. Remarks that do not belong to the data are returned as lines for the caller
//! to report.

mod by_sql;
mod calls;
mod catalogue;
mod checkpoints;
mod diagnosis;
mod extensions;
mod flame_graph;
mod lock_graph;
mod profile;
mod recorder;
mod rows;
mod stack;
mod sweep;
mod waits;

pub use self::{
    by_sql::{SqlPrinter, SqlReport},
    calls::{CallPrinter, SUBJECTS_PRINTED},
    catalogue::write_catalogue,
    checkpoints::PhasePrinter,
    diagnosis::diagnosis,
    extensions::ExtensionPrinter,
    flame_graph::flame_graph,
    lock_graph::{write_lock_dot, write_lock_graph},
    profile::{write_folded, write_profile},
    recorder::{event_line, started, totals, totals_remarks},
    rows::RowFormat,
    sweep::SweepPrinter,
    waits::{WaitGroups, WaitPrinter, sampling_remark},
};
