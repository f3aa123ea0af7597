//! [`expand`]: templates that refer to matched text, such as `api.$1.${2}_total`.

/// Replaces `$1` and `${1}` with the text that the wildcard or group of that number matched, or
/// with nothing if there is none. Any other `$` is copied.
pub(crate) fn expand<'c>(template: &str, capture: &dyn Fn(usize) -> Option<&'c str>) -> String {
    let mut out = String::with_capacity(template.len());
    let mut rest = template;
    while let Some((before, after)) = rest.split_once('$') {
        out.push_str(before);
        let (digits, then) = match after.strip_prefix('{').and_then(|after| after.split_once('}')) {
            Some(braced) => braced,
            None => {
                after.split_at(after.find(|c: char| !c.is_ascii_digit()).unwrap_or(after.len()))
            }
        };
        match digits.parse() {
            Ok(at) => {
                out.push_str(capture(at).unwrap_or_default());
                rest = then;
            }
            Err(_) => {
                out.push('$');
                rest = after;
            }
        }
    }
    out + rest
}

/// Returns the largest number that a template refers to; `None` if it refers to none.
pub(crate) fn last_capture(template: &str) -> Option<usize> {
    let last = std::cell::Cell::new(None);
    expand(template, &|at| {
        last.set(last.get().max(Some(at)));
        None
    });
    last.get()
}

#[test]
fn last_capture_is_the_largest_number() {
    assert_eq!(last_capture("a.$2.${10}.$1"), Some(10));
    assert_eq!(last_capture("a$"), None);
    assert_eq!(last_capture("$0"), Some(0));
}
