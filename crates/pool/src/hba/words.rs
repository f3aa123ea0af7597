//! Files into lines of fields of words.
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
//! Words are told apart by blanks; a comma continues a field. A word in double quotes is never a
//! keyword; a quote within quotes is doubled. `@file` is all words of that file. Source:
//! `next_token` and `tokenize_auth_file` in `hba.c`.

use std::{
    path::{Path, PathBuf},
    rc::Rc,
};

use super::{Files, HbaError};

/// A word of a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Word {
    pub(super) text: String,
    /// Whether it began with a quote: then it is no keyword.
    pub(super) quoted: bool,
}

impl Word {
    /// Whether it is this keyword.
    pub(super) fn is(&self, keyword: &str) -> bool {
        !self.quoted && self.text == keyword
    }
}

/// A line that says something.
#[derive(Clone, Debug)]
pub(super) struct Line {
    file: Rc<Path>,
    number: usize,
    pub(super) fields: Vec<Vec<Word>>,
}

impl Line {
    pub(super) fn error(&self, text: String) -> HbaError {
        HbaError { file: self.file.to_path_buf(), line: self.number, text }
    }
}

/// Deepest nesting of files; PostgreSQL's own.
const DEPTH_MAX: usize = 10;

/// Most lines and words of a file with all it includes: files that include each other several times
/// grow without bounds long before they are nested too deep.
const WORDS_MAX: usize = 1_000_000;

/// Nobody reads more.
const ERRORS_MAX: usize = 100;

/// The lines of a file and of what it includes. What is wrong goes to `wrong`.
pub(super) fn tokenize(path: &Path, files: &dyn Files, wrong: &mut Vec<HbaError>) -> Vec<Line> {
    let mut tokenizer = Tokenizer { files, wrong, lines: Vec::new(), words: 0 };
    match files.text(path) {
        Ok(text) => tokenizer.file(path, &text, 0),
        Err(error) => {
            let text = format!("cannot be read: {error}");
            tokenizer.wrong.push(HbaError { file: path.to_owned(), line: 0, text });
        }
    }
    tokenizer.lines
}

struct Tokenizer<'a> {
    files: &'a dyn Files,
    wrong: &'a mut Vec<HbaError>,
    lines: Vec<Line>,
    words: usize,
}

impl Tokenizer<'_> {
    fn file(&mut self, path: &Path, text: &str, depth: usize) {
        let file: Rc<Path> = path.into();
        for (number, text) in logical_lines(text) {
            let mut line = Line { file: Rc::clone(&file), number, fields: Vec::new() };
            let read = self.fields(&text, path, depth).and_then(|fields| {
                line.fields = fields;
                self.included(&line, path, depth)
            });
            match read {
                Ok(true) => {}
                Ok(false) if line.fields.is_empty() => {}
                Ok(false) => self.lines.push(line),
                Err(text) => self.wrong.push(line.error(text)),
            }
            if self.words > WORDS_MAX || self.wrong.len() > ERRORS_MAX {
                return;
            }
        }
    }

    /// The fields of one line.
    fn fields(&mut self, text: &str, path: &Path, depth: usize) -> Result<Vec<Vec<Word>>, String> {
        let mut fields = Vec::new();
        let mut rest = text;
        loop {
            let mut field = Vec::new();
            let mut goes_on = true;
            while goes_on {
                let Some(next) = next_word(rest)? else { break };
                (goes_on, rest) = (next.goes_on, next.rest);
                match next
                    .word
                    .text
                    .strip_prefix('@')
                    .filter(|it| !next.word.quoted && !it.is_empty())
                {
                    Some(name) => field.extend(self.listed(name, path, depth)?),
                    None => field.push(next.word),
                }
                self.words += 1;
                if self.words > WORDS_MAX {
                    return Err(format!("there are more than {WORDS_MAX} words"));
                }
            }
            if field.is_empty() && next_word(rest)?.is_none() {
                return Ok(fields);
            }
            fields.push(field);
        }
    }

    /// All words of a file.
    fn listed(&mut self, name: &str, beside: &Path, depth: usize) -> Result<Vec<Word>, String> {
        let (path, text) = self.open(name, beside, depth)?;
        let mut words = Vec::new();
        for (_, line) in logical_lines(&text) {
            words.extend(self.fields(&line, &path, depth + 1)?.into_iter().flatten());
        }
        Ok(words)
    }

    /// Follows a line that includes; false if it is none.
    fn included(&mut self, line: &Line, path: &Path, depth: usize) -> Result<bool, String> {
        let [first, rest @ ..] = &line.fields[..] else { return Ok(false) };
        let [Word { text: keyword, .. }] = &first[..] else { return Ok(false) };
        let is_include = ["include", "include_if_exists", "include_dir"];
        if !is_include.contains(&keyword.as_str()) {
            return Ok(false);
        }
        let [field] = rest else { return Err(format!("{keyword} takes one name")) };
        let [Word { text: name, .. }] = &field[..] else {
            return Err(format!("{keyword} takes one name"));
        };
        match keyword.as_str() {
            "include_dir" => {
                let folder = beside(name, path);
                let listed = self.files.list(&folder);
                let mut found =
                    listed.map_err(|error| format!("cannot read {}: {error}", folder.display()))?;
                found.retain(|path| is_configuration(path));
                found.sort();
                for file in found {
                    let (path, text) = self.open(&file.display().to_string(), path, depth)?;
                    self.file(&path, &text, depth + 1);
                }
            }
            "include_if_exists" => {
                let missing = self.files.text(&beside(name, path));
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
            return Err(format!("files include each other more than {DEPTH_MAX} deep"));
        }
        let path = beside(name, path);
        match self.files.text(&path) {
            Ok(text) => Ok((path, text)),
            Err(error) => Err(format!("cannot read {}: {error}", path.display())),
        }
    }
}

/// A name, relative to the file that names it.
fn beside(name: &str, path: &Path) -> PathBuf {
    path.parent().unwrap_or(Path::new("")).join(name)
}

/// Whether `include_dir` takes a file: it ends in `.conf` and is not hidden.
fn is_configuration(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    name.ends_with(".conf") && !name.starts_with('.')
}

/// Lines with their numbers from 1; one that ends in a backslash goes on in the next.
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

struct Next<'a> {
    word: Word,
    /// Whether a comma follows at once.
    goes_on: bool,
    rest: &'a str,
}

/// The next word of a line; `None` at its end, or at a comment.
fn next_word(text: &str) -> Result<Option<Next<'_>>, String> {
    let text = text.trim_start_matches(|c: char| c.is_ascii_whitespace() || c == ',');
    if text.is_empty() || text.starts_with('#') {
        return Ok(None);
    }
    let quoted = text.starts_with('"');
    let (mut word, mut in_quotes, mut was_quote) = (String::new(), false, false);
    let mut end = text.len();
    for (at, letter) in text.char_indices() {
        if !in_quotes && (letter.is_ascii_whitespace() || matches!(letter, ',' | '#')) {
            end = at;
            break;
        }
        match letter {
            '"' if was_quote => {
                word.push('"');
                (in_quotes, was_quote) = (true, false);
            }
            '"' => {
                // Closing one, unless another follows.
                was_quote = in_quotes;
                in_quotes = !in_quotes;
            }
            letter => {
                word.push(letter);
                was_quote = false;
            }
        }
    }
    if in_quotes {
        return Err("a quote is not closed on its line".to_owned());
    }
    let rest = &text[end..];
    let goes_on = rest.starts_with(',');
    Ok(Some(Next { word: Word { text: word, quoted }, goes_on, rest }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        let mut found = Vec::new();
        let mut rest = line;
        while let Some(next) = next_word(rest).unwrap() {
            let mark = if next.word.quoted { "'" } else { "" };
            let comma = if next.goes_on { "," } else { "" };
            found.push(format!("{mark}{}{comma}", next.word.text));
            rest = next.rest;
        }
        found
    }

    #[test]
    fn words_end_at_blanks_commas_and_comments() {
        assert_eq!(words("host all,b ,c # x"), ["host", "all,", "b", "c"]);
        assert_eq!(words("a, b"), ["a,", "b"], "the comma continues the field");
        assert_eq!(
            words(r#""all" "a b" "a""b" x"y z" "" "#),
            ["'all", "'a b", "'a\"b", "xy z", "'"]
        );
        assert_eq!(words("a#b"), ["a"]);
        assert_eq!(words("\"#\""), ["'#"]);
        assert_eq!(words(" \t, # only a comment"), [""; 0]);
        assert!(next_word("\"a").is_err());
    }

    #[test]
    fn a_backslash_continues_a_line() {
        let lines: Vec<_> = logical_lines("a\nb \\\n c\\\n\nd\\").collect();
        let expected = [(1, "a"), (2, "b  c"), (5, "d")];
        assert_eq!(lines, expected.map(|(number, text)| (number, text.to_owned())));
    }
}
