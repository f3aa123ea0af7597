//! A settings file of any of the three forms into [`Settings`].

use std::fmt;

use super::{
    Settings, foreign,
    literal::{self, Surroundings},
};

/// What a file says.
#[derive(Clone, Debug)]
pub struct Read {
    /// The settings, checked.
    pub settings: Settings,
    /// Which form the file has.
    pub form: Form,
    /// What is understood and not acted upon.
    pub warnings: Vec<Remark>,
    /// The file's settings as etsy's management port shows them.
    pub config_lines: Vec<String>,
}

/// The form of a settings file, told by its first character that is no comment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// TOML with a `[statsd]` section.
    Howdah,
    /// An object literal: etsy's `config.js`, or the Perl server's JSON.
    Literal,
}

/// Something about one key of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remark {
    /// The line, from 1; 0 if nobody knows.
    pub line: usize,
    /// The key with its path, `graphite.legacyNamespace`; empty if it is about no key.
    pub key: String,
    /// What is wrong with it, or not done.
    pub text: String,
}

impl fmt::Display for Remark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.line > 0 {
            write!(f, "line {}: ", self.line)?;
        }
        if !self.key.is_empty() {
            write!(f, "{}: ", self.key)?;
        }
        f.write_str(&self.text)
    }
}

/// Everything that is wrong with a file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Wrong(pub Vec<Remark>);

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, remark) in self.0.iter().enumerate() {
            let end = if at == 0 { "" } else { "\n" };
            write!(f, "{end}{remark}")?;
        }
        Ok(())
    }
}

impl Settings {
    /// Reads a file's text. `host` is the machine's name, for `require('os').hostname()`.
    ///
    /// # Errors
    ///
    /// It is no file of any form, or has values that cannot be; a howdah.toml also if it has keys that
    /// are not known. In files of other servers those are warnings, as they are ignored there.
    pub fn read(text: &str, host: &str) -> Result<Read, Wrong> {
        Self::read_with(text, host, &|_| None)
    }

    /// The same with the variables of the environment, for `process.env.NAME`.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    pub fn read_with(
        text: &str,
        host: &str,
        variable: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Read, Wrong> {
        let read = match literal::is_literal(text) {
            true => foreign::read(text, Surroundings { host, variable }),
            false => toml_section(text),
        }?;
        let wrong = read.settings.wrong();
        match wrong.is_empty() {
            true => Ok(read),
            false => Err(Wrong(wrong)),
        }
    }

    /// What cannot be, whichever form it was written in.
    fn wrong(&self) -> Vec<Remark> {
        let limits = &self.limits;
        let rules = [
            (
                self.flush_interval.as_millis() == 0,
                "flush-interval",
                "must be at least a millisecond",
            ),
            (
                limits.keys == 0 || limits.keys > 1 << 30,
                "limits.keys",
                "must be between 1 and 1073741824",
            ),
            (
                limits.key_bytes == 0 || limits.key_bytes > usize::from(u16::MAX),
                "limits.key-bytes",
                "must be between 1 and 65535",
            ),
            (
                limits.set_members == 0 || limits.member_bytes == 0,
                "limits",
                "set-members and member-bytes must be at least 1",
            ),
            (
                self.aggregation
                    .percentiles
                    .iter()
                    .any(|p| !(-100.0..=100.0).contains(p) || *p == 0.0),
                "aggregation.percentiles",
                "must be between -100 and 100, and not 0",
            ),
            (
                !(0.0..=100.0).contains(&self.key_flush.percent),
                "key-flush.percent",
                "must be between 0 and 100",
            ),
            (self.listen.is_empty(), "listen", "at least one place to receive at is needed"),
        ];
        let wrong = rules.into_iter().filter(|(wrong, _, _)| *wrong);
        wrong
            .map(|(_, key, text)| Remark { line: 0, key: key.to_owned(), text: text.to_owned() })
            .collect()
    }
}

fn toml_section(text: &str) -> Result<Read, Wrong> {
    /// The file of all commands; the other sections are theirs.
    #[derive(serde::Deserialize)]
    struct File {
        statsd: Option<Settings>,
    }
    let wrong = |line: usize, text: String| Wrong(vec![Remark { line, key: String::new(), text }]);
    let file: File = toml::from_str(text).map_err(|error| {
        let line = error.span().map_or(0, |span| 1 + text[..span.start].matches('\n').count());
        wrong(line, error.message().to_owned())
    })?;
    let settings = file.statsd.ok_or_else(|| {
        wrong(0, "it has no [statsd] section, and is no object literal { … } either".to_owned())
    })?;
    let table: toml::Table = toml::from_str(text).unwrap_or_default();
    let mut config_lines = Vec::new();
    if let Some(toml::Value::Table(section)) = table.get("statsd") {
        lines("", section, &mut config_lines);
    }
    Ok(Read { settings, form: Form::Howdah, warnings: Vec::new(), config_lines })
}

/// `key: value`, `section > key: value`.
fn lines(path: &str, table: &toml::Table, found: &mut Vec<String>) {
    for (key, value) in table {
        let path = if path.is_empty() { key.clone() } else { format!("{path} > {key}") };
        match value {
            toml::Value::Table(section) => lines(&path, section, found),
            toml::Value::String(text) => found.push(format!("{path}: {text}")),
            other => found.push(format!("{path}: {other}")),
        }
    }
}
