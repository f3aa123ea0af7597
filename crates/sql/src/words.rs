//! The few words of SQL's grammar that the normal form depends on.
//!
//! Comparisons ignore ASCII case. A word that is missing here costs a sign or a `NULL` its folding,
//! nothing else.

/// What is due behind a keyword.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    /// A value or a parenthesis, but a NULL would be part of the grammar: `SET NULL`, `NOT NULL`.
    Value,
    /// A value, which may be NULL.
    ValueOrNull,
    /// `IN`: a list or a subquery.
    List,
    /// `VALUES`: rows.
    Rows,
    /// `ARRAY`: a bracket.
    Array,
}

/// What `word` announces, if it is a keyword that announces something.
pub(crate) fn due(word: &[u8]) -> Option<Due> {
    const LONGEST: usize = 9;
    let mut lower = [0; LONGEST];
    let lower = lower.get_mut(..word.len())?;
    lower.copy_from_slice(word);
    lower.make_ascii_lowercase();
    match &*lower {
        b"in" => Some(Due::List),
        b"values" => Some(Due::Rows),
        b"array" => Some(Due::Array),
        b"and" | b"between" | b"else" | b"limit" | b"offset" | b"or" | b"return" | b"returning"
        | b"select" | b"then" | b"when" | b"where" => Some(Due::ValueOrNull),
        b"all" | b"any" | b"as" | b"by" | b"case" | b"default" | b"distinct" | b"except"
        | b"exists" | b"filter" | b"for" | b"from" | b"having" | b"ilike" | b"intersect"
        | b"into" | b"is" | b"join" | b"lateral" | b"like" | b"not" | b"on" | b"over" | b"set"
        | b"similar" | b"some" | b"to" | b"union" | b"using" | b"with" => Some(Due::Value),
        _ => None,
    }
}

/// Whether `word` is a constant that is spelt like a keyword.
pub(crate) fn is_constant(word: &[u8]) -> bool {
    is_one_of(word, &["null", "true", "false"])
}

/// Whether the statement that begins with `word` names nothing but what the client made up for the
/// moment: drivers count savepoints and prepared statements, and each number would be a shape.
pub(crate) fn folds_names(word: &[u8]) -> bool {
    is_one_of(word, &["savepoint", "release", "rollback", "deallocate"])
}

/// Whether `word` is a keyword, not a name, in a statement that [`folds_names`].
pub(crate) fn belongs_to_savepoint_grammar(word: &[u8]) -> bool {
    is_one_of(
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

fn is_one_of(word: &[u8], words: &[&str]) -> bool {
    words.iter().any(|known| word.eq_ignore_ascii_case(known.as_bytes()))
}
