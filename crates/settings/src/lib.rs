//! Configuration files: TOML with file, line and key in every error, and the notations of
//! durations, sizes and limits that all parts of Howdah share.
//!
//! [`SettingsText`] is the text of a file: it parses TOML and reports a [`Diagnostic`] for any
//! position. [`SettingsText::section`] reads a section into a struct and finds all of its errors.
//! The other modules are for serde's `with`. What the keys mean is the caller's matter.

mod diagnostic;
mod durations;
pub mod limit;
mod section;
mod size;
mod text;

pub use self::{
    diagnostic::{Diagnostic, SettingsErrors, nearest},
    durations::{
        duration, duration_from_seconds, milliseconds, optional_duration, optional_timeout,
        parse_duration, parse_seconds, timeout,
    },
    section::{KeyLocations, SettingsSection, is_same_or_child},
    size::parse_size,
    text::{SettingsText, read_text},
};
