//! [`PlaceholderContext`]: whether the text around placeholders determines their types.

use howdah_sql::{Lexer, SqlToken, TokenKind};

/// Information in a statement's text about the types of its placeholders, found without system
/// catalogs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PlaceholderContext {
    /// The type of each placeholder is determined by the text around it, such as a column, a cast
    /// or a keyword.
    Typed,
    /// Some placeholders may have no type or an ambiguous one, so the server may refuse the
    /// statement without types.
    Open,
    /// Some placeholders are compared with one another or with string constants, or are in a VALUES
    /// list used as a table. Without types, PostgreSQL treats these as text.
    Textual,
}

impl PlaceholderContext {
    pub(crate) fn from_sql(sql: &[u8]) -> Self {
        let tokens: Vec<_> = Lexer::new(sql)
            .filter(|token| !matches!(token.kind, TokenKind::Space | TokenKind::Comment))
            .collect();
        let text = Tokens(&tokens);
        let placeholders =
            || (0..tokens.len()).filter(|at| tokens[*at].kind == TokenKind::Placeholder);
        if (0..tokens.len()).any(|at| text.compares_as_text(at)) {
            Self::Textual
        } else if placeholders().all(|at| text.is_typed(at)) {
            Self::Typed
        } else {
            Self::Open
        }
    }
}

struct Tokens<'a>(&'a [SqlToken<'a>]);

impl Tokens<'_> {
    fn text(&self, at: usize) -> &[u8] {
        self.0.get(at).map_or(b"", |token| token.text)
    }

    fn kind(&self, at: usize) -> Option<TokenKind> {
        self.0.get(at).map(|token| token.kind)
    }

    fn is_word(&self, at: usize, words: &[&str]) -> bool {
        self.kind(at) == Some(TokenKind::Word)
            && words.iter().any(|word| self.text(at).eq_ignore_ascii_case(word.as_bytes()))
    }

    fn is_comparison(&self, at: usize) -> bool {
        matches!(self.text(at), b"=" | b"<" | b">" | b"<=" | b">=" | b"<>" | b"!=")
    }

    /// Whether this token is a placeholder or a string constant without a cast, neither of which
    /// has a type.
    fn is_untyped(&self, at: usize) -> bool {
        matches!(self.kind(at), Some(TokenKind::Placeholder | TokenKind::String))
            && self.kind(at + 1) != Some(TokenKind::Cast)
            // In `date '2026-11-20'` the word is the type.
            && !(self.kind(at) == Some(TokenKind::String)
                && at > 0
                && self.kind(at - 1) == Some(TokenKind::Word)
                && self.is_word(at - 1, &TYPE_WORDS))
    }

    /// Whether an expression whose untyped operands PostgreSQL treats as text starts at this token:
    /// a comparison, GREATEST, LEAST, NULLIF or a VALUES list.
    fn compares_as_text(&self, at: usize) -> bool {
        // The token before an untyped operand must not make it the operand of another operator.
        let is_start = |at: usize| {
            at == 0
                || (self.kind(at - 1) != Some(TokenKind::Operator)
                    && self.kind(at - 1) != Some(TokenKind::Cast))
        };
        let is_pair = |left: usize, right: usize| {
            self.is_untyped(left)
                && is_start(left)
                && self.is_untyped(right)
                && (self.kind(left) == Some(TokenKind::Placeholder)
                    || self.kind(right) == Some(TokenKind::Placeholder))
        };
        if self.is_untyped(at) {
            let not = usize::from(self.is_word(at + 1, &["not"]));
            let next = at + 1 + not;
            if self.is_comparison(at + 1) && is_pair(at, at + 2)
                || self.is_word(at + 1, &["when"]) && is_pair(at, at + 2)
                || self.is_word(next, &["between"]) && is_pair(at, next + 1)
                || self.is_word(next, &["in"]) && is_pair(at, next + 2)
            {
                return true;
            }
            // Matches IS [NOT] DISTINCT FROM.
            let is_not = usize::from(self.is_word(at + 2, &["not"]));
            let distinct = at + 2 + is_not;
            return self.is_word(at + 1, &["is"])
                && self.is_word(distinct, &["distinct"])
                && is_pair(at, distinct + 2);
        }
        if self.is_word(at, &["greatest", "least", "nullif"]) && self.text(at + 1) == b"(" {
            return self.is_list_of_untyped(at + 2);
        }
        // A VALUES list used as a table has columns of type text.
        at > 0
            && self.is_word(at, &["values"])
            && self.text(at - 1) == b"("
            && self.text(at + 1) == b"("
            && self.is_untyped(at + 2)
    }

    /// Whether a list of untyped operands such as `$1, $2, 'x')`, with at least one placeholder,
    /// starts at this token.
    fn is_list_of_untyped(&self, from: usize) -> bool {
        let mut at = from;
        let mut has_placeholder = false;
        while self.is_untyped(at) {
            has_placeholder |= self.kind(at) == Some(TokenKind::Placeholder);
            match self.text(at + 1) {
                b"," => at += 2,
                b")" => return has_placeholder,
                _ => return false,
            }
        }
        false
    }

    fn is_typed(&self, at: usize) -> bool {
        if self.kind(at + 1) == Some(TokenKind::Cast) {
            return true;
        }
        let Some(before) = at.checked_sub(1) else { return false };
        if self.is_word(before, &["limit", "offset"]) {
            return true;
        }
        let operand = before.checked_sub(1);
        let is_next_to_column = |operator: usize| {
            operator.checked_sub(1).is_some_and(|operand| self.is_column(operand))
        };
        let compares = self.is_comparison(before) || self.is_word(before, &["like", "ilike"]);
        let closes = !matches!(self.kind(at + 1), Some(TokenKind::Operator));
        if compares && closes && is_next_to_column(before) {
            return true;
        }
        if self.is_word(before, &["between"]) && is_next_to_column(before) {
            return true;
        }
        // This may be the upper bound of a BETWEEN.
        if self.is_word(before, &["and"])
            && at >= 4
            && self.is_word(at - 3, &["between"])
            && is_next_to_column(at - 3)
        {
            return true;
        }
        if self.text(before) == b"(" && operand.is_some_and(|at| self.is_word(at, &["any", "some"]))
        {
            return true;
        }
        self.is_in_typed_list(at)
    }

    fn is_column(&self, at: usize) -> bool {
        match self.kind(at) {
            Some(TokenKind::QuotedName) => true,
            Some(TokenKind::Word) => !self.is_word(at, &NOT_COLUMNS),
            _ => false,
        }
    }

    /// Whether the placeholder is in `insert … values ($1, …), (…)` or `column in ($1, …)`.
    fn is_in_typed_list(&self, at: usize) -> bool {
        if !matches!(self.text(at + 1), b"," | b")") {
            return false;
        }
        let mut start = at;
        while start > 0 && self.text(start) != b"(" {
            let is_item = matches!(self.text(start), b",")
                || matches!(
                    self.kind(start),
                    Some(TokenKind::Placeholder | TokenKind::String | TokenKind::Number)
                )
                || self.is_word(start, &["default", "null", "true", "false"]);
            if !is_item {
                return false;
            }
            start -= 1;
        }
        let Some(before) = start.checked_sub(1) else { return false };
        if self.is_word(before, &["in"]) {
            let not = usize::from(before > 0 && self.is_word(before - 1, &["not"]));
            return before > not && self.is_column(before - 1 - not);
        }
        let is_insert = self.is_word(0, &["insert"]);
        is_insert
            && (self.is_word(before, &["values"]) && self.text(before.saturating_sub(1)) != b"("
                || self.text(before) == b","
                    && before > 0
                    && self.text(before - 1) == b")"
                    && (0..before).any(|at| {
                        self.is_word(at, &["values"]) && self.text(at.saturating_sub(1)) != b"("
                    }))
    }
}

/// Words before an operator that are not columns.
const NOT_COLUMNS: [&str; 12] = [
    "select",
    "where",
    "and",
    "or",
    "not",
    "when",
    "then",
    "else",
    "end",
    "null",
    "returning",
    "case",
];

/// Words before a string constant that determine its type.
const TYPE_WORDS: [&str; 8] =
    ["date", "time", "timestamp", "timestamptz", "interval", "numeric", "zone", "json"];

#[test]
fn context_shows_where_types_may_be_missing() {
    for sql in [
        "select * from t where a = $1 and t.b >= $2 and \"c\" like $3 limit $4 offset $5",
        "select $1::int + $2::int",
        "insert into t (a, b) values ($1, $2), ($3, default)",
        "update t set a = $1, b = $2 where id in ($3, $4)",
        "select * from t where a between $1 and $2 and b = any($3)",
        "delete from t where id = $1 returning id",
        "select 1",
    ] {
        assert_eq!(
            PlaceholderContext::from_sql(sql.as_bytes()),
            PlaceholderContext::Typed,
            "{sql}"
        );
    }
    for sql in [
        "select $1 + $2",
        "select to_char($1, 'YYYY')",
        "select * from t where a > now() - $1",
        "select date_trunc('day', $1)",
        "select unnest($1)",
        "select coalesce($1, 0)",
        "select * from t where a = $1 + 1",
        "insert into t select $1",
        "insert into t values (abs($1))",
        "select 'a' || $1",
    ] {
        assert_eq!(PlaceholderContext::from_sql(sql.as_bytes()), PlaceholderContext::Open, "{sql}");
    }
    for sql in [
        "select $1 < $2",
        "select greatest($1, $2)",
        "select least($1, '10')",
        "select case when $1 > $2 then 1 end",
        "select case $1 when $2 then 1 end",
        "select $1 between $2 and $3",
        "select $1 not in ($2, $3)",
        "select $1 is not distinct from $2",
        "select max(x) from (values ($1), ($2)) v (x)",
        "select nullif($1, '1')",
        "select * from t where a = $1 and $2 >= $3",
    ] {
        assert_eq!(
            PlaceholderContext::from_sql(sql.as_bytes()),
            PlaceholderContext::Textual,
            "{sql}"
        );
    }
    for sql in ["select $1 < date '2026-11-20'", "select $1::int < $2", "select a + $1 < $2"] {
        assert_ne!(
            PlaceholderContext::from_sql(sql.as_bytes()),
            PlaceholderContext::Textual,
            "{sql}"
        );
    }
}
