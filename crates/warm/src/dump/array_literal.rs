//! Arrays as parameters of statements.

/// Formats an array literal.
pub(crate) fn array<T: AsRef<str>>(items: impl Iterator<Item = T>) -> String {
    let mut out = String::from("{");
    for item in items {
        if out.len() > 1 {
            out.push(',');
        }
        out.push('"');
        for char in item.as_ref().chars() {
            if matches!(char, '"' | '\\') {
                out.push('\\');
            }
            out.push(char);
        }
        out.push('"');
    }
    out.push('}');
    out
}

#[test]
fn array_literal_quotes_special_characters() {
    let names = ["plain", "with,comma", "with\"quote", "back\\slash", "{}", "", "NULL"];
    let expected = r#"{"plain","with,comma","with\"quote","back\\slash","{}","","NULL"}"#;
    assert_eq!(array(names.into_iter()), expected);
}
