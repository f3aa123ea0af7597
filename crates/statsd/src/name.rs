//! [`MetricName`]: a metric's key, with tags appended in Graphite's format.

use std::{borrow::Cow, fmt, sync::Arc};

/// Replaces `;` within a tag, where it would end the tag.
const SEMICOLON: char = '\u{1f}';
/// Replaces `=` in a tag's key, where it would end the key.
const EQUALS: char = '\u{1e}';

/// A metric's key: `name` or `name;tag=value;tag2=value2`, sanitised or as it was sent.
///
/// Two samples of one type are of the same metric if and only if their keys are equal; the order of
/// tags matters, as in etsy's server. Cloning is cheap.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MetricName(Arc<str>);

impl MetricName {
    /// Creates a name from a complete key.
    pub fn new(key: &str) -> Self {
        Self(key.into())
    }

    /// Returns the complete key with tags, as displayed at the management port.
    pub fn key(&self) -> &str {
        &self.0
    }

    /// Returns the key before its first tag.
    pub fn base(&self) -> &str {
        self.0.split(';').next().unwrap_or_default()
    }

    /// Returns the tags with their leading `;`, such as `;tag=value`, or nothing. Suffixes are
    /// inserted before them.
    pub fn tag_text(&self) -> &str {
        &self.0[self.base().len()..]
    }

    /// Returns the tags in the order sent. A tag without `=` has an empty value.
    pub fn tags(&self) -> impl Iterator<Item = (Cow<'_, str>, Cow<'_, str>)> {
        let tags = self.0.split(';').skip(1).filter(|tag| !tag.is_empty());
        tags.map(|tag| {
            let (key, value) = tag.split_once('=').unwrap_or((tag, ""));
            (restored(key), restored(value))
        })
    }
}

/// Appends a tag to a key under construction, so that [`MetricName::tags`] returns this key and
/// value. A tag without a key is omitted.
pub(crate) fn push_tag(text: &mut String, key: &str, value: Option<&str>) {
    if key.is_empty() {
        return;
    }
    text.push(';');
    push_part(text, key, true);
    if let Some(value) = value {
        text.push('=');
        push_part(text, value, false);
    }
}

fn push_part(text: &mut String, part: &str, is_key: bool) {
    text.extend(part.chars().map(|char| match char {
        ';' => SEMICOLON,
        '=' if is_key => EQUALS,
        SEMICOLON | EQUALS => char::REPLACEMENT_CHARACTER,
        char => char,
    }));
}

fn restored(part: &str) -> Cow<'_, str> {
    if part.contains([SEMICOLON, EQUALS]) {
        part.replace(SEMICOLON, ";").replace(EQUALS, "=").into()
    } else {
        part.into()
    }
}

impl fmt::Display for MetricName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[test]
fn name_splits_into_base_and_tags() {
    let name = MetricName::new("api.hits;code=200;canary");
    assert_eq!(name.base(), "api.hits");
    assert_eq!(name.tag_text(), ";code=200;canary");
    let tags: Vec<_> = name.tags().collect();
    assert_eq!(tags, [("code".into(), "200".into()), ("canary".into(), "".into())]);
    assert_eq!(MetricName::new("plain").tag_text(), "");
}

#[test]
fn reserved_characters_in_tags_round_trip() {
    let mut text = "a".to_owned();
    push_tag(&mut text, "k=;x", Some("1;2=3"));
    push_tag(&mut text, "", Some("nameless"));
    push_tag(&mut text, "bare", None);
    let name = MetricName::new(&text);
    let tags: Vec<_> = name.tags().collect();
    assert_eq!(tags, [("k=;x".into(), "1;2=3".into()), ("bare".into(), "".into())]);
    assert_eq!(name.base(), "a");
}
