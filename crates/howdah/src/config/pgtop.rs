//! The file that people have from pgtop: `key = value` lines, taken by `howdah top --config FILE`.
//!
//! ```text
//! # ~/.pgtop
//! delay = 5
//! host = db1:5433
//! slow_threshold = 60
//! slack_webhook = https://hooks.slack.com/services/…
//! ```
//!
//! pgtop reads it by an unanchored pattern, which loses values that hold `=`, and lets the file win over the
//! command line. Here a value is the first word behind the first `=`, and the command line wins. A key that
//! pgtop does not know is an error; one that it knows and that means nothing here is said.

use clap::{Arg, Command};

use super::{ConfigFile, Problem, Problems, judge, setting};

/// What becomes of a key of pgtop's.
enum Meaning {
    /// An option of `howdah top`.
    Option(&'static str),
    /// An option that takes no value: Perl's idea of truth says whether it is given.
    Flag(&'static str),
    /// A pattern for the filter, and the column it is about.
    Filter(&'static str),
    /// `host`, perhaps with a port.
    Host,
    /// `color`, 0 or 1.
    Color,
    /// Nothing, for that reason.
    Nothing(&'static str),
}

/// Every key of pgtop's file (its `%config`).
const KEYS: [(&str, Meaning); 21] = [
    ("batchmode", Meaning::Flag("once")),
    ("color", Meaning::Color),
    ("db", Meaning::Option("dbname")),
    ("delay", Meaning::Option("interval")),
    ("filter_db", Meaning::Filter("database")),
    ("filter_host", Meaning::Filter("client")),
    ("filter_user", Meaning::Filter("user")),
    ("header", Meaning::Nothing("there is always a header")),
    ("host", Meaning::Host),
    ("idle", Meaning::Flag("idle")),
    ("long_nums", Meaning::Nothing("long numbers are shortened")),
    ("mode", Meaning::Nothing("--view says what to look at first")),
    ("pass", Meaning::Option("pass")),
    ("port", Meaning::Option("port")),
    ("prompt", Meaning::Nothing("passwords come from ~/.pgpass or PGPASSWORD")),
    ("resolve", Meaning::Nothing("addresses are shown as they are")),
    ("slack_webhook", Meaning::Option("slack-webhook")),
    ("slow_threshold", Meaning::Option("slow-threshold")),
    ("socket", Meaning::Nothing("pgtop ignores it, too: write the folder as host")),
    ("sort", Meaning::Nothing("the column to sort by is chosen with < and >")),
    ("user", Meaning::Option("username")),
];

/// Values for options, where they stand, and remarks.
#[derive(Debug, Default)]
struct Read {
    values: Vec<(usize, String, &'static str, String)>,
    filter: Vec<String>,
    remarks: Vec<Problem>,
    problems: Vec<Problem>,
}

/// Whether a file that somebody named for `howdah top` is pgtop's: it is not called `.toml`, and has no
/// sections, which every file of ours has that says something about `top`.
pub(crate) fn is_one(file: &ConfigFile) -> bool {
    let is_toml = file.path.extension().is_some_and(|extension| extension == "toml");
    !is_toml && !file.text.lines().any(|line| line.trim_start().starts_with('['))
}

/// Makes the file's values the defaults of the options of `top`; with lines for a person about keys that mean
/// nothing here.
///
/// # Errors
///
/// Something in the file is wrong; the error tells all of it.
pub(crate) fn apply(
    file: &ConfigFile,
    command: Command,
) -> Result<(Command, Vec<String>), Problems> {
    let mut read = Read::of(&file.text);
    if !read.filter.is_empty() {
        let words = read.filter.join(" ");
        read.values.push((0, "filter".to_owned(), "filter", words));
    }
    let mut problems = std::mem::take(&mut read.problems);
    let mut command = command;
    for (at, key, option, value) in read.values {
        let is_global = setting(&command, option).is_some();
        let mut set = |command: Command| set(command, at, &key, option, &value, &mut problems);
        command = match is_global {
            true => set(command),
            false => command.mut_subcommand("top", set),
        };
    }
    if !problems.is_empty() {
        return Err(file.problems(problems));
    }
    // Who has this file has its keys in the fingers, too.
    let keymap = |arg: Arg| arg.default_value("pgtop");
    let command = command.mut_subcommand("top", |top| top.mut_arg("keymap", keymap));
    let remarks = match read.remarks.is_empty() {
        true => Vec::new(),
        false => file.problems(read.remarks).lines().collect(),
    };
    Ok((command, remarks))
}

/// Makes a value the default of an option.
fn set(
    command: Command,
    at: usize,
    key: &str,
    option: &'static str,
    value: &str,
    problems: &mut Vec<Problem>,
) -> Command {
    let Some(arg) = setting(&command, option) else { return command };
    let id = arg.get_id().clone();
    match judge(arg, &[value.to_owned()]) {
        Ok(()) => {
            let value = value.to_owned();
            command.mut_arg(id, |arg| arg.default_values([value]).required(false))
        }
        Err(why) => {
            problems.push(Problem::new(at, key, why));
            command
        }
    }
}

impl Read {
    fn of(text: &str) -> Self {
        let mut read = Self::default();
        let mut at = 0;
        for line in text.split_inclusive('\n') {
            let begin = line.trim_start();
            if !begin.is_empty() && !begin.starts_with('#') {
                read.line(at, line);
            }
            at += line.len();
        }
        read
    }

    fn line(&mut self, at: usize, line: &str) {
        let Some((key, value)) = line.split_once('=') else {
            self.problems.push(Problem::new(at, line.trim(), "is no `key = value`"));
            return;
        };
        let key = key.trim().to_lowercase();
        let mut words = value.split_whitespace();
        // Nothing behind the sign is nothing said, as in pgtop.
        let Some(value) = words.next() else { return };
        if words.next().is_some_and(|word| !word.starts_with('#')) {
            self.problems.push(Problem::new(at, &key, "takes one word"));
            return;
        }
        match KEYS.iter().find(|(known, _)| *known == key) {
            Some((key, meaning)) => self.key(at, key, meaning, value),
            None => {
                let known = KEYS.iter().map(|(key, _)| *key);
                self.problems.push(Problem::new(at, &key, "no such key").or_nearest(&key, known));
            }
        }
    }

    fn key(&mut self, at: usize, key: &str, meaning: &Meaning, value: &str) {
        let mut push = |option, value: &str| {
            self.values.push((at, key.to_owned(), option, value.to_owned()));
        };
        match *meaning {
            Meaning::Option(option) => push(option, value),
            Meaning::Flag(option) => push(option, if value == "0" { "false" } else { "true" }),
            Meaning::Color => push("color", if value == "0" { "never" } else { "auto" }),
            Meaning::Host => match value.rsplit_once(':') {
                Some((host, port)) if !host.contains(':') => {
                    push("host", host);
                    push("port", port);
                }
                _ => push("host", value),
            },
            Meaning::Filter(column) => match words_of(value) {
                Some((is_whole, word)) => {
                    let sign = if is_whole { '=' } else { ':' };
                    self.filter.push(format!("{column}{sign}{word}"));
                }
                None => {
                    let why = format!(
                        "patterns are not known here: write --filter '{column}:WORD', or ^WORD$"
                    );
                    self.problems.push(Problem::new(at, key, why));
                }
            },
            Meaning::Nothing(why) => {
                let why = format!("means nothing here: {why}");
                self.remarks.push(Problem::new(at, key, why));
            }
        }
    }
}

/// The word of a pattern that is nothing but one, and whether it is anchored at both ends.
fn words_of(pattern: &str) -> Option<(bool, &str)> {
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
    fn keys_become_the_options_they_mean() {
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
    fn mistakes_are_told_with_line_and_key() {
        let text = "delay=soon\nfoo delay=4\n\nthreshold=3\nhost\ndb=a b\nfilter_user=^a.*\n";
        let problems = apply(&file(text), cli::command()).unwrap_err();
        let lines: Vec<String> = problems.lines().collect();
        assert_eq!(lines.len(), 6, "{lines:?}");
        assert!(lines[0].starts_with("old:1: delay: `soon`: write a time such as"), "{lines:?}");
        assert!(lines[1].starts_with("old:2: foo delay: no such key"), "{lines:?}");
        assert!(lines[2].starts_with("old:4: threshold: no such key"), "{lines:?}");
        assert!(lines[3].starts_with("old:5: host: is no `key = value`"), "{lines:?}");
        assert!(lines[4].starts_with("old:6: db: takes one word"), "{lines:?}");
        assert!(lines[5].starts_with("old:7: filter_user: patterns are not known here"));
    }

    #[test]
    fn a_key_that_means_nothing_here_is_a_remark() {
        let (_, remarks) = apply(&file("delay=5\nprompt=1\n"), cli::command()).unwrap();
        let expected =
            "old:2: prompt: means nothing here: passwords come from ~/.pgpass or PGPASSWORD";
        assert_eq!(remarks, [expected]);
    }

    #[test]
    fn a_file_with_sections_is_ours() {
        assert!(is_one(&file("delay=5")));
        assert!(!is_one(&file("[top]\ndelay=5")));
        let toml = ConfigFile {
            path: "a.toml".into(),
            text: "delay=5".to_owned(),
            source: ConfigSource::Named,
        };
        assert!(!is_one(&toml));
    }
}
