//! Converts the agent's rules for names: profiles that map them, the namespace and blocked names.
//!
//! The agent renames a metric by the first matching rule of a profile, then puts the namespace
//! before the name unless that is excluded, and then drops names that are blocked. Here, a rule
//! that renames ends the evaluation, and already has the namespace. Whether a name with captured
//! text is blocked is not known in advance; it is not dropped.

use crate::{
    rules::MetricRules,
    settings::{
        RuleAction, RuleSettings,
        etsy_config::ValueProblem,
        import::{entries, find, rules, text},
        literal::{Literal, LiteralNode},
    },
};

/// Names to which the agent adds no namespace, unless the file lists others: they start with one of
/// these.
const EXCLUDED: [&str; 21] = [
    "datadog.agent",
    "datadog.dogstatsd",
    "datadog.process",
    "datadog.trace_agent",
    "datadog.tracer",
    "activemq",
    "activemq_58",
    "airflow",
    "cassandra",
    "confluent",
    "hazelcast",
    "hive",
    "ignite",
    "jboss",
    "jvm",
    "kafka",
    "presto",
    "sidekiq",
    "solr",
    "tomcat",
    "runtime",
];

/// Profiles of `dogstatsd_mapper_profiles`, the namespace, and names that are blocked.
#[derive(Debug)]
pub(super) struct AgentNameRules {
    mappings: Vec<RuleSettings>,
    /// Ends in a dot, or is empty.
    namespace: String,
    excluded: Vec<String>,
    /// `statsd_metric_blocklist` and `metric_filterlist`.
    blocked: [BlockedNames; 2],
}

/// Names to drop.
#[derive(Debug, Default)]
pub(super) struct BlockedNames {
    pub(super) names: Vec<String>,
    /// Whether they are the starts of names.
    pub(super) are_prefixes: bool,
}

impl Default for AgentNameRules {
    fn default() -> Self {
        Self {
            mappings: Vec::new(),
            namespace: String::new(),
            excluded: EXCLUDED.map(str::to_owned).into(),
            blocked: Default::default(),
        }
    }
}

impl AgentNameRules {
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
            let prefix = if prefix == "*" { "" } else { &prefix };
            let Some(mappings) = find(keys, "mappings") else { continue };
            for mapping in list(&mappings.value)? {
                match rule(mapping, prefix) {
                    Ok(rule) => self.mappings.push(rule),
                    Err(why) => skipped.push((mapping.line, format!("rule not converted: {why}"))),
                }
            }
        }
        Ok(skipped)
    }

    /// Sets the text before all names.
    pub(super) fn set_namespace(&mut self, namespace: &str) {
        let dot = if namespace.is_empty() || namespace.ends_with('.') { "" } else { "." };
        self.namespace = format!("{namespace}{dot}");
    }

    /// Sets the prefixes of names that get no namespace.
    pub(super) fn exclude(&mut self, prefixes: Vec<String>) {
        self.excluded = prefixes;
    }

    /// Returns the names that the list of this key blocks.
    pub(super) fn blocked(&mut self, key: &str) -> &mut BlockedNames {
        &mut self.blocked[usize::from(!key.starts_with("statsd_metric_blocklist"))]
    }

    /// Returns the rules.
    pub(super) fn to_rules(&self) -> Vec<RuleSettings> {
        let mut all: Vec<_> = self.mappings.iter().map(|rule| self.with_namespace(rule)).collect();
        let blocked: Vec<_> =
            self.blocked.iter().flat_map(|list| self.blocked_excluded(list)).collect();
        all.extend(rules::for_names(&blocked, &rules::dropping()));
        if !self.namespace.is_empty() {
            let excluded = self.excluded.iter().map(|prefix| regex_lite::escape(prefix) + ".*");
            let excluded: Vec<_> = excluded.collect();
            all.extend(rules::for_names(&excluded, &rules::allowing()));
        }
        let blocked: Vec<_> =
            self.blocked.iter().flat_map(|list| self.blocked_others(list)).collect();
        all.extend(rules::for_names(&blocked, &rules::dropping()));
        if !self.namespace.is_empty() {
            let rename = Some(format!("{}${{0}}", self.namespace));
            all.push(RuleSettings { rename, ..RuleSettings::default() });
        }
        all
    }

    /// Returns the patterns of the received names that get no namespace and are blocked.
    fn blocked_excluded(&self, list: &BlockedNames) -> Vec<String> {
        if self.namespace.is_empty() {
            return Vec::new();
        }
        let mut patterns = Vec::new();
        for blocked in &list.names {
            if self.is_excluded(blocked) {
                patterns.push(list.pattern(blocked));
            } else if list.are_prefixes {
                let longer =
                    self.excluded.iter().filter(|prefix| prefix.starts_with(blocked.as_str()));
                patterns.extend(longer.map(|prefix| list.pattern(prefix)));
            }
        }
        patterns
    }

    /// Returns the patterns of the received names that get the namespace and then are blocked.
    fn blocked_others(&self, list: &BlockedNames) -> Vec<String> {
        let received = list.names.iter().filter_map(|blocked| {
            let is_whole = list.are_prefixes && self.namespace.starts_with(blocked.as_str());
            let rest = blocked.strip_prefix(self.namespace.as_str());
            if is_whole { Some("") } else { rest }
        });
        received.map(|name| list.pattern(name)).collect()
    }

    /// Returns a rule that renames, with what the agent does after renaming.
    fn with_namespace(&self, rule: &RuleSettings) -> RuleSettings {
        let mut rule = rule.clone();
        if let Some(name) = rule.rename.as_mut().filter(|name| !self.is_excluded(name)) {
            name.insert_str(0, &self.namespace);
        }
        let is_blocked = |name: &str| self.blocked.iter().any(|list| list.has(name));
        match &rule.rename {
            Some(name) if is_blocked(name) => RuleSettings {
                action: Some(RuleAction::Drop),
                rename: None,
                add_tags: Default::default(),
                ..rule
            },
            _ => rule,
        }
    }

    /// Whether a name gets no namespace.
    fn is_excluded(&self, name: &str) -> bool {
        let mut excluded = self.excluded.iter();
        !self.namespace.is_empty() && excluded.any(|prefix| name.starts_with(prefix.as_str()))
    }
}

impl BlockedNames {
    /// Returns a regular expression for a whole name.
    fn pattern(&self, name: &str) -> String {
        regex_lite::escape(name) + if self.are_prefixes { ".*" } else { "" }
    }

    fn has(&self, name: &str) -> bool {
        self.names.iter().any(|blocked| {
            name == *blocked || self.are_prefixes && name.starts_with(blocked.as_str())
        })
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
fn rule(node: &LiteralNode, prefix: &str) -> Result<RuleSettings, ValueProblem> {
    let keys = entries(node)?;
    let required = |key: &str| match find(keys, key) {
        Some(entry) => text(&entry.value),
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
    let other_names = || format!("its names do not start with the profile's prefix {prefix:?}");
    let mut rule = rules::allowing();
    if is_regex {
        let escaped = regex_lite::escape(prefix);
        // Anything else may match names that the profile is not for.
        let rest = pattern.strip_prefix(&escaped).or_else(|| pattern.strip_prefix(prefix));
        let rest = rest.ok_or_else(other_names)?;
        if has_alternatives(rest) {
            return Err("it has alternatives outside of parentheses".to_owned());
        }
        rule.name_regex = Some(format!("^{escaped}(?:{rest})$"));
    } else if !pattern.starts_with(prefix) {
        return Err(other_names());
    } else if pattern.split('.').any(|part| part.matches('*').count() > 1) {
        // The first of several wildcards gets as much text as possible.
        let parts = pattern.split('*').map(regex_lite::escape).collect::<Vec<_>>();
        rule.name_regex = Some(format!("^{}$", parts.join("([^.]*)")));
    } else {
        rule.name = Some(pattern);
    }
    if let Some(entry) = find(keys, "tags") {
        for tag in entries(&entry.value)? {
            rule.add_tags.insert(tag.key.clone(), text(&tag.value)?);
        }
    }
    rule.rename = Some(required("name")?);
    let mut templates = rule.rename.iter().chain(rule.add_tags.values());
    if let Some(template) = templates.find(|template| has_named_group(template)) {
        return Err(format!("{template:?} refers to a group by name"));
    }
    match MetricRules::compile(std::slice::from_ref(&rule), &Default::default()).1.first() {
        Some(problem) => Err(format!("{}: {}", problem.key, problem.text)),
        None => Ok(rule),
    }
}

/// Whether a regular expression has `|` outside of parentheses and classes.
fn has_alternatives(regex: &str) -> bool {
    let (mut depth, mut is_class, mut is_escaped) = (0_usize, false, false);
    for c in regex.chars() {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            ']' => is_class = false,
            _ if is_class => {}
            '[' => is_class = true,
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            '|' if depth == 0 => return true,
            _ => {}
        }
    }
    false
}

/// Whether a template refers to a group by a name, such as `$job` or `${job}`.
fn has_named_group(template: &str) -> bool {
    template.split('$').skip(1).any(|after| {
        let name = after.strip_prefix('{').unwrap_or(after);
        name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
    })
}
