//! [`TaggedName`]: a metric's name and tags while rules change them.

use std::borrow::Cow;

use crate::{MetricName, name::push_tag};

/// A metric's name and its tags, in the order sent.
#[derive(Debug)]
pub(crate) struct TaggedName<'n> {
    /// The name without tags.
    pub(super) base: Cow<'n, str>,
    /// Keys and values. A tag without a value has an empty one.
    pub(super) tags: Vec<(Cow<'n, str>, Cow<'n, str>)>,
}

impl<'n> TaggedName<'n> {
    /// Splits a key as it was sent.
    pub(super) fn new(sent: &'n MetricName) -> Self {
        Self { base: sent.base().into(), tags: sent.tags().collect() }
    }

    pub(super) fn has_tag(&self, key: &str) -> bool {
        self.tags.iter().any(|(tag, _)| tag == key)
    }

    /// Removes the tags whose keys do not meet a condition; returns whether there were any.
    pub(super) fn retain_tags(&mut self, mut is_retained: impl FnMut(&str) -> bool) -> bool {
        let before = self.tags.len();
        self.tags.retain(|(tag, _)| is_retained(tag));
        self.tags.len() < before
    }

    /// Sets a tag: replaces the value of the first tag with this key, removes others with it, or
    /// appends the tag. Returns whether that is a change.
    pub(super) fn set_tag(&mut self, key: &str, value: &str) -> bool {
        let Some(first) = self.tags.iter().position(|(tag, _)| tag == key) else {
            self.tags.push((key.to_owned().into(), value.to_owned().into()));
            return true;
        };
        let before = self.tags.len();
        let mut index = 0..;
        self.tags.retain(|(tag, _)| index.next() == Some(first) || tag != key);
        let is_new = self.tags[first].1 != value;
        if is_new {
            self.tags[first].1 = value.to_owned().into();
        }
        is_new || self.tags.len() < before
    }

    /// Sorts the tags by their texts, as those of DogStatsD are; each exists once. A tag with the
    /// key `last` comes last.
    pub(crate) fn sort_tags(&mut self, last: &str) {
        self.tags.sort_by_cached_key(|(tag, value)| {
            let colon = if value.is_empty() { "" } else { ":" };
            (tag == last, format!("{tag}{colon}{value}"))
        });
        self.tags.dedup();
    }

    /// Returns the key with all characters as sent, for [`MetricName::tags`].
    pub(crate) fn as_sent(&self) -> MetricName {
        let mut text = self.base.clone().into_owned();
        for (tag, value) in &self.tags {
            push_tag(&mut text, tag, (!value.is_empty()).then_some(&**value));
        }
        MetricName::new(&text)
    }

    /// Returns the key in Graphite's format before it is sanitised: `name;tag=value;tag2`.
    pub(crate) fn graphite_text(&self) -> String {
        let mut text = self.base.clone().into_owned();
        for (tag, value) in &self.tags {
            let equals = if value.is_empty() { "" } else { "=" };
            text.push(';');
            text.push_str(&format!("{tag}{equals}{value}").replacen(';', "_", 1));
        }
        text
    }
}
