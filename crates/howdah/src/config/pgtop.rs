//! The configuration file of pgtop: `key = value` lines, read by `howdah top --config FILE`.
//!
//! ```text
//! # ~/.pgtop
//! delay = 5
//! host = db1:5433
//! slow_threshold = 60
//! slack_webhook = https://hooks.slack.com/services/…
//! ```
//!
//! pgtop parses the file with an unanchored pattern, which truncates values that contain `=`, and
//! lets the file override the command line. Here a value is the first word after the first `=`, and
//! the command line takes precedence. A key unknown to pgtop is an error; one that pgtop knows but
//! that has no effect here is reported.

use clap::{Arg, Command};
use howdah_settings::SettingsErrors;

use super::{ConfigFile, ProblemList, setting, validate};

/// The meaning of a key of pgtop for `howdah top`.
enum PgtopKey {
    /// An option of `howdah top`.
    Option(&'static str),
    /// A flag; the value is true or false as in Perl.
    Flag(&'static str),
    /// A pattern for the filter; the field is the column it applies to.
    Filter(&'static str),
    /// `host`, optionally with a port.
    Host,
    /// `color`: 0 turns colours off, 1 leaves the default.
    Color,
    /// No effect here, for the given reason.
    Ignored(&'static str),
}

/// All keys of pgtop's file (its `%config`).
const KEYS: [(&str, PgtopKey); 21] = [
    ("batchmode", PgtopKey::Flag("once")),
    ("color", PgtopKey::Color),
    ("db", PgtopKey::Option("dbname")),
    ("delay", PgtopKey::Option("interval")),
    ("filter_db", PgtopKey::Filter("database")),
    ("filter_host", PgtopKey::Filter("client")),
    ("filter_user", PgtopKey::Filter("user")),
    ("header", PgtopKey::Ignored("the header is always shown")),
    ("host", PgtopKey::Host),
    ("idle", PgtopKey::Flag("idle")),
    ("long_nums", PgtopKey::Ignored("long numbers are always shortened")),
    ("mode", PgtopKey::Ignored("use --view to choose the first screen")),
    ("pass", PgtopKey::Option("pass")),
    ("port", PgtopKey::Option("port")),
    ("prompt", PgtopKey::Ignored("passwords come from ~/.pgpass or PGPASSWORD")),
    ("resolve", PgtopKey::Ignored("addresses are not resolved")),
    ("slack_webhook", PgtopKey::Option("slack-webhook")),
    ("slow_threshold", PgtopKey::Option("slow-threshold")),
    ("socket", PgtopKey::Ignored("pgtop ignores it too: give the socket directory as host")),
    ("sort", PgtopKey::Ignored("choose the sort column with < and >")),
    ("user", PgtopKey::Option("username")),
];

/// A parsed file: option values with their positions, and diagnostics.
#[derive(Debug)]
struct PgtopFile<'a> {
    values: Vec<(usize, String, &'static str, String)>,
    filter: Vec<String>,
    remarks: ProblemList<'a>,
    problems: ProblemList<'a>,
}

/// Whether a file named for `howdah top` is pgtop's: its name does not end in `.toml`, and it has
/// no sections, which every `howdah.toml` with settings for `top` has.
pub(crate) fn is_pgtop_file(file: &ConfigFile) -> bool {
    let is_toml = file.path.extension().is_some_and(|extension| extension == "toml");
    !is_toml && !file.text.lines().any(|line| line.trim_start().starts_with('['))
}

/// Makes the file's values the defaults of `top`'s options, and pgtop's keys its default keymap.
/// Also returns notices about settings that have no effect here.
///
/// # Errors
///
/// The file is invalid; the error lists every problem.
pub(crate) fn apply(
    file: &ConfigFile,
    command: Command,
) -> Result<(Command, Vec<String>), SettingsErrors> {
    let mut read = PgtopFile::parse(file);
    if !read.filter.is_empty() {
        let filter = read.filter.join(" ");
        read.values.push((0, "filter".to_owned(), "filter", filter));
    }
    let mut problems = read.problems;
    let mut command = command;
    for (at, key, option, value) in read.values {
        let is_global = setting(&command, option).is_some();
        let mut set =
            |command: Command| set_default(command, at, &key, option, &value, &mut problems);
        command = if is_global { set(command) } else { command.mut_subcommand("top", set) };
    }
    if let Some(errors) = problems.into_errors() {
        return Err(errors);
    }
    // A user of pgtop's file probably prefers pgtop's keys, too.
    let keymap = |arg: Arg| arg.default_value("pgtop");
    let command = command.mut_subcommand("top", |top| top.mut_arg("keymap", keymap));
    let remarks = read.remarks.into_errors().map(|remarks| remarks.0).unwrap_or_default();
    Ok((command, remarks.iter().map(ToString::to_string).collect()))
}

/// Makes a value the default of an option.
fn set_default(
    command: Command,
    at: usize,
    key: &str,
    option: &'static str,
    value: &str,
    problems: &mut ProblemList<'_>,
) -> Command {
    let Some(arg) = setting(&command, option) else { return command };
    let id = arg.get_id().clone();
    match validate(arg, &[value.to_owned()]) {
        Ok(()) => {
            let value = value.to_owned();
            command.mut_arg(id, |arg| arg.default_values([value]).required(false))
        }
        Err(why) => {
            problems.add(at, key, why);
            command
        }
    }
}

impl<'a> PgtopFile<'a> {
    fn parse(file: &'a ConfigFile) -> Self {
        let list = || ProblemList::new(file.settings_text());
        let (remarks, problems) = (list(), list());
        let mut read = Self { values: Vec::new(), filter: Vec::new(), remarks, problems };
        let mut at = 0;
        for line in file.text.split_inclusive('\n') {
            let trimmed = line.trim_start();
            if !trimmed.is_empty() && !trimmed.starts_with('#') {
                read.parse_line(at, line);
            }
            at += line.len();
        }
        read
    }

    fn parse_line(&mut self, at: usize, line: &str) {
        let Some((key, value)) = line.split_once('=') else {
            self.problems.add(at, line.trim(), "is not `key = value`");
            return;
        };
        let key = key.trim().to_lowercase();
        let mut words = value.split_whitespace();
        // A key without a value is ignored, as in pgtop.
        let Some(value) = words.next() else { return };
        if words.next().is_some_and(|word| !word.starts_with('#')) {
            self.problems.add(at, &key, "takes a single word");
            return;
        }
        match KEYS.iter().find(|(known, _)| *known == key) {
            Some((key, meaning)) => self.apply_key(at, key, meaning, value),
            None => {
                let known = KEYS.iter().map(|(key, _)| *key);
                self.problems.add_unknown(at, &key, "unknown key", known);
            }
        }
    }

    fn apply_key(&mut self, at: usize, key: &str, meaning: &PgtopKey, value: &str) {
        let mut push = |option, value: &str| {
            self.values.push((at, key.to_owned(), option, value.to_owned()));
        };
        match *meaning {
            PgtopKey::Option(option) => push(option, value),
            PgtopKey::Flag(option) => push(option, if value == "0" { "false" } else { "true" }),
            PgtopKey::Color => push("color", if value == "0" { "never" } else { "auto" }),
            PgtopKey::Host => match value.rsplit_once(':') {
                Some((host, port)) if !host.contains(':') => {
                    push("host", host);
                    push("port", port);
                }
                _ => push("host", value),
            },
            PgtopKey::Filter(column) => match literal_pattern(value) {
                Some((is_whole, word)) => {
                    let sign = if is_whole { '=' } else { ':' };
                    self.filter.push(format!("{column}{sign}{word}"));
                }
                None => {
                    let why = format!(
                        "patterns are not supported: write --filter '{column}:WORD', or ^WORD$"
                    );
                    self.problems.add(at, key, why);
                }
            },
            PgtopKey::Ignored(why) => {
                let why = format!("has no effect: {why}");
                self.remarks.add(at, key, why);
            }
        }
    }
}

/// Returns whether a pattern is anchored at both ends, and the word in it; `None` if it has
/// metacharacters.
fn literal_pattern(pattern: &str) -> Option<(bool, &str)> {
    let anchored = pattern.strip_prefix('^').and_then(|rest| rest.strip_suffix('$'));
    let word = anchored.unwrap_or(pattern);
    let is_word = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-');
    word.chars().all(is_word).then_some((anchored.is_some(), word))
}

#[cfg(test)]
mod tests {
    use super::{super::ConfigSource, *};
    use crate::cli;

    fn file(text: &str) -> ConfigFile {
        ConfigFile { path: "old".into(), text: text.to_owned(), source: ConfigSource::Named }
    }

    fn defaults(text: &str, option: &str) -> Vec<String> {
        let (command, _) = apply(&file(text), cli::command()).unwrap();
        let top = command.find_subcommand("top").unwrap();
        let arg = setting(top, option).or(setting(&command, option)).unwrap();
        arg.get_default_values().iter().map(|value| value.to_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn keys_set_their_options() {
        let text = "# a comment\n\n delay=7 # seconds\nHOST = db1:5433\nidle=1\nfilter_user=^app$\n\
            filter_db=shop\nslack_webhook=http://h/x?a=b=c\nslow_threshold = 30\ncolor=0\npass=a=b";
        for (option, value) in [
            ("interval", "7"),
            ("host", "db1"),
            ("port", "5433"),
            ("idle", "true"),
            ("filter", "user=app database:shop"),
            ("slack-webhook", "http://h/x?a=b=c"),
            ("slow-threshold", "30"),
            ("color", "never"),
            ("pass", "a=b"),
            ("keymap", "pgtop"),
        ] {
            assert_eq!(defaults(text, option), [value], "{option}");
        }
        assert!(defaults("pass=\n", "pass").is_empty());
    }

    #[test]
    fn errors_have_line_and_key() {
        let text = "delay=soon\nfoo delay=4\n\nthreshold=3\nhost\ndb=a b\nfilter_user=^a.*\n";
        let problems = apply(&file(text), cli::command()).unwrap_err();
        let lines: Vec<String> = problems.0.iter().map(ToString::to_string).collect();
        assert_eq!(lines.len(), 6, "{lines:?}");
        assert!(lines[0].starts_with("old:1: delay: `soon`: write a time such as"), "{lines:?}");
        assert!(lines[1].starts_with("old:2: foo delay: unknown key"), "{lines:?}");
        assert!(lines[2].starts_with("old:4: threshold: unknown key"), "{lines:?}");
        assert!(lines[3].starts_with("old:5: host: is not `key = value`"), "{lines:?}");
        assert!(lines[4].starts_with("old:6: db: takes a single word"), "{lines:?}");
        assert!(lines[5].starts_with("old:7: filter_user: patterns are not supported"));
    }

    #[test]
    fn key_without_effect_is_a_notice() {
        let (_, remarks) = apply(&file("delay=5\nprompt=1\n"), cli::command()).unwrap();
        let expected = "old:2: prompt: has no effect: passwords come from ~/.pgpass or PGPASSWORD";
        assert_eq!(remarks, [expected]);
    }

    #[test]
    fn file_with_sections_is_howdah_toml() {
        assert!(is_pgtop_file(&file("delay=5")));
        assert!(!is_pgtop_file(&file("[top]\ndelay=5")));
        let toml = ConfigFile {
            path: "a.toml".into(),
            text: "delay=5".to_owned(),
            source: ConfigSource::Named,
        };
        assert!(!is_pgtop_file(&toml));
    }
}
