//! Converts gostatsd's filters to rules.
//!
//! Source: FILTERS.md of gostatsd 41.

use crate::settings::{
    RuleAction, RuleSettings,
    etsy_config::ValueProblem,
    import::{boolean, find, rules, text_list},
    literal::LiteralEntry,
};

/// Whether a filter drops metrics.
pub(super) fn drops_metrics(keys: &[LiteralEntry]) -> bool {
    find(keys, "drop-metric").is_some_and(|entry| boolean(&entry.value) == Ok(true))
}

/// Returns the rules that do what a filter does; `is_last` says whether no other one follows.
///
/// # Errors
///
/// The reason why rules cannot do it.
pub(super) fn filter_rules(
    keys: &[LiteralEntry],
    is_last: bool,
) -> Result<Vec<RuleSettings>, ValueProblem> {
    let list = |key: &str| find(keys, key).map_or(Ok(Vec::new()), |it| text_list(&it.value));
    let drops = find(keys, "drop-metric").map_or(Ok(false), |it| boolean(&it.value))?;
    let mut rule = RuleSettings::default();
    if drops {
        rule.action = Some(RuleAction::Drop);
    } else {
        rule.drop_tags =
            list("drop-tags")?.iter().map(|tag| tag_key(tag)).collect::<Result<_, _>>()?;
        if rule.drop_tags.is_empty() {
            return Ok(Vec::new());
        }
    }
    let excluded = list("exclude-metrics")?;
    if !excluded.is_empty() && !is_last {
        return Err("exclude-metrics is supported in the last filter only".to_owned());
    }
    let names = |patterns: Vec<String>, rule: &RuleSettings| {
        let patterns = patterns.iter().map(|pattern| name_regex(pattern));
        Ok::<_, ValueProblem>(rules::for_names(&patterns.collect::<Result<Vec<_>, _>>()?, rule))
    };
    let mut all = names(excluded, &rules::allowing())?;
    let matched = list("match-metrics")?;
    let by_name = if matched.is_empty() { vec![rule] } else { names(matched, &rule)? };
    let tags = list("match-tags")?;
    if tags.is_empty() {
        all.extend(by_name);
        return Ok(all);
    }
    // One of several tags is enough, and a rule requires all of its tags.
    for tag in &tags {
        let (key, value) = tag_condition(tag)?;
        all.extend(by_name.iter().cloned().map(|mut rule| {
            rule.tags.insert(key.clone(), value.clone());
            rule
        }));
    }
    Ok(all)
}

/// Returns a regular expression for whole names.
fn name_regex(pattern: &str) -> Result<String, ValueProblem> {
    match (pattern.strip_prefix("regex:"), pattern.strip_suffix('*')) {
        _ if pattern.starts_with('!') => Err(format!("{pattern:?} is inverted")),
        (Some(regex), _) => Ok(format!(".*(?:{regex}).*")),
        (None, Some(prefix)) => Ok(regex_lite::escape(prefix) + ".*"),
        (None, None) => Ok(regex_lite::escape(pattern)),
    }
}

/// Returns the key of a tag and the pattern for its value.
fn tag_condition(pattern: &str) -> Result<(String, String), ValueProblem> {
    let is_special = pattern.starts_with('!') || pattern.starts_with("regex:");
    match pattern.split_once(':') {
        Some((key, value)) if !is_special => Ok((key.to_owned(), value.to_owned())),
        None if !is_special && !pattern.ends_with('*') => Ok((pattern.to_owned(), String::new())),
        _ => Err(format!("the tag {pattern:?} is not of the form key:value")),
    }
}

/// Returns the pattern for the keys of tags to drop, whatever their values are.
fn tag_key(pattern: &str) -> Result<String, ValueProblem> {
    let is_special = pattern.starts_with('!') || pattern.starts_with("regex:");
    match pattern.split_once(':') {
        Some((key, "*")) if !is_special => Ok(key.to_owned()),
        None if !is_special && pattern.ends_with('*') => Ok(pattern.to_owned()),
        _ => Err(format!("the tag {pattern:?} is not of the form key:* or prefix*")),
    }
}
