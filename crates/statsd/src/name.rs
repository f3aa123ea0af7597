//! The name under which a metric is kept: etsy's key, with tags appended as Graphite writes them.

use std::{fmt, sync::Arc};

/// A metric's key: `name` or `name;tag=value;tag2=value2`, sanitised already.
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

    /// The whole key, tags included: what Graphite and the management port show.
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
    pub fn tags(&self) -> impl Iterator<Item = (&str, &str)> {
        let tags = self.0.split(';').skip(1).filter(|tag| !tag.is_empty());
        tags.map(|tag| tag.split_once('=').unwrap_or((tag, "")))
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
    assert_eq!(name.tags().collect::<Vec<_>>(), [("code", "200"), ("canary", "")]);
    assert_eq!(Name::new("plain").tag_text(), "");
}
