//! Replays captured traffic against a server: each session on its own connection, at the captured
//! or another pace.
//!
//! ```text
//! events ──► dispatcher ──► inbox ──► worker: players, connections, timers ──► outcome writer
//!            (a thread)    (bounded)  (one thread, one epoll, any number)      (a thread)
//!                                                                                    │
//!                                                                                    ▼
//!                                                                              run, totals
//! ```
//!
//! The *dispatcher* pulls events in the order of their captured time, only as far ahead as the
//! schedule needs. A *worker* owns a share of the sessions. Each session is a *player*: it sends
//! its next event when that event is due and the session is free, so a slow statement delays only
//! its own session. The *outcome writer* counts the outcome of each event and, if there is a run to
//! write, writes it there.
//!
//! # Two clocks
//!
//! *Schedule error* is how late a statement was sent although its session was free: a delay caused
//! by the replay. *Dependency lag* is how long a statement was due while the session's previous
//! statement or login was still running: a delay caused by the database. The two are measured
//! separately and never added up. Delay caused by the source of the events, such as a live log, is
//! the third kind: *input delay*.
//!
//! # The machine
//!
//! While a replay runs, `machine` measures how busy the host is and how long a fixed statement
//! takes on the target, so that two runs on unequal machines are not compared as equals.
//!
//! This crate does not read logs, compare runs or render reports.

mod activity;
mod cancel;
mod capacity;
mod concurrency;
mod encoding;
mod error;
mod guard;
mod identity;
mod ids;
mod inbox;
mod link;
mod login_setting;
mod machine;
mod metrics;
mod notice;
mod order;
mod outcome_writer;
mod pace;
mod player;
mod preflight;
mod run;
mod settings;
mod summary;
mod target;
mod types;
mod worker;

pub use activity::SessionActivity;
pub use capacity::Capacity;
pub use concurrency::ConcurrencyEstimate;
pub use encoding::{DatabaseEncoding, EncodingMap, ParseEncodingError};
pub use error::{EventSourceError, StartError};
pub use guard::{ActiveClients, CapturedEvidence, GuardError, TargetFacts, check_target};
pub use identity::{IdentityMap, ParseRenamingError, Renaming};
pub use login_setting::{LoginSetting, ParseLoginSettingError};
pub use machine::CalibrationPlan;
pub use metrics::{
    InputMetrics, InputPosition, LatencyCounts, METRICS, ProgressReader, ReplayProgress,
};
pub use notice::{Notice, NoticeSink};
pub use order::StatementOrder;
pub use outcome_writer::{
    ComparedCounts, EndCounts, FailureSummary, ReplayTotals, TYPED_STATEMENTS_MAX,
};
pub use pace::{
    ParseRateError, Rate,
    clock::{ReplayStart, TargetClock},
    control::{PaceControl, RateChange, RateChangeError},
    lag::{LagPolicy, ParseLagPolicyError},
};
pub use preflight::{DeniedLogin, find_denied_logins};
pub use run::{Replay, ReplayReport};
pub use settings::{ReplayLimits, ReplaySettings};
pub use target::ReplayTarget;
pub use worker::LagAbort;
