//! Converts statsd names and tags to valid Prometheus names and labels.
//!
//! Source: the Prometheus data model, "Metric names and labels".

/// Labels sorted by name, each name once. Stored as one text, because there may be a million sets:
/// `name=value` pairs separated by zero bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct LabelSet(Box<str>);

impl LabelSet {
    /// Returns the stored text.
    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

/// Returns the name and value of each label in the text of a [`LabelSet`].
pub(super) fn label_pairs(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let pairs = text.split('\0').filter(|pair| !pair.is_empty());
    // Label names never contain `=`.
    pairs.filter_map(|pair| pair.split_once('='))
}

/// Makes a valid metric name: characters other than ASCII alphanumerics, `_` and `:` become `_`,
/// and a name that is empty or starts with a digit gets a leading `_`.
pub(super) fn metric(name: &str) -> String {
    legal(name, |c| c.is_ascii_alphanumeric() || c == '_' || c == ':')
}

/// Returns a valid label name. Names reserved by Prometheus (`le`, `quantile`, and all starting
/// with `__`) get the prefix `tag_`.
pub(super) fn label(name: &str) -> String {
    let name = legal(name, |c| c.is_ascii_alphanumeric() || c == '_');
    match name.as_str() {
        "le" | "quantile" => format!("tag_{name}"),
        name if name.starts_with("__") => format!("tag_{name}"),
        _ => name,
    }
}

/// Returns the name that statsd_exporter uses for a metric without a mapping rule: characters other
/// than ASCII alphanumerics and `_` become `_`, a run of dashes only one, and a leading digit gets
/// a `_`.
pub(super) fn exporter_metric(name: &str) -> String {
    let mut clean = String::with_capacity(name.len() + 1);
    if name.starts_with(|c: char| c.is_ascii_digit()) {
        clean.push('_');
    }
    let mut last = None;
    for char in name.chars() {
        match char {
            'a'..='z' | 'A'..='Z' | '0'..='9' | '_' => clean.push(char),
            '-' if last == Some('-') => {}
            _ => clean.push('_'),
        }
        last = Some(char);
    }
    clean
}

fn legal(name: &str, is_legal: impl Fn(char) -> bool) -> String {
    let mut clean = String::with_capacity(name.len() + 1);
    if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) {
        clean.push('_');
    }
    clean.extend(name.chars().map(|c| if is_legal(c) { c } else { '_' }));
    clean
}

/// Sorts labels; of labels with the same name, the first wins.
pub(super) fn labels(labels: impl IntoIterator<Item = (String, String)>) -> LabelSet {
    let mut labels: Vec<(String, String)> = labels.into_iter().collect();
    labels.sort_by(|one, other| one.0.cmp(&other.0));
    labels.dedup_by(|next, first| next.0 == first.0);
    let mut text = String::new();
    for (name, value) in labels {
        if !text.is_empty() {
            text.push('\0');
        }
        text.push_str(&name);
        text.push('=');
        text.extend(value.chars().map(|char| if char == '\0' { '\u{fffd}' } else { char }));
    }
    LabelSet(text.into())
}

/// Appends a suffix unless the name already ends in it.
pub(super) fn with_suffix(name: String, suffix: &str) -> String {
    if name.ends_with(suffix) { name } else { name + suffix }
}

#[test]
fn names_become_legal() {
    assert_eq!(metric("api.hits-per/s"), "api_hits_per_s");
    assert_eq!(metric("9lives"), "_9lives");
    assert_eq!(metric(""), "_");
    assert_eq!(metric("é:x"), "_:x");
    assert_eq!(label("le"), "tag_le");
    assert_eq!(label("__name__"), "tag___name__");
    assert_eq!(label("a:b"), "a_b");
    assert_eq!(with_suffix("x_total".to_owned(), "_total"), "x_total");
    let pairs = [("b", "1"), ("a", "2"), ("b", "3")].map(|(k, v)| (k.to_owned(), v.to_owned()));
    let labels = labels(pairs);
    let pairs: Vec<_> = label_pairs(labels.as_str()).collect();
    assert_eq!(pairs, [("a", "2"), ("b", "1")]);
}

#[test]
fn unmapped_names_are_those_of_the_exporter() {
    for (name, expected) in [
        ("api.hits-total", "api_hits_total"),
        ("9.lives", "_9_lives"),
        ("a--b---c-_d", "a_b_c__d"),
        ("a:b/c d", "a_b_c_d"),
        ("caf\u{e9}", "caf_"),
        ("..", "__"),
    ] {
        assert_eq!(exporter_metric(name), expected);
        assert_eq!(metric(expected), expected, "it is a valid name");
    }
}
