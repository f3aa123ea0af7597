//! Plays captured traffic against a server: every session on its own, at the captured pace.
//!
//! ```text
//! events ──► feeder ──► inbox ──► worker: players, connections, timers ──► recorder ──► run, numbers
//!           (a thread)  (bounded)  (one thread, one epoll, any number)     (a thread)
//! ```
//!
//! The *feeder* pulls events, in the order of their captured time, only as far ahead as the schedule
//! needs. A *worker* owns a share of the sessions. Each session is a *player*: it sends its next
//! event when that is due and the session is free, so a slow statement delays its own session and
//! no other. The *recorder* counts what became of each event and writes it down.
//!
//! # Two clocks
//!
//! *Schedule error* is how late a statement was sent although its session was free: our fault.
//! *Dependency lag* is how long it was due while the session's previous statement still ran, or its
//! login: the database's answer. They are measured apart and never added up. What the source of the
//! events was late with, a live log for one, is neither: *input late*.
//!
//! What this crate does not do: read logs, compare runs, draw.

mod cancel;
mod capacity;
mod encoding;
mod identity;
mod inbox;
mod link;
mod login_setting;
mod metrics;
mod notice;
mod pace;
mod player;
mod preflight;
mod recorder;
mod run;
mod settings;
mod summary;
mod survey;
mod target;
mod types;
mod worker;

pub use capacity::Capacity;
pub use encoding::{DatabaseEncoding, Encodings, ParseEncodingError};
pub use identity::{Identities, ParseRenamingError, Renaming};
pub use login_setting::{LoginSetting, ParseLoginSettingError};
pub use metrics::{METRICS, Progress, Standing};
pub use notice::{Notice, Notices};
pub use pace::{ParseRateError, Rate};
pub use preflight::{DeniedLogin, shut_out};
pub use recorder::{Ends, Failures, TYPED_STATEMENTS_MAX, Tally};
pub use run::{FeedError, Replay, Report, StartError};
pub use settings::{Limits, Settings};
pub use survey::Survey;
