//! Object literals: the files of etsy's server (JavaScript) and of the Perl server (JSON with comments
//! and trailing commas), in one grammar.
//!
//! ```text
//! value   := object | list | string | number | true | false | null | undefined | host
//! object  := "{" (key ":" value ("," key ":" value)* ","?)? "}"     key: string, word or number
//! list    := "[" (value ("," value)* ","?)? "]"
//! string  := in ', " or `, with JavaScript's escapes; no ${}
//! host    := require('os').hostname() (.split('.')[0])?
//! comment := "//" or "#" to the end of the line, "/*" … "*/"
//! ```
//!
//! Nothing is executed: an expression that is not in the grammar is an error that says so.

use std::{iter::Peekable, str::CharIndices};

/// A value and the line it begins in, from 1.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Node {
    pub(crate) line: usize,
    pub(crate) value: Literal,
}

/// A value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Literal {
    Null,
    Bool(bool),
    Number(f64),
    Text(String),
    List(Vec<Node>),
    Object(Vec<Entry>),
}

/// A key with its value. A key that stands twice is there twice; the last one counts.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Entry {
    pub(crate) key: String,
    pub(crate) line: usize,
    pub(crate) value: Node,
}

/// Why a text is no literal.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {why}")]
pub(crate) struct SyntaxError {
    pub(crate) line: usize,
    pub(crate) why: String,
}

/// Levels of objects and lists. Nobody's settings have five.
const DEPTH_MAX: usize = 32;

/// Reads a whole file. `host` is what `require('os').hostname()` stands for.
pub(crate) fn parse(text: &str, host: &str) -> Result<Node, SyntaxError> {
    let mut parser = Parser { text, chars: text.char_indices().peekable(), line: 1, host };
    parser.space()?;
    let root = parser.value(0)?;
    parser.space()?;
    parser.eat(';');
    parser.space()?;
    match parser.peek() {
        None => Ok(root),
        Some(char) => Err(parser.error(format!("{char:?} after the end of the settings"))),
    }
}

/// Whether a text looks like a literal rather than TOML: its first character that is no comment is `{`.
pub(crate) fn is_literal(text: &str) -> bool {
    let mut parser = Parser { text, chars: text.char_indices().peekable(), line: 1, host: "" };
    parser.space().is_err() || parser.peek() == Some('{')
}

struct Parser<'t> {
    text: &'t str,
    chars: Peekable<CharIndices<'t>>,
    line: usize,
    host: &'t str,
}

impl<'t> Parser<'t> {
    fn value(&mut self, depth: usize) -> Result<Node, SyntaxError> {
        if depth > DEPTH_MAX {
            return Err(self.error(format!("more than {DEPTH_MAX} levels")));
        }
        let line = self.line;
        let value = match self.peek() {
            Some('{') => Literal::Object(self.object(depth)?),
            Some('[') => Literal::List(self.list(depth)?),
            Some(quote @ ('"' | '\'' | '`')) => Literal::Text(self.string(quote)?),
            Some('0'..='9' | '-' | '+' | '.') => self.number()?,
            Some(char) if is_word(char) => self.word()?,
            Some(char) => return Err(self.error(format!("a value cannot begin with {char:?}"))),
            None => return Err(self.error("a value is missing at the end".to_owned())),
        };
        Ok(Node { line, value })
    }

    fn object(&mut self, depth: usize) -> Result<Vec<Entry>, SyntaxError> {
        self.next();
        let mut entries = Vec::new();
        loop {
            self.space()?;
            if self.eat('}') {
                return Ok(entries);
            }
            let line = self.line;
            let key = match self.peek() {
                Some(quote @ ('"' | '\'')) => self.string(quote)?,
                Some(char) if is_word(char) => self.take_while(is_word).to_owned(),
                Some(char) => return Err(self.error(format!("a key cannot begin with {char:?}"))),
                None => return Err(self.error("the last { is not closed".to_owned())),
            };
            self.space()?;
            if !self.eat(':') {
                return Err(self.error(format!("a colon is missing after {key:?}")));
            }
            self.space()?;
            entries.push(Entry { key, line, value: self.value(depth + 1)? });
            self.space()?;
            if !self.eat(',') && self.peek() != Some('}') {
                return Err(self.error("a comma or } is missing".to_owned()));
            }
        }
    }

    fn list(&mut self, depth: usize) -> Result<Vec<Node>, SyntaxError> {
        self.next();
        let mut values = Vec::new();
        loop {
            self.space()?;
            if self.eat(']') {
                return Ok(values);
            }
            values.push(self.value(depth + 1)?);
            self.space()?;
            if !self.eat(',') && self.peek() != Some(']') {
                return Err(self.error("a comma or ] is missing".to_owned()));
            }
        }
    }

    fn string(&mut self, quote: char) -> Result<String, SyntaxError> {
        self.next();
        let mut text = String::new();
        loop {
            match self.next() {
                Some(char) if char == quote => return Ok(text),
                Some('\\') => self.escape(&mut text)?,
                Some('\n') if quote != '`' => {
                    return Err(self.error("a string is not closed".to_owned()));
                }
                Some('$') if quote == '`' && self.peek() == Some('{') => {
                    return Err(self.error("${} is not evaluated: write the value".to_owned()));
                }
                Some(char) => text.push(char),
                None => return Err(self.error("a string is not closed".to_owned())),
            }
        }
    }

    fn escape(&mut self, text: &mut String) -> Result<(), SyntaxError> {
        let char = match self.next() {
            Some('n') => '\n',
            Some('t') => '\t',
            Some('r') => '\r',
            Some('b') => '\u{8}',
            Some('f') => '\u{c}',
            Some('v') => '\u{b}',
            Some('0') => '\0',
            Some('\n') => return Ok(()),
            Some('x') => self.code(2)?,
            Some('u') => self.code(4)?,
            Some(char) => char,
            None => return Err(self.error("a string is not closed".to_owned())),
        };
        text.push(char);
        Ok(())
    }

    fn code(&mut self, digits: usize) -> Result<char, SyntaxError> {
        let mut code = 0;
        for _ in 0..digits {
            let digit = self.next().and_then(|char| char.to_digit(16));
            let digit = digit.ok_or_else(|| self.error("an escape is too short".to_owned()))?;
            code = code * 16 + digit;
        }
        // Half of a surrogate pair alone is no character; etsy's server would send a broken one.
        char::from_u32(code).ok_or_else(|| self.error("an escape is no character".to_owned()))
    }

    fn number(&mut self) -> Result<Literal, SyntaxError> {
        let text = self.take_while(|char| is_word(char) || matches!(char, '.' | '+' | '-'));
        match crate::grammar::number(text.as_bytes()) {
            Ok(number) => Ok(Literal::Number(number)),
            Err(_) => Err(self.error(format!("{text:?} is no number"))),
        }
    }

    fn word(&mut self) -> Result<Literal, SyntaxError> {
        match self.take_while(is_word) {
            "true" => Ok(Literal::Bool(true)),
            "false" => Ok(Literal::Bool(false)),
            "null" | "undefined" => Ok(Literal::Null),
            "require" => self.host(),
            word => Err(self.error(format!(
                "{word:?} is an expression, and nothing is executed here: write the value, or \
                 require('os').hostname()"
            ))),
        }
    }

    /// The one expression that etsy's own example shows.
    fn host(&mut self) -> Result<Literal, SyntaxError> {
        let is_host = self.tokens(&["(", "'os'", ")", ".", "hostname", "(", ")"])?;
        if !is_host {
            return Err(self.error(
                "of all require(…), only require('os').hostname() with or without \
                 .split('.')[0] is known"
                    .to_owned(),
            ));
        }
        let whole = self.host.to_owned();
        if self.peek() != Some('.') {
            return Ok(Literal::Text(whole));
        }
        match self.tokens(&[".", "split", "(", "'.'", ")", "[", "0", "]"])? {
            true => Ok(Literal::Text(whole.split('.').next().unwrap_or_default().to_owned())),
            false => Err(self.error("after hostname(), only .split('.')[0] is known".to_owned())),
        }
    }

    /// Reads these tokens, white space between them; quotes may be of either kind.
    fn tokens(&mut self, tokens: &[&str]) -> Result<bool, SyntaxError> {
        for token in tokens {
            self.space()?;
            let fits = match token.strip_prefix('\'').and_then(|text| text.strip_suffix('\'')) {
                Some(text) => match self.peek() {
                    Some(quote @ ('"' | '\'')) => self.string(quote)? == text,
                    _ => false,
                },
                None => token.chars().all(|char| self.eat(char)),
            };
            if !fits {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Skips white space and comments.
    fn space(&mut self) -> Result<(), SyntaxError> {
        loop {
            let rest = self.rest();
            if rest.starts_with("//") || rest.starts_with('#') {
                while self.peek().is_some_and(|char| char != '\n') {
                    self.next();
                }
            } else if let Some(comment) = rest.strip_prefix("/*") {
                let Some(length) = comment.find("*/") else {
                    return Err(self.error("a comment is not closed".to_owned()));
                };
                let end = rest.len() - length - 4;
                while self.rest().len() > end {
                    self.next();
                }
            } else if self.peek().is_some_and(|char| char.is_whitespace() || char == '\u{feff}') {
                self.next();
            } else {
                return Ok(());
            }
        }
    }

    fn take_while(&mut self, belongs: impl Fn(char) -> bool) -> &'t str {
        let rest = self.rest();
        let end = rest.find(|char| !belongs(char)).unwrap_or(rest.len());
        let word = &rest[..end];
        for _ in word.chars() {
            self.next();
        }
        word
    }

    fn rest(&mut self) -> &'t str {
        let start = self.chars.peek().map_or(self.text.len(), |(at, _)| *at);
        &self.text[start..]
    }

    fn peek(&mut self) -> Option<char> {
        self.chars.peek().map(|(_, char)| *char)
    }

    fn next(&mut self) -> Option<char> {
        let (_, char) = self.chars.next()?;
        self.line += usize::from(char == '\n');
        Some(char)
    }

    fn eat(&mut self, expected: char) -> bool {
        let fits = self.peek() == Some(expected);
        if fits {
            self.next();
        }
        fits
    }

    fn error(&self, why: String) -> SyntaxError {
        SyntaxError { line: self.line, why }
    }
}

fn is_word(char: char) -> bool {
    char.is_alphanumeric() || matches!(char, '_' | '$')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn text(value: &str) -> String {
        fn show(node: &Node) -> String {
            match &node.value {
                Literal::Null => "null".to_owned(),
                Literal::Bool(value) => value.to_string(),
                Literal::Number(value) => value.to_string(),
                Literal::Text(value) => format!("{value:?}"),
                Literal::List(values) => {
                    format!("[{}]", values.iter().map(show).collect::<Vec<_>>().join(","))
                }
                Literal::Object(entries) => {
                    let one = |entry: &Entry| format!("{}:{}", entry.key, show(&entry.value));
                    format!("{{{}}}", entries.iter().map(one).collect::<Vec<_>>().join(","))
                }
            }
        }
        match parse(value, "db1.example.org") {
            Ok(node) => show(&node),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn etsys_form() {
        let config = "/* main */\n{ // ports\n  port: 8125, 'mgmt_port': 0x1fbe\n, backends: \
                      [ \"./backends/console\", ], graphite: { globalSuffix: \
                      require('os').hostname().split('.')[0], legacyNamespace: false } };\n";
        assert_eq!(
            text(config),
            "{port:8125,mgmt_port:8126,backends:[\"./backends/console\"],\
             graphite:{globalSuffix:\"db1\",legacyNamespace:false}}"
        );
        assert_eq!(text("{h:require( \"os\" ).hostname()}"), "{h:\"db1.example.org\"}");
        assert_eq!(text("{a:-1.5e2,b:.5,c:null,d:`x`}"), "{a:-150,b:0.5,c:null,d:\"x\"}");
        assert_eq!(text(r#"{a:'it\'s\u0021\x41\n'}"#), "{a:\"it's!A\\n\"}");
    }

    #[test]
    fn perls_form() {
        assert_eq!(text("# x\n{ \"port\": 8125, # y\n \"a\": [1,2,], }"), "{port:8125,a:[1,2]}");
    }

    #[test]
    fn what_is_no_literal_is_told_with_its_line() {
        let cases = [
            ("{\n a: process.env.X }", "line 2: \"process\" is an expression"),
            ("{ a: require('fs') }", "line 1: of all require(…)"),
            ("{ a: require('os').hostname().length }", "line 1: after hostname()"),
            ("{ a: 1 b: 2 }", "line 1: a comma or } is missing"),
            ("{ a 1 }", "line 1: a colon is missing after \"a\""),
            ("{ a: 'x\n }", "line 2: a string is not closed"),
            ("{ a: 1.2.3 }", "line 1: \"1.2.3\" is no number"),
            ("{ a: `${b}` }", "line 1: ${} is not evaluated"),
            ("{ /* x }", "line 1: a comment is not closed"),
            ("{} x", "line 1: 'x' after the end of the settings"),
            ("{", "line 1: the last { is not closed"),
            ("", "line 1: a value is missing at the end"),
        ];
        for (config, why) in cases {
            assert!(text(config).starts_with(why), "{config}: {}", text(config));
        }
        let deep = "[".repeat(100_000);
        assert_eq!(text(&deep), "line 1: more than 32 levels");
    }

    #[test]
    fn forms_are_told_apart_by_their_first_character() {
        assert!(is_literal("// x\n/* y */ # z\n{}"));
        assert!(!is_literal("# x\n[statsd]\n"));
        assert!(!is_literal(""));
    }

    proptest! {
        #[test]
        fn any_text_gives_a_value_or_a_line(config in "[{}\\[\\]:,'\"`a1.$/*# \n\\\\]{0,40}") {
            match parse(&config, "h") {
                Ok(node) => prop_assert!(node.line >= 1),
                Err(error) => prop_assert!(error.line <= 1 + config.matches('\n').count()),
            }
        }
    }
}
