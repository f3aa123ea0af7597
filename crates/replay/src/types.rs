//! Deduces parameter types that a log does not contain.
//!
//! A driver's Parse specifies types for its parameters, which logs do not contain. Without them
//! PostgreSQL refuses some statements (`select $1 + $2`) and compares others as text (`select $1 <
//! $2`). For these, the types are deduced from the values: first from those of the current
//! execution, then also from those of later executions, so that the types widen with the values. A
//! capture of the wire protocol contains the types, so nothing is deduced.
//!
//! Whether a statement needs types is normally determined once per fingerprint:
//!
//! ```text
//! all placeholders next to columns or casts     sent as it is
//! others, outside of a transaction              sent as it is; if refused, tried with types
//! others, inside of a transaction or pipeline   tried before it is sent: a refusal would abort it
//! placeholders compared with one another        tried before it is sent, to see the server's types
//! ```
//!
//! A trial is Parse, Describe and Bind without Execute, under a reserved name; inside of a
//! transaction it is enclosed by SAVEPOINT and ROLLBACK TO SAVEPOINT.

mod context;
mod shape;

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use howdah_sql::{Fingerprint, Fingerprinter, placeholder_count};
use howdah_traffic::{Event, Parameter, Text};
use parking_lot::Mutex;

use self::{
    context::PlaceholderContext,
    shape::{Scalar, ValueShape},
};
use crate::link::ReplayFailure;

/// A cache of the parameter types deduced for statements, shared by all sessions.
#[derive(Debug)]
pub(crate) struct ParameterTypes {
    inner: Mutex<TypeCache>,
}

#[derive(Debug)]
struct TypeCache {
    fingerprinter: Fingerprinter,
    statements: HashMap<StatementKey, TypingState>,
}

/// Identifies a statement: its database, its fingerprint, and its number of parameters, which
/// varies where literals replace parameters.
type StatementKey = (Arc<str>, Fingerprint, usize);

/// Maximum number of cached statements; when it is reached, the cache is cleared.
const STATEMENTS_MAX: usize = 64 << 10;

/// Maximum total size, in bytes, of the texts whose fingerprints are cached.
const FINGERPRINTS_BYTES: usize = 8 << 20;

/// The knowledge about a statement without types, which determines how it is sent.
#[derive(Clone, Debug)]
enum TypingState {
    /// The text was analyzed, but no trial was made.
    Untried(PlaceholderContext),
    /// The statement is sent without types, because it works without them, or fails for another
    /// reason.
    AsIs,
    /// The statement was refused without types, and which types it needs is not known yet.
    Refused,
    /// The statement is sent with the types of the variant that its values match. There can be
    /// several variants, because a fingerprint ignores the constants in which `to_char($1, 'YYYY')`
    /// and `to_char($1, '999')` differ. Never empty.
    Typed(Vec<TypeVariant>),
    /// No types were found that make the statement work, so it is sent without types.
    Untypable,
}

/// A kind of parameter values that works with certain types: the shapes of the values, and the rule
/// that derives the types from them.
#[derive(Clone, Debug)]
struct TypeVariant {
    shapes: Vec<ValueShape>,
    guess: TypeGuess,
}

/// Maximum number of variants per statement; values of further kinds are sent without types.
const VARIANTS_MAX: usize = 8;

impl TypeVariant {
    /// Returns the types for these values, after widening the variant's shapes to cover them;
    /// `None` if the values are of another kind, `Some(None)` if all types are left to the server.
    fn types_for(&mut self, values: &[Parameter]) -> Option<Option<Arc<[u32]>>> {
        let text = ValueShape::One(Scalar::Text);
        let mut widened = self.shapes.clone();
        for (shape, value) in widened.iter_mut().zip(values) {
            let joined = shape.join(parameter_shape(value));
            // A parameter that was text may get any value; any other keeps its kind.
            if joined == text && *shape != text {
                return None;
            }
            *shape = joined;
        }
        self.shapes = widened;
        Some(self.guess.types(&self.shapes))
    }
}

/// A rule that derives parameter types from the shapes of values.
#[derive(Clone, Debug, PartialEq, Eq)]
struct TypeGuess {
    /// For each parameter, whether to give it a type; `None` gives one to all parameters.
    only: Option<Vec<bool>>,
    /// Declare text values as `text` instead of leaving their type to the server.
    names_texts: bool,
    /// Treat a time of day as an interval.
    time_is_interval: bool,
    /// Treat a `numeric` value as `double precision`.
    numeric_is_float: bool,
}

/// The decision about an execution: send it, or try types first.
#[derive(Debug)]
pub(crate) enum Decision {
    /// Send it, with deduced types or none.
    Send(Option<Arc<[u32]>>),
    /// Make this trial first.
    Try(Box<TypeTrial>),
}

/// A trial of a statement with certain types.
#[derive(Debug)]
pub(crate) struct TypeTrial {
    key: StatementKey,
    pub(crate) sql: Text,
    pub(crate) values: Vec<Parameter>,
    shapes: Vec<ValueShape>,
    stage: TrialStage,
    guesses: VecDeque<TypeGuess>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TrialStage {
    /// The statement is tried without types.
    Untyped,
    /// The statement is tried with the first of the guesses.
    Guess {
        /// Whether the statement works without types, too.
        works_untyped: bool,
    },
}

/// The server's replies to a trial: the types of all parameters, whether the values were bound, and
/// the first error.
#[derive(Debug, Default)]
pub(crate) struct TrialResult {
    pub(crate) types: Vec<u32>,
    pub(crate) is_bound: bool,
    pub(crate) failure: Option<ReplayFailure>,
}

impl Default for ParameterTypes {
    fn default() -> Self {
        let fingerprinter = Fingerprinter::with_capacity(FINGERPRINTS_BYTES);
        Self { inner: Mutex::new(TypeCache { fingerprinter, statements: HashMap::new() }) }
    }
}

impl ParameterTypes {
    /// Decides how to send an execution of `event` with `values`. `is_fragile` means that a refusal
    /// would abort more than the statement itself. `can_try` is false if the server would refuse
    /// any trial.
    pub(crate) fn decide(
        &self,
        event: &Event,
        values: &[Parameter],
        is_fragile: bool,
        can_try: bool,
    ) -> Decision {
        let Some(sql) = event.action.sql() else { return Decision::Send(None) };
        let mut inner = self.lock();
        let key = inner.key(event, sql, values.len());
        let statement = inner.statements.get_mut(&key);
        let should_try = match statement {
            Some(TypingState::AsIs | TypingState::Untypable) => false,
            Some(TypingState::Refused) => true,
            Some(TypingState::Untried(context)) => context.needs_trial(is_fragile),
            Some(TypingState::Typed(variants)) => {
                let types = variants.iter_mut().find_map(|variant| variant.types_for(values));
                if let Some(types) = types {
                    return Decision::Send(types);
                }
                variants.len() < VARIANTS_MAX
            }
            None => {
                let context = PlaceholderContext::from_sql(sql.as_bytes());
                inner.insert(key.clone(), TypingState::Untried(context));
                context.needs_trial(is_fragile)
            }
        };
        // The protocol cannot encode a zero byte.
        if !should_try || !can_try || sql.as_bytes().contains(&0) {
            return Decision::Send(None);
        }
        Decision::Try(Box::new(TypeTrial::new(key, sql.clone(), values.to_vec())))
    }

    /// Returns the cached types for a Parse whose values are not known yet.
    pub(crate) fn known_types(&self, event: &Event) -> Option<Arc<[u32]>> {
        let sql = event.action.sql()?;
        let count = usize::from(placeholder_count(sql.as_bytes()));
        let mut inner = self.lock();
        let key = inner.key(event, sql, count);
        match inner.statements.get(&key)? {
            TypingState::Typed(variants) => {
                let TypeVariant { shapes, guess } = variants.first()?;
                guess.types(shapes)
            }
            _ => None,
        }
    }

    /// Records that the server refused a statement without types, if the error may be due to
    /// missing types. Returns true if it should be sent again, with types that are known or tried.
    pub(crate) fn record_refusal(&self, event: &Event, failure: &ReplayFailure) -> bool {
        let Some(sql) = event.action.sql().filter(|_| is_missing_types(failure)) else {
            return false;
        };
        let count = usize::from(placeholder_count(sql.as_bytes()));
        let mut inner = self.lock();
        let key = inner.key(event, sql, count);
        match inner.statements.get(&key) {
            Some(TypingState::Untypable) => false,
            // Another session found the types after this statement was sent.
            Some(TypingState::Typed(_)) => true,
            Some(TypingState::Refused | TypingState::AsIs | TypingState::Untried(_)) | None => {
                inner.insert(key, TypingState::Refused);
                true
            }
        }
    }

    /// Records the result of a trial. Returns the next trial, if another is useful.
    pub(crate) fn record_result(
        &self,
        probe: Box<TypeTrial>,
        result: &TrialResult,
    ) -> Option<Box<TypeTrial>> {
        let key = probe.key.clone();
        match probe.next(result) {
            TrialOutcome::Try(probe) => Some(probe),
            TrialOutcome::Concluded { statement, shapes } => {
                self.lock().cache_result(key, statement, shapes);
                None
            }
        }
    }

    /// Marks a statement as untypable because the protocol cannot encode it.
    pub(crate) fn mark_untypable(&self, probe: &TypeTrial) {
        self.lock().insert(probe.key.clone(), TypingState::Untypable);
    }

    fn lock(&self) -> parking_lot::MutexGuard<'_, TypeCache> {
        // A panic on another thread leaves the cache valid.
        self.inner.lock()
    }
}

impl TypeCache {
    fn key(&mut self, event: &Event, sql: &Text, count: usize) -> StatementKey {
        let fingerprint = self.fingerprinter.shape(sql.as_bytes()).fingerprint;
        (event.database.clone(), fingerprint, count)
    }

    /// Caches the result of a trial with values of these shapes.
    fn cache_result(&mut self, key: StatementKey, statement: TypingState, shapes: Vec<ValueShape>) {
        let Some(TypingState::Typed(variants)) = self.statements.get_mut(&key) else {
            return self.insert(key, statement);
        };
        // The statement needs types only for other values, so add a variant without types for
        // these.
        let variant = match statement {
            TypingState::Typed(mut new) => new.pop(),
            _ => Some(TypeVariant { shapes, guess: TypeGuess::untyped() }),
        };
        variants.extend(variant);
    }

    fn insert(&mut self, key: StatementKey, statement: TypingState) {
        if self.statements.len() >= STATEMENTS_MAX {
            self.statements.clear();
        }
        self.statements.insert(key, statement);
    }
}

impl PlaceholderContext {
    fn needs_trial(self, is_fragile: bool) -> bool {
        match self {
            Self::Typed => false,
            Self::Open => is_fragile,
            Self::Textual => true,
        }
    }
}

enum TrialOutcome {
    Try(Box<TypeTrial>),
    Concluded { statement: TypingState, shapes: Vec<ValueShape> },
}

impl TypeTrial {
    fn new(key: StatementKey, sql: Text, values: Vec<Parameter>) -> Self {
        let shapes = values.iter().map(parameter_shape).collect();
        Self { key, sql, values, shapes, stage: TrialStage::Untyped, guesses: VecDeque::new() }
    }

    /// Returns the types to try.
    pub(crate) fn types(&self) -> Arc<[u32]> {
        let guess = self.guesses.front().filter(|_| self.stage != TrialStage::Untyped);
        guess.and_then(|guess| guess.types(&self.shapes)).unwrap_or_default()
    }

    fn concluded(self, statement: TypingState) -> TrialOutcome {
        TrialOutcome::Concluded { statement, shapes: self.shapes }
    }

    fn next(mut self: Box<Self>, result: &TrialResult) -> TrialOutcome {
        let works = result.is_bound && result.failure.is_none();
        match self.stage {
            TrialStage::Untyped if works => {
                let is_text = |(at, shape): (usize, &ValueShape)| {
                    // 25 text, 1043 varchar, 705 unknown.
                    matches!(result.types.get(at), Some(25 | 1043 | 705)) && shape.is_measure()
                };
                let only: Vec<bool> = self.shapes.iter().enumerate().map(is_text).collect();
                // The guess is harmless unless another part of the statement compares as text.
                if !only.contains(&true)
                    || PlaceholderContext::from_sql(self.sql.as_bytes())
                        != PlaceholderContext::Textual
                {
                    return self.concluded(TypingState::AsIs);
                }
                self.guesses = TypeGuess::all(Some(&only), &self.shapes);
                self.next_guess(true)
            }
            TrialStage::Untyped => match &result.failure {
                Some(failure) if is_missing_types(failure) => {
                    self.guesses = TypeGuess::all(None, &self.shapes);
                    self.next_guess(false)
                }
                // The statement fails for another reason, so types do not help.
                _ => self.concluded(TypingState::AsIs),
            },
            TrialStage::Guess { .. } if works => {
                let Some(guess) = self.guesses.pop_front() else {
                    return self.concluded(TypingState::Untypable);
                };
                let variant = TypeVariant { shapes: self.shapes.clone(), guess };
                self.concluded(TypingState::Typed(vec![variant]))
            }
            TrialStage::Guess { works_untyped } => {
                self.guesses.pop_front();
                self.next_guess(works_untyped)
            }
        }
    }

    fn next_guess(mut self: Box<Self>, works_untyped: bool) -> TrialOutcome {
        self.stage = TrialStage::Guess { works_untyped };
        if !self.guesses.is_empty() {
            return TrialOutcome::Try(self);
        }
        let statement = match works_untyped {
            true => TypingState::AsIs,
            // Further values may provide more evidence.
            false if self.shapes.contains(&ValueShape::Unknown) => TypingState::Refused,
            false => TypingState::Untypable,
        };
        self.concluded(statement)
    }
}

impl TypeGuess {
    /// A guess that gives no types at all.
    fn untyped() -> Self {
        Self {
            only: Some(Vec::new()),
            names_texts: false,
            time_is_interval: false,
            numeric_is_float: false,
        }
    }

    /// Returns the guesses that differ for these shapes, the most likely first.
    fn all(only: Option<&Vec<bool>>, shapes: &[ValueShape]) -> VecDeque<Self> {
        let mut guesses: VecDeque<Self> = VecDeque::new();
        let mut tried = Vec::new();
        for numeric_is_float in [false, true] {
            for time_is_interval in [false, true] {
                for names_texts in [false, true] {
                    let only = only.cloned();
                    let guess = Self { only, names_texts, time_is_interval, numeric_is_float };
                    if let Some(types) = guess.types(shapes).filter(|types| !tried.contains(types))
                    {
                        tried.push(types);
                        guesses.push_back(guess);
                    }
                }
            }
        }
        guesses
    }

    /// Returns the types; `None` if all are left to the server.
    fn types(&self, shapes: &[ValueShape]) -> Option<Arc<[u32]>> {
        // 25 is text.
        let oid = |(at, shape): (usize, &ValueShape)| match shape {
            _ if self.only.as_ref().is_some_and(|only| !only.get(at).is_some_and(|it| *it)) => 0,
            ValueShape::One(Scalar::Text) if self.names_texts => 25,
            shape => shape
                .with_scalar(|scalar| match scalar {
                    Scalar::Time if self.time_is_interval => Scalar::Interval,
                    Scalar::Numeric if self.numeric_is_float => Scalar::Float8,
                    scalar => scalar,
                })
                .oid(),
        };
        let types: Arc<[u32]> = shapes.iter().enumerate().map(oid).collect();
        types.iter().any(|oid| *oid != 0).then_some(types)
    }
}

impl ValueShape {
    /// Whether values of this kind sort differently from their text form.
    fn is_measure(self) -> bool {
        use Scalar::{Date, Float8, Int4, Int8, Interval, Numeric, Time, Timestamp, TimestampTz};
        let is_measure = |scalar| {
            matches!(
                scalar,
                Int4 | Int8 | Numeric | Float8 | Date | Timestamp | TimestampTz | Time | Interval
            )
        };
        self.scalar().is_some_and(is_measure)
    }
}

fn parameter_shape(value: &Parameter) -> ValueShape {
    match value {
        Parameter::Null => ValueShape::Unknown,
        Parameter::Value(text) => ValueShape::from_value(text.as_bytes()),
        Parameter::Truncated(_) => ValueShape::One(Scalar::Text),
    }
}

/// Whether a server reports this error if types are missing or wrong: at Parse, or at Bind if the
/// value does not fit the type that the server chose.
pub(crate) fn is_missing_types(failure: &ReplayFailure) -> bool {
    // ambiguous_function, indeterminate_datatype, ambiguous_parameter, datatype_mismatch,
    // undefined_function, cannot_coerce, wrong_object_type; then for values:
    // invalid_datetime_format, datetime_field_overflow, invalid_text_representation.
    const CODES: [&[u8]; 10] = [
        b"42725", b"42P18", b"42P08", b"42804", b"42883", b"42846", b"42809", b"22007", b"22008",
        b"22P02",
    ];
    failure.sqlstate.is_some_and(|code| CODES.contains(&code.as_str().as_bytes()))
}

#[cfg(test)]
mod tests;
