//! [`NameMapping`]: rules that map statsd names to Prometheus names and labels, in
//! statsd_exporter's file format.
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
//! Globs are tried first, in file order (or the most specific one, with `glob_disable_ordering`),
//! then regular expressions in file order. A `*` in a glob matches one part of a name, whose parts
//! are separated by dots. Metrics without a matching rule retain their names.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use regex_lite::Regex;

use super::names;
use crate::{
    settings::{self, ObserverType, PrometheusNames, go_values},
    template::expand,
    yaml::{self, YamlNode, YamlProblem, YamlValue},
};

/// Maximum size of a mapping file in bytes.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// The reason why a mapping file cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MappingError {
    /// The file cannot be read, or is larger than 4 MiB.
    #[error("cannot read the mapping file {path}")]
    Read {
        /// Path of the mapping file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The file has an error.
    #[error("{path}:{line}: {problem}")]
    Invalid {
        /// Path of the mapping file.
        path: PathBuf,
        /// Line number, from 1.
        line: usize,
        /// The error in that line.
        problem: MappingProblem,
    },
}

/// An error in a mapping file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MappingProblem {
    /// The file cannot be read as YAML.
    #[error(transparent)]
    Yaml(#[from] YamlProblem),
    /// A key that this server does not know.
    #[error("unknown key {key:?}")]
    UnknownKey {
        /// The unknown key, as in the file.
        key: String,
    },
    /// A value that has the wrong type or is not allowed for its key.
    #[error("{key} must be {expected}")]
    InvalidValue {
        /// The key, or a description such as `the file` if there is none.
        key: String,
        /// A phrase that describes the allowed values.
        expected: &'static str,
    },
    /// A mapping lacks a required key.
    #[error("the mapping lacks the required key {key:?}")]
    Missing {
        /// The missing key.
        key: &'static str,
    },
    /// A metric or label name that is invalid in Prometheus.
    #[error(
        "{name:?} is not a valid Prometheus name: use letters, digits, _ and $1, and do not start with \
         a digit"
    )]
    Name {
        /// The text that was given as a name.
        name: String,
    },
    /// An invalid regular expression.
    #[error("{pattern:?} is not a valid regular expression: {reason}")]
    Regex {
        /// The invalid expression.
        pattern: String,
        /// The parser's message.
        reason: String,
    },
}

/// A metric type to which a rule may be limited (`match_metric_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum MatchMetricType {
    Counter,
    Gauge,
    Observer,
}

/// The options that determine how a timer is exposed.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ObserverOptions {
    pub(super) observer: ObserverType,
    pub(super) quantiles: Vec<f64>,
    pub(super) quantile_age: Duration,
    pub(super) buckets: Vec<f64>,
    pub(super) native_factor: f64,
    pub(super) native_buckets_max: usize,
}

impl ObserverOptions {
    pub(super) fn from_settings(settings: &settings::PrometheusSettings) -> Self {
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

/// A mapped name with the options of the matching rule.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct MappedName {
    pub(super) name: String,
    pub(super) labels: Vec<(String, String)>,
    pub(super) honor_labels: bool,
    pub(super) help: Option<String>,
    pub(super) scale: f64,
    pub(super) ttl: Option<Duration>,
    pub(super) observing: Arc<ObserverOptions>,
}

/// The result of mapping a name.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum MappingResult {
    Mapped(MappedName),
    Drop,
    NoRule,
}

/// The mapping rules of a file, with its defaults for timers.
#[derive(Debug)]
pub(super) struct NameMapping {
    globs: Vec<(Vec<GlobField>, MappingRule)>,
    regexes: Vec<(Regex, MappingRule)>,
    most_specific: bool,
    defaults: Arc<ObserverOptions>,
    names: PrometheusNames,
}

#[derive(Debug, PartialEq, Eq)]
enum GlobField {
    Any,
    Text(String),
}

#[derive(Debug)]
struct MappingRule {
    kind: Option<MatchMetricType>,
    drop: bool,
    name: String,
    labels: Vec<(String, String)>,
    honor_labels: bool,
    help: Option<String>,
    scale: f64,
    ttl: Option<Duration>,
    observing: Arc<ObserverOptions>,
}

impl NameMapping {
    /// Reads the mapping file of the settings; without one, there is a mapping if names without a
    /// rule are not the conventional ones.
    pub(super) fn from_settings(
        settings: &settings::PrometheusSettings,
    ) -> Result<Option<Self>, MappingError> {
        match (&settings.mapping, settings.names) {
            (Some(path), _) => Self::read(path, settings).map(Some),
            (None, PrometheusNames::Exporter) => Ok(Some(Self::new(settings))),
            (None, PrometheusNames::Conventional) => Ok(None),
        }
    }

    /// Reads a mapping file. `settings` provide the defaults.
    pub(super) fn read(
        path: &Path,
        settings: &settings::PrometheusSettings,
    ) -> Result<Self, MappingError> {
        let unreadable = |source| MappingError::Read { path: path.to_owned(), source };
        if fs::metadata(path).map_err(unreadable)?.len() > FILE_BYTES_MAX {
            let reason = "it is larger than 4 MiB";
            return Err(unreadable(io::Error::new(io::ErrorKind::FileTooLarge, reason)));
        }
        let text = fs::read_to_string(path).map_err(unreadable)?;
        Self::parse(&text, settings).map_err(|(line, problem)| MappingError::Invalid {
            path: path.to_owned(),
            line,
            problem,
        })
    }

    /// Creates a mapping without rules.
    pub(super) fn new(settings: &settings::PrometheusSettings) -> Self {
        Self {
            globs: Vec::new(),
            regexes: Vec::new(),
            most_specific: false,
            defaults: Arc::new(ObserverOptions::from_settings(settings)),
            names: settings.names,
        }
    }

    pub(super) fn parse(
        text: &str,
        settings: &settings::PrometheusSettings,
    ) -> Result<Self, LineProblem> {
        let mut mapping = Self::new(settings);
        let root = yaml::parse(text).map_err(|(line, problem)| (line, problem.into()))?;
        let Some(root) = root else { return Ok(mapping) };
        let mut defaults = MappingDefaults { regex: false, ttl: None };
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

    /// Maps a name without its tags. With [`PrometheusNames::Exporter`], a name without a rule is
    /// mapped to the one that statsd_exporter would use.
    pub(super) fn map_name(&self, name: &str, kind: MatchMetricType) -> MappingResult {
        let applies = |rule: &MappingRule| rule.kind.is_none_or(|only| only == kind);
        let parts: Vec<&str> = name.split('.').collect();
        let mut globs = self
            .globs
            .iter()
            .filter(|(pattern, rule)| applies(rule) && glob_matches(pattern, &parts));
        let glob = if !self.most_specific {
            globs.next()
        } else {
            globs.min_by_key(|(pattern, _)| {
                pattern.iter().map(|field| *field == GlobField::Any).collect::<Vec<_>>()
            })
        };
        if let Some((pattern, rule)) = glob {
            let stars = pattern.iter().zip(&parts).filter(|(field, _)| **field == GlobField::Any);
            let captures: Vec<&str> = stars.map(|(_, part)| *part).collect();
            return rule.apply(&|at| at.checked_sub(1).and_then(|at| captures.get(at).copied()));
        }
        for (regex, rule) in self.regexes.iter().filter(|(_, rule)| applies(rule)) {
            if let Some(captures) = regex.captures(name) {
                return rule.apply(&|at| captures.get(at).map(|capture| capture.as_str()));
            }
        }
        match self.names {
            PrometheusNames::Conventional => MappingResult::NoRule,
            PrometheusNames::Exporter => MappingResult::Mapped(MappedName {
                name: names::exporter_metric(name),
                labels: Vec::new(),
                honor_labels: false,
                help: None,
                scale: 1.0,
                ttl: None,
                observing: Arc::clone(&self.defaults),
            }),
        }
    }

    /// Returns the options for timers without a matching rule.
    pub(super) fn defaults(&self) -> &Arc<ObserverOptions> {
        &self.defaults
    }

    fn read_defaults(
        &mut self,
        node: &YamlNode,
        defaults: &mut MappingDefaults,
    ) -> Result<(), LineProblem> {
        let mut observing = ObserverOptions::clone(&self.defaults);
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

    fn read_rule(
        &mut self,
        node: &YamlNode,
        defaults: &MappingDefaults,
    ) -> Result<(), LineProblem> {
        let mut rule = MappingRule {
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
        let mut observing = ObserverOptions::clone(&self.defaults);
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
                "action" => rule.drop = choice(key, node, "map or drop", &["map", "drop"])? == 1,
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
                "*" => GlobField::Any,
                field => GlobField::Text(field.to_owned()),
            };
            self.globs.push((pattern.split('.').map(field).collect(), rule));
        }
        Ok(())
    }
}

/// The defaults of `match_type` and `ttl`.
struct MappingDefaults {
    regex: bool,
    ttl: Option<Duration>,
}

/// Whether a name template is valid for Prometheus, by statsd_exporter's rules.
fn is_name(name: &str) -> bool {
    // A capture may be any text; invalid characters in the result are replaced later.
    let name = expand(name, &|_| Some("x"));
    !name.is_empty()
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | ':'))
}

fn glob_matches(pattern: &[GlobField], parts: &[&str]) -> bool {
    pattern.len() == parts.len()
        && pattern.iter().zip(parts).all(|(field, part)| match field {
            GlobField::Any => true,
            GlobField::Text(text) => text == part,
        })
}

impl MappingRule {
    fn apply<'c>(&self, capture: &dyn Fn(usize) -> Option<&'c str>) -> MappingResult {
        if self.drop {
            return MappingResult::Drop;
        }
        let labels = self.labels.iter();
        MappingResult::Mapped(MappedName {
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

impl ObserverOptions {
    /// Reads an observer option; returns false if `key` is not one.
    fn read(&mut self, key: &str, node: &YamlNode) -> Result<bool, LineProblem> {
        match key {
            "observer_type" | "timer_type" => {
                let choices = ["summary", "histogram"];
                let at = choice(key, node, "summary or histogram", &choices)?;
                self.observer = [ObserverType::Summary, ObserverType::Histogram][at];
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
                        // These options tune statsd_exporter's quantile algorithm; our error is
                        // always at most 0.55 %.
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

/// A line number and the error in that line.
pub(super) type LineProblem = (usize, MappingProblem);

fn unknown(key: &str, node: &YamlNode) -> LineProblem {
    (node.line, MappingProblem::UnknownKey { key: key.to_owned() })
}

fn not_a(key: &str, node: &YamlNode, expected: &'static str) -> LineProblem {
    (node.line, MappingProblem::InvalidValue { key: key.to_owned(), expected })
}

fn map<'n>(node: &'n YamlNode, key: &str) -> Result<&'n [(String, YamlNode)], LineProblem> {
    match &node.value {
        YamlValue::Map(entries) => Ok(entries),
        _ => Err(not_a(key, node, "a map")),
    }
}

fn list<'n>(node: &'n YamlNode, key: &str) -> Result<&'n [YamlNode], LineProblem> {
    match &node.value {
        YamlValue::List(entries) => Ok(entries),
        // An empty value is null in YAML.
        YamlValue::Scalar(text) if matches!(text.as_str(), "" | "~" | "null") => Ok(&[]),
        _ => Err(not_a(key, node, "a list")),
    }
}

fn text<'n>(key: &str, node: &'n YamlNode) -> Result<&'n str, LineProblem> {
    match &node.value {
        YamlValue::Scalar(text) => Ok(text),
        _ => Err(not_a(key, node, "text")),
    }
}

fn number(key: &str, node: &YamlNode) -> Result<f64, LineProblem> {
    let number = text(key, node)?.parse().ok().filter(|number: &f64| number.is_finite());
    number.ok_or_else(|| not_a(key, node, "a number"))
}

fn boolean(key: &str, node: &YamlNode) -> Result<bool, LineProblem> {
    Ok(choice(key, node, "true or false", &["false", "true"])? == 1)
}

fn choice(
    key: &str,
    node: &YamlNode,
    expected: &'static str,
    choices: &[&str],
) -> Result<usize, LineProblem> {
    let value = text(key, node)?;
    let index = choices.iter().position(|known| known.eq_ignore_ascii_case(value));
    index.ok_or_else(|| not_a(key, node, expected))
}

fn is_regex(key: &str, node: &YamlNode) -> Result<bool, LineProblem> {
    Ok(choice(key, node, "glob or regex", &["glob", "regex"])? == 1)
}

fn metric_type(key: &str, node: &YamlNode) -> Result<MatchMetricType, LineProblem> {
    let choices = ["counter", "gauge", "observer", "timer"];
    let at = choice(key, node, "counter, gauge or observer", &choices)?;
    Ok([
        MatchMetricType::Counter,
        MatchMetricType::Gauge,
        MatchMetricType::Observer,
        MatchMetricType::Observer,
    ][at])
}

fn buckets(key: &str, node: &YamlNode) -> Result<Vec<f64>, LineProblem> {
    let bounds: Vec<f64> =
        list(node, key)?.iter().map(|node| number(key, node)).collect::<Result<_, _>>()?;
    if bounds.windows(2).all(|pair| pair[0] < pair[1]) {
        Ok(bounds)
    } else {
        Err(not_a(key, node, "a list of numbers, each larger than the one before"))
    }
}

fn quantiles(key: &str, node: &YamlNode) -> Result<Vec<f64>, LineProblem> {
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
    if quantiles.iter().all(|quantile| (0.0..=1.0).contains(quantile)) {
        Ok(quantiles)
    } else {
        Err(not_a(key, node, "a list of quantiles from 0 to 1"))
    }
}

fn duration(key: &str, node: &YamlNode) -> Result<Duration, LineProblem> {
    let duration = go_values::duration(text(key, node)?);
    duration.ok_or_else(|| not_a(key, node, "a duration such as 1m20s"))
}

#[cfg(test)]
#[path = "mapping/tests.rs"]
mod tests;
