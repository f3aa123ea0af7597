//! Splits HBA files into lines, fields and tokens, and includes other files.
//!
//! ```text
//! local  all,"my db"  @admins  trust   # comment
//! host   a \
//!        b            10.0.0.0/8  md5
//! include other.conf
//! include_if_exists perhaps.conf
//! include_dir rules.d
//! ```
//!
//! Tokens are separated by whitespace; a comma continues a field. A token in double quotes is not a
//! keyword such as `all`; a quote within quotes is doubled. `@file` means all tokens of that file.
//! Source: `next_token` and `tokenize_auth_file` in `hba.c`.

use std::{
    path::{Path, PathBuf},
    rc::Rc,
};

use howdah_settings::Diagnostic;

use super::Files;

/// A token, without its quotes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HbaToken {
    pub(super) text: String,
    /// Whether the token started with a quote, so that it is not a keyword such as `all`.
    pub(super) is_quoted: bool,
}

impl HbaToken {
    /// Whether the token is this keyword and was not quoted.
    pub(super) fn is_keyword(&self, keyword: &str) -> bool {
        !self.is_quoted && self.text == keyword
    }
}

/// A line with at least one field.
#[derive(Clone, Debug)]
pub(super) struct HbaLine {
    file: Rc<Path>,
    number: usize,
    pub(super) fields: Vec<Vec<HbaToken>>,
}

impl HbaLine {
    pub(super) fn error(&self, text: String) -> Diagnostic {
        Diagnostic::new(&self.file, self.number, "", text)
    }
}

/// Maximum nesting depth of included files, as in PostgreSQL.
const DEPTH_MAX: usize = 10;

/// Maximum number of tokens of a file with all included files. Without it, files that include each
/// other several times would yield exponentially many tokens before they exceed the nesting limit.
const TOKENS_MAX: usize = 1_000_000;

/// Number of errors, in all files together, beyond which no further lines are read.
const ERRORS_MAX: usize = 100;

/// Returns the lines of a file and its included files. Errors are added to `wrong`.
pub(super) fn tokenize(
    path: &Path,
    files: &dyn Files,
    wrong: &mut Vec<Diagnostic>,
) -> Vec<HbaLine> {
    let mut tokenizer = Tokenizer { files, wrong, lines: Vec::new(), token_count: 0 };
    match files.text(path) {
        Ok(text) => tokenizer.file(path, &text, 0),
        Err(error) => {
            let text = format!("cannot be read: {error}");
            tokenizer.wrong.push(Diagnostic::new(path, 0, "", text));
        }
    }
    tokenizer.lines
}

struct Tokenizer<'a> {
    files: &'a dyn Files,
    wrong: &'a mut Vec<Diagnostic>,
    lines: Vec<HbaLine>,
    token_count: usize,
}

impl Tokenizer<'_> {
    fn file(&mut self, path: &Path, text: &str, depth: usize) {
        let file: Rc<Path> = path.into();
        for (number, text) in logical_lines(text) {
            let mut line = HbaLine { file: Rc::clone(&file), number, fields: Vec::new() };
            let read = self.fields(&text, path, depth).and_then(|fields| {
                line.fields = fields;
                self.handle_include(&line, path, depth)
            });
            match read {
                Ok(true) => {}
                Ok(false) if line.fields.is_empty() => {}
                Ok(false) => self.lines.push(line),
                Err(text) => self.wrong.push(line.error(text)),
            }
            if self.token_count > TOKENS_MAX || self.wrong.len() > ERRORS_MAX {
                return;
            }
        }
    }

    /// Splits a line into fields of tokens.
    fn fields(
        &mut self,
        text: &str,
        path: &Path,
        depth: usize,
    ) -> Result<Vec<Vec<HbaToken>>, String> {
        let mut fields = Vec::new();
        let mut rest = text;
        loop {
            let mut field = Vec::new();
            let mut is_continued = true;
            while is_continued {
                let Some(next) = next_token(rest)? else { break };
                (is_continued, rest) = (next.is_continued, next.rest);
                match next
                    .token
                    .text
                    .strip_prefix('@')
                    .filter(|it| !next.token.is_quoted && !it.is_empty())
                {
                    Some(name) => field.extend(self.file_tokens(name, path, depth)?),
                    None => field.push(next.token),
                }
                self.token_count += 1;
                if self.token_count > TOKENS_MAX {
                    return Err(format!("there are more than {TOKENS_MAX} tokens"));
                }
            }
            if field.is_empty() && next_token(rest)?.is_none() {
                return Ok(fields);
            }
            fields.push(field);
        }
    }

    /// Returns the tokens of an included `@file`, in order.
    fn file_tokens(
        &mut self,
        name: &str,
        beside: &Path,
        depth: usize,
    ) -> Result<Vec<HbaToken>, String> {
        let (path, text) = self.open(name, beside, depth)?;
        let mut tokens = Vec::new();
        for (_, line) in logical_lines(&text) {
            tokens.extend(self.fields(&line, &path, depth + 1)?.into_iter().flatten());
        }
        Ok(tokens)
    }

    /// Processes `line` if it is an include line; returns whether it is one.
    fn handle_include(
        &mut self,
        line: &HbaLine,
        path: &Path,
        depth: usize,
    ) -> Result<bool, String> {
        let [first, rest @ ..] = &line.fields[..] else { return Ok(false) };
        let [HbaToken { text: keyword, .. }] = &first[..] else { return Ok(false) };
        let is_include = ["include", "include_if_exists", "include_dir"];
        if !is_include.contains(&keyword.as_str()) {
            return Ok(false);
        }
        let [field] = rest else { return Err(format!("{keyword} takes one file name")) };
        let [HbaToken { text: name, .. }] = &field[..] else {
            return Err(format!("{keyword} takes one file name"));
        };
        match keyword.as_str() {
            "include_dir" => {
                let folder = relative_to(name, path);
                let listed = self.files.list(&folder);
                let mut found =
                    listed.map_err(|error| format!("cannot read {}: {error}", folder.display()))?;
                found.retain(|path| is_conf_file(path));
                found.sort();
                for file in found {
                    let (path, text) = self.open(&file.display().to_string(), path, depth)?;
                    self.file(&path, &text, depth + 1);
                }
            }
            "include_if_exists" => {
                let missing = self.files.text(&relative_to(name, path));
                let missing = missing.err().map(|error| error.kind());
                if missing != Some(std::io::ErrorKind::NotFound) {
                    let (path, text) = self.open(name, path, depth)?;
                    self.file(&path, &text, depth + 1);
                }
            }
            _ => {
                let (path, text) = self.open(name, path, depth)?;
                self.file(&path, &text, depth + 1);
            }
        }
        Ok(true)
    }

    fn open(&mut self, name: &str, path: &Path, depth: usize) -> Result<(PathBuf, String), String> {
        if depth >= DEPTH_MAX {
            return Err(format!("files are included more than {DEPTH_MAX} levels deep"));
        }
        let path = relative_to(name, path);
        match self.files.text(&path) {
            Ok(text) => Ok((path, text)),
            Err(error) => Err(format!("cannot read {}: {error}", path.display())),
        }
    }
}

/// Resolves a path relative to the file that contains it.
fn relative_to(name: &str, path: &Path) -> PathBuf {
    path.parent().unwrap_or(Path::new("")).join(name)
}

/// Whether `include_dir` includes a file, that is, whether its name ends in `.conf` and it is not
/// hidden.
fn is_conf_file(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    name.ends_with(".conf") && !name.starts_with('.')
}

/// Returns the lines with their numbers from 1. A backslash at the end of a line joins the next
/// line to it.
fn logical_lines(text: &str) -> impl Iterator<Item = (usize, String)> {
    let mut lines = text.lines().enumerate();
    std::iter::from_fn(move || {
        let (index, first) = lines.next()?;
        let mut line = first.to_owned();
        while line.ends_with('\\') {
            line.pop();
            match lines.next() {
                Some((_, more)) => line.push_str(more),
                None => break,
            }
        }
        Some((index + 1, line))
    })
}

struct NextToken<'a> {
    token: HbaToken,
    /// Whether a comma follows the token immediately.
    is_continued: bool,
    rest: &'a str,
}

/// Returns the next token of a line; `None` at its end or at a comment.
fn next_token(text: &str) -> Result<Option<NextToken<'_>>, String> {
    let text = text.trim_start_matches(|c: char| c.is_ascii_whitespace() || c == ',');
    if text.is_empty() || text.starts_with('#') {
        return Ok(None);
    }
    let is_quoted = text.starts_with('"');
    let (mut token, mut in_quotes, mut was_quote) = (String::new(), false, false);
    let mut end = text.len();
    for (at, character) in text.char_indices() {
        if !in_quotes && (character.is_ascii_whitespace() || matches!(character, ',' | '#')) {
            end = at;
            break;
        }
        match character {
            '"' if was_quote => {
                token.push('"');
                (in_quotes, was_quote) = (true, false);
            }
            '"' => {
                // A closing quote, or the first of two that stand for one.
                was_quote = in_quotes;
                in_quotes = !in_quotes;
            }
            character => {
                token.push(character);
                was_quote = false;
            }
        }
    }
    if in_quotes {
        return Err("unterminated quote".to_owned());
    }
    let rest = &text[end..];
    let is_continued = rest.starts_with(',');
    Ok(Some(NextToken { token: HbaToken { text: token, is_quoted }, is_continued, rest }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(line: &str) -> Vec<String> {
        let mut found = Vec::new();
        let mut rest = line;
        while let Some(next) = next_token(rest).unwrap() {
            let mark = if next.token.is_quoted { "'" } else { "" };
            let comma = if next.is_continued { "," } else { "" };
            found.push(format!("{mark}{}{comma}", next.token.text));
            rest = next.rest;
        }
        found
    }

    #[test]
    fn tokens_end_at_whitespace_commas_and_comments() {
        assert_eq!(tokens("host all,b ,c # x"), ["host", "all,", "b", "c"]);
        assert_eq!(tokens("a, b"), ["a,", "b"], "the comma continues the field");
        assert_eq!(
            tokens(r#""all" "a b" "a""b" x"y z" "" "#),
            ["'all", "'a b", "'a\"b", "xy z", "'"]
        );
        assert_eq!(tokens("a#b"), ["a"]);
        assert_eq!(tokens("\"#\""), ["'#"]);
        assert_eq!(tokens(" \t, # only a comment"), [""; 0]);
        assert!(next_token("\"a").is_err());
    }

    #[test]
    fn backslash_continues_a_line() {
        let lines: Vec<_> = logical_lines("a\nb \\\n c\\\n\nd\\").collect();
        let expected = [(1, "a"), (2, "b  c"), (5, "d")];
        assert_eq!(lines, expected.map(|(number, text)| (number, text.to_owned())));
    }
}
