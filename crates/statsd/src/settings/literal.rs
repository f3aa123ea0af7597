//! Parses object literals: the files of etsy's server (JavaScript) and of the Perl server (JSON
//! with comments and trailing commas), with one grammar.
//!
//! ```text
//! value   := sum (("||" | "??") sum)*
//! sum     := product (("+" | "-") product)*        "+" also joins strings
//! product := factor (("*" | "/" | "%") factor)*
//! factor  := ("-" | "+") factor | "(" value ")" | object | list | string | number | true | false
//!          | null | undefined | host | environment
//!          | (parseInt | Number) "(" value ("," value)? ")"
//! object  := "{" (key ":" value ("," key ":" value)* ","?)? "}"     key: string, word or number
//! list    := "[" (value ("," value)* ","?)? "]"
//! string  := in ', " or `, with JavaScript's escapes; no ${}
//! host    := require('os').hostname() (.split('.')[0])?
//! environment := "process.env." word | "process.env[" string "]"
//! comment := "//" or "#" to the end of the line, "/*" … "*/"
//! ```
//!
//! No code is executed: only these expressions are evaluated, and any other is an error.

use std::{iter::Peekable, str::CharIndices};

use crate::js::JsNumber;

/// A value and its first line, from 1.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LiteralNode {
    pub(crate) line: usize,
    pub(crate) value: Literal,
}

/// A parsed value, in which all expressions have been evaluated.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Literal {
    Null,
    Bool(bool),
    Number(f64),
    Text(String),
    List(Vec<LiteralNode>),
    Object(Vec<LiteralEntry>),
}

/// A key with its value. Duplicate keys are all retained; the last one wins.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LiteralEntry {
    pub(crate) key: String,
    pub(crate) line: usize,
    pub(crate) value: LiteralNode,
}

/// The reason why a text is not a valid literal.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {reason}")]
pub(crate) struct LiteralSyntaxError {
    pub(crate) line: usize,
    pub(crate) reason: String,
}

/// Maximum nesting of values; real files have fewer than five levels.
const DEPTH_MAX: usize = 32;

/// The environment available to expressions in a file.
#[derive(Clone, Copy)]
pub(crate) struct ExpressionContext<'s> {
    /// The value of `require('os').hostname()`.
    pub(crate) host: &'s str,
    /// Looks up an environment variable, for `process.env.NAME`.
    pub(crate) variable: &'s dyn Fn(&str) -> Option<String>,
}

/// Parses the text of a complete file, and evaluates its expressions.
pub(crate) fn parse(
    text: &str,
    context: ExpressionContext<'_>,
) -> Result<LiteralNode, LiteralSyntaxError> {
    let mut parser = LiteralParser::new(text, context);
    parser.skip_space()?;
    let root = parser.value(0)?;
    parser.skip_space()?;
    parser.eat(';');
    parser.skip_space()?;
    match parser.peek() {
        None => Ok(root),
        Some(char) => {
            Err(parser.error(format!("unexpected {char:?} after the end of the settings")))
        }
    }
}

/// Whether a text is a literal rather than TOML: its first character outside of comments is `{`, or
/// a comment before it does not end.
pub(crate) fn is_literal(text: &str) -> bool {
    let mut parser = LiteralParser::new(text, ExpressionContext { host: "", variable: &|_| None });
    parser.skip_space().is_err() || parser.peek() == Some('{')
}

struct LiteralParser<'t> {
    text: &'t str,
    chars: Peekable<CharIndices<'t>>,
    line: usize,
    context: ExpressionContext<'t>,
}

impl<'t> LiteralParser<'t> {
    fn new(text: &'t str, context: ExpressionContext<'t>) -> Self {
        Self { text, chars: text.char_indices().peekable(), line: 1, context }
    }

    fn value(&mut self, depth: usize) -> Result<LiteralNode, LiteralSyntaxError> {
        let line = self.line;
        let mut value = self.sum(depth)?;
        loop {
            self.skip_space()?;
            let use_left = match self.rest().get(..2) {
                Some("||") => is_true(&value),
                Some("??") => value != Literal::Null,
                _ => return Ok(LiteralNode { line, value }),
            };
            self.next();
            self.next();
            self.skip_space()?;
            let other = self.sum(depth)?;
            value = if use_left { value } else { other };
        }
    }

    fn sum(&mut self, depth: usize) -> Result<Literal, LiteralSyntaxError> {
        let mut left = self.product(depth)?;
        loop {
            self.skip_space()?;
            let Some(sign @ ('+' | '-')) = self.peek() else { return Ok(left) };
            self.next();
            self.skip_space()?;
            let right = self.product(depth)?;
            left = match (sign, &left, &right) {
                ('+', Literal::Text(_), _) | ('+', _, Literal::Text(_)) => {
                    Literal::Text(self.string_operand(&left)? + &self.string_operand(&right)?)
                }
                ('+', ..) => Literal::Number(self.operand(&left)? + self.operand(&right)?),
                _ => Literal::Number(self.operand(&left)? - self.operand(&right)?),
            };
        }
    }

    fn product(&mut self, depth: usize) -> Result<Literal, LiteralSyntaxError> {
        let mut left = self.factor(depth)?;
        loop {
            // Comments are skipped first, because they also start with a slash.
            self.skip_space()?;
            let Some(sign @ ('*' | '/' | '%')) = self.peek() else { return Ok(left) };
            self.next();
            self.skip_space()?;
            let right = self.factor(depth)?;
            let (one, other) = (self.operand(&left)?, self.operand(&right)?);
            left = Literal::Number(match sign {
                '*' => one * other,
                '/' => one / other,
                _ => one % other,
            });
        }
    }

    /// Returns the value of an arithmetic operand.
    fn operand(&self, value: &Literal) -> Result<f64, LiteralSyntaxError> {
        to_number(value)
            .ok_or_else(|| self.error("only numbers can be used in calculations".to_owned()))
    }

    /// Returns the value of an operand of string concatenation.
    fn string_operand(&self, value: &Literal) -> Result<String, LiteralSyntaxError> {
        match value {
            Literal::Text(text) => Ok(text.clone()),
            Literal::Number(number) => Ok(JsNumber(*number).to_string()),
            _ => Err(self.error("only strings and numbers can be concatenated".to_owned())),
        }
    }

    fn factor(&mut self, depth: usize) -> Result<Literal, LiteralSyntaxError> {
        if depth > DEPTH_MAX {
            return Err(self.error(format!("nested more than {DEPTH_MAX} levels deep")));
        }
        Ok(match self.peek() {
            Some(sign @ ('-' | '+')) => {
                self.next();
                self.skip_space()?;
                let value = self.factor(depth + 1)?;
                let number = self.operand(&value)?;
                Literal::Number(if sign == '-' { -number } else { number })
            }
            Some('(') => {
                self.next();
                self.skip_space()?;
                let value = self.value(depth + 1)?.value;
                self.skip_space()?;
                if !self.eat(')') {
                    return Err(self.error("missing )".to_owned()));
                }
                value
            }
            Some('{') => Literal::Object(self.object(depth)?),
            Some('[') => Literal::List(self.list(depth)?),
            Some(quote @ ('"' | '\'' | '`')) => Literal::Text(self.string(quote)?),
            Some('0'..='9' | '.') => self.number()?,
            Some(char) if is_word_char(char) => self.keyword(depth)?,
            Some(char) => return Err(self.error(format!("a value cannot start with {char:?}"))),
            None => return Err(self.error("missing value at the end".to_owned())),
        })
    }

    fn object(&mut self, depth: usize) -> Result<Vec<LiteralEntry>, LiteralSyntaxError> {
        self.next();
        let mut entries = Vec::new();
        loop {
            self.skip_space()?;
            if self.eat('}') {
                return Ok(entries);
            }
            let line = self.line;
            let key = match self.peek() {
                Some(quote @ ('"' | '\'')) => self.string(quote)?,
                Some(char) if is_word_char(char) => self.take_while(is_word_char).to_owned(),
                Some(char) => return Err(self.error(format!("a key cannot start with {char:?}"))),
                None => return Err(self.error("missing } at the end".to_owned())),
            };
            self.skip_space()?;
            if !self.eat(':') {
                return Err(self.error(format!("missing colon after {key:?}")));
            }
            self.skip_space()?;
            entries.push(LiteralEntry { key, line, value: self.value(depth + 1)? });
            self.skip_space()?;
            if !self.eat(',') && self.peek() != Some('}') {
                return Err(self.error("missing comma or }".to_owned()));
            }
        }
    }

    fn list(&mut self, depth: usize) -> Result<Vec<LiteralNode>, LiteralSyntaxError> {
        self.next();
        let mut values = Vec::new();
        loop {
            self.skip_space()?;
            if self.eat(']') {
                return Ok(values);
            }
            values.push(self.value(depth + 1)?);
            self.skip_space()?;
            if !self.eat(',') && self.peek() != Some(']') {
                return Err(self.error("missing comma or ]".to_owned()));
            }
        }
    }

    fn string(&mut self, quote: char) -> Result<String, LiteralSyntaxError> {
        self.next();
        let mut text = String::new();
        loop {
            match self.next() {
                Some(char) if char == quote => return Ok(text),
                Some('\\') => self.escape(&mut text)?,
                Some('\n') if quote != '`' => {
                    return Err(self.error("unterminated string".to_owned()));
                }
                Some('$') if quote == '`' && self.peek() == Some('{') => {
                    return Err(self.error("${} is not evaluated: write the value".to_owned()));
                }
                Some(char) => text.push(char),
                None => return Err(self.error("unterminated string".to_owned())),
            }
        }
    }

    fn escape(&mut self, text: &mut String) -> Result<(), LiteralSyntaxError> {
        let char = match self.next() {
            Some('n') => '\n',
            Some('t') => '\t',
            Some('r') => '\r',
            Some('b') => '\u{8}',
            Some('f') => '\u{c}',
            Some('v') => '\u{b}',
            Some('0') => '\0',
            Some('\n') => return Ok(()),
            Some('x') => self.hex_escape(2)?,
            Some('u') => self.hex_escape(4)?,
            Some(char) => char,
            None => return Err(self.error("unterminated string".to_owned())),
        };
        text.push(char);
        Ok(())
    }

    fn hex_escape(&mut self, digits: usize) -> Result<char, LiteralSyntaxError> {
        let mut code = 0;
        for _ in 0..digits {
            let digit = self.next().and_then(|char| char.to_digit(16));
            let digit = digit.ok_or_else(|| self.error("incomplete escape sequence".to_owned()))?;
            code = code * 16 + digit;
        }
        // Half of a surrogate pair is not a character; etsy's server would send invalid UTF-8.
        char::from_u32(code)
            .ok_or_else(|| self.error("escape sequence is not a valid character".to_owned()))
    }

    fn number(&mut self) -> Result<Literal, LiteralSyntaxError> {
        let rest = self.rest();
        let hexadecimal = rest.starts_with("0x") || rest.starts_with("0X");
        // A sign is part of a number only after `e`.
        let mut before = ' ';
        let end = rest.find(|char| {
            let exponent = matches!(before, 'e' | 'E') && !hexadecimal;
            before = char;
            !(is_word_char(char) || char == '.' || matches!(char, '+' | '-') && exponent)
        });
        let text = &rest[..end.unwrap_or(rest.len())];
        for _ in text.chars() {
            self.next();
        }
        match crate::grammar::number(text.as_bytes()) {
            Ok(number) => Ok(Literal::Number(number)),
            Err(_) => Err(self.error(format!("{text:?} is not a number"))),
        }
    }

    fn keyword(&mut self, depth: usize) -> Result<Literal, LiteralSyntaxError> {
        match self.take_while(is_word_char) {
            "true" => Ok(Literal::Bool(true)),
            "false" => Ok(Literal::Bool(false)),
            "null" | "undefined" => Ok(Literal::Null),
            "require" => self.hostname(),
            "process" => self.variable(),
            function @ ("parseInt" | "Number") => self.function(function, depth),
            word => Err(self.error(format!(
                "{word:?} is an expression, which is not executed: write the value, \
                 process.env.NAME || \"value\", or require('os').hostname()"
            ))),
        }
    }

    /// Parses `process.env.NAME`, which is undefined if the variable is not set.
    fn variable(&mut self) -> Result<Literal, LiteralSyntaxError> {
        let unsupported = "process is supported only as process.env.NAME";
        if !self.match_tokens(&[".", "env"])? {
            return Err(self.error(unsupported.to_owned()));
        }
        self.skip_space()?;
        let name = match self.next() {
            Some('.') => {
                self.skip_space()?;
                self.take_while(is_word_char).to_owned()
            }
            Some('[') => {
                self.skip_space()?;
                let name = match self.peek() {
                    Some(quote @ ('"' | '\'')) => self.string(quote)?,
                    _ => String::new(),
                };
                self.skip_space()?;
                if self.eat(']') { name } else { String::new() }
            }
            _ => String::new(),
        };
        if name.is_empty() {
            return Err(self.error(unsupported.to_owned()));
        }
        Ok((self.context.variable)(&name).map_or(Literal::Null, Literal::Text))
    }

    /// Parses `parseInt(value, 10)` and `Number(value)`. NaN becomes undefined, so that the key's
    /// default, or the value after `||`, is used.
    fn function(&mut self, function: &str, depth: usize) -> Result<Literal, LiteralSyntaxError> {
        self.skip_space()?;
        if !self.eat('(') {
            return Err(self.error(format!("missing ( after {function}")));
        }
        self.skip_space()?;
        let value = self.value(depth + 1)?.value;
        self.skip_space()?;
        if self.eat(',') {
            self.skip_space()?;
            let radix = self.value(depth + 1)?.value;
            if function != "parseInt" || radix != Literal::Number(10.0) {
                return Err(self.error("only parseInt(…, 10) is supported".to_owned()));
            }
            self.skip_space()?;
        }
        if !self.eat(')') {
            return Err(self.error("missing )".to_owned()));
        }
        let number = match (&value, function) {
            (Literal::Text(text), "parseInt") => {
                let text = text.trim();
                let sign = usize::from(text.starts_with(['-', '+']));
                let end = text[sign..].find(|char: char| !char.is_ascii_digit());
                text[..end.map_or(text.len(), |end| sign + end)].parse().ok()
            }
            _ => to_number(&value).map(|number| match function {
                "parseInt" => number.trunc(),
                _ => number,
            }),
        };
        Ok(number.map_or(Literal::Null, Literal::Number))
    }

    /// Parses `require('os').hostname()`, the one expression in etsy's example file, and an
    /// optional `.split('.')[0]` after it.
    fn hostname(&mut self) -> Result<Literal, LiteralSyntaxError> {
        let is_host = self.match_tokens(&["(", "'os'", ")", ".", "hostname", "(", ")"])?;
        if !is_host {
            return Err(self.error(
                "require is supported only as require('os').hostname(), with or without \
                 .split('.')[0]"
                    .to_owned(),
            ));
        }
        let whole = self.context.host.to_owned();
        if self.peek() != Some('.') {
            return Ok(Literal::Text(whole));
        }
        if self.match_tokens(&[".", "split", "(", "'.'", ")", "[", "0", "]"])? {
            Ok(Literal::Text(whole.split('.').next().unwrap_or_default().to_owned()))
        } else {
            Err(self.error("only .split('.')[0] is supported after hostname()".to_owned()))
        }
    }

    /// Consumes these tokens with optional white space; strings may use either quote. Returns false
    /// at the first mismatch.
    fn match_tokens(&mut self, tokens: &[&str]) -> Result<bool, LiteralSyntaxError> {
        for token in tokens {
            self.skip_space()?;
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
    fn skip_space(&mut self) -> Result<(), LiteralSyntaxError> {
        loop {
            let rest = self.rest();
            if rest.starts_with("//") || rest.starts_with('#') {
                while self.peek().is_some_and(|char| char != '\n') {
                    self.next();
                }
            } else if let Some(comment) = rest.strip_prefix("/*") {
                let Some(length) = comment.find("*/") else {
                    return Err(self.error("unterminated comment".to_owned()));
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

    fn error(&self, reason: String) -> LiteralSyntaxError {
        LiteralSyntaxError { line: self.line, reason }
    }
}

/// Whether a value is truthy in JavaScript.
pub(super) fn is_true(value: &Literal) -> bool {
    match value {
        Literal::Null => false,
        Literal::Bool(value) => *value,
        Literal::Number(number) => *number != 0.0 && !number.is_nan(),
        Literal::Text(text) => !text.is_empty(),
        Literal::List(_) | Literal::Object(_) => true,
    }
}

/// Converts a number, or a string that contains one, to a double; `None` for any other value.
pub(super) fn to_number(value: &Literal) -> Option<f64> {
    match value {
        Literal::Number(number) => Some(*number),
        Literal::Text(text) => crate::grammar::number(text.as_bytes()).ok(),
        _ => None,
    }
}

fn is_word_char(char: char) -> bool {
    char.is_alphanumeric() || matches!(char, '_' | '$')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn context() -> ExpressionContext<'static> {
        let variable: &dyn Fn(&str) -> Option<String> = &|name| match name {
            "PORT" => Some("8130".to_owned()),
            "EMPTY" => Some(String::new()),
            _ => None,
        };
        ExpressionContext { host: "db1.example.org", variable }
    }

    fn text(value: &str) -> String {
        fn show(node: &LiteralNode) -> String {
            match &node.value {
                Literal::Null => "null".to_owned(),
                Literal::Bool(value) => value.to_string(),
                Literal::Number(value) => value.to_string(),
                Literal::Text(value) => format!("{value:?}"),
                Literal::List(values) => {
                    format!("[{}]", values.iter().map(show).collect::<Vec<_>>().join(","))
                }
                Literal::Object(entries) => {
                    let one =
                        |entry: &LiteralEntry| format!("{}:{}", entry.key, show(&entry.value));
                    format!("{{{}}}", entries.iter().map(one).collect::<Vec<_>>().join(","))
                }
            }
        }
        match parse(value, context()) {
            Ok(node) => show(&node),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn etsy_config_parses() {
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
    fn constant_expressions_and_environment_variables_are_evaluated() {
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
    fn perl_config_parses() {
        assert_eq!(text("# x\n{ \"port\": 8125, # y\n \"a\": [1,2,], }"), "{port:8125,a:[1,2]}");
    }

    #[test]
    fn syntax_errors_name_their_line() {
        let cases = [
            ("{\n a: process.argv }", "line 2: process is supported only as process.env.NAME"),
            ("{\n a: f(1) }", "line 2: \"f\" is an expression"),
            ("{ a: 1 + {} }", "line 1: only numbers can be used in calculations"),
            ("{ a: (1 }", "line 1: missing )"),
            ("{ a: require('fs') }", "line 1: require is supported only as"),
            (
                "{ a: require('os').hostname().length }",
                "line 1: only .split('.')[0] is supported after",
            ),
            ("{ a: 1 b: 2 }", "line 1: missing comma or }"),
            ("{ a 1 }", "line 1: missing colon after \"a\""),
            ("{ a: 'x\n }", "line 2: unterminated string"),
            ("{ a: 1.2.3 }", "line 1: \"1.2.3\" is not a number"),
            ("{ a: `${b}` }", "line 1: ${} is not evaluated"),
            ("{ /* x }", "line 1: unterminated comment"),
            ("{} x", "line 1: unexpected 'x' after the end of the settings"),
            ("{", "line 1: missing } at the end"),
            ("", "line 1: missing value at the end"),
        ];
        for (config, message) in cases {
            assert!(text(config).starts_with(message), "{config}: {}", text(config));
        }
        let deep = "[".repeat(100_000);
        assert_eq!(text(&deep), "line 1: nested more than 32 levels deep");
    }

    #[test]
    fn format_is_detected_by_first_character() {
        assert!(is_literal("// x\n/* y */ # z\n{}"));
        assert!(!is_literal("# x\n[statsd]\n"));
        assert!(!is_literal(""));
    }

    proptest! {
        #[test]
        fn any_text_yields_value_or_error_line(config in "[{}\\[\\]:,'\"`a1.$/*# \n\\\\]{0,40}") {
            match parse(&config, context()) {
                Ok(node) => prop_assert!(node.line >= 1),
                Err(error) => prop_assert!(error.line <= 1 + config.matches('\n').count()),
            }
        }
    }
}
