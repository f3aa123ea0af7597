//! `[[statsd.rules]]` and `[statsd.static-tags]`: what happens to received metrics before any
//! backend gets them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::aggregate::MetricType;

/// A rule for received metrics: conditions, all of which must be met, then changes and an action.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct RuleSettings {
    /// The rule's name in replies, self metrics and the log. Default: `rule-` and its number.
    pub id: Option<String>,
    /// Condition: a pattern for the name without tags. `*` matches within one part of the name,
    /// `**` at the end matches all further parts.
    pub name: Option<String>,
    /// Condition: a regular expression that matches any part of the name without tags.
    pub name_regex: Option<String>,
    /// Condition: the metric's type.
    #[serde(rename = "type")]
    pub kind: Option<MetricType>,
    /// Condition: tags that the metric must have, each with a pattern for its value.
    pub tags: BTreeMap<String, String>,
    /// Ends the evaluation of rules, or drops the metric.
    pub action: Option<RuleAction>,
    /// The new name; `$1` stands for the text of the first `*` or group.
    pub rename: Option<String>,
    /// Patterns for the keys of tags to remove.
    pub drop_tags: Vec<String>,
    /// Patterns for the keys of tags to retain; others are removed.
    pub keep_tags: Option<Vec<String>>,
    /// Tags to set, each replacing a tag with the same key.
    pub add_tags: BTreeMap<String, String>,
}

/// The last step of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RuleAction {
    /// Later rules do not apply.
    Allow,
    /// The samples are counted and discarded.
    Drop,
}

/// Replaces `$NAME` and `${NAME}` in the value of a static tag: `HOSTNAME` by `host`, other names
/// by environment variables. `$$` stands for a dollar sign.
///
/// # Errors
///
/// A description of the problem, such as a variable that is not set.
pub(super) fn expand_variables(
    value: &str,
    host: &str,
    variable: &dyn Fn(&str) -> Option<String>,
) -> Result<String, String> {
    let mut expanded = String::with_capacity(value.len());
    let mut rest = value;
    while let Some((before, after)) = rest.split_once('$') {
        expanded.push_str(before);
        if let Some(after) = after.strip_prefix('$') {
            expanded.push('$');
            rest = after;
            continue;
        }
        let (name, then) = match after.strip_prefix('{').and_then(|after| after.split_once('}')) {
            Some(braced) => braced,
            None => {
                let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
                after.split_at(after.find(|c| !is_part(c)).unwrap_or(after.len()))
            }
        };
        match name {
            "" => return Err("a $ must be followed by a variable's name; write $$ for $".into()),
            "HOSTNAME" => expanded.push_str(host),
            name => match variable(name) {
                Some(text) => expanded.push_str(&text),
                None => return Err(format!("the environment variable {name} is not set")),
            },
        }
        rest = then;
    }
    Ok(expanded + rest)
}

#[test]
fn static_tags_refer_to_host_and_environment() {
    let variable = |name: &str| (name == "REGION").then(|| "eu".to_owned());
    let expand = |value: &str| expand_variables(value, "web1", &variable);
    assert_eq!(expand("plain"), Ok("plain".to_owned()));
    assert_eq!(expand("$HOSTNAME"), Ok("web1".to_owned()));
    assert_eq!(expand("${REGION}-1/$HOSTNAME.x $$5"), Ok("eu-1/web1.x $5".to_owned()));
    assert_eq!(expand("$ZONE"), Err("the environment variable ZONE is not set".to_owned()));
    assert!(expand("a$").is_err());
}
