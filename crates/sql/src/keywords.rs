//! The SQL keywords that affect the normal form.
//!
//! Comparisons ignore ASCII case. A keyword that is missing here only means that a sign or `NULL`
//! after it is not folded.

/// The syntax element that may follow a keyword.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expectation {
    /// A value or a parenthesis. A NULL after the keyword is not a value but syntax: `SET NULL`,
    /// `NOT NULL`.
    Value,
    /// A value, which may be NULL.
    ValueOrNull,
    /// A list or a subquery, after `IN`.
    List,
    /// Rows, after `VALUES`.
    Rows,
    /// An opening bracket, after `ARRAY`.
    Array,
}

/// Returns the element that may follow `word`, if it is a keyword in the table.
pub(crate) fn expected_after(word: &[u8]) -> Option<Expectation> {
    const LONGEST: usize = 9;
    let mut lower = [0; LONGEST];
    let lower = lower.get_mut(..word.len())?;
    lower.copy_from_slice(word);
    lower.make_ascii_lowercase();
    match &*lower {
        b"in" => Some(Expectation::List),
        b"values" => Some(Expectation::Rows),
        b"array" => Some(Expectation::Array),
        b"and" | b"between" | b"else" | b"limit" | b"offset" | b"or" | b"return" | b"returning"
        | b"select" | b"then" | b"when" | b"where" => Some(Expectation::ValueOrNull),
        b"all" | b"any" | b"as" | b"by" | b"case" | b"default" | b"distinct" | b"except"
        | b"exists" | b"filter" | b"for" | b"from" | b"having" | b"ilike" | b"intersect"
        | b"into" | b"is" | b"join" | b"lateral" | b"like" | b"not" | b"on" | b"over" | b"set"
        | b"similar" | b"some" | b"to" | b"union" | b"using" | b"with" => Some(Expectation::Value),
        _ => None,
    }
}

/// Whether `word` is a constant that is spelled like a keyword.
pub(crate) fn is_constant(word: &[u8]) -> bool {
    matches_any(word, &["null", "true", "false"])
}

/// Whether names are folded in a statement that starts with `word`. Drivers number savepoints and
/// prepared statements; without folding, each number would have its own shape.
pub(crate) fn folds_names(word: &[u8]) -> bool {
    matches_any(word, &["savepoint", "release", "rollback", "deallocate"])
}

/// Whether `word` is a keyword rather than a name in a statement that [`folds_names`].
pub(crate) fn belongs_to_savepoint_grammar(word: &[u8]) -> bool {
    matches_any(
        word,
        &[
            "savepoint",
            "to",
            "work",
            "transaction",
            "prepare",
            "prepared",
            "all",
            "and",
            "no",
            "chain",
        ],
    )
}

fn matches_any(word: &[u8], keywords: &[&str]) -> bool {
    keywords.iter().any(|keyword| word.eq_ignore_ascii_case(keyword.as_bytes()))
}
