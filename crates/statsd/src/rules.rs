//! [`MetricRules`]: rules that drop, rename and retag metrics, for all backends.
//!
//! ```text
//!  name, tags, type ──► rule 1 ──► rule 2 ──► … ──► static tags ──► registry
//!                         │ drop      │ allow ──────────▲
//!                         ▼
//!                      counted
//! ```
//!
//! A rule whose conditions are met changes the name and the tags, and the next rule gets the
//! result. Rules see names and tags as they were sent. They are evaluated once for each key that is
//! new to a reader, so they cost nothing while keys are known.

mod pattern;
mod tagged_name;
#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, sync::Arc};

use self::pattern::{NameCaptures, NameCondition};
pub(crate) use self::{pattern::WildcardPattern, tagged_name::TaggedName};
use crate::{
    MetricName,
    aggregate::MetricType,
    settings::{RuleAction, RuleSettings},
    template::{expand, last_capture},
};

/// Maximum number of rules.
const RULES_MAX: usize = 1000;

/// The compiled rules and static tags of a server.
#[derive(Debug, Default)]
pub struct MetricRules {
    rules: Vec<MetricRule>,
    static_tags: Vec<(String, String)>,
}

/// A rule that cannot be used, or a setting of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleProblem {
    /// Index of the rule; `None` if the problem is about all rules.
    pub rule: Option<usize>,
    /// The key of the rule's setting; empty if the problem is about the whole rule.
    pub key: &'static str,
    /// The problem, and what is allowed.
    pub text: String,
}

/// The result of applying the rules to a key.
#[derive(Debug)]
pub(crate) struct RuleResult<'n> {
    /// The name and tags after all rules; `None` if a rule drops the key.
    pub(crate) key: Option<TaggedName<'n>>,
    /// Whether `key` differs from what was sent.
    pub(crate) changed: bool,
    /// Numbers of the rules that changed or dropped the key, or ended the evaluation.
    pub(crate) matched: Vec<u16>,
}

#[derive(Debug)]
struct MetricRule {
    id: Arc<str>,
    name: Option<NameCondition>,
    kind: Option<MetricType>,
    tags: Vec<(String, WildcardPattern)>,
    action: Option<RuleAction>,
    rename: Option<String>,
    dropped_tags: Vec<WildcardPattern>,
    retained_tags: Option<Vec<WildcardPattern>>,
    added_tags: Vec<(String, String)>,
}

impl MetricRules {
    /// Compiles rules. Those with problems are left out, and the problems returned.
    pub fn compile(
        rules: &[RuleSettings],
        static_tags: &BTreeMap<String, String>,
    ) -> (Self, Vec<RuleProblem>) {
        let mut compiled = Self { rules: Vec::new(), static_tags: pairs(static_tags) };
        let mut problems = Vec::new();
        if rules.len() > RULES_MAX {
            let text = format!("there are more than {RULES_MAX} rules");
            problems.push(RuleProblem { rule: None, key: "", text });
        }
        for (index, settings) in rules.iter().take(RULES_MAX).enumerate() {
            match MetricRule::new(index, settings) {
                Ok(rule) if compiled.rules.iter().any(|other| other.id == rule.id) => {
                    let text = format!("another rule has the id {:?}", &*rule.id);
                    problems.push(RuleProblem { rule: Some(index), key: "id", text });
                }
                Ok(rule) => compiled.rules.push(rule),
                Err((key, text)) => problems.push(RuleProblem { rule: Some(index), key, text }),
            }
        }
        (compiled, problems)
    }

    /// Whether there are neither rules nor static tags.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty() && self.static_tags.is_empty()
    }

    /// Returns the id and the action of each rule, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&Arc<str>, Option<RuleAction>)> {
        self.rules.iter().map(|rule| (&rule.id, rule.action))
    }

    /// Applies the rules to a key as it was sent.
    pub(crate) fn apply<'n>(&self, sent: &'n MetricName, kind: MetricType) -> RuleResult<'n> {
        let mut key = TaggedName::new(sent);
        let (mut changed, mut matched) = (false, Vec::new());
        for (number, rule) in (0..).zip(&self.rules) {
            let Some(has_changed) = rule.apply(&mut key, kind) else { continue };
            changed |= has_changed;
            if has_changed || rule.action.is_some() {
                matched.push(number);
            }
            match rule.action {
                Some(RuleAction::Drop) => return RuleResult { key: None, changed: true, matched },
                Some(RuleAction::Allow) => break,
                None => {}
            }
        }
        for (tag, value) in &self.static_tags {
            // The tag that was sent, or set by a rule, takes precedence.
            if !key.has_tag(tag) {
                changed |= key.set_tag(tag, value);
            }
        }
        RuleResult { key: Some(key), changed, matched }
    }
}

impl MetricRule {
    /// Compiles a rule.
    ///
    /// # Errors
    ///
    /// The key with the problem, and its description.
    fn new(index: usize, settings: &RuleSettings) -> Result<Self, (&'static str, String)> {
        let id = match &settings.id {
            Some(id) if id.is_empty() || id.chars().any(|c| c.is_control() || c == ' ') => {
                return Err(("id", "must not be empty or contain spaces".to_owned()));
            }
            Some(id) => Arc::from(&**id),
            None => format!("rule-{}", index + 1).into(),
        };
        let name = match (&settings.name, &settings.name_regex) {
            (Some(_), Some(_)) => {
                let text = "name and name-regex exclude each other: write two rules".to_owned();
                return Err(("name-regex", text));
            }
            (Some(glob), None) => Some(NameCondition::glob(glob).map_err(|text| ("name", text))?),
            (None, Some(regex)) => {
                Some(NameCondition::regex(regex).map_err(|text| ("name-regex", text))?)
            }
            (None, None) => None,
        };
        let rule = Self {
            id,
            name,
            kind: settings.kind,
            tags: settings
                .tags
                .iter()
                .map(|(tag, value)| (tag.clone(), WildcardPattern::new(value)))
                .collect(),
            action: settings.action,
            rename: settings.rename.clone(),
            dropped_tags: patterns(&settings.drop_tags),
            retained_tags: settings.keep_tags.as_deref().map(patterns),
            added_tags: pairs(&settings.add_tags),
        };
        rule.check().map(|()| rule)
    }

    /// Checks what a single setting does not show.
    fn check(&self) -> Result<(), (&'static str, String)> {
        let has_changes = self.rename.is_some()
            || !self.dropped_tags.is_empty()
            || self.retained_tags.is_some()
            || !self.added_tags.is_empty();
        match self.action {
            None if !has_changes => {
                let text = "the rule does nothing: set action (\"allow\" or \"drop\"), rename, \
                            drop-tags, keep-tags or add-tags";
                return Err(("", text.to_owned()));
            }
            Some(RuleAction::Drop) if has_changes => {
                return Err(("action", "a rule that drops metrics cannot change them".to_owned()));
            }
            _ => {}
        }
        if let Some(name) = &self.rename {
            if name.is_empty() || name.contains(|c: char| c == ';' || c.is_control()) {
                return Err(("rename", "must not be empty or contain ; (see add-tags)".to_owned()));
            }
            self.check_captures("rename", name)?;
        }
        for (tag, value) in &self.added_tags {
            if tag.is_empty() {
                return Err(("add-tags", "a tag must have a key".to_owned()));
            }
            self.check_captures("add-tags", value)?;
        }
        Ok(())
    }

    fn check_captures(
        &self,
        key: &'static str,
        template: &str,
    ) -> Result<(), (&'static str, String)> {
        let captures = self.name.as_ref().map_or(0, NameCondition::captures);
        match last_capture(template) {
            Some(last) if last > captures => Err((
                key,
                format!("${last} has nothing to refer to: the pattern captures {captures} texts"),
            )),
            _ => Ok(()),
        }
    }

    /// Applies the rule: returns whether it changed the key, or `None` if its conditions are not
    /// met.
    fn apply(&self, key: &mut TaggedName<'_>, kind: MetricType) -> Option<bool> {
        let captures = self.captures(key, kind)?;
        let capture = |at: usize| captures.get(at);
        let rename = self.rename.as_ref().map(|name| expand(name, &capture));
        // A name that consists of captures only may become empty; then it stays as it is.
        let rename = rename.filter(|name| !name.is_empty() && **name != *key.base);
        let added = self.added_tags.iter();
        let added: Vec<_> = added.map(|(tag, value)| (tag, expand(value, &capture))).collect();
        let mut changed = key.retain_tags(|tag| {
            let is_retained = self.retained_tags.as_ref().is_none_or(|all| is_any(all, tag));
            is_retained && !is_any(&self.dropped_tags, tag)
        });
        for (tag, value) in added {
            changed |= key.set_tag(tag, &value);
        }
        if let Some(name) = rename {
            key.base = name.into();
            changed = true;
        }
        Some(changed)
    }

    /// Returns the texts that the name's pattern captures, if all conditions are met.
    fn captures<'k>(&self, key: &'k TaggedName<'_>, kind: MetricType) -> Option<NameCaptures<'k>> {
        if self.kind.is_some_and(|only| only != kind) {
            return None;
        }
        let captures = match &self.name {
            Some(condition) => condition.captures_of(&key.base)?,
            None => NameCaptures::whole(&key.base),
        };
        let has_tags = self.tags.iter().all(|(tag, value)| {
            key.tags.iter().any(|(key, text)| **key == **tag && value.matches(text))
        });
        has_tags.then_some(captures)
    }
}

fn pairs(map: &BTreeMap<String, String>) -> Vec<(String, String)> {
    map.iter().map(|(key, value)| (key.clone(), value.clone())).collect()
}

fn patterns(texts: &[String]) -> Vec<WildcardPattern> {
    texts.iter().map(|text| WildcardPattern::new(text)).collect()
}

fn is_any(patterns: &[WildcardPattern], text: &str) -> bool {
    patterns.iter().any(|pattern| pattern.matches(text))
}
