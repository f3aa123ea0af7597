//! Rehearses a change to PostgreSQL: all steps from a capture to a verdict, in one call.
//!
//! ```text
//! check both servers ─► prepare ─► replay a1 b1 b2 a2 a3 b3 … ─► compare ─► report
//!                          ▲                  │
//!                          └── before each ───┘
//! ```
//!
//! `a` is the base, `b` the server with the change. Runs alternate as A B B A, so that a slow drift
//! of the machine affects both sides equally. A journal in the output folder records finished
//! steps, so a rehearsal that was stopped continues with the run that was interrupted.
//!
//! This crate defines the order of the steps and the checks between them. The runs are replayed by
//! the crate `replay`, compared by `compare` and described by `report`. [`LiveRehearsal`] and
//! [`ReportServer`] serve pages of running and past rehearsals.

mod activity;
mod archive;
mod copies;
mod error;
mod import;
mod journal;
mod live;
mod options;
mod pages;
mod plan;
mod prepare;
mod reasons;
mod rehearsal;
mod results;
mod run;
mod servers;
mod sql;
mod start;
mod time_lines;

pub use error::RehearsalError;
pub use journal::JournalError;
pub use live::LiveRehearsal;
pub use options::{ChangeSource, RehearsalInput, RehearsalOptions, ResetHooks, ResetMode};
pub use pages::{ReportServer, ReportServerError};
pub use plan::{Plan, PlanStep, RehearsalStep, RunName, time_text};
pub use rehearsal::{Rehearsal, RehearsalObserver, StepProgress};
