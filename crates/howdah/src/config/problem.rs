//! What is wrong with a configuration file, with line and key.

use std::{
    fmt,
    path::{Path, PathBuf},
};

use clap::error::{ContextKind, ContextValue};

use crate::errors;

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    /// Byte of the file where it stands.
    pub(super) offset: usize,
    /// The key, with the sections it is in; empty when the file is not even TOML.
    key: String,
    why: String,
    hint: Option<String>,
}

impl Problem {
    pub(super) fn new(offset: usize, key: &str, why: impl Into<String>) -> Self {
        Self { offset, key: key.to_owned(), why: why.into(), hint: None }
    }

    /// Adds what to do.
    pub(super) fn with_hint(mut self, hint: &str) -> Self {
        self.hint = Some(hint.to_owned());
        self
    }

    /// Adds what was probably meant, or else all that could be.
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
            None => Some(format!("known here: {}", known.join(", "))),
        };
        self
    }
}

/// Everything that is wrong with one file, in its order. Never empty.
#[derive(Clone, Debug)]
pub(crate) struct Problems {
    path: PathBuf,
    found: Vec<(usize, Problem)>,
}

impl Problems {
    pub(super) fn new(path: &Path, text: &str, found: Vec<Problem>) -> Self {
        let line = |offset: usize| {
            1 + text.as_bytes().iter().take(offset).filter(|byte| **byte == b'\n').count()
        };
        let found = found.into_iter().map(|problem| (line(problem.offset), problem)).collect();
        Self { path: path.to_owned(), found }
    }

    /// One line per problem, `file:line: key: why`, each followed by its hint.
    pub(crate) fn lines(&self) -> impl Iterator<Item = String> {
        self.found.iter().map(|(line, problem)| {
            let hint = problem.hint.iter().map(|hint| format!(" ({hint})"));
            self.one(*line, problem) + &hint.collect::<String>()
        })
    }

    /// The first problem, with advice on it and on how to see the others.
    pub(crate) fn into_error(self) -> anyhow::Error {
        let first = self.found.first().and_then(|(_, problem)| problem.hint.clone());
        let others = self.found.len().saturating_sub(1);
        let more = (others > 0).then(|| format!("`howdah config check` lists {others} more"));
        let error = anyhow::Error::from(self).context("cannot use the configuration");
        first.into_iter().chain(more).fold(error, errors::with_hint)
    }

    fn one(&self, line: usize, problem: &Problem) -> String {
        let file = self.path.display();
        let Problem { key, why, .. } = problem;
        match key.is_empty() {
            true => format!("{file}:{line}: {why}"),
            false => format!("{file}:{line}: {key}: {why}"),
        }
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.found.first() {
            Some((line, problem)) => f.write_str(&self.one(*line, problem)),
            None => f.write_str("no problem"),
        }
    }
}

impl std::error::Error for Problems {}

/// A reason in few words, from clap's error about a single option.
pub(super) fn why(error: &clap::Error) -> String {
    let context = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        Some(ContextValue::Strings(texts)) if !texts.is_empty() => Some(texts.join(", ")),
        _ => None,
    };
    let value = context(ContextKind::InvalidValue).unwrap_or_default();
    if let Some(valid) = context(ContextKind::ValidValue) {
        return format!("`{value}` is none of {valid}");
    }
    match std::error::Error::source(error) {
        Some(cause) => format!("`{value}`: {cause}"),
        None => format!("`{value}` is no value for it"),
    }
}
