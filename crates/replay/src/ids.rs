//! [`GeneratedIds`]: values that the target generated in place of captured ones.
//!
//! A target whose sequences are elsewhere than those of the captured server returns other numbers
//! from `INSERT … RETURNING id` than its client got, and so do functions such as
//! `gen_random_uuid`. Later statements contain the captured numbers. Replacing them lets these
//! statements find the rows that they found when they were captured.
//!
//! ```text
//! captured:  insert … returning id → 17      select … where id = 17
//! replayed:  insert … returning id → 2003    select … where id = 2003
//! ```
//!
//! A captured value is looked up among those that its own session got, then among those of all
//! sessions. Whole numbers and UUIDs are replaced, in bound values of both formats and in constants
//! of statements. A number that equals a generated one by chance is replaced, too.

use std::{
    borrow::Cow,
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use howdah_sql::{Lexer, TokenKind};
use howdah_traffic::{CapturedResult, ResultDigest, WireDetail};
use howdah_wire::{Backend, Frame, backend::BackendMessage};
use parking_lot::Mutex;

/// Maximum number of values of one session; beyond it, the table is cleared.
const SESSION_MAX: usize = 10_000;

/// Maximum number of values of all sessions; beyond it, the table is cleared.
const SHARED_MAX: usize = 1_000_000;

/// A value that a server may generate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum GeneratedValue {
    Integer(i64),
    Uuid(u128),
}

/// The values of all sessions.
#[derive(Debug, Default)]
pub(crate) struct SharedIds {
    /// Whether `replacements` has entries, so that most lookups need no lock.
    has_any: AtomicBool,
    replacements: Mutex<HashMap<GeneratedValue, GeneratedValue>>,
}

/// The values of one session, and of all others.
#[derive(Debug)]
pub(crate) struct GeneratedIds {
    shared: Arc<SharedIds>,
    own: HashMap<GeneratedValue, GeneratedValue>,
}

impl GeneratedIds {
    pub(crate) fn new(shared: Arc<SharedIds>) -> Self {
        Self { shared, own: HashMap::new() }
    }

    /// Records the values that the target generated where the captured server had generated others.
    pub(crate) fn note(
        &mut self,
        wire: &WireDetail,
        captured: &CapturedResult,
        replayed: &ResultDigest,
    ) {
        let Some(first_row) = &captured.first_row else { return };
        let frame = Frame { tag: Backend::DataRow.tag(), body: replayed.first_row() };
        let Ok(BackendMessage::DataRow(cells)) = BackendMessage::parse(frame) else { return };
        for (at, (before, now)) in first_row.iter().zip(cells).enumerate() {
            let (Some(before), Some(now)) = (before, now) else { continue };
            let is_binary = wire.is_binary_result(at);
            let before = GeneratedValue::from_bytes(before.as_bytes(), is_binary);
            let now = GeneratedValue::from_bytes(now, is_binary);
            let (Some(before), Some(now)) = (before, now) else { continue };
            if std::mem::discriminant(&before) != std::mem::discriminant(&now) {
                continue;
            }
            // An equal value is recorded only if it replaces another one.
            if before != now || self.own.contains_key(&before) {
                limit(&mut self.own, SESSION_MAX);
                self.own.insert(before, now);
            }
            let mut replacements = self.shared.replacements.lock();
            if before != now || replacements.contains_key(&before) {
                limit(&mut replacements, SHARED_MAX);
                replacements.insert(before, now);
                self.shared.has_any.store(true, Ordering::Relaxed);
            }
        }
    }

    /// Whether nothing is to be replaced.
    fn is_empty(&self) -> bool {
        self.own.is_empty() && !self.shared.has_any.load(Ordering::Relaxed)
    }

    fn replacement(&self, value: GeneratedValue) -> Option<GeneratedValue> {
        let own = self.own.get(&value).copied();
        own.or_else(|| self.shared.replacements.lock().get(&value).copied())
            .filter(|replacement| *replacement != value)
    }

    /// Returns the value to bind in place of a captured one.
    pub(crate) fn bound_value<'a>(&self, bytes: &'a [u8], is_binary: bool) -> Cow<'a, [u8]> {
        if self.is_empty() {
            return Cow::Borrowed(bytes);
        }
        let replaced = GeneratedValue::from_bytes(bytes, is_binary)
            .and_then(|value| self.replacement(value))
            .and_then(|value| value.to_bytes(is_binary, bytes.len()));
        replaced.map_or(Cow::Borrowed(bytes), Cow::Owned)
    }

    /// Returns the text of a statement with its constants replaced.
    pub(crate) fn statement<'a>(&self, sql: Cow<'a, [u8]>) -> Cow<'a, [u8]> {
        if self.is_empty() {
            return sql;
        }
        let mut replaced = Vec::new();
        let mut is_changed = false;
        for token in Lexer::new(&sql) {
            let text = token.text;
            let inner = match token.kind {
                TokenKind::Number => text,
                TokenKind::String => text
                    .strip_prefix(b"'")
                    .and_then(|text| text.strip_suffix(b"'"))
                    .unwrap_or_default(),
                _ => b"",
            };
            let value = GeneratedValue::from_bytes(inner, false);
            match value.and_then(|value| self.replacement(value)) {
                Some(value) => {
                    let quote = if token.kind == TokenKind::String { "'" } else { "" };
                    replaced.extend(format!("{quote}{}{quote}", value.to_text()).into_bytes());
                    is_changed = true;
                }
                None => replaced.extend_from_slice(text),
            }
        }
        if is_changed { Cow::Owned(replaced) } else { sql }
    }
}

fn limit<K, V>(values: &mut HashMap<K, V>, max: usize) {
    if values.len() >= max {
        values.clear();
    }
}

impl GeneratedValue {
    /// Reads a value of a type with whole numbers, or a UUID; `None` for others.
    fn from_bytes(bytes: &[u8], is_binary: bool) -> Option<Self> {
        if is_binary {
            return match bytes.len() {
                2 => Some(Self::Integer(i16::from_be_bytes(bytes.try_into().ok()?).into())),
                4 => Some(Self::Integer(i32::from_be_bytes(bytes.try_into().ok()?).into())),
                8 => Some(Self::Integer(i64::from_be_bytes(bytes.try_into().ok()?))),
                16 => Some(Self::Uuid(u128::from_be_bytes(bytes.try_into().ok()?))),
                _ => None,
            };
        }
        match bytes.len() {
            1..=19 if bytes[0] != b'0' && bytes.iter().all(u8::is_ascii_digit) => {
                std::str::from_utf8(bytes).ok()?.parse().ok().map(Self::Integer)
            }
            36 => uuid(bytes).map(Self::Uuid),
            _ => None,
        }
    }

    fn to_text(self) -> String {
        match self {
            Self::Integer(number) => number.to_string(),
            Self::Uuid(number) => {
                let digits = format!("{number:032x}");
                let part = |from: usize, to: usize| &digits[from..to];
                [part(0, 8), part(8, 12), part(12, 16), part(16, 20), part(20, 32)].join("-")
            }
        }
    }

    /// Returns the value in the format and, if binary, the length of another one; `None` if it does
    /// not fit.
    fn to_bytes(self, is_binary: bool, length: usize) -> Option<Vec<u8>> {
        match self {
            _ if !is_binary => Some(self.to_text().into_bytes()),
            Self::Uuid(number) => Some(number.to_be_bytes().to_vec()),
            Self::Integer(number) => match length {
                2 => Some(i16::try_from(number).ok()?.to_be_bytes().to_vec()),
                4 => Some(i32::try_from(number).ok()?.to_be_bytes().to_vec()),
                _ => Some(number.to_be_bytes().to_vec()),
            },
        }
    }
}

/// Parses a UUID as the server writes it, in either case.
fn uuid(text: &[u8]) -> Option<u128> {
    let mut number = 0;
    for (at, byte) in text.iter().enumerate() {
        if matches!(at, 8 | 13 | 18 | 23) {
            if *byte != b'-' {
                return None;
            }
            continue;
        }
        let digit = char::from(*byte).to_digit(16)?;
        number = number << 4 | u128::from(digit);
    }
    Some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(values: &[&[u8]]) -> ResultDigest {
        let mut body = (values.len() as u16).to_be_bytes().to_vec();
        for value in values {
            body.extend((value.len() as u32).to_be_bytes());
            body.extend_from_slice(value);
        }
        let mut digest = ResultDigest::default();
        digest.add_row(&body);
        digest
    }

    fn captured(values: &[&[u8]]) -> CapturedResult {
        let first_row = values.iter().map(|value| Some((*value).into())).collect();
        CapturedResult { checksum: 0, first_row: Some(first_row) }
    }

    const OLD: &str = "0b7c3f1e-90ab-4cde-8f01-23456789abcd";
    const NEW: &str = "ffffffff-0000-4000-8000-000000000001";

    fn learned() -> GeneratedIds {
        let mut ids = GeneratedIds::new(Arc::default());
        ids.note(
            &WireDetail::default(),
            &captured(&[b"17", OLD.as_bytes(), b"a name"]),
            &row(&[b"2003", NEW.as_bytes(), b"another"]),
        );
        ids
    }

    #[test]
    fn values_are_replaced_in_both_formats() {
        let ids = learned();
        let bound = |value: &[u8], is_binary| ids.bound_value(value, is_binary).into_owned();
        assert_eq!(bound(b"17", false), b"2003");
        assert_eq!(bound(b"18", false), b"18");
        assert_eq!(bound(b"a name", false), b"a name");
        assert_eq!(bound(&17_i64.to_be_bytes(), true), 2003_i64.to_be_bytes());
        assert_eq!(bound(&17_i32.to_be_bytes(), true), 2003_i32.to_be_bytes());
        assert_eq!(bound(OLD.to_uppercase().as_bytes(), false), NEW.as_bytes());
        let binary = |text: &str| uuid(text.as_bytes()).unwrap().to_be_bytes();
        assert_eq!(bound(&binary(OLD), true), binary(NEW));
    }

    #[test]
    fn constants_of_statements_are_replaced() {
        let ids = learned();
        let sql = format!("select '17', 17, 170, $17, c17, 'x17' /* 17 */ where u = '{OLD}'");
        let replaced = ids.statement(Cow::Borrowed(sql.as_bytes()));
        let expected =
            format!("select '2003', 2003, 170, $17, c17, 'x17' /* 17 */ where u = '{NEW}'");
        assert_eq!(String::from_utf8_lossy(&replaced), expected);
        let untouched = b"select 1";
        assert!(matches!(ids.statement(Cow::Borrowed(untouched)), Cow::Borrowed(_)));
    }

    #[test]
    fn own_values_come_before_those_of_other_sessions() {
        let shared: Arc<SharedIds> = Arc::default();
        let mut own = GeneratedIds::new(shared.clone());
        let mut other = GeneratedIds::new(shared.clone());
        let wire = WireDetail::default();
        own.note(&wire, &captured(&[b"5"]), &row(&[b"50"]));
        other.note(&wire, &captured(&[b"5"]), &row(&[b"60"]));
        assert_eq!(&*own.bound_value(b"5", false), b"50");
        assert_eq!(&*other.bound_value(b"5", false), b"60");
        assert_eq!(&*GeneratedIds::new(shared).bound_value(b"5", false), b"60");
        // The target has generated the captured value this time.
        own.note(&wire, &captured(&[b"5"]), &row(&[b"5"]));
        assert_eq!(&*own.bound_value(b"5", false), b"5");
    }

    #[test]
    fn value_that_does_not_fit_is_left_alone() {
        let mut ids = GeneratedIds::new(Arc::default());
        ids.note(&WireDetail::default(), &captured(&[b"7"]), &row(&[b"70000"]));
        assert_eq!(&*ids.bound_value(&7_i16.to_be_bytes(), true), 7_i16.to_be_bytes());
        assert_eq!(GeneratedValue::from_bytes(b"007", false), None);
        assert_eq!(GeneratedValue::from_bytes(b"-7", false), None);
        assert_eq!(GeneratedValue::from_bytes(b"", true), None);
    }
}
