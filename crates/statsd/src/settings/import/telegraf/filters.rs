//! Converts the filters and name changes of a Telegraf plugin to rules.
//!
//! Telegraf selects metrics by the names and tags that they were sent with, then changes names,
//! then adds and removes tags. A rule that selects therefore also has all changes, and ends the
//! evaluation.
//!
//! Source: Telegraf's CONFIGURATION.md, "Metric Filtering".

use crate::{
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
    let names = |key: &'static str| {
        let globs = list(key)?;
        let (_, problem) = read(key);
        globs
            .iter()
            .map(|glob| rules::glob_regex(glob))
            .collect::<Result<Vec<_>, _>>()
            .map_err(problem)
    };
    let tags = |key: &'static str| {
        let (entry, problem) = read(key);
        entry.map_or(Ok(Vec::new()), tag_patterns).map_err(problem)
    };
    let (name, prefix, suffix) = (one("name_override")?, one("name_prefix")?, one("name_suffix")?);
    let name = if name.is_empty() { "${0}" } else { &name };
    let rename = Some(format!("{prefix}{name}{suffix}")).filter(|name| name != "${0}");
    let included = list("taginclude")?;
    let changes = RuleSettings {
        rename,
        drop_tags: list("tagexclude")?,
        keep_tags: (!included.is_empty()).then_some(included),
        ..RuleSettings::default()
    };
    let mut all = rules::for_names(&names("namedrop")?, &rules::dropping());
    for (tag, value) in tags("tagdrop")? {
        all.push(RuleSettings { tags: [(tag, value)].into(), ..rules::dropping() });
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
        for (tag, value) in passed_tags {
            all.extend(by_name.iter().cloned().map(|mut rule| {
                rule.tags.insert(tag.clone(), value.clone());
                rule
            }));
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

/// Returns the tags of a section, one for each pattern for its value.
fn tag_patterns(section: &LiteralEntry) -> Result<Vec<(String, String)>, ValueProblem> {
    let mut all = Vec::new();
    for tag in entries(&section.value)? {
        for pattern in text_list(&tag.value)? {
            if pattern.contains(['?', '[', ']', '{', '}']) {
                return Err(format!("{pattern:?} has characters other than * with a meaning"));
            }
            all.push((tag.key.clone(), pattern));
        }
    }
    Ok(all)
}
