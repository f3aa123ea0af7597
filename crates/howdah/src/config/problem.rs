//! Problems in a configuration file, with line and key.

use std::{
    fmt,
    path::{Path, PathBuf},
};

use clap::error::{ContextKind, ContextValue};

use crate::errors;

/// A problem in a configuration file, with the position and key it concerns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ConfigProblem {
    /// Byte offset in the file.
    pub(super) offset: usize,
    /// The key, with its sections; empty if the file is not valid TOML.
    key: String,
    why: String,
    hint: Option<String>,
}

impl ConfigProblem {
    pub(super) fn new(offset: usize, key: &str, why: impl Into<String>) -> Self {
        Self { offset, key: key.to_owned(), why: why.into(), hint: None }
    }

    /// Adds advice for the user.
    pub(super) fn with_hint(mut self, hint: &str) -> Self {
        self.hint = Some(hint.to_owned());
        self
    }

    /// Adds a hint: the nearest known name, or all known names if none is near.
    pub(super) fn or_nearest<'k>(
        mut self,
        word: &str,
        known: impl Iterator<Item = &'k str>,
    ) -> Self {
        let mut known: Vec<_> = known.collect();
        known.sort_unstable();
        let nearest = known
            .iter()
            .map(|key| (strsim::damerau_levenshtein(word, key), *key))
            .min()
            .filter(|(distance, key)| *distance * 2 < key.len().max(3));
        self.hint = match nearest {
            Some((_, key)) => Some(format!("did you mean `{key}`?")),
            None if known.is_empty() => None,
            None => Some(format!("known: {}", known.join(", "))),
        };
        self
    }
}

/// All problems of one file, in file order. Never empty.
#[derive(Clone, Debug)]
pub(crate) struct ConfigProblems {
    path: PathBuf,
    found: Vec<(usize, ConfigProblem)>,
}

impl ConfigProblems {
    pub(super) fn new(path: &Path, text: &str, found: Vec<ConfigProblem>) -> Self {
        let line = |offset: usize| {
            1 + text.as_bytes().iter().take(offset).filter(|byte| **byte == b'\n').count()
        };
        let found = found.into_iter().map(|problem| (line(problem.offset), problem)).collect();
        Self { path: path.to_owned(), found }
    }

    /// Returns one line per problem, `file:line: key: why`, each followed by its hint.
    pub(crate) fn lines(&self) -> impl Iterator<Item = String> {
        self.found.iter().map(|(line, problem)| {
            let hint = problem.hint.iter().map(|hint| format!(" ({hint})"));
            self.describe(*line, problem) + &hint.collect::<String>()
        })
    }

    /// Returns an error with the first problem, its hint, and how to list the others.
    pub(crate) fn into_error(self) -> anyhow::Error {
        let first = self.found.first().and_then(|(_, problem)| problem.hint.clone());
        let others = self.found.len().saturating_sub(1);
        let more = (others > 0).then(|| format!("`howdah config check` lists {others} more"));
        let error = anyhow::Error::from(self).context("cannot use the configuration");
        first.into_iter().chain(more).fold(error, errors::with_hint)
    }

    fn describe(&self, line: usize, problem: &ConfigProblem) -> String {
        let file = self.path.display();
        let ConfigProblem { key, why, .. } = problem;
        if key.is_empty() {
            format!("{file}:{line}: {why}")
        } else {
            format!("{file}:{line}: {key}: {why}")
        }
    }
}

impl fmt::Display for ConfigProblems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.found.first() {
            Some((line, problem)) => f.write_str(&self.describe(*line, problem)),
            None => f.write_str("no problems"),
        }
    }
}

impl std::error::Error for ConfigProblems {}

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
