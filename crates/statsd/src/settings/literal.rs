//! Object literals: the files of etsy's server (JavaScript) and of the Perl server (JSON with comments
//! and trailing commas), in one grammar.
//!
//! ```text
//! value   := sum (("||" | "??") sum)*
//! sum     := product (("+" | "-") product)*        "+" also joins strings
//! product := factor (("*" | "/" | "%") factor)*
//! factor  := ("-" | "+") factor | "(" value ")" | object | list | string | number | true | false
//!          | null | undefined | host | environment | (parseInt | Number) "(" value ("," value)? ")"
//! object  := "{" (key ":" value ("," key ":" value)* ","?)? "}"     key: string, word or number
//! list    := "[" (value ("," value)* ","?)? "]"
//! string  := in ', " or `, with JavaScript's escapes; no ${}
//! host    := require('os').hostname() (.split('.')[0])?
//! environment := "process.env." word | "process.env[" string "]"
//! comment := "//" or "#" to the end of the line, "/*" … "*/"
//! ```
//!
//! Nothing is executed: of expressions these few are worked out, and any other is an error that says so.

use std::{iter::Peekable, str::CharIndices};

use crate::js::Number;

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

/// What expressions of a file may ask for.
#[derive(Clone, Copy)]
pub(crate) struct Surroundings<'s> {
    /// What `require('os').hostname()` stands for.
    pub(crate) host: &'s str,
    /// Variables of the environment, for `process.env.NAME`.
    pub(crate) variable: &'s dyn Fn(&str) -> Option<String>,
}

/// Reads a whole file.
pub(crate) fn parse(text: &str, surroundings: Surroundings<'_>) -> Result<Node, SyntaxError> {
    let mut parser = Parser::new(text, surroundings);
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
    let mut parser = Parser::new(text, Surroundings { host: "", variable: &|_| None });
    parser.space().is_err() || parser.peek() == Some('{')
}

struct Parser<'t> {
    text: &'t str,
    chars: Peekable<CharIndices<'t>>,
    line: usize,
    surroundings: Surroundings<'t>,
}

impl<'t> Parser<'t> {
    fn new(text: &'t str, surroundings: Surroundings<'t>) -> Self {
        Self { text, chars: text.char_indices().peekable(), line: 1, surroundings }
    }

    fn value(&mut self, depth: usize) -> Result<Node, SyntaxError> {
        let line = self.line;
        let mut value = self.sum(depth)?;
        loop {
            self.space()?;
            let keep = match self.rest().get(..2) {
                Some("||") => is_true(&value),
                Some("??") => value != Literal::Null,
                _ => return Ok(Node { line, value }),
            };
            self.next();
            self.next();
            self.space()?;
            let other = self.sum(depth)?;
            value = if keep { value } else { other };
        }
    }

    fn sum(&mut self, depth: usize) -> Result<Literal, SyntaxError> {
        let mut left = self.product(depth)?;
        loop {
            self.space()?;
            let Some(sign @ ('+' | '-')) = self.peek() else { return Ok(left) };
            self.next();
            self.space()?;
            let right = self.product(depth)?;
            left = match (sign, &left, &right) {
                ('+', Literal::Text(_), _) | ('+', _, Literal::Text(_)) => {
                    Literal::Text(self.joined(&left)? + &self.joined(&right)?)
                }
                ('+', ..) => Literal::Number(self.operand(&left)? + self.operand(&right)?),
                _ => Literal::Number(self.operand(&left)? - self.operand(&right)?),
            };
        }
    }

    fn product(&mut self, depth: usize) -> Result<Literal, SyntaxError> {
        let mut left = self.factor(depth)?;
        loop {
            // Comments go first, as both begin with a slash.
            self.space()?;
            let Some(sign @ ('*' | '/' | '%')) = self.peek() else { return Ok(left) };
            self.next();
            self.space()?;
            let right = self.factor(depth)?;
            let (one, other) = (self.operand(&left)?, self.operand(&right)?);
            left = Literal::Number(match sign {
                '*' => one * other,
                '/' => one / other,
                _ => one % other,
            });
        }
    }

    /// A value that is calculated with.
    fn operand(&self, value: &Literal) -> Result<f64, SyntaxError> {
        number_of(value).ok_or_else(|| self.error("only numbers can be calculated with".to_owned()))
    }

    /// A value that is part of a string.
    fn joined(&self, value: &Literal) -> Result<String, SyntaxError> {
        match value {
            Literal::Text(text) => Ok(text.clone()),
            Literal::Number(number) => Ok(Number(*number).to_string()),
            _ => Err(self.error("only strings and numbers can be joined".to_owned())),
        }
    }

    fn factor(&mut self, depth: usize) -> Result<Literal, SyntaxError> {
        if depth > DEPTH_MAX {
            return Err(self.error(format!("more than {DEPTH_MAX} levels")));
        }
        Ok(match self.peek() {
            Some(sign @ ('-' | '+')) => {
                self.next();
                self.space()?;
                let value = self.factor(depth + 1)?;
                let number = self.operand(&value)?;
                Literal::Number(if sign == '-' { -number } else { number })
            }
            Some('(') => {
                self.next();
                self.space()?;
                let value = self.value(depth + 1)?.value;
                self.space()?;
                if !self.eat(')') {
                    return Err(self.error("a ) is missing".to_owned()));
                }
                value
            }
            Some('{') => Literal::Object(self.object(depth)?),
            Some('[') => Literal::List(self.list(depth)?),
            Some(quote @ ('"' | '\'' | '`')) => Literal::Text(self.string(quote)?),
            Some('0'..='9' | '.') => self.number()?,
            Some(char) if is_word(char) => self.word(depth)?,
            Some(char) => return Err(self.error(format!("a value cannot begin with {char:?}"))),
            None => return Err(self.error("a value is missing at the end".to_owned())),
        })
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
        let rest = self.rest();
        let hexadecimal = rest.starts_with("0x") || rest.starts_with("0X");
        // A sign belongs to a number behind its exponent only.
        let mut before = ' ';
        let end = rest.find(|char| {
            let exponent = matches!(before, 'e' | 'E') && !hexadecimal;
            before = char;
            !(is_word(char) || char == '.' || matches!(char, '+' | '-') && exponent)
        });
        let text = &rest[..end.unwrap_or(rest.len())];
        for _ in text.chars() {
            self.next();
        }
        match crate::grammar::number(text.as_bytes()) {
            Ok(number) => Ok(Literal::Number(number)),
            Err(_) => Err(self.error(format!("{text:?} is no number"))),
        }
    }

    fn word(&mut self, depth: usize) -> Result<Literal, SyntaxError> {
        match self.take_while(is_word) {
            "true" => Ok(Literal::Bool(true)),
            "false" => Ok(Literal::Bool(false)),
            "null" | "undefined" => Ok(Literal::Null),
            "require" => self.host(),
            "process" => self.variable(),
            function @ ("parseInt" | "Number") => self.function(function, depth),
            word => Err(self.error(format!(
                "{word:?} is an expression, and nothing is executed here: write the value, \
                 process.env.NAME || \"value\", or require('os').hostname()"
            ))),
        }
    }

    /// `process.env.NAME`, which is undefined if there is no such variable.
    fn variable(&mut self) -> Result<Literal, SyntaxError> {
        let wrong = "of process, only process.env.NAME is known";
        if !self.tokens(&[".", "env"])? {
            return Err(self.error(wrong.to_owned()));
        }
        self.space()?;
        let name = match self.next() {
            Some('.') => {
                self.space()?;
                self.take_while(is_word).to_owned()
            }
            Some('[') => {
                self.space()?;
                let name = match self.peek() {
                    Some(quote @ ('"' | '\'')) => self.string(quote)?,
                    _ => String::new(),
                };
                self.space()?;
                if self.eat(']') { name } else { String::new() }
            }
            _ => String::new(),
        };
        if name.is_empty() {
            return Err(self.error(wrong.to_owned()));
        }
        Ok((self.surroundings.variable)(&name).map_or(Literal::Null, Literal::Text))
    }

    /// `parseInt(value, 10)` and `Number(value)`. What is not a number there is undefined here, so that
    /// the default of a key, or what stands behind `||`, counts.
    fn function(&mut self, function: &str, depth: usize) -> Result<Literal, SyntaxError> {
        self.space()?;
        if !self.eat('(') {
            return Err(self.error(format!("a ( is missing after {function}")));
        }
        self.space()?;
        let value = self.value(depth + 1)?.value;
        self.space()?;
        if self.eat(',') {
            self.space()?;
            let radix = self.value(depth + 1)?.value;
            if function != "parseInt" || radix != Literal::Number(10.0) {
                return Err(self.error("only parseInt(…, 10) is known".to_owned()));
            }
            self.space()?;
        }
        if !self.eat(')') {
            return Err(self.error("a ) is missing".to_owned()));
        }
        let number = match (&value, function) {
            (Literal::Text(text), "parseInt") => {
                let text = text.trim();
                let sign = usize::from(text.starts_with(['-', '+']));
                let end = text[sign..].find(|char: char| !char.is_ascii_digit());
                text[..end.map_or(text.len(), |end| sign + end)].parse().ok()
            }
            _ => number_of(&value).map(|number| match function {
                "parseInt" => number.trunc(),
                _ => number,
            }),
        };
        Ok(number.map_or(Literal::Null, Literal::Number))
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
        let whole = self.surroundings.host.to_owned();
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

/// Whether JavaScript takes a value for true.
pub(super) fn is_true(value: &Literal) -> bool {
    match value {
        Literal::Null => false,
        Literal::Bool(value) => *value,
        Literal::Number(number) => *number != 0.0 && !number.is_nan(),
        Literal::Text(text) => !text.is_empty(),
        Literal::List(_) | Literal::Object(_) => true,
    }
}

/// A number, or a string that is one.
pub(super) fn number_of(value: &Literal) -> Option<f64> {
    match value {
        Literal::Number(number) => Some(*number),
        Literal::Text(text) => crate::grammar::number(text.as_bytes()).ok(),
        _ => None,
    }
}

fn is_word(char: char) -> bool {
    char.is_alphanumeric() || matches!(char, '_' | '$')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn surroundings() -> Surroundings<'static> {
        let variable: &dyn Fn(&str) -> Option<String> = &|name| match name {
            "PORT" => Some("8130".to_owned()),
            "EMPTY" => Some(String::new()),
            _ => None,
        };
        Surroundings { host: "db1.example.org", variable }
    }

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
        match parse(value, surroundings()) {
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
    fn constant_expressions_and_environment_variables_are_worked_out() {
        assert_eq!(
            text("{a: 1000 * 10, b: 1 + 2*3 - 4/8, c: (1+2)*-3, d: 7 % 4}"),
            "{a:10000,b:6.5,c:-9,d:3}"
        );
        assert_eq!(
            text("{a: process.env.PORT || 8125, b: process.env.X || \"y\"}"),
            "{a:\"8130\",b:\"y\"}"
        );
        assert_eq!(
            text("{a: process.env['PORT'], b: process.env.EMPTY ?? 'z', c: process.env.X}"),
            "{a:\"8130\",b:\"\",c:null}"
        );
        assert_eq!(
            text("{a: parseInt(process.env.PORT, 10) || 1, b: parseInt('x') || 2}"),
            "{a:8130,b:2}"
        );
        assert_eq!(
            text("{a: 'stats.' + require('os').hostname() + 1}"),
            "{a:\"stats.db1.example.org1\"}"
        );
        assert_eq!(text("{a: 10 /* ms */ * 2, // x\n b: 1e-3}"), "{a:20,b:0.001}");
    }

    #[test]
    fn perls_form() {
        assert_eq!(text("# x\n{ \"port\": 8125, # y\n \"a\": [1,2,], }"), "{port:8125,a:[1,2]}");
    }

    #[test]
    fn what_is_no_literal_is_told_with_its_line() {
        let cases = [
            ("{\n a: process.argv }", "line 2: of process, only process.env.NAME"),
            ("{\n a: f(1) }", "line 2: \"f\" is an expression"),
            ("{ a: 1 + {} }", "line 1: only numbers can be calculated with"),
            ("{ a: (1 }", "line 1: a ) is missing"),
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
            match parse(&config, surroundings()) {
                Ok(node) => prop_assert!(node.line >= 1),
                Err(error) => prop_assert!(error.line <= 1 + config.matches('\n').count()),
            }
        }
    }
}
