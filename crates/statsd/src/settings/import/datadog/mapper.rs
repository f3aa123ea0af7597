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
    blocked: Vec<String>,
    are_prefixes: bool,
}

impl Default for AgentNameRules {
    fn default() -> Self {
        Self {
            mappings: Vec::new(),
            namespace: String::new(),
            excluded: EXCLUDED.map(str::to_owned).into(),
            blocked: Vec::new(),
            are_prefixes: false,
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

    /// Adds names to block.
    pub(super) fn block(&mut self, names: Vec<String>) {
        self.blocked.extend(names);
    }

    /// Sets whether blocked names are prefixes.
    pub(super) fn block_prefixes(&mut self, are_prefixes: bool) {
        self.are_prefixes = are_prefixes;
    }

    /// Returns the rules.
    pub(super) fn to_rules(&self) -> Vec<RuleSettings> {
        let mut all: Vec<_> = self.mappings.iter().map(|rule| self.with_namespace(rule)).collect();
        let end = if self.are_prefixes { ".*" } else { "" };
        let received = self.blocked.iter().flat_map(|name| self.received_names(name));
        let blocked: Vec<_> = received.map(|name| regex_lite::escape(name) + end).collect();
        all.extend(rules::for_names(&blocked, &rules::dropping()));
        if !self.namespace.is_empty() {
            let excluded = self.excluded.iter().map(|prefix| regex_lite::escape(prefix) + ".*");
            let excluded: Vec<_> = excluded.collect();
            all.extend(rules::for_names(&excluded, &rules::allowing()));
            let rename = Some(format!("{}${{0}}", self.namespace));
            all.push(RuleSettings { rename, ..RuleSettings::default() });
        }
        all
    }

    /// Returns a rule that renames, with what the agent does after renaming.
    fn with_namespace(&self, rule: &RuleSettings) -> RuleSettings {
        let mut rule = rule.clone();
        if let Some(name) = rule.rename.as_mut().filter(|name| !self.is_excluded(name)) {
            name.insert_str(0, &self.namespace);
        }
        let is_blocked = |name: &str| {
            self.blocked.iter().any(|blocked| {
                name == *blocked || self.are_prefixes && name.starts_with(blocked.as_str())
            })
        };
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

    /// Returns the names, or prefixes of names, that are blocked before the namespace is added.
    fn received_names<'n>(&self, blocked: &'n str) -> impl Iterator<Item = &'n str> {
        let without = blocked.strip_prefix(self.namespace.as_str());
        let without = without.filter(|name| !self.is_excluded(name));
        let excluded = (!self.namespace.is_empty() && self.is_excluded(blocked)).then_some(blocked);
        without.into_iter().chain(excluded)
    }

    /// Whether a name gets no namespace.
    fn is_excluded(&self, name: &str) -> bool {
        let mut excluded = self.excluded.iter();
        !self.namespace.is_empty() && excluded.any(|prefix| name.starts_with(prefix.as_str()))
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
        rule.name_regex = Some(format!("^{escaped}(?:{rest})$"));
    } else if pattern.starts_with(prefix) {
        rule.name = Some(pattern);
    } else {
        return Err(other_names());
    }
    if let Some(entry) = find(keys, "tags") {
        for tag in entries(&entry.value)? {
            rule.add_tags.insert(tag.key.clone(), text(&tag.value)?);
        }
    }
    rule.rename = Some(required("name")?);
    match MetricRules::compile(std::slice::from_ref(&rule), &Default::default()).1.first() {
        Some(problem) => Err(format!("{}: {}", problem.key, problem.text)),
        None => Ok(rule),
    }
}
