//! Converts raw names and tags to the two keys of a metric: as sent, for receivers that accept any
//! text, and sanitised, for Graphite, the management port and everything that etsy's server
//! displays.

use std::borrow::Cow;

use crate::{
    MetricName,
    aggregate::CONTAINER_SEPARATOR,
    backends::SnapshotRequirements,
    name::push_tag,
    rules::TaggedName,
    settings::{StatsdDialect, StatsdSettings, TagStyles},
};

/// The two keys of a metric.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyPair {
    /// The key in the registry: sanitised, unless that is off.
    pub(crate) key: MetricName,
    /// The key with all characters as sent; equal to `key` unless a backend requires it.
    pub(crate) sent: MetricName,
}

/// The rules by which raw names and tags are converted.
///
/// A shard identifies keys by their raw bytes, so they apply once to each new key and never to a
/// known one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyConversion {
    dialect: StatsdDialect,
    tags: TagStyles,
    sanitise: bool,
    /// Whether a backend uses keys as sent.
    has_sent_keys: bool,
}

impl KeyConversion {
    pub(super) fn new(settings: &StatsdSettings, needs: SnapshotRequirements) -> Self {
        let mut tags = settings.tags;
        tags.influx &= settings.dialect != StatsdDialect::Perl;
        let sanitise = settings.aggregation.sanitise;
        Self { dialect: settings.dialect, tags, sanitise, has_sent_keys: needs.names_as_sent }
    }

    /// Returns the rules that yield both keys, whatever the settings say.
    pub(crate) fn both(settings: &StatsdSettings) -> Self {
        Self {
            sanitise: true,
            has_sent_keys: true,
            ..Self::new(settings, SnapshotRequirements::MINIMAL)
        }
    }

    /// Converts a raw name and raw tags to the metric's key, sanitised if the settings say so, and
    /// to its key as sent. Without a backend that uses the latter, both are the same, so that all
    /// spellings share one entry.
    pub(super) fn keys(self, name: &[u8], tags: &[u8]) -> KeyPair {
        let key = self.canonical(name, tags, self.sanitise);
        let sent = if self.has_sent_keys { self.as_sent(name, tags) } else { key.clone() };
        KeyPair { key, sent }
    }

    /// Returns the keys of a name that rules changed.
    pub(super) fn changed_keys(self, mut name: TaggedName<'_>) -> KeyPair {
        if self.dialect == StatsdDialect::Dogstatsd {
            name.sort_tags(CONTAINER_TAG);
        }
        let text = name.graphite_text();
        let text = if self.sanitise { sanitised(&text, self.dialect) } else { text.into() };
        let key = MetricName::new(&text);
        let sent = if self.has_sent_keys { name.as_sent() } else { key.clone() };
        KeyPair { key, sent }
    }

    /// Converts a raw name and raw tags to the metric's sanitised or unsanitised key.
    ///
    /// Tags are appended in Graphite's format, `;name=value`, in the order sent except in the
    /// DogStatsD dialect. `tags` may end in `|` and a container, which becomes the tag
    /// [`CONTAINER_TAG`]. With `sanitise`, characters invalid in Graphite are replaced or removed,
    /// also in tags, by the rules of the dialect.
    pub(super) fn canonical(self, name: &[u8], tags: &[u8], sanitise: bool) -> MetricName {
        let mut key = self.tags_in_name(String::from_utf8_lossy(name));
        let tags = String::from_utf8_lossy(tags);
        let (tags, container) = split_container(&tags);
        for tag in self.tag_list(tags) {
            key.to_mut().push(';');
            key.to_mut().push_str(&tag.replacen(';', "_", 1).replacen(':', "=", 1));
        }
        if let Some(container) = container {
            let container = container.replace(';', "_");
            key.to_mut().push_str(&format!(";{CONTAINER_TAG}={container}"));
        }
        if sanitise {
            MetricName::new(&sanitised(&key, self.dialect))
        } else {
            MetricName::new(&key)
        }
    }

    /// Converts a raw name and raw tags to a key with all characters as sent; invalid UTF-8 is
    /// replaced.
    ///
    /// Accepts the same tag formats as [`canonical`](Self::canonical). A tag without a key is
    /// omitted.
    pub(super) fn as_sent(self, name: &[u8], tags: &[u8]) -> MetricName {
        let name = self.tags_in_name(String::from_utf8_lossy(name));
        let mut in_name = name.split(';');
        let mut key = in_name.next().unwrap_or_default().to_owned();
        for tag in in_name {
            match tag.split_once('=') {
                Some((tag, value)) => push_tag(&mut key, tag, Some(value)),
                None => push_tag(&mut key, tag, None),
            }
        }
        let tags = String::from_utf8_lossy(tags);
        let (tags, container) = split_container(&tags);
        for tag in self.tag_list(tags) {
            match tag.split_once(':').or_else(|| tag.split_once('=')) {
                Some((tag, value)) => push_tag(&mut key, tag, Some(value)),
                None => push_tag(&mut key, tag, None),
            }
        }
        if let Some(container) = container {
            push_tag(&mut key, CONTAINER_TAG, Some(container));
        }
        MetricName::new(&key)
    }

    /// Returns the tags after `|#`. In DogStatsD their order has no meaning, so there they are
    /// sorted and each exists once.
    fn tag_list(self, tags: &str) -> Vec<&str> {
        let tags = if self.tags.dogstatsd { tags } else { "" };
        // Splitting an empty text would yield one empty tag.
        let mut list: Vec<&str> = tags.split(',').filter(|_| !tags.is_empty()).collect();
        if self.dialect == StatsdDialect::Dogstatsd {
            list.sort_unstable();
            list.dedup();
        }
        list
    }

    /// Converts tags in a name to Graphite's format, `name;tag=value`.
    fn tags_in_name(self, name: Cow<'_, str>) -> Cow<'_, str> {
        let styles = self.tags;
        let name = if !styles.graphite && name.contains(';') {
            name.replace(';', "_").into()
        } else {
            name
        };
        if !name.contains(['[', '#', ',']) {
            return name;
        }
        let converted = (styles.signalfx.then(|| signalfx(&name)).flatten())
            .or_else(|| styles.librato.then(|| librato(&name)).flatten())
            .or_else(|| styles.influx.then(|| influx(&name)).flatten());
        converted.map_or(name, Cow::Owned)
    }
}

/// The tag that a container becomes.
pub(super) const CONTAINER_TAG: &str = "container_id";

/// Returns the value of [`CONTAINER_TAG`]. Newer clients send `ci-` and the id, `in-` and the
/// number of an inode, or both with a comma; older ones only the id.
pub(super) fn container_id(container: &str) -> &str {
    let id = container.split(',').find_map(|part| part.strip_prefix("ci-"));
    id.or_else(|| container.split(',').next()).unwrap_or(container)
}

/// Splits raw tags from the container.
fn split_container(tags: &str) -> (&str, Option<&str>) {
    match tags.split_once(char::from(CONTAINER_SEPARATOR)) {
        Some((tags, container)) => (tags, Some(container_id(container))),
        None => (tags, None),
    }
}

/// Converts `name[tag=value,tag2]` to `name;tag=value;tag2`. Text after the brackets belongs to the
/// name.
fn signalfx(name: &str) -> Option<String> {
    let (front, rest) = name.split_once('[')?;
    let (tags, back) = rest.split_once(']')?;
    with_tags(&[front, back].concat(), tags)
}

/// Converts `name#tag=value,tag2` to `name;tag=value;tag2`.
fn librato(name: &str) -> Option<String> {
    let (name, tags) = name.split_once('#')?;
    with_tags(name, tags)
}

fn with_tags(name: &str, tags: &str) -> Option<String> {
    if name.is_empty() || name.starts_with(';') {
        return None;
    }
    let mut key = name.to_owned();
    for tag in tags.split(',').filter(|tag| !tag.is_empty()) {
        key.push(';');
        key.push_str(&tag.replace(';', "_"));
    }
    Some(key)
}

/// Converts `name,tag=value,tag=value` to `name;tag=value;tag=value`. A name with a part that is
/// not a tag is not converted.
fn influx(name: &str) -> Option<String> {
    let mut parts = name.split(',');
    let is_name = parts.next().is_some_and(|first| !first.is_empty() && !first.contains('='));
    let is_tags = name.contains(',') && parts.all(|tag| tag.contains('='));
    (is_name && is_tags).then(|| name.replace(',', ";"))
}

/// Replaces or removes characters invalid in Graphite, by the rules of the dialect.
pub(crate) fn sanitised(text: &str, dialect: StatsdDialect) -> Cow<'_, str> {
    let fits = |char: char| match char {
        'a'..='z' | 'A'..='Z' | '0'..='9' | '_' | '-' | '.' | ';' | '=' => true,
        ',' => dialect == StatsdDialect::Perl,
        _ => false,
    };
    match dialect {
        _ if text.chars().all(fits) => text.into(),
        StatsdDialect::Etsy | StatsdDialect::Dogstatsd => etsy(text).into(),
        StatsdDialect::Perl => perl(text).into(),
    }
}

/// Applies etsy's rules: `\s+` becomes `_`, `/` becomes `-`, and all but `[a-zA-Z_\-0-9.;=]` is
/// removed.
fn etsy(key: &str) -> String {
    let mut clean = String::with_capacity(key.len());
    let mut in_space = false;
    for char in key.chars() {
        let space = char.is_whitespace() || char == '\u{feff}';
        match char {
            _ if space && in_space => {}
            _ if space => clean.push('_'),
            '/' => clean.push('-'),
            'a'..='z' | 'A'..='Z' | '0'..='9' | '_' | '-' | '.' | ';' | '=' => clean.push(char),
            _ => {}
        }
        in_space = space;
    }
    clean
}

/// Applies the Perl server's rules: runs of `/` become `_`, runs of spaces become `-`, and all but
/// `[a-zA-Z_\-0-9.,=]` is removed. Unlike in the Perl server, the `;` of tags is retained.
fn perl(key: &str) -> String {
    let mut clean = String::with_capacity(key.len());
    let mut last = None;
    for char in key.chars() {
        let replaced = match char {
            '/' => Some('_'),
            ' ' => Some('-'),
            _ => None,
        };
        match (replaced, char) {
            (Some(new), _) if last == Some(new) => {}
            (Some(new), _) => clean.push(new),
            (None, 'a'..='z' | 'A'..='Z' | '0'..='9' | '_' | '-' | '.' | ',' | '=' | ';') => {
                clean.push(char);
            }
            _ => {}
        }
        last = replaced;
    }
    clean
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(dialect: StatsdDialect, tags: TagStyles) -> KeyConversion {
        let settings = StatsdSettings { dialect, tags, ..StatsdSettings::default() };
        KeyConversion::new(&settings, SnapshotRequirements::default())
    }

    fn of_dialect(dialect: StatsdDialect) -> KeyConversion {
        rules(dialect, TagStyles::default())
    }

    fn key(name: &str, tags: &str) -> String {
        let rules = of_dialect(StatsdDialect::Etsy);
        rules.canonical(name.as_bytes(), tags.as_bytes(), true).key().to_owned()
    }

    /// The sanitised key, and the key as sent if it differs.
    fn both(styles: TagStyles, name: &str, tags: &str) -> String {
        let rules = rules(StatsdDialect::Etsy, styles);
        let key = rules.canonical(name.as_bytes(), tags.as_bytes(), true);
        let sent = rules.as_sent(name.as_bytes(), tags.as_bytes());
        if key == sent { key.to_string() } else { format!("{key} {sent}") }
    }

    #[test]
    fn etsy_dialect_sanitises_keys() {
        assert_eq!(key("a.b_c-D9", ""), "a.b_c-D9");
        assert_eq!(key("a \t b/c//d", ""), "a_b-c--d");
        assert_eq!(key("ä:,@(x)", ""), "x");
        assert_eq!(key("", ""), "");
    }

    #[test]
    fn all_tag_forms_are_normalised() {
        assert_eq!(key("a", "env:prod,canary"), "a;env=prod;canary");
        assert_eq!(key("a", "url:http://x;y;z"), "a;url=http--x_y;z");
        assert_eq!(key("a;env=prod", ""), "a;env=prod");
        assert_eq!(key("a,env=prod,b=1", ""), "a;env=prod;b=1");
        assert_eq!(key("a,b", ""), "ab");
        assert_eq!(key("a,b", "c:d"), "ab;c=d");
    }

    #[test]
    fn keys_as_sent_preserve_characters() {
        let tags = |name: &str, tags: &str| {
            let rules = of_dialect(StatsdDialect::Etsy);
            let name = rules.as_sent(name.as_bytes(), tags.as_bytes());
            let tags = name.tags().map(|(key, value)| format!("{key}={value}"));
            format!("{} {}", name.base(), tags.collect::<Vec<_>>().join(" "))
        };
        assert_eq!(tags("a b/\u{e9}", "lang:\u{65e5}\u{672c}"), "a b/\u{e9} lang=\u{65e5}\u{672c}");
        assert_eq!(tags("a", "url:http://x;y?z=1,f,,:v"), "a url=http://x;y?z=1 f=");
        assert_eq!(tags("a;env=p q", "tag1:foo:bar"), "a env=p q tag1=foo:bar");
        assert_eq!(tags("a,t=1", "k=v"), "a t=1 k=v");
        let [etsy, perl] = [StatsdDialect::Etsy, StatsdDialect::Perl].map(of_dialect);
        assert_eq!(etsy.as_sent(b"a", b"b:c,d").key(), key("a", "b:c,d"));
        assert_eq!(perl.as_sent(b"\xff", b"").key(), "\u{fffd}");
    }

    #[test]
    fn perl_dialect_sanitises_keys() {
        let key = |name: &str| {
            let rules = of_dialect(StatsdDialect::Perl);
            rules.canonical(name.as_bytes(), b"", true).key().to_owned()
        };
        assert_eq!(key("a b/c"), "a-b_c");
        assert_eq!(key("a  b//c\td"), "a-b_cd");
        assert_eq!(key("a,b=c"), "a,b=c");
        assert_eq!(key("a_/b"), "a__b");
    }

    #[test]
    fn without_sanitising_only_invalid_bytes_change() {
        let rules = of_dialect(StatsdDialect::Etsy);
        let name = rules.canonical("a b/ä\u{ff}".as_bytes(), b"", false);
        assert_eq!(name.key(), "a b/äÿ");
        assert_eq!(rules.canonical(b"\xff", b"", false).key(), "\u{fffd}");
    }

    #[test]
    fn librato_and_signalfx_tags_are_read_on_request() {
        let off = TagStyles::default();
        assert_eq!(both(off, "a#b=c,d", ""), "ab=cd a#b=c,d");
        assert_eq!(both(off, "a[b=c,d]", ""), "ab=cd a[b=c,d]");
        let librato = TagStyles { librato: true, ..off };
        assert_eq!(both(librato, "a#b=c,d", "e:f"), "a;b=c;d;e=f");
        assert_eq!(both(librato, "a#b=c;d=e,,f=", ""), "a;b=c_d=e;f=");
        assert_eq!(both(librato, "#b=c", ""), "b=c #b=c", "a metric needs a name");
        assert_eq!(both(librato, "a,b=c", ""), "a;b=c");
        let signalfx = TagStyles { signalfx: true, ..off };
        for name in ["a.x[b=c,d]", "[b=c,d]a.x", "a[b=c,d].x"] {
            assert_eq!(both(signalfx, name, ""), "a.x;b=c;d", "{name}");
        }
        assert_eq!(both(signalfx, "[b=c]", ""), "b=c [b=c]");
        assert_eq!(both(signalfx, "a[b=c", ""), "ab=c a[b=c");
    }

    #[test]
    fn container_becomes_last_tag() {
        let all = TagStyles::default();
        assert_eq!(both(all, "a", "b:c|ci-83c"), "a;b=c;container_id=83c");
        assert_eq!(both(all, "a", "|in-7"), "a;container_id=in-7");
        assert_eq!(both(all, "a", "|ci-83c,in-7"), "a;container_id=83c");
        assert_eq!(both(all, "a", "|in-7,ci-83c"), "a;container_id=83c");
        assert_eq!(both(all, "a", "|x;y"), "a;container_id=x_y a;container_id=x\u{1f}y");
    }

    #[test]
    fn order_of_dogstatsd_tags_has_no_meaning() {
        let rules = of_dialect(StatsdDialect::Dogstatsd);
        for tags in ["b:2,a:1,canary", "canary,b:2,a:1,b:2"] {
            assert_eq!(rules.canonical(b"x", tags.as_bytes(), true).key(), "x;a=1;b=2;canary");
            assert_eq!(rules.as_sent(b"x", tags.as_bytes()).key(), "x;a=1;b=2;canary");
        }
    }

    #[test]
    fn each_tag_style_can_be_turned_off() {
        let all = TagStyles::default();
        assert_eq!(both(TagStyles { dogstatsd: false, ..all }, "a;b=c", "d:e"), "a;b=c");
        assert_eq!(both(TagStyles { influx: false, ..all }, "a,b=c", "d:e"), "ab=c;d=e a,b=c;d=e");
        assert_eq!(both(TagStyles { graphite: false, ..all }, "a;b=c", "d:e"), "a_b=c;d=e");
    }

    proptest::proptest! {
        /// Whatever styles are read, a name without their separators is unchanged, and the tags
        /// of a DogStatsD line come last.
        #[test]
        fn names_without_separators_are_unchanged(
            name in "[a-z.=:@ é]{1,12}", tag in "[a-z]{1,4}", bits in 0_u8..16
        ) {
            let bit = |bit: u8| bits & bit != 0;
            let styles = TagStyles {
                dogstatsd: true, graphite: bit(1), influx: bit(2), librato: bit(4), signalfx: bit(8),
            };
            let sent = rules(StatsdDialect::Etsy, styles).as_sent(name.as_bytes(), tag.as_bytes());
            proptest::prop_assert_eq!(sent.base(), name.as_str());
            proptest::prop_assert_eq!(sent.tag_text(), format!(";{tag}"));
        }
    }
}
