//! Parameter types that a log does not hold.
//!
//! A driver's Parse gives types for its parameters, which no log shows. Without them PostgreSQL refuses some
//! statements (`select $1 + $2`), and compares others as texts (`select $1 < $2`). For these the types
//! are deduced from the values: those of the execution at hand, and then those of all later executions, so that
//! the types widen with the values. A capture of the wire holds the types, and nothing is deduced.
//!
//! Whether a statement needs types is found out once for each fingerprint:
//!
//! ```text
//! all placeholders beside columns or casts      sent as it is
//! others, outside of a transaction              sent as it is; when it is refused, tried with types
//! others, inside of a transaction or pipeline   tried before it is sent: a refusal would abort all of it
//! placeholders compared with one another        tried before it is sent, to see what the server makes of it
//! ```
//!
//! A try is Parse, Describe and Bind without Execute, under names of its own; inside of a transaction it
//! stands between SAVEPOINT and ROLLBACK TO SAVEPOINT.

mod context;
mod shape;

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, PoisonError},
};

use howdah_sql::{Fingerprint, Fingerprinter, placeholder_count};
use howdah_traffic::{Event, Parameter, Text};

use self::{
    context::Context,
    shape::{Scalar, Shape},
};
use crate::link::Failure;

/// What is known of statements without types, shared by all sessions.
#[derive(Debug)]
pub(crate) struct ParameterTypes {
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    fingerprinter: Fingerprinter,
    statements: HashMap<Key, Statement>,
}

/// A statement: its database, its fingerprint, and its number of parameters, which literals in
/// their places change.
type Key = (Arc<str>, Fingerprint, usize);

/// Statements that are remembered, at most; then all are forgotten.
const STATEMENTS_MAX: usize = 64 << 10;

/// Bytes of texts whose fingerprints are remembered.
const FINGERPRINTS_BYTES: usize = 8 << 20;

/// What to do with a statement.
#[derive(Clone, Debug)]
enum Statement {
    /// Its text was looked at, and no server was asked.
    Unasked(Context),
    /// It works without types.
    AsIs,
    /// It was refused without types.
    Refused,
    /// It is sent with types: those of the variant that its values fit, for a fingerprint says nothing of
    /// the constants by which `to_char($1, 'YYYY')` and `to_char($1, '999')` differ. Never empty.
    Typed(Vec<Variant>),
    /// No types make it work: it fails as it is.
    Hopeless,
}

/// Values of one kind, and the types that work for them.
#[derive(Clone, Debug)]
struct Variant {
    shapes: Vec<Shape>,
    guess: Guess,
}

/// Variants of a statement that are remembered; values of further kinds are sent without types.
const VARIANTS_MAX: usize = 8;

impl Variant {
    /// The types for these values, after widening its own shapes to cover them; `None` if they are of
    /// another kind.
    fn types_for(&mut self, values: &[Parameter]) -> Option<Option<Arc<[u32]>>> {
        let text = Shape::One(Scalar::Text);
        let mut widened = self.shapes.clone();
        for (shape, value) in widened.iter_mut().zip(values) {
            let joined = shape.join(shape_of(value));
            // A parameter that was a text can be anything; one that was not has to stay what it was.
            if joined == text && *shape != text {
                return None;
            }
            *shape = joined;
        }
        self.shapes = widened;
        Some(self.guess.types(&self.shapes))
    }
}

/// How types are made of shapes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Guess {
    /// Only for these parameters; for all if `None`.
    only: Option<Vec<bool>>,
    /// Texts are given as `text`.
    names_texts: bool,
    /// A time of day is an interval.
    time_is_interval: bool,
    /// A number with decimals is a `double precision`.
    numeric_is_float: bool,
}

/// What to send for an execution.
#[derive(Debug)]
pub(crate) enum Decision {
    /// Types that were deduced, or none.
    Send(Option<Arc<[u32]>>),
    /// Try this first.
    Try(Box<Probe>),
}

/// A try of a statement with certain types.
#[derive(Debug)]
pub(crate) struct Probe {
    key: Key,
    pub(crate) sql: Text,
    pub(crate) values: Vec<Parameter>,
    shapes: Vec<Shape>,
    stage: Stage,
    guesses: VecDeque<Guess>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Without types.
    Untyped,
    /// With the first of the guesses.
    Guess {
        /// It works without types, too.
        works_untyped: bool,
    },
}

/// What a server made of a try: the types of all parameters, or why it refused.
#[derive(Debug, Default)]
pub(crate) struct ProbeResult {
    pub(crate) types: Vec<u32>,
    pub(crate) is_bound: bool,
    pub(crate) failure: Option<Failure>,
}

impl Default for ParameterTypes {
    fn default() -> Self {
        let fingerprinter = Fingerprinter::with_capacity(FINGERPRINTS_BYTES);
        Self { inner: Mutex::new(Inner { fingerprinter, statements: HashMap::new() }) }
    }
}

impl ParameterTypes {
    /// What to send for an execution of `sql` with `values`. `is_fragile`: a refusal would abort more than
    /// the statement itself. `can_try` is false where the server would refuse whatever is tried.
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
        let is_to_be_tried = match statement {
            Some(Statement::AsIs | Statement::Hopeless) => false,
            Some(Statement::Refused) => true,
            Some(Statement::Unasked(context)) => context.wants_try(is_fragile),
            Some(Statement::Typed(variants)) => {
                let types = variants.iter_mut().find_map(|variant| variant.types_for(values));
                if let Some(types) = types {
                    return Decision::Send(types);
                }
                variants.len() < VARIANTS_MAX
            }
            None => {
                let context = Context::of(sql.as_bytes());
                inner.remember(key.clone(), Statement::Unasked(context));
                context.wants_try(is_fragile)
            }
        };
        // There is no way to write a zero byte.
        if !is_to_be_tried || !can_try || sql.as_bytes().contains(&0) {
            return Decision::Send(None);
        }
        Decision::Try(Box::new(Probe::new(key, sql.clone(), values.to_vec())))
    }

    /// Types that are known for a Parse of which no values are at hand.
    pub(crate) fn known(&self, event: &Event) -> Option<Arc<[u32]>> {
        let sql = event.action.sql()?;
        let count = usize::from(placeholder_count(sql.as_bytes()));
        let mut inner = self.lock();
        let key = inner.key(event, sql, count);
        match inner.statements.get(&key)? {
            Statement::Typed(variants) => {
                let Variant { shapes, guess } = variants.first()?;
                guess.types(shapes)
            }
            _ => None,
        }
    }

    /// Takes note that the server refused a statement without types. True if types are to be tried.
    pub(crate) fn refused(&self, event: &Event, failure: &Failure) -> bool {
        let Some(sql) = event.action.sql().filter(|_| is_want_of_types(failure)) else {
            return false;
        };
        let count = usize::from(placeholder_count(sql.as_bytes()));
        let mut inner = self.lock();
        let key = inner.key(event, sql, count);
        match inner.statements.get(&key) {
            Some(Statement::Hopeless | Statement::Typed(_)) => false,
            Some(Statement::Refused | Statement::AsIs | Statement::Unasked(_)) | None => {
                inner.remember(key, Statement::Refused);
                true
            }
        }
    }

    /// Takes in what became of a try. The next one, if another is worth it.
    pub(crate) fn conclude(&self, probe: Box<Probe>, result: &ProbeResult) -> Option<Box<Probe>> {
        let key = probe.key.clone();
        match probe.next(result) {
            Next::Try(probe) => Some(probe),
            Next::Known { statement, shapes } => {
                self.lock().learn(key, statement, shapes);
                None
            }
        }
    }

    /// Gives up a statement that the protocol has no bytes for.
    pub(crate) fn give_up(&self, probe: &Probe) {
        self.lock().remember(probe.key.clone(), Statement::Hopeless);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        // A panic elsewhere leaves a table that is still a table.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn key(&mut self, event: &Event, sql: &Text, count: usize) -> Key {
        let fingerprint = self.fingerprinter.shape(sql.as_bytes()).fingerprint;
        (event.database.clone(), fingerprint, count)
    }

    /// Remembers what came of a try with values of these shapes.
    fn learn(&mut self, key: Key, statement: Statement, shapes: Vec<Shape>) {
        let Some(Statement::Typed(variants)) = self.statements.get_mut(&key) else {
            return self.remember(key, statement);
        };
        // Others of its values need types: these have a variant without any.
        let variant = match statement {
            Statement::Typed(mut new) => new.pop(),
            _ => Some(Variant { shapes, guess: Guess::nothing() }),
        };
        variants.extend(variant);
    }

    fn remember(&mut self, key: Key, statement: Statement) {
        if self.statements.len() >= STATEMENTS_MAX {
            self.statements.clear();
        }
        self.statements.insert(key, statement);
    }
}

impl Context {
    fn wants_try(self, is_fragile: bool) -> bool {
        match self {
            Self::Given => false,
            Self::Open => is_fragile,
            Self::Textual => true,
        }
    }
}

enum Next {
    Try(Box<Probe>),
    Known { statement: Statement, shapes: Vec<Shape> },
}

impl Probe {
    fn new(key: Key, sql: Text, values: Vec<Parameter>) -> Self {
        let shapes = values.iter().map(shape_of).collect();
        Self { key, sql, values, shapes, stage: Stage::Untyped, guesses: VecDeque::new() }
    }

    /// The types to try.
    pub(crate) fn types(&self) -> Arc<[u32]> {
        let guess = self.guesses.front().filter(|_| self.stage != Stage::Untyped);
        guess.and_then(|guess| guess.types(&self.shapes)).unwrap_or_default()
    }

    fn known(self, statement: Statement) -> Next {
        Next::Known { statement, shapes: self.shapes }
    }

    fn next(mut self: Box<Self>, result: &ProbeResult) -> Next {
        let works = result.is_bound && result.failure.is_none();
        match self.stage {
            Stage::Untyped if works => {
                let is_text = |(at, shape): (usize, &Shape)| {
                    // 25 text, 1043 varchar, 705 unknown.
                    matches!(result.types.get(at), Some(25 | 1043 | 705)) && shape.is_measure()
                };
                let only: Vec<bool> = self.shapes.iter().enumerate().map(is_text).collect();
                // Of what the text does not compare, being a text is no harm.
                if !only.contains(&true) || Context::of(self.sql.as_bytes()) != Context::Textual {
                    return self.known(Statement::AsIs);
                }
                self.guesses = Guess::all(Some(&only), &self.shapes);
                self.guess_on(true)
            }
            Stage::Untyped => match &result.failure {
                Some(failure) if is_want_of_types(failure) => {
                    self.guesses = Guess::all(None, &self.shapes);
                    self.guess_on(false)
                }
                // It fails for another reason: types are no help.
                _ => self.known(Statement::AsIs),
            },
            Stage::Guess { .. } if works => {
                let Some(guess) = self.guesses.pop_front() else {
                    return self.known(Statement::Hopeless);
                };
                let variant = Variant { shapes: self.shapes.clone(), guess };
                self.known(Statement::Typed(vec![variant]))
            }
            Stage::Guess { works_untyped } => {
                self.guesses.pop_front();
                self.guess_on(works_untyped)
            }
        }
    }

    fn guess_on(mut self: Box<Self>, works_untyped: bool) -> Next {
        self.stage = Stage::Guess { works_untyped };
        if !self.guesses.is_empty() {
            return Next::Try(self);
        }
        let statement = match works_untyped {
            true => Statement::AsIs,
            // The next values may show more.
            false if self.shapes.contains(&Shape::Unknown) => Statement::Refused,
            false => Statement::Hopeless,
        };
        self.known(statement)
    }
}

impl Guess {
    /// No types at all.
    fn nothing() -> Self {
        Self {
            only: Some(Vec::new()),
            names_texts: false,
            time_is_interval: false,
            numeric_is_float: false,
        }
    }

    /// Guesses that differ for these shapes, the most likely first.
    fn all(only: Option<&Vec<bool>>, shapes: &[Shape]) -> VecDeque<Self> {
        let mut guesses: VecDeque<Self> = VecDeque::new();
        let mut seen = Vec::new();
        for numeric_is_float in [false, true] {
            for time_is_interval in [false, true] {
                for names_texts in [false, true] {
                    let only = only.cloned();
                    let guess = Self { only, names_texts, time_is_interval, numeric_is_float };
                    if let Some(types) = guess.types(shapes).filter(|types| !seen.contains(types)) {
                        seen.push(types);
                        guesses.push_back(guess);
                    }
                }
            }
        }
        guesses
    }

    /// The types; `None` where all are left to the server.
    fn types(&self, shapes: &[Shape]) -> Option<Arc<[u32]>> {
        // 25 is text.
        let oid = |(at, shape): (usize, &Shape)| match shape {
            _ if self.only.as_ref().is_some_and(|only| !only.get(at).is_some_and(|it| *it)) => 0,
            Shape::One(Scalar::Text) if self.names_texts => 25,
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

impl Shape {
    /// Whether it has an order of its own, which is not that of its text.
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

fn shape_of(value: &Parameter) -> Shape {
    match value {
        Parameter::Null => Shape::Unknown,
        Parameter::Value(text) => Shape::of(text.as_bytes()),
        Parameter::Truncated(_) => Shape::One(Scalar::Text),
    }
}

/// Whether a server refuses so what it was given no types, or the wrong ones, for: at Parse, or at Bind
/// where the value is not one of the type that it chose.
pub(crate) fn is_want_of_types(failure: &Failure) -> bool {
    // ambiguous_function, indeterminate_datatype, ambiguous_parameter, datatype_mismatch,
    // undefined_function, cannot_coerce, wrong_object_type; then of a value:
    // invalid_datetime_format, datetime_field_overflow, invalid_text_representation.
    const CODES: [&[u8]; 10] = [
        b"42725", b"42P18", b"42P08", b"42804", b"42883", b"42846", b"42809", b"22007", b"22008",
        b"22P02",
    ];
    failure.sqlstate.is_some_and(|code| CODES.contains(&code.as_str().as_bytes()))
}

#[cfg(test)]
mod tests;
