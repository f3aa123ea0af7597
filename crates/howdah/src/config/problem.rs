//! Problems in a configuration file, with line and key.

use clap::error::{ContextKind, ContextValue};
use howdah_settings::{Diagnostic, SettingsErrors, SettingsText};

use crate::errors;

/// A configuration file, and the problems found in it so far.
#[derive(Debug)]
pub(super) struct ProblemList<'a> {
    pub(super) text: SettingsText<'a>,
    found: Vec<Diagnostic>,
}

impl<'a> ProblemList<'a> {
    pub(super) fn new(text: SettingsText<'a>) -> Self {
        Self { text, found: Vec::new() }
    }

    /// Adds a problem at a byte offset.
    pub(super) fn add(&mut self, at: usize, key: &str, why: impl Into<String>) {
        self.found.push(self.text.diagnostic(at, key, why));
    }

    /// Adds a problem with advice for the user.
    pub(super) fn add_with_hint(&mut self, at: usize, key: &str, why: &str, hint: &str) {
        self.found.push(self.text.diagnostic(at, key, why).with_hint(hint));
    }

    /// Adds a problem with an unknown name; the hint is the nearest known one.
    pub(super) fn add_unknown<'k>(
        &mut self,
        at: usize,
        key: &str,
        why: &str,
        known: impl Iterator<Item = &'k str>,
    ) {
        let name = key.rsplit('.').next().unwrap_or(key);
        self.found.push(self.text.diagnostic(at, key, why).or_nearest(name, known));
    }

    /// Returns the problems by line; `None` if there are none.
    pub(super) fn into_errors(mut self) -> Option<SettingsErrors> {
        self.found.sort_by_key(|problem| problem.line);
        (!self.found.is_empty()).then_some(SettingsErrors(self.found))
    }
}

/// Returns an error with the first problem, its hint, and how to list the others.
pub(crate) fn into_error(problems: SettingsErrors) -> anyhow::Error {
    let others = problems.0.len().saturating_sub(1);
    let more = (others > 0).then(|| format!("`howdah config check` lists {others} more"));
    let Some(mut first) = problems.0.into_iter().next() else {
        return anyhow::anyhow!("cannot use the configuration");
    };
    let hint = first.hint.take();
    let error = anyhow::anyhow!("{first}").context("cannot use the configuration");
    hint.into_iter().chain(more).fold(error, errors::with_hint)
}

/// Shortens clap's error about a single option to the reason alone.
pub(super) fn reason(error: &clap::Error) -> String {
    let context = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        Some(ContextValue::Strings(texts)) if !texts.is_empty() => Some(texts.join(", ")),
        _ => None,
    };
    let value = context(ContextKind::InvalidValue).unwrap_or_default();
    if let Some(valid) = context(ContextKind::ValidValue) {
        return format!("`{value}` is not one of {valid}");
    }
    match std::error::Error::source(error) {
        Some(cause) => format!("`{value}`: {cause}"),
        None => format!("`{value}` is not a valid value"),
    }
}
