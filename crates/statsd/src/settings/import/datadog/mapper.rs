//! Converts the agent's rules for names to a mapping file of the Prometheus backend.

use std::fmt::Write as _;

use crate::settings::{
    etsy_config::ValueProblem,
    import::{entries, find, text},
    literal::{Literal, LiteralNode},
};

/// Profiles of `dogstatsd_mapper_profiles`, and names that are blocked.
#[derive(Debug, Default)]
pub(super) struct MapperRules {
    rules: Vec<MapperRule>,
    blocked: Vec<String>,
    are_prefixes: bool,
}

#[derive(Debug)]
struct MapperRule {
    pattern: RulePattern,
    name: String,
    tags: Vec<(String, String)>,
}

#[derive(Debug)]
enum RulePattern {
    Glob(String),
    Regex(String),
}

impl MapperRules {
    /// Adds the rules of all profiles. Returns the lines of rules that cannot be expressed, with
    /// the reasons.
    pub(super) fn add_profiles(
        &mut self,
        profiles: &LiteralNode,
    ) -> Result<Vec<(usize, ValueProblem)>, ValueProblem> {
        let mut skipped = Vec::new();
        for profile in list(profiles)? {
            let keys = entries(profile)?;
            let prefix = match find(keys, "prefix") {
                Some(prefix) => text(&prefix.value)?,
                None => String::new(),
            };
            let Some(mappings) = find(keys, "mappings") else { continue };
            for mapping in list(&mappings.value)? {
                match rule(mapping, &prefix) {
                    Ok(rule) => self.rules.push(rule),
                    Err(why) => skipped.push((mapping.line, format!("rule not converted: {why}"))),
                }
            }
        }
        Ok(skipped)
    }

    /// Adds names to block.
    pub(super) fn block(&mut self, names: Vec<String>) {
        self.blocked.extend(names);
    }

    /// Sets whether blocked names are prefixes.
    pub(super) fn block_prefixes(&mut self, are_prefixes: bool) {
        self.are_prefixes = are_prefixes;
    }

    /// Returns the mapping file; `None` if there are no rules.
    pub(super) fn to_mapping(&self) -> Option<String> {
        let mut out = "mappings:\n".to_owned();
        for name in self.blocked.iter().filter(|name| !name.chars().any(char::is_control)) {
            let pattern = if self.are_prefixes {
                format!("{}\n  match_type: regex", quoted(&format!("^{}", escaped(name))))
            } else {
                quoted(name)
            };
            // Writing to a string cannot fail.
            let _ = writeln!(out, "- match: {pattern}\n  action: drop");
        }
        for MapperRule { pattern, name, tags } in &self.rules {
            let _ = match pattern {
                RulePattern::Glob(pattern) => writeln!(out, "- match: {}", quoted(pattern)),
                RulePattern::Regex(pattern) => {
                    writeln!(out, "- match: {}\n  match_type: regex", quoted(pattern))
                }
            };
            let _ = writeln!(out, "  name: {}", quoted(name));
            if !tags.is_empty() {
                let _ = writeln!(out, "  labels:");
            }
            for (tag, value) in tags {
                let _ = writeln!(out, "    {tag}: {}", quoted(value));
            }
        }
        (!self.rules.is_empty() || !self.blocked.is_empty()).then_some(out)
    }
}

fn list(node: &LiteralNode) -> Result<&[LiteralNode], ValueProblem> {
    match &node.value {
        Literal::List(items) => Ok(items),
        Literal::Null => Ok(&[]),
        _ => Err("must be a list".to_owned()),
    }
}

/// Reads one rule of a profile for names with a prefix.
fn rule(node: &LiteralNode, prefix: &str) -> Result<MapperRule, ValueProblem> {
    let keys = entries(node)?;
    let required = |key: &str| match find(keys, key) {
        Some(entry) => one_line(text(&entry.value)?),
        None => Err(format!("it lacks {key}")),
    };
    let pattern = required("match")?;
    let is_regex = match find(keys, "match_type") {
        Some(kind) if text(&kind.value)? == "regex" => true,
        Some(kind) if text(&kind.value)? != "wildcard" => {
            return Err("match_type is neither wildcard nor regex".to_owned());
        }
        _ => false,
    };
    let pattern = if is_regex {
        RulePattern::Regex(format!("^{pattern}$"))
    } else if !pattern.starts_with(prefix) {
        return Err(format!("its names do not start with the profile's prefix {prefix:?}"));
    } else if pattern.split('.').all(|part| part == "*" || !part.contains('*')) {
        RulePattern::Glob(pattern)
    } else {
        let parts = pattern.split('*').map(escaped).collect::<Vec<_>>();
        RulePattern::Regex(format!("^{}$", parts.join("([^.]*)")))
    };
    let mut tags = Vec::new();
    if let Some(entry) = find(keys, "tags") {
        for tag in entries(&entry.value)? {
            tags.push((metric_name(&tag.key), one_line(text(&tag.value)?)?));
        }
    }
    Ok(MapperRule { pattern, name: metric_name(&required("name")?), tags })
}

/// Returns a name in which `_` replaces all characters that Prometheus does not accept, except for
/// those of references such as `$1`.
fn metric_name(name: &str) -> String {
    let valid = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '$' | '{' | '}');
    let name: String = name.chars().map(|c| if valid(c) { c } else { '_' }).collect();
    if name.starts_with(|c: char| c.is_ascii_digit()) { format!("_{name}") } else { name }
}

fn one_line(text: String) -> Result<String, ValueProblem> {
    if text.chars().any(char::is_control) {
        Err("it has a control character".to_owned())
    } else {
        Ok(text)
    }
}

/// Quotes a YAML scalar without control characters.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// Returns a regular expression that matches exactly this text.
fn escaped(text: &str) -> String {
    regex_lite::escape(text)
}
