//! Converts the filters and name changes of a Telegraf plugin to rules.
//!
//! Telegraf selects metrics by the names and tags that they were sent with, then changes names,
//! then adds and removes tags. A rule that selects therefore also has all changes, and ends the
//! evaluation. The parts of names are joined by `metric_separator` there, and by dots here; its tag
//! `metric_type` is the type here.
//!
//! Source: Telegraf's CONFIGURATION.md, "Metric Filtering".

use crate::{
    aggregate::MetricType,
    rules::WildcardPattern,
    settings::{
        RuleSettings, StatsdSettings,
        etsy_config::ValueProblem,
        import::{entries, find, rules, text, text_list},
        literal::LiteralEntry,
    },
};

/// The keys that are converted.
pub(super) const FILTERS: [&str; 9] = [
    "name_override",
    "name_prefix",
    "name_suffix",
    "namepass",
    "namedrop",
    "tagpass",
    "tagdrop",
    "taginclude",
    "tagexclude",
];

/// Whether an input has filters that select metrics.
pub(super) fn selects(keys: &[LiteralEntry]) -> bool {
    ["namepass", "namedrop", "tagpass", "tagdrop"].iter().any(|key| find(keys, key).is_some())
}

/// Returns the rules for an input, in order.
///
/// # Errors
///
/// The line and the key that cannot be converted, with the reason.
pub(super) fn input_rules(
    keys: &[LiteralEntry],
) -> Result<Vec<RuleSettings>, (usize, &'static str, ValueProblem)> {
    let read = |key: &'static str| {
        let entry = find(keys, key);
        let line = entry.map_or(0, |entry| entry.line);
        (entry, move |why| (line, key, why))
    };
    let one = |key: &'static str| {
        let (entry, problem) = read(key);
        entry.map_or(Ok(String::new()), |entry| text(&entry.value)).map_err(problem)
    };
    let list = |key: &'static str| {
        let (entry, problem) = read(key);
        entry.map_or(Ok(Vec::new()), |entry| text_list(&entry.value)).map_err(problem)
    };
    let separator = match find(keys, "metric_separator") {
        Some(entry) => text(&entry.value).map_err(|why| (entry.line, "metric_separator", why))?,
        None => "_".to_owned(),
    };
    let names = |key: &'static str| {
        let globs = list(key)?;
        let (_, problem) = read(key);
        let patterns = globs.iter().map(|glob| name_regex(glob, &separator));
        patterns.collect::<Result<Vec<_>, _>>().map_err(problem)
    };
    let tag_keys = |key: &'static str| {
        let patterns = list(key)?;
        let (_, problem) = read(key);
        match patterns.iter().find(|pattern| pattern.contains(SPECIAL)) {
            Some(pattern) => Err(problem(unsupported(pattern))),
            None => Ok(patterns),
        }
    };
    let tags = |key: &'static str| {
        let (entry, problem) = read(key);
        entry.map_or(Ok(Vec::new()), tag_patterns).map_err(problem)
    };
    let (name, prefix, suffix) = (one("name_override")?, one("name_prefix")?, one("name_suffix")?);
    let name = if name.is_empty() { "${0}" } else { &name };
    let rename = Some(format!("{prefix}{name}{suffix}")).filter(|name| name != "${0}");
    let included = tag_keys("taginclude")?;
    let changes = RuleSettings {
        rename,
        drop_tags: tag_keys("tagexclude")?,
        keep_tags: (!included.is_empty()).then_some(included),
        ..RuleSettings::default()
    };
    let mut all = rules::for_names(&names("namedrop")?, &rules::dropping());
    for tag in tags("tagdrop")? {
        all.push(tag.added_to(rules::dropping()));
    }
    let (passed_names, passed_tags) = (names("namepass")?, tags("tagpass")?);
    if passed_names.is_empty() && passed_tags.is_empty() {
        all.extend((changes != RuleSettings::default()).then_some(changes));
        return Ok(all);
    }
    let passing = RuleSettings { action: rules::allowing().action, ..changes };
    let by_name = if passed_names.is_empty() {
        vec![passing]
    } else {
        rules::for_names(&passed_names, &passing)
    };
    if passed_tags.is_empty() {
        all.extend(by_name);
    } else {
        for tag in passed_tags {
            all.extend(by_name.iter().map(|rule| tag.added_to(rule.clone())));
        }
    }
    all.push(rules::dropping());
    Ok(all)
}

/// Removes the tags that Telegraf would remove after adding them, since static tags are added after
/// all rules.
pub(super) fn filter_static_tags(settings: &mut StatsdSettings) {
    let changing = |rule: &&RuleSettings| !rule.drop_tags.is_empty() || rule.keep_tags.is_some();
    let Some(rule) = settings.rules.iter().find(changing) else { return };
    let is_any = |patterns: &[String], tag: &str| {
        patterns.iter().any(|pattern| WildcardPattern::new(pattern).matches(tag))
    };
    settings.static_tags.retain(|tag, _| {
        let is_included = rule.keep_tags.as_ref().is_none_or(|included| is_any(included, tag));
        is_included && !is_any(&rule.drop_tags, tag)
    });
}

/// One part of `tagpass` or `tagdrop`.
enum TagCondition {
    /// The value of the tag `metric_type`, which metrics do not have here.
    Type(MetricType),
    /// The key, and a pattern for the value.
    Value(String, String),
}

impl TagCondition {
    fn added_to(&self, mut rule: RuleSettings) -> RuleSettings {
        match self {
            Self::Type(kind) => rule.kind = Some(*kind),
            Self::Value(tag, value) => {
                rule.tags.insert(tag.clone(), value.clone());
            }
        }
        rule
    }
}

/// Returns the conditions of a section, one for each pattern for a tag's value.
fn tag_patterns(section: &LiteralEntry) -> Result<Vec<TagCondition>, ValueProblem> {
    let mut all = Vec::new();
    for tag in entries(&section.value)? {
        for pattern in text_list(&tag.value)? {
            if pattern.contains(SPECIAL) {
                return Err(unsupported(&pattern));
            }
            all.push(match tag.key.as_str() {
                "metric_type" => TagCondition::Type(metric_type(&pattern)?),
                key => TagCondition::Value(key.to_owned(), pattern),
            });
        }
    }
    Ok(all)
}

/// Returns the type that a value of Telegraf's tag `metric_type` means.
fn metric_type(value: &str) -> Result<MetricType, ValueProblem> {
    match value {
        "counter" => Ok(MetricType::Counter),
        "gauge" => Ok(MetricType::Gauge),
        "set" => Ok(MetricType::Set),
        "timing" | "histogram" | "distribution" => Ok(MetricType::Timer),
        _ => Err(format!("{value:?} is not a metric_type")),
    }
}

/// Returns a regular expression for a glob of names whose parts a separator joins.
fn name_regex(glob: &str, separator: &str) -> Result<String, ValueProblem> {
    if separator.is_empty() || separator == "." {
        return rules::glob_regex(glob);
    }
    let parts = glob.split(separator).map(rules::glob_regex);
    let joint = format!(r"(?:{}|\.)", regex_lite::escape(separator));
    Ok(parts.collect::<Result<Vec<_>, _>>()?.join(&joint))
}

/// Characters of globs that patterns for tags do not have here.
const SPECIAL: [char; 5] = ['?', '[', ']', '{', '}'];

fn unsupported(pattern: &str) -> ValueProblem {
    format!("{pattern:?} has characters other than * with a meaning")
}
