//! Raw names and tags to the two keys of a metric: as sent, for receivers that take any text, and
//! sanitised, for Graphite, the management port and all that etsy's server shows.

use std::borrow::Cow;

use crate::{Name, name::push_tag, settings::Dialect};

/// The key of a raw name and raw tags.
///
/// Tags are appended as Graphite writes them, in the order they were sent: `;name=value`. Influx'
/// tags in the name (`name,tag=value:1|c`) are taken for tags as well. With `sanitise`, what
/// Graphite cannot have is replaced or left out, tags included, in the way of the dialect.
pub(super) fn canonical(name: &[u8], tags: &[u8], dialect: Dialect, sanitise: bool) -> Name {
    let mut key = influx(String::from_utf8_lossy(name), dialect);
    if !tags.is_empty() {
        for tag in String::from_utf8_lossy(tags).split(',') {
            key.to_mut().push(';');
            key.to_mut().push_str(&tag.replacen(';', "_", 1).replacen(':', "=", 1));
        }
    }
    match sanitise {
        false => Name::new(&key),
        true => Name::new(&sanitised(&key, dialect)),
    }
}

/// The key of a raw name and raw tags with every character as it was sent; invalid UTF-8 is replaced.
///
/// The same forms of tags are read as by [`canonical`]. A tag without a key is left out.
pub(super) fn as_sent(name: &[u8], tags: &[u8], dialect: Dialect) -> Name {
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
    Name::new(&key)
}

/// The text without what Graphite cannot have, in the way of the dialect's server.
pub(crate) fn sanitised(text: &str, dialect: Dialect) -> Cow<'_, str> {
    let fits = |char: char| match char {
        'a'..='z' | 'A'..='Z' | '0'..='9' | '_' | '-' | '.' | ';' | '=' => true,
        ',' => dialect == Dialect::Perl,
        _ => false,
    };
    match dialect {
        _ if text.chars().all(fits) => text.into(),
        Dialect::Etsy | Dialect::Dogstatsd => etsy(text).into(),
        Dialect::Perl => perl(text).into(),
    }
}

/// `name,tag=value,tag=value` to `name;tag=value;tag=value`. The Perl server lets commas stand.
fn influx(name: Cow<'_, str>, dialect: Dialect) -> Cow<'_, str> {
    let mut parts = name.split(',');
    let is_name = parts.next().is_some_and(|first| !first.is_empty() && !first.contains('='));
    let is_tags = name.contains(',') && parts.all(|tag| tag.contains('='));
    match is_name && is_tags && dialect != Dialect::Perl {
        true => name.replace(',', ";").into(),
        false => name,
    }
}

/// `\s+` to `_`, `/` to `-`, and nothing but `[a-zA-Z_\-0-9.;=]`.
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

/// `/` to `_` and space to `-`, runs of either becoming one; then nothing but `[a-zA-Z_\-0-9.,=]`
/// and, other than there, the `;` of tags.
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
        canonical(name.as_bytes(), tags.as_bytes(), Dialect::Etsy, true).key().to_owned()
    }

    #[test]
    fn etsys_characters() {
        assert_eq!(key("a.b_c-D9", ""), "a.b_c-D9");
        assert_eq!(key("a \t b/c//d", ""), "a_b-c--d");
        assert_eq!(key("ä:,@(x)", ""), "x");
        assert_eq!(key("", ""), "");
    }

    #[test]
    fn tags_of_all_kinds() {
        assert_eq!(key("a", "env:prod,canary"), "a;env=prod;canary");
        assert_eq!(key("a", "url:http://x;y;z"), "a;url=http--x_y;z");
        assert_eq!(key("a;env=prod", ""), "a;env=prod");
        assert_eq!(key("a,env=prod,b=1", ""), "a;env=prod;b=1");
        assert_eq!(key("a,b", ""), "ab");
        assert_eq!(key("a,b", "c:d"), "ab;c=d");
    }

    #[test]
    fn keys_as_sent_keep_every_character() {
        let tags = |name: &str, tags: &str| {
            let name = as_sent(name.as_bytes(), tags.as_bytes(), Dialect::Etsy);
            let tags = name.tags().map(|(key, value)| format!("{key}={value}"));
            format!("{} {}", name.base(), tags.collect::<Vec<_>>().join(" "))
        };
        assert_eq!(tags("a b/\u{e9}", "lang:\u{65e5}\u{672c}"), "a b/\u{e9} lang=\u{65e5}\u{672c}");
        assert_eq!(tags("a", "url:http://x;y?z=1,f,,:v"), "a url=http://x;y?z=1 f=");
        assert_eq!(tags("a;env=p q", "tag1:foo:bar"), "a env=p q tag1=foo:bar");
        assert_eq!(tags("a,t=1", "k=v"), "a t=1 k=v");
        assert_eq!(as_sent(b"a", b"b:c,d", Dialect::Etsy).key(), key("a", "b:c,d"));
        assert_eq!(as_sent(b"\xff", b"", Dialect::Perl).key(), "\u{fffd}");
    }

    #[test]
    fn the_perl_servers_characters() {
        let key =
            |name: &str| canonical(name.as_bytes(), b"", Dialect::Perl, true).key().to_owned();
        assert_eq!(key("a b/c"), "a-b_c");
        assert_eq!(key("a  b//c\td"), "a-b_cd");
        assert_eq!(key("a,b=c"), "a,b=c");
        assert_eq!(key("a_/b"), "a__b");
    }

    #[test]
    fn without_sanitising_only_invalid_bytes_change() {
        let name = canonical("a b/ä\u{ff}".as_bytes(), b"", Dialect::Etsy, false);
        assert_eq!(name.key(), "a b/äÿ");
        assert_eq!(canonical(b"\xff", b"", Dialect::Etsy, false).key(), "\u{fffd}");
    }
}
