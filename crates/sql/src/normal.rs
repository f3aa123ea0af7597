//! The normal form of SQL: one text for all statements of a shape.
//!
//! [`normalize`] describes the form; [`list`] folds its lists. Normalizing takes one pass over the
//! tokens; only the elements of lists are visited again, to compare them.

use std::ops::Range;

use crate::{
    keywords,
    lexer::{Lexer, SqlToken, TokenKind},
    normal::list::{Element, ListState},
};

mod list;

/// Returns the normal form of `sql`: one text for all statements of a shape.
///
/// | in the statement | in the normal form |
/// |---|---|
/// | comments, white space, line breaks | separators between tokens, always the same |
/// | keywords, names without quotes | lower case (ASCII) |
/// | quoted names, operators | as written |
/// | string and number constants, `$1`, a lone `?` | `?` |
/// | `NULL`, `TRUE`, `FALSE` in place of a value | `?` |
/// | the sign in `= -1`, `(-1`, `, -1`, `limit -1` | part of the constant; in `a - 1` it is an operator |
/// | `IN (1)`, `IN (1, 2, 3)`, `VALUES (1, 'a')`, `ARRAY[1, 2]` | `in (?, ...)`, `values (?, ...)`, `array[?, ...]` |
/// | `VALUES (1, now()), (2, now())` | `values (?, now())`: equal rows once |
/// | `'x'::text`, `$1::text` | `?::text` |
/// | names of savepoints and of prepared statements to deallocate | `?` |
/// | `;` at the ends | nothing; between statements `; ` |
///
/// In a list, a run of equal constants becomes the constant and `...`; a list of a single constant
/// also gets `...`, so that its length never matters. A constant is a literal with its casts
/// (`?::int`), a literal after a type name (`date ?`), or a list of constants.
///
/// Normalizing a normal form does not change it. Bytes that are not UTF-8 become U+FFFD.
///
/// ```
/// use howdah_sql::normalize;
///
/// assert_eq!(
///     normalize(b"SELECT  * FROM t -- all\n WHERE a IN ($1, $2) AND b > -3.5e2;"),
///     "select * from t where a in (?, ...) and b > ?",
/// );
/// ```
pub fn normalize(sql: &[u8]) -> String {
    let mut out = String::new();
    normalize_into(sql, &mut out);
    out
}

/// Like [`normalize`], but replaces the contents of `out`, whose memory is reused.
pub fn normalize_into(sql: &[u8], out: &mut String) {
    out.clear();
    let mut writer = NormalFormWriter::new(out);
    for token in Lexer::new(sql) {
        writer.token(token);
    }
    writer.finish();
}

/// Maximum nesting depth of brackets whose lists are folded. The contents of deeper brackets are
/// not folded.
const NESTING_MAX: usize = 256;

/// Maximum depth at which lists of lists (rows, arrays of arrays) are folded. Folding moves the
/// text of an element once per level, so the limit keeps the total time linear.
const LIST_NESTING_MAX: usize = 8;

/// The token written last. It determines the white space before the next token, and whether a sign
/// or a `NULL` is part of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LastToken {
    /// The statement has no token yet.
    Start,
    /// A name, or a keyword that no value follows.
    Name,
    /// A keyword that a value or a list follows.
    Keyword(keywords::Expectation),
    Literal,
    Open,
    Close,
    /// The end of a row of VALUES.
    RowClose,
    Comma,
    /// The comma between two rows of VALUES.
    RowComma,
    Operator,
    Cast,
    Dot,
    /// `;`, `:`, `:=`, `..`, `...` and stray bytes.
    Other,
}

impl LastToken {
    /// Whether a sign that follows this token belongs to a value instead of being an operator.
    fn expects_value(self) -> bool {
        use LastToken::{Comma, Keyword, Open, Operator, Other, RowComma, Start};
        matches!(self, Start | Keyword(_) | Open | Comma | RowComma | Operator | Other)
    }

    /// Whether the token can be the left side of a `.`, `::` or `[`.
    fn is_operand(self) -> bool {
        matches!(self, Self::Name | Self::Literal | Self::Close | Self::RowClose)
    }
}

struct NormalFormWriter<'o> {
    out: &'o mut String,
    last: LastToken,
    /// Open parentheses and brackets. The first entry is the statement itself and is never closed.
    lists: Vec<ListState>,
    /// Number of open brackets beyond [`NESTING_MAX`].
    untracked: usize,
    /// Signs that belong to the next token if that is a literal.
    signs: Vec<u8>,
    /// Whether a `;` is pending: it is written only if another token follows.
    semicolon: bool,
    /// Whether names in this statement are folded like literals (`SAVEPOINT a1`).
    folds_names: bool,
}

impl<'o> NormalFormWriter<'o> {
    fn new(out: &'o mut String) -> Self {
        Self {
            out,
            last: LastToken::Start,
            lists: vec![ListState::statement()],
            untracked: 0,
            signs: Vec::new(),
            semicolon: false,
            folds_names: false,
        }
    }

    fn token(&mut self, token: SqlToken<'_>) {
        match token.kind {
            TokenKind::Space | TokenKind::Comment => return,
            TokenKind::Punctuation if token.text == b";" => {
                self.flush_signs();
                self.semicolon = true;
                return;
            }
            _ => self.flush_semicolon(),
        }
        match token.kind {
            TokenKind::String | TokenKind::Number | TokenKind::Placeholder => self.literal(),
            TokenKind::Operator if token.text == b"?" => self.literal(),
            TokenKind::Word | TokenKind::QuotedName if self.is_literal(token) => self.literal(),
            TokenKind::Operator if self.is_sign(token.text) => self.signs.push(token.text[0]),
            kind => {
                self.flush_signs();
                match kind {
                    TokenKind::Word => self.keyword(token.text),
                    TokenKind::QuotedName => self.name(token.text),
                    TokenKind::Cast => self.cast(),
                    TokenKind::Punctuation => self.punctuation(token.text),
                    TokenKind::Operator => self.operator(token.text),
                    _ => self.other(token.text),
                }
            }
        }
    }

    fn finish(mut self) {
        self.flush_signs();
        // If untracked brackets are open, an ellipsis would end up inside them.
        while self.lists.len() > 1 && self.untracked == 0 {
            self.finish_list();
            self.element().set(Element::Mixed);
        }
    }

    /// Whether an unquoted or quoted name is treated as a literal in this position.
    fn is_literal(&self, token: SqlToken<'_>) -> bool {
        if self.folds_names {
            return token.kind == TokenKind::QuotedName
                || !keywords::belongs_to_savepoint_grammar(token.text);
        }
        let takes_null = match self.last {
            LastToken::Open | LastToken::Comma | LastToken::Operator => true,
            LastToken::Keyword(due) => due == keywords::Expectation::ValueOrNull,
            _ => !self.signs.is_empty(),
        };
        takes_null && keywords::is_constant(token.text)
    }

    fn is_sign(&self, text: &[u8]) -> bool {
        matches!(text, b"-" | b"+") && (self.last.expects_value() || !self.signs.is_empty())
    }

    /// Writes pending signs as operators, because something other than a literal follows.
    fn flush_signs(&mut self) {
        for sign in std::mem::take(&mut self.signs) {
            self.operator(&[sign]);
        }
    }

    fn flush_semicolon(&mut self) {
        if std::mem::take(&mut self.semicolon) && !self.out.is_empty() {
            self.out.push(';');
            self.element().set(Element::Mixed);
            self.last = LastToken::Start;
            self.folds_names = false;
        }
    }

    fn literal(&mut self) {
        self.signs.clear();
        self.space();
        self.out.push('?');
        self.element().literal();
        self.last = LastToken::Literal;
    }

    fn keyword(&mut self, text: &[u8]) {
        let due = keywords::expected_after(text);
        if self.last == LastToken::Start {
            self.folds_names = keywords::folds_names(text);
        }
        let after_name = matches!(self.last, LastToken::Dot | LastToken::Cast);
        if !after_name {
            self.space();
        }
        push_lower(self.out, text);
        match due {
            // After a dot or a cast, a keyword counts as a name: `new.values`, `x::interval`.
            Some(due) if !after_name => {
                self.element().keyword(due);
                self.last = LastToken::Keyword(due);
            }
            _ => {
                self.element().name();
                self.last = LastToken::Name;
            }
        }
    }

    fn name(&mut self, text: &[u8]) {
        if !matches!(self.last, LastToken::Dot | LastToken::Cast) {
            self.space();
        }
        self.out.push_str(&String::from_utf8_lossy(text));
        if is_open_ended(text) {
            // Without the closing quote, output appended to the name would become part of it.
            self.out.push('"');
        }
        self.element().name();
        self.last = LastToken::Name;
    }

    fn cast(&mut self) {
        if !self.last.is_operand() {
            self.space();
        }
        self.out.push_str("::");
        self.element().cast();
        self.last = LastToken::Cast;
    }

    fn operator(&mut self, text: &[u8]) {
        if !(self.last == LastToken::Dot && text == b"*") {
            self.space();
        }
        self.out.push_str(&String::from_utf8_lossy(text));
        self.element().set(Element::Mixed);
        self.last = LastToken::Operator;
    }

    fn punctuation(&mut self, text: &[u8]) {
        match text {
            b"(" | b"[" => self.open(text[0]),
            b")" | b"]" => self.close(text[0]),
            b"," => self.comma(),
            b"." => {
                if !self.last.is_operand() {
                    self.space();
                }
                self.out.push('.');
                self.element().dot();
                self.last = LastToken::Dot;
            }
            b"..." => {
                self.space();
                self.out.push_str("...");
                self.element().ellipsis();
                self.last = LastToken::Other;
            }
            other => self.other(other),
        }
    }

    fn other(&mut self, text: &[u8]) {
        self.space();
        self.out.push_str(&String::from_utf8_lossy(text));
        self.element().set(Element::Mixed);
        self.last = LastToken::Other;
    }

    fn open(&mut self, bracket: u8) {
        let glued = match bracket {
            b'(' => self.last == LastToken::Name,
            _ => {
                self.last.is_operand()
                    || self.last == LastToken::Keyword(keywords::Expectation::Array)
            }
        };
        if !glued {
            self.space();
        }
        let start = self.out.len();
        self.out.push(char::from(bracket));
        if self.lists.len() < NESTING_MAX && self.untracked == 0 {
            let list = self.opened(bracket, start);
            self.lists.push(list);
        } else {
            self.untracked += 1;
        }
        self.last = LastToken::Open;
    }

    fn opened(&mut self, bracket: u8, start: usize) -> ListState {
        use keywords::Expectation::{Array, List as In, Rows};
        let row =
            bracket == b'(' && matches!(self.last, LastToken::Keyword(Rows) | LastToken::RowComma);
        let nested = self.lists.iter().filter(|list| list.folds).count() < LIST_NESTING_MAX;
        let named = match bracket {
            b'(' => row || self.last == LastToken::Keyword(In),
            _ => self.last == LastToken::Keyword(Array),
        };
        let parent = self.element();
        let element_of_list = parent.folds && parent.element == Element::Empty;
        if self.last != LastToken::RowComma {
            self.element().row_before = None;
        }
        ListState::open(bracket, start, row, nested && (named || element_of_list))
    }

    fn close(&mut self, bracket: u8) {
        if self.untracked > 0 {
            self.untracked -= 1;
        } else if self.lists.len() > 1 && self.element().closes_with(bracket) {
            return self.close_list(bracket);
        } else {
            self.element().set(Element::Mixed);
        }
        self.out.push(char::from(bracket));
        self.last = LastToken::Close;
    }

    fn close_list(&mut self, bracket: u8) {
        let list = self.finish_list();
        self.out.push(char::from(bracket));
        self.element().group(&list);
        self.last = LastToken::Close;
        if list.row {
            self.finish_row(list.start..self.out.len());
        }
    }

    /// Finishes the innermost list, whose closing bracket is not written yet.
    fn finish_list(&mut self) -> ListState {
        self.finish_element();
        let list = self.lists.pop().expect("callers see to it that one beyond the first is open");
        if list.needs_ellipsis() {
            self.out.push_str(", ...");
        }
        list
    }

    /// Removes the row that has just been written if it equals the previous one.
    fn finish_row(&mut self, row: Range<usize>) {
        match self.element().row_before.clone() {
            Some(before) if self.out[before.clone()] == self.out[row.clone()] => {
                self.out.truncate(before.end);
            }
            _ => self.element().row_before = Some(row),
        }
        self.last = LastToken::RowClose;
    }

    fn comma(&mut self) {
        if self.last == LastToken::RowClose {
            self.last = LastToken::RowComma;
        } else {
            self.finish_element();
            self.last = LastToken::Comma;
        }
        self.out.push(',');
        if self.last == LastToken::Comma {
            let start = self.out.len();
            self.element().start_element(start);
        }
    }

    fn finish_element(&mut self) {
        let list = self.lists.last_mut().expect("the statement's own list is never closed");
        if self.untracked == 0 {
            list.finish_element(self.out);
        }
    }

    fn element(&mut self) -> &mut ListState {
        self.lists.last_mut().expect("the statement's own list is never closed")
    }

    /// Writes white space before the next token, unless it is the first one or follows an opening
    /// bracket.
    fn space(&mut self) {
        if self.last != LastToken::Open && !self.out.is_empty() {
            self.out.push(' ');
        }
    }
}

fn push_lower(out: &mut String, text: &[u8]) {
    let from = out.len();
    out.push_str(&String::from_utf8_lossy(text));
    out[from..].make_ascii_lowercase();
}

/// Whether a quoted name lacks its closing quote. Quotes inside a name are doubled.
fn is_open_ended(name: &[u8]) -> bool {
    memchr::memchr_iter(b'"', name).count() % 2 == 1
}

#[cfg(test)]
mod tests;
