//! [`MetricName`]: a metric's key, with tags appended in Graphite's format.

use std::{
    borrow::Cow,
    cmp::Ordering,
    fmt,
    hash::{Hash, Hasher},
    sync::Arc,
};

/// Replaces `;` within a tag, where it would end the tag.
const SEMICOLON: char = '\u{1f}';
/// Replaces `=` in a tag's key, where it would end the key.
const EQUALS: char = '\u{1e}';

/// A metric's key: `name` or `name;tag=value;tag2=value2`, sanitised or as it was sent.
///
/// Two samples of one type are of the same metric if and only if their keys are equal; the order of
/// tags matters, as in etsy's server, but the DogStatsD dialect sorts them. Cloning is cheap. There
/// may be millions, which share their texts: a name takes 16 bytes, and its text exists once in all
/// tables that refer to it.
#[derive(Clone)]
pub struct MetricName {
    block: Arc<NameBlock>,
    start: u32,
    bytes: u32,
}

/// The texts of one or more names, concatenated.
struct NameBlock(Box<str>);

impl MetricName {
    /// Creates a name from a complete key.
    pub fn new(key: &str) -> Self {
        Self {
            bytes: u32::try_from(key.len()).unwrap_or(u32::MAX),
            block: Arc::new(NameBlock(key.into())),
            start: 0,
        }
    }

    /// Moves the texts of many names to one block, which saves an allocation for each. The block is
    /// freed with the last of the names.
    pub(crate) fn share_block<'n>(names: impl Iterator<Item = &'n mut Self>) {
        let names: Vec<&mut Self> = names.collect();
        let bytes = names.iter().map(|name| name.key().len()).sum();
        if u32::try_from(bytes).is_err() {
            return;
        }
        let mut text = String::with_capacity(bytes);
        names.iter().for_each(|name| text.push_str(name.key()));
        let block = Arc::new(NameBlock(text.into()));
        let mut start = 0;
        for name in names {
            *name = Self { block: Arc::clone(&block), start, bytes: name.bytes };
            start += name.bytes;
        }
    }

    /// Whether the text of both names is the same memory.
    pub(crate) fn shares_text(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.block, &other.block) && self.start == other.start
    }

    /// Returns the complete key with tags, as displayed at the management port.
    pub fn key(&self) -> &str {
        let start = self.start as usize;
        self.block.0.get(start..start + self.bytes as usize).unwrap_or_default()
    }

    /// Returns the key before its first tag.
    pub fn base(&self) -> &str {
        self.key().split(';').next().unwrap_or_default()
    }

    /// Returns the tags with their leading `;`, such as `;tag=value`, or nothing. Suffixes are
    /// inserted before them.
    pub fn tag_text(&self) -> &str {
        &self.key()[self.base().len()..]
    }

    /// Returns the tags in the order of the key. A tag without `=` has an empty value.
    pub fn tags(&self) -> impl Iterator<Item = (Cow<'_, str>, Cow<'_, str>)> {
        let tags = self.key().split(';').skip(1).filter(|tag| !tag.is_empty());
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
        f.write_str(self.key())
    }
}

impl fmt::Debug for MetricName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("MetricName").field(&self.key()).finish()
    }
}

impl PartialEq for MetricName {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for MetricName {}

impl Hash for MetricName {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key().hash(state);
    }
}

impl PartialOrd for MetricName {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for MetricName {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(other.key())
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

#[test]
fn names_of_one_block_remain_distinct() {
    let keys = ["a", "", "b;c=\u{e9}", "a"];
    let mut names = keys.map(MetricName::new);
    let before = names.clone();
    MetricName::share_block(names.iter_mut());
    assert_eq!(names, before);
    assert_eq!(names.each_ref().map(MetricName::key), keys);
    assert!(!names[0].shares_text(&before[0]) && !names[0].shares_text(&names[3]));
    assert!(names[2].shares_text(&names[2].clone()));
    assert_eq!(names[2].tags().next(), Some(("c".into(), "\u{e9}".into())));
}
