//! The name under which a metric is kept: its key, with tags appended as Graphite writes them.

use std::{borrow::Cow, fmt, sync::Arc};

/// Stands for a `;` within a tag, where a plain one would end the tag.
const SEMICOLON: char = '\u{1f}';
/// Stands for a `=` in a tag's key, where a plain one would end the key.
const EQUALS: char = '\u{1e}';

/// A metric's key: `name` or `name;tag=value;tag2=value2`, sanitised or as it was sent.
///
/// Two samples belong to one metric exactly when their keys are equal text; the order of tags
/// counts, as it does for etsy's server. Cloning is cheap.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name(Arc<str>);

impl Name {
    /// Takes a finished key.
    #[must_use]
    pub fn new(key: &str) -> Self {
        Self(key.into())
    }

    /// The whole key, tags included: what the management port shows.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.0
    }

    /// The key before its first tag.
    #[must_use]
    pub fn base(&self) -> &str {
        self.0.split(';').next().unwrap_or_default()
    }

    /// The tags with their leading `;`, or nothing: `;tag=value`. A suffix belongs before them.
    #[must_use]
    pub fn tag_text(&self) -> &str {
        &self.0[self.base().len()..]
    }

    /// The tags in the order in which they were sent. One without `=` has an empty value.
    pub fn tags(&self) -> impl Iterator<Item = (Cow<'_, str>, Cow<'_, str>)> {
        let tags = self.0.split(';').skip(1).filter(|tag| !tag.is_empty());
        tags.map(|tag| {
            let (key, value) = tag.split_once('=').unwrap_or((tag, ""));
            (restored(key), restored(value))
        })
    }
}

/// Appends a tag to a key that is being put together, so that [`Name::tags`] gives back exactly this
/// key and value. A tag without a key is left out.
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
    match part.contains([SEMICOLON, EQUALS]) {
        true => part.replace(SEMICOLON, ";").replace(EQUALS, "=").into(),
        false => part.into(),
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[test]
fn a_name_shows_its_tags() {
    let name = Name::new("api.hits;code=200;canary");
    assert_eq!(name.base(), "api.hits");
    assert_eq!(name.tag_text(), ";code=200;canary");
    let tags: Vec<_> = name.tags().collect();
    assert_eq!(tags, [("code".into(), "200".into()), ("canary".into(), "".into())]);
    assert_eq!(Name::new("plain").tag_text(), "");
}

#[test]
fn tags_with_semicolons_and_equal_signs_come_back_as_they_were() {
    let mut text = "a".to_owned();
    push_tag(&mut text, "k=;x", Some("1;2=3"));
    push_tag(&mut text, "", Some("nameless"));
    push_tag(&mut text, "bare", None);
    let name = Name::new(&text);
    let tags: Vec<_> = name.tags().collect();
    assert_eq!(tags, [("k=;x".into(), "1;2=3".into()), ("bare".into(), "".into())]);
    assert_eq!(name.base(), "a");
}
