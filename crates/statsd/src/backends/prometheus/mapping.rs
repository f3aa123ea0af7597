//! [`Mapping`]: rules that give statsd names Prometheus names and labels, in the file format of
//! statsd_exporter.
//!
//! ```yaml
//! defaults:
//!   observer_type: histogram
//! mappings:
//! - match: "test.dispatcher.*.*"
//!   name: dispatcher_events_total
//!   labels: { processor: "$1", outcome: "$2" }
//! ```
//!
//! Globs come first, in the order of the file (or the most specific one, with
//! `glob_disable_ordering`), then regular expressions in their order. A `*` of a glob stands for all
//! between two points. Metrics that no rule matches keep their own names.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use regex_lite::Regex;

use super::yaml::{self, Node, Value};
use crate::settings::{self, Observer};

/// Bytes of a mapping file.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// A mapping file cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MappingError {
    /// It cannot be read.
    #[error("cannot read the mapping file {path}")]
    Read {
        /// Which file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// Something in it is not as it should be.
    #[error("{path}:{line}: {problem}")]
    Wrong {
        /// Which file.
        path: PathBuf,
        /// Which line, from 1.
        line: usize,
        /// What is wrong.
        problem: MappingProblem,
    },
}

/// What is wrong with a mapping.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MappingProblem {
    /// It is no YAML.
    #[error("{reason}")]
    Syntax {
        /// The parser's words.
        reason: String,
    },
    /// `*name`.
    #[error("aliases are not read here: write the value out")]
    Alias,
    /// Lists in lists in lists.
    #[error("too many levels")]
    TooDeep,
    /// A key that is a list or a map.
    #[error("a key has to be a word")]
    KeyNotText,
    /// A key that statsd_exporter does not know either.
    #[error("unknown key {key:?}")]
    UnknownKey {
        /// The key.
        key: String,
    },
    /// A value of the wrong kind.
    #[error("{key} has to be {wanted}")]
    NotA {
        /// The key.
        key: String,
        /// What it is to be.
        wanted: &'static str,
    },
    /// A mapping lacks a key.
    #[error("a mapping needs {key}")]
    Missing {
        /// The key.
        key: &'static str,
    },
    /// A name of a metric or a label that Prometheus cannot have.
    #[error(
        "{name:?} is no name for Prometheus: letters, digits, _ and $1 are, and no digit first"
    )]
    Name {
        /// The name.
        name: String,
    },
    /// A regular expression that is none.
    #[error("{pattern:?} is no regular expression: {reason}")]
    Regex {
        /// The expression.
        pattern: String,
        /// What is wrong with it.
        reason: String,
    },
}

/// What a rule may be limited to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    Counter,
    Gauge,
    Observer,
}

/// How a timer is shown.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Observing {
    pub(super) observer: Observer,
    pub(super) quantiles: Vec<f64>,
    pub(super) quantile_age: Duration,
    pub(super) buckets: Vec<f64>,
    pub(super) native_factor: f64,
    pub(super) native_buckets_max: usize,
}

impl Observing {
    pub(super) fn from_settings(settings: &settings::Prometheus) -> Self {
        Self {
            observer: settings.timers,
            quantiles: settings.quantiles.clone(),
            quantile_age: settings.quantile_age,
            buckets: settings.buckets.clone(),
            native_factor: settings.native_bucket_factor,
            native_buckets_max: settings.native_buckets_max,
        }
    }
}

/// What a name becomes.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Mapped {
    pub(super) name: String,
    pub(super) labels: Vec<(String, String)>,
    pub(super) honor_labels: bool,
    pub(super) help: Option<String>,
    pub(super) scale: f64,
    pub(super) ttl: Option<Duration>,
    pub(super) observing: Arc<Observing>,
}

/// The result of looking a name up.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Lookup {
    Mapped(Mapped),
    Drop,
    NoRule,
}

/// The rules of a file.
#[derive(Debug)]
pub(super) struct Mapping {
    globs: Vec<(Vec<Field>, Rule)>,
    regexes: Vec<(Regex, Rule)>,
    most_specific: bool,
    defaults: Arc<Observing>,
}

#[derive(Debug, PartialEq, Eq)]
enum Field {
    Any,
    Text(String),
}

#[derive(Debug)]
struct Rule {
    kind: Option<Kind>,
    drop: bool,
    name: String,
    labels: Vec<(String, String)>,
    honor_labels: bool,
    help: Option<String>,
    scale: f64,
    ttl: Option<Duration>,
    observing: Arc<Observing>,
}

impl Mapping {
    /// Reads a file. What it leaves open is as in `settings`.
    pub(super) fn read(path: &Path, settings: &settings::Prometheus) -> Result<Self, MappingError> {
        let unreadable = |source| MappingError::Read { path: path.to_owned(), source };
        if fs::metadata(path).map_err(unreadable)?.len() > FILE_BYTES_MAX {
            let reason = "it is larger than 4 MiB";
            return Err(unreadable(io::Error::new(io::ErrorKind::FileTooLarge, reason)));
        }
        let text = fs::read_to_string(path).map_err(unreadable)?;
        Self::parse(&text, settings).map_err(|(line, problem)| MappingError::Wrong {
            path: path.to_owned(),
            line,
            problem,
        })
    }

    pub(super) fn parse(text: &str, settings: &settings::Prometheus) -> Result<Self, Problem> {
        let mut mapping = Self {
            globs: Vec::new(),
            regexes: Vec::new(),
            most_specific: false,
            defaults: Arc::new(Observing::from_settings(settings)),
        };
        let Some(root) = yaml::parse(text)? else { return Ok(mapping) };
        let mut defaults = Defaults { regex: false, ttl: None };
        let entries = map(&root, "the file")?;
        if let Some((_, node)) = entries.iter().find(|(key, _)| key == "defaults") {
            mapping.read_defaults(node, &mut defaults)?;
        }
        for (key, node) in entries {
            match key.as_str() {
                "defaults" => {}
                "mappings" => {
                    for rule in list(node, key)? {
                        mapping.read_rule(rule, &defaults)?;
                    }
                }
                _ => return Err(unknown(key, node)),
            }
        }
        Ok(mapping)
    }

    /// What a name, without its tags, becomes.
    pub(super) fn look_up(&self, name: &str, kind: Kind) -> Lookup {
        let applies = |rule: &Rule| rule.kind.is_none_or(|only| only == kind);
        let parts: Vec<&str> = name.split('.').collect();
        let mut globs =
            self.globs.iter().filter(|(pattern, rule)| applies(rule) && fits(pattern, &parts));
        let glob = match self.most_specific {
            false => globs.next(),
            // Stars count most on the left. Of equals the first stays.
            true => globs.min_by_key(|(pattern, _)| {
                pattern.iter().map(|field| *field == Field::Any).collect::<Vec<_>>()
            }),
        };
        if let Some((pattern, rule)) = glob {
            let stars = pattern.iter().zip(&parts).filter(|(field, _)| **field == Field::Any);
            let captures: Vec<&str> = stars.map(|(_, part)| *part).collect();
            return rule.apply(&|at| at.checked_sub(1).and_then(|at| captures.get(at).copied()));
        }
        for (regex, rule) in self.regexes.iter().filter(|(_, rule)| applies(rule)) {
            if let Some(captures) = regex.captures(name) {
                return rule.apply(&|at| captures.get(at).map(|found| found.as_str()));
            }
        }
        Lookup::NoRule
    }

    /// How timers are shown that no rule speaks of.
    pub(super) fn defaults(&self) -> &Arc<Observing> {
        &self.defaults
    }

    fn read_defaults(&mut self, node: &Node, defaults: &mut Defaults) -> Result<(), Problem> {
        let mut observing = Observing::clone(&self.defaults);
        for (key, node) in map(node, "defaults")? {
            match key.as_str() {
                "match_type" => defaults.regex = is_regex(key, node)?,
                "glob_disable_ordering" => self.most_specific = boolean(key, node)?,
                "ttl" => defaults.ttl = Some(duration(key, node)?),
                _ if observing.read(key, node)? => {}
                _ => return Err(unknown(key, node)),
            }
        }
        self.defaults = Arc::new(observing);
        Ok(())
    }

    fn read_rule(&mut self, node: &Node, defaults: &Defaults) -> Result<(), Problem> {
        let mut rule = Rule {
            kind: None,
            drop: false,
            name: String::new(),
            labels: Vec::new(),
            honor_labels: false,
            help: None,
            scale: 1.0,
            ttl: defaults.ttl,
            observing: Arc::clone(&self.defaults),
        };
        let mut observing = Observing::clone(&self.defaults);
        let (mut pattern, mut regex) = (None, defaults.regex);
        for (key, node) in map(node, "a mapping")? {
            match key.as_str() {
                "match" => pattern = Some((node.line, text(key, node)?)),
                "name" => rule.name = text(key, node)?.to_owned(),
                "labels" => {
                    for (label, value) in map(node, key)? {
                        rule.labels.push((label.clone(), text(label, value)?.to_owned()));
                    }
                }
                "match_type" => regex = is_regex(key, node)?,
                "match_metric_type" => rule.kind = Some(metric_type(key, node)?),
                "action" => rule.drop = one_of(key, node, "map or drop", &["map", "drop"])? == 1,
                "honor_labels" => rule.honor_labels = boolean(key, node)?,
                "help" => rule.help = Some(text(key, node)?.to_owned()),
                "scale" => rule.scale = number(key, node)?,
                "ttl" => rule.ttl = Some(duration(key, node)?),
                _ if observing.read(key, node)? => {}
                _ => return Err(unknown(key, node)),
            }
        }
        let (line, pattern) =
            pattern.ok_or((node.line, MappingProblem::Missing { key: "match" }))?;
        if rule.name.is_empty() && !rule.drop {
            return Err((node.line, MappingProblem::Missing { key: "name" }));
        }
        if !rule.drop && !is_name(&rule.name) {
            return Err((node.line, MappingProblem::Name { name: rule.name }));
        }
        if let Some((label, _)) = rule.labels.iter().find(|(label, _)| !is_name(label)) {
            return Err((node.line, MappingProblem::Name { name: label.clone() }));
        }
        if observing != *self.defaults {
            rule.observing = Arc::new(observing);
        }
        if regex {
            let compiled = Regex::new(pattern).map_err(|error| {
                let reason = error.to_string();
                (line, MappingProblem::Regex { pattern: pattern.to_owned(), reason })
            })?;
            self.regexes.push((compiled, rule));
        } else {
            let field = |field: &str| match field {
                "*" => Field::Any,
                field => Field::Text(field.to_owned()),
            };
            self.globs.push((pattern.split('.').map(field).collect(), rule));
        }
        Ok(())
    }
}

/// What `defaults` says that is no matter of observing.
struct Defaults {
    regex: bool,
    ttl: Option<Duration>,
}

/// Whether a name, with `$1` or `${1}` in it, is one for Prometheus, as statsd_exporter tests it.
fn is_name(name: &str) -> bool {
    // Any letter may come of a capture; what it becomes is made legal later.
    let name = expand(name, &|_| Some("x"));
    !name.is_empty()
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | ':'))
}

fn fits(pattern: &[Field], parts: &[&str]) -> bool {
    pattern.len() == parts.len()
        && pattern.iter().zip(parts).all(|(field, part)| match field {
            Field::Any => true,
            Field::Text(text) => text == part,
        })
}

impl Rule {
    fn apply<'c>(&self, capture: &dyn Fn(usize) -> Option<&'c str>) -> Lookup {
        if self.drop {
            return Lookup::Drop;
        }
        let labels = self.labels.iter();
        Lookup::Mapped(Mapped {
            name: expand(&self.name, capture),
            labels: labels.map(|(name, value)| (name.clone(), expand(value, capture))).collect(),
            honor_labels: self.honor_labels,
            help: self.help.clone(),
            scale: self.scale,
            ttl: self.ttl,
            observing: Arc::clone(&self.observing),
        })
    }
}

/// Puts captures in the place of `$1` and `${1}`. A number that nothing was captured for gives
/// nothing; a `$` before anything else stays.
fn expand<'c>(template: &str, capture: &dyn Fn(usize) -> Option<&'c str>) -> String {
    let mut out = String::with_capacity(template.len());
    let mut rest = template;
    while let Some((before, after)) = rest.split_once('$') {
        out.push_str(before);
        let (digits, then) = match after.strip_prefix('{').and_then(|after| after.split_once('}')) {
            Some(braced) => braced,
            None => {
                after.split_at(after.find(|c: char| !c.is_ascii_digit()).unwrap_or(after.len()))
            }
        };
        match digits.parse() {
            Ok(at) => {
                out.push_str(capture(at).unwrap_or_default());
                rest = then;
            }
            Err(_) => {
                out.push('$');
                rest = after;
            }
        }
    }
    out + rest
}

impl Observing {
    /// Takes a key that is about observing; false if it is not.
    fn read(&mut self, key: &str, node: &Node) -> Result<bool, Problem> {
        match key {
            "observer_type" | "timer_type" => {
                let words = ["summary", "histogram"];
                let at = one_of(key, node, "summary or histogram", &words)?;
                self.observer = [Observer::Summary, Observer::Histogram][at];
            }
            "buckets" => self.buckets = buckets(key, node)?,
            "quantiles" => self.quantiles = quantiles(key, node)?,
            "histogram_options" => {
                for (key, node) in map(node, key)? {
                    match key.as_str() {
                        "buckets" => self.buckets = buckets(key, node)?,
                        "native_histogram_bucket_factor" => self.native_factor = number(key, node)?,
                        "native_histogram_max_buckets" => {
                            self.native_buckets_max = number(key, node)? as usize;
                        }
                        _ => return Err(unknown(key, node)),
                    }
                }
            }
            "summary_options" => {
                for (key, node) in map(node, key)? {
                    match key.as_str() {
                        "quantiles" => self.quantiles = quantiles(key, node)?,
                        "max_age" | "max_summary_age" => self.quantile_age = duration(key, node)?,
                        // How another program keeps its numbers; our error is 0.55 % whatever it says.
                        "age_buckets"
                        | "summary_age_buckets"
                        | "buf_cap"
                        | "stream_buffer_size" => {}
                        _ => return Err(unknown(key, node)),
                    }
                }
            }
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// A line and what is wrong in it.
pub(super) type Problem = (usize, MappingProblem);

fn unknown(key: &str, node: &Node) -> Problem {
    (node.line, MappingProblem::UnknownKey { key: key.to_owned() })
}

fn not_a(key: &str, node: &Node, wanted: &'static str) -> Problem {
    (node.line, MappingProblem::NotA { key: key.to_owned(), wanted })
}

fn map<'n>(node: &'n Node, key: &str) -> Result<&'n [(String, Node)], Problem> {
    match &node.value {
        Value::Map(entries) => Ok(entries),
        _ => Err(not_a(key, node, "keys with values")),
    }
}

fn list<'n>(node: &'n Node, key: &str) -> Result<&'n [Node], Problem> {
    match &node.value {
        Value::List(entries) => Ok(entries),
        // An empty value, which YAML calls null.
        Value::Scalar(text) if matches!(text.as_str(), "" | "~" | "null") => Ok(&[]),
        _ => Err(not_a(key, node, "a list")),
    }
}

fn text<'n>(key: &str, node: &'n Node) -> Result<&'n str, Problem> {
    match &node.value {
        Value::Scalar(text) => Ok(text),
        _ => Err(not_a(key, node, "text")),
    }
}

fn number(key: &str, node: &Node) -> Result<f64, Problem> {
    let number = text(key, node)?.parse().ok().filter(|number: &f64| number.is_finite());
    number.ok_or_else(|| not_a(key, node, "a number"))
}

fn boolean(key: &str, node: &Node) -> Result<bool, Problem> {
    Ok(one_of(key, node, "true or false", &["false", "true"])? == 1)
}

fn one_of(key: &str, node: &Node, wanted: &'static str, words: &[&str]) -> Result<usize, Problem> {
    let word = text(key, node)?;
    let found = words.iter().position(|known| known.eq_ignore_ascii_case(word));
    found.ok_or_else(|| not_a(key, node, wanted))
}

fn is_regex(key: &str, node: &Node) -> Result<bool, Problem> {
    Ok(one_of(key, node, "glob or regex", &["glob", "regex"])? == 1)
}

fn metric_type(key: &str, node: &Node) -> Result<Kind, Problem> {
    let words = ["counter", "gauge", "observer", "timer"];
    let at = one_of(key, node, "counter, gauge or observer", &words)?;
    Ok([Kind::Counter, Kind::Gauge, Kind::Observer, Kind::Observer][at])
}

fn buckets(key: &str, node: &Node) -> Result<Vec<f64>, Problem> {
    let bounds: Vec<f64> =
        list(node, key)?.iter().map(|node| number(key, node)).collect::<Result<_, _>>()?;
    match bounds.windows(2).all(|pair| pair[0] < pair[1]) {
        true => Ok(bounds),
        false => Err(not_a(key, node, "a list of numbers, each larger than the one before")),
    }
}

fn quantiles(key: &str, node: &Node) -> Result<Vec<f64>, Problem> {
    let mut quantiles = Vec::new();
    for entry in list(node, key)? {
        for (key, node) in map(entry, key)? {
            match key.as_str() {
                "quantile" => quantiles.push(number(key, node)?),
                "error" => {}
                _ => return Err(unknown(key, node)),
            }
        }
    }
    match quantiles.iter().all(|quantile| (0.0..=1.0).contains(quantile)) {
        true => Ok(quantiles),
        false => Err(not_a(key, node, "a list of quantiles from 0 to 1")),
    }
}

/// Go's durations: `1m20s`, `500ms`, `0`.
fn duration(key: &str, node: &Node) -> Result<Duration, Problem> {
    let wrong = || not_a(key, node, "a duration such as 1m20s");
    let mut rest = text(key, node)?;
    if rest == "0" {
        return Ok(Duration::ZERO);
    }
    let mut total = Duration::ZERO;
    if rest.is_empty() {
        return Err(wrong());
    }
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(wrong)?;
        let (digits, after) = rest.split_at(end);
        let end = after.find(|c: char| c.is_ascii_digit()).unwrap_or(after.len());
        let (unit, after) = after.split_at(end);
        let seconds = match unit {
            "ns" => 1e-9,
            "us" | "µs" | "μs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return Err(wrong()),
        };
        let digits: f64 = digits.parse().map_err(|_| wrong())?;
        let part = Duration::try_from_secs_f64(digits * seconds).map_err(|_| wrong())?;
        total = total.checked_add(part).ok_or_else(wrong)?;
        rest = after;
    }
    Ok(total)
}

#[cfg(test)]
#[path = "mapping/tests.rs"]
mod tests;
