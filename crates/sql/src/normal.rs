//! The normal form: one text for all statements of a shape. Not a pretty printer.
//!
//! [`normalize`] says what it looks like; [`list`] folds its lists. One pass over the tokens; nothing
//! is looked at twice but a list's elements, to compare them.

use std::ops::Range;

use crate::{
    lexer::{Lexer, Token, TokenKind},
    normal::list::{Element, List},
    words,
};

mod list;

/// The normal form of `sql`: one text for all statements of a shape.
///
/// | in the statement | in the normal form |
/// |---|---|
/// | comments, white space, line breaks | what separates tokens, always the same way |
/// | keywords, names without quotes | lower case (ASCII) |
/// | quoted names, operators | as written |
/// | string and number constants, `$1`, a lone `?` | `?` |
/// | `NULL`, `TRUE`, `FALSE` where a value stands | `?` |
/// | the sign in `= -1`, `(-1`, `, -1`, `limit -1` | part of the constant; in `a - 1` it is an operator |
/// | `IN (1)`, `IN (1, 2, 3)`, `VALUES (1, 'a')`, `ARRAY[1, 2]` | `in (?, ...)`, `values (?, ...)`, `array[?, ...]` |
/// | `VALUES (1, now()), (2, now())` | `values (?, now())`: equal rows once |
/// | `'x'::text`, `$1::text` | `?::text` |
/// | names of savepoints and of prepared statements to deallocate | `?` |
/// | `;` at the ends | nothing; between statements `; ` |
///
/// In a list, a run of equal constants becomes the constant and `...`; a list of a single constant
/// gets the `...` too, so that its length never matters. A constant is a literal with its casts
/// (`?::int`), one behind a type's name (`date ?`), or a list of constants.
///
/// The form can be normalised again and stays the same. Bytes that are not UTF-8 become U+FFFD.
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

/// Like [`normalize`], into a buffer whose contents are replaced and whose memory is reused.
pub fn normalize_into(sql: &[u8], out: &mut String) {
    out.clear();
    let mut writer = Writer::new(out);
    for token in Lexer::new(sql) {
        writer.token(token);
    }
    writer.finish();
}

/// Parentheses nested deeper than this are copied without a look at what they enclose.
const NESTING_MAX: usize = 256;

/// Lists of lists (rows, arrays of arrays) are folded down to this depth: folding moves the text of
/// an element once per level, and this keeps the whole linear.
const LIST_NESTING_MAX: usize = 8;

/// What was written last: decides about white space, and whether a sign or a `NULL` is a value's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Last {
    /// Nothing in this statement yet.
    Start,
    /// A name, or a keyword behind which no value is due.
    Name,
    /// A keyword behind which a value or a list is due.
    Keyword(words::Due),
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
    /// `;`, `:`, `:=`, `..`, `...` and bytes that begin nothing.
    Other,
}

impl Last {
    /// Whether what comes next is a value, so that a sign belongs to it.
    fn wants_value(self) -> bool {
        use Last::{Comma, Keyword, Open, Operator, Other, RowComma, Start};
        matches!(self, Start | Keyword(_) | Open | Comma | RowComma | Operator | Other)
    }

    /// Whether it can be the left side of a `.`, `::` or `[`.
    fn is_operand(self) -> bool {
        matches!(self, Self::Name | Self::Literal | Self::Close | Self::RowClose)
    }
}

struct Writer<'o> {
    out: &'o mut String,
    last: Last,
    /// Open parentheses and brackets; the first is the statement itself and is never closed.
    lists: Vec<List>,
    /// Those open beyond [`NESTING_MAX`].
    untracked: usize,
    /// Signs that belong to the next token if that is a literal.
    signs: Vec<u8>,
    /// A `;` is written only when something follows.
    semicolon: bool,
    /// Whether the statement is one whose names are as good as literals (`SAVEPOINT a1`).
    folds_names: bool,
}

impl<'o> Writer<'o> {
    fn new(out: &'o mut String) -> Self {
        Self {
            out,
            last: Last::Start,
            lists: vec![List::statement()],
            untracked: 0,
            signs: Vec::new(),
            semicolon: false,
            folds_names: false,
        }
    }

    fn token(&mut self, token: Token<'_>) {
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
                    TokenKind::Word => self.word(token.text),
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
        while self.lists.len() > 1 {
            self.end_list();
            self.element().set(Element::Mixed);
        }
    }

    /// Whether a word or a quoted name is as good as a literal where it stands.
    fn is_literal(&self, token: Token<'_>) -> bool {
        if self.folds_names {
            return token.kind == TokenKind::QuotedName
                || !words::belongs_to_savepoint_grammar(token.text);
        }
        let takes_null = match self.last {
            Last::Open | Last::Comma | Last::Operator => true,
            Last::Keyword(due) => due == words::Due::ValueOrNull,
            _ => !self.signs.is_empty(),
        };
        takes_null && words::is_constant(token.text)
    }

    fn is_sign(&self, text: &[u8]) -> bool {
        matches!(text, b"-" | b"+") && (self.last.wants_value() || !self.signs.is_empty())
    }

    /// Signs in front of something that is no literal are operators after all.
    fn flush_signs(&mut self) {
        for sign in std::mem::take(&mut self.signs) {
            self.operator(&[sign]);
        }
    }

    fn flush_semicolon(&mut self) {
        if std::mem::take(&mut self.semicolon) && !self.out.is_empty() {
            self.out.push(';');
            self.element().set(Element::Mixed);
            self.last = Last::Start;
            self.folds_names = false;
        }
    }

    fn literal(&mut self) {
        self.signs.clear();
        self.space();
        self.out.push('?');
        self.element().literal();
        self.last = Last::Literal;
    }

    fn word(&mut self, text: &[u8]) {
        let due = words::due(text);
        if self.last == Last::Start {
            self.folds_names = words::folds_names(text);
        }
        let after_name = matches!(self.last, Last::Dot | Last::Cast);
        if !after_name {
            self.space();
        }
        push_lower(self.out, text);
        match due {
            // Behind a dot or a cast, a keyword is a name: `new.values`, `x::interval`.
            Some(due) if !after_name => {
                self.element().keyword(due);
                self.last = Last::Keyword(due);
            }
            _ => {
                self.element().name();
                self.last = Last::Name;
            }
        }
    }

    fn name(&mut self, text: &[u8]) {
        if !matches!(self.last, Last::Dot | Last::Cast) {
            self.space();
        }
        self.out.push_str(&String::from_utf8_lossy(text));
        if is_open_ended(text) {
            // Or what the writer adds behind it would become part of the name.
            self.out.push('"');
        }
        self.element().name();
        self.last = Last::Name;
    }

    fn cast(&mut self) {
        if !self.last.is_operand() {
            self.space();
        }
        self.out.push_str("::");
        self.element().cast();
        self.last = Last::Cast;
    }

    fn operator(&mut self, text: &[u8]) {
        if !(self.last == Last::Dot && text == b"*") {
            self.space();
        }
        self.out.push_str(&String::from_utf8_lossy(text));
        self.element().set(Element::Mixed);
        self.last = Last::Operator;
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
                self.last = Last::Dot;
            }
            b"..." => {
                self.space();
                self.out.push_str("...");
                self.element().ellipsis();
                self.last = Last::Other;
            }
            other => self.other(other),
        }
    }

    fn other(&mut self, text: &[u8]) {
        self.space();
        self.out.push_str(&String::from_utf8_lossy(text));
        self.element().set(Element::Mixed);
        self.last = Last::Other;
    }

    fn open(&mut self, bracket: u8) {
        let glued = match bracket {
            b'(' => self.last == Last::Name,
            _ => self.last.is_operand() || self.last == Last::Keyword(words::Due::Array),
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
        self.last = Last::Open;
    }

    fn opened(&mut self, bracket: u8, start: usize) -> List {
        use words::Due::{Array, List as In, Rows};
        let row = bracket == b'(' && matches!(self.last, Last::Keyword(Rows) | Last::RowComma);
        let nested = self.lists.iter().filter(|list| list.folds).count() < LIST_NESTING_MAX;
        let named = match bracket {
            b'(' => row || self.last == Last::Keyword(In),
            _ => self.last == Last::Keyword(Array),
        };
        let parent = self.element();
        let element_of_list = parent.folds && parent.element == Element::Empty;
        if self.last != Last::RowComma {
            self.element().row_before = None;
        }
        List::open(bracket, start, row, nested && (named || element_of_list))
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
        self.last = Last::Close;
    }

    fn close_list(&mut self, bracket: u8) {
        let list = self.end_list();
        self.out.push(char::from(bracket));
        self.element().group(&list);
        self.last = Last::Close;
        if list.row {
            self.end_row(list.start..self.out.len());
        }
    }

    /// Ends the innermost list, whose closing bracket is not written yet.
    fn end_list(&mut self) -> List {
        self.end_element();
        let list = self.lists.pop().expect("callers see to it that one beyond the first is open");
        if list.wants_ellipsis() {
            self.out.push_str(", ...");
        }
        list
    }

    /// A row equal to the one before it goes.
    fn end_row(&mut self, row: Range<usize>) {
        match self.element().row_before.clone() {
            Some(before) if self.out[before.clone()] == self.out[row.clone()] => {
                self.out.truncate(before.end);
            }
            _ => self.element().row_before = Some(row),
        }
        self.last = Last::RowClose;
    }

    fn comma(&mut self) {
        if self.last == Last::RowClose {
            self.last = Last::RowComma;
        } else {
            self.end_element();
            self.last = Last::Comma;
        }
        self.out.push(',');
        if self.last == Last::Comma {
            let start = self.out.len();
            self.element().begin_element(start);
        }
    }

    fn end_element(&mut self) {
        let list = self.lists.last_mut().expect("the statement's own list is never closed");
        if self.untracked == 0 {
            list.end_element(self.out);
        }
    }

    fn element(&mut self) -> &mut List {
        self.lists.last_mut().expect("the statement's own list is never closed")
    }

    /// White space before the next token, unless the last one was an opening bracket.
    fn space(&mut self) {
        if self.last != Last::Open && !self.out.is_empty() {
            self.out.push(' ');
        }
    }
}

fn push_lower(out: &mut String, text: &[u8]) {
    let from = out.len();
    out.push_str(&String::from_utf8_lossy(text));
    out[from..].make_ascii_lowercase();
}

/// Whether a quoted name lacks its closing quote: quotes within it are doubled.
fn is_open_ended(name: &[u8]) -> bool {
    memchr::memchr_iter(b'"', name).count() % 2 == 1
}

#[cfg(test)]
mod tests;
