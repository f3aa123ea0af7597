//! Converts raw names and tags to the two keys of a metric: as sent, for receivers that accept any
//! text, and sanitised, for Graphite, the management port and everything that etsy's server
//! displays.

use std::borrow::Cow;

use crate::{MetricName, name::push_tag, settings::StatsdDialect};

/// Converts a raw name and raw tags to the metric's sanitised or unsanitised key.
///
/// Tags are appended in Graphite's format and in the order sent: `;name=value`. InfluxDB tags in
/// the name (`name,tag=value:1|c`) are also parsed as tags, except in the Perl dialect. With
/// `sanitise`, characters invalid in Graphite are replaced or removed, also in tags, by the rules
/// of the dialect.
pub(super) fn canonical(
    name: &[u8],
    tags: &[u8],
    dialect: StatsdDialect,
    sanitise: bool,
) -> MetricName {
    let mut key = influx(String::from_utf8_lossy(name), dialect);
    if !tags.is_empty() {
        for tag in String::from_utf8_lossy(tags).split(',') {
            key.to_mut().push(';');
            key.to_mut().push_str(&tag.replacen(';', "_", 1).replacen(':', "=", 1));
        }
    }
    if sanitise { MetricName::new(&sanitised(&key, dialect)) } else { MetricName::new(&key) }
}

/// Converts a raw name and raw tags to a key with all characters as sent; invalid UTF-8 is
/// replaced.
///
/// Accepts the same tag formats as [`canonical`]. A tag without a key is omitted.
pub(super) fn as_sent(name: &[u8], tags: &[u8], dialect: StatsdDialect) -> MetricName {
    let name = influx(String::from_utf8_lossy(name), dialect);
    let mut in_name = name.split(';');
    let mut key = in_name.next().unwrap_or_default().to_owned();
    for tag in in_name {
        match tag.split_once('=') {
            Some((tag, value)) => push_tag(&mut key, tag, Some(value)),
            None => push_tag(&mut key, tag, None),
        }
    }
    if !tags.is_empty() {
        for tag in String::from_utf8_lossy(tags).split(',') {
            match tag.split_once(':').or_else(|| tag.split_once('=')) {
                Some((tag, value)) => push_tag(&mut key, tag, Some(value)),
                None => push_tag(&mut key, tag, None),
            }
        }
    }
    MetricName::new(&key)
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

/// Converts `name,tag=value,tag=value` to `name;tag=value;tag=value`. The Perl server leaves commas
/// unchanged.
fn influx(name: Cow<'_, str>, dialect: StatsdDialect) -> Cow<'_, str> {
    let mut parts = name.split(',');
    let is_name = parts.next().is_some_and(|first| !first.is_empty() && !first.contains('='));
    let is_tags = name.contains(',') && parts.all(|tag| tag.contains('='));
    if is_name && is_tags && dialect != StatsdDialect::Perl {
        name.replace(',', ";").into()
    } else {
        name
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

    fn key(name: &str, tags: &str) -> String {
        canonical(name.as_bytes(), tags.as_bytes(), StatsdDialect::Etsy, true).key().to_owned()
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
            let name = as_sent(name.as_bytes(), tags.as_bytes(), StatsdDialect::Etsy);
            let tags = name.tags().map(|(key, value)| format!("{key}={value}"));
            format!("{} {}", name.base(), tags.collect::<Vec<_>>().join(" "))
        };
        assert_eq!(tags("a b/\u{e9}", "lang:\u{65e5}\u{672c}"), "a b/\u{e9} lang=\u{65e5}\u{672c}");
        assert_eq!(tags("a", "url:http://x;y?z=1,f,,:v"), "a url=http://x;y?z=1 f=");
        assert_eq!(tags("a;env=p q", "tag1:foo:bar"), "a env=p q tag1=foo:bar");
        assert_eq!(tags("a,t=1", "k=v"), "a t=1 k=v");
        assert_eq!(as_sent(b"a", b"b:c,d", StatsdDialect::Etsy).key(), key("a", "b:c,d"));
        assert_eq!(as_sent(b"\xff", b"", StatsdDialect::Perl).key(), "\u{fffd}");
    }

    #[test]
    fn perl_dialect_sanitises_keys() {
        let key = |name: &str| {
            canonical(name.as_bytes(), b"", StatsdDialect::Perl, true).key().to_owned()
        };
        assert_eq!(key("a b/c"), "a-b_c");
        assert_eq!(key("a  b//c\td"), "a-b_cd");
        assert_eq!(key("a,b=c"), "a,b=c");
        assert_eq!(key("a_/b"), "a__b");
    }

    #[test]
    fn without_sanitising_only_invalid_bytes_change() {
        let name = canonical("a b/ä\u{ff}".as_bytes(), b"", StatsdDialect::Etsy, false);
        assert_eq!(name.key(), "a b/äÿ");
        assert_eq!(canonical(b"\xff", b"", StatsdDialect::Etsy, false).key(), "\u{fffd}");
    }
}
