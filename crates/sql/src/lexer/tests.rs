use super::*;

/// Returns kind and text of the tokens that are not white space.
fn tokens(sql: &str) -> Vec<(TokenKind, String)> {
    Lexer::new(sql.as_bytes())
        .filter(|token| token.kind != TokenKind::Space)
        .map(|token| (token.kind, String::from_utf8_lossy(token.text).into_owned()))
        .collect()
}

fn texts(sql: &str) -> Vec<String> {
    tokens(sql).into_iter().map(|(_, text)| text).collect()
}

fn only(sql: &str) -> TokenKind {
    let tokens = tokens(sql);
    assert_eq!(tokens.len(), 1, "{sql:?} gave {tokens:?}");
    tokens[0].0
}

#[test]
fn every_string_form_is_one_token() {
    for sql in [
        "'it''s'",
        "'back\\'",
        "E'it\\'s \\\\'",
        "e'a''b'",
        "U&'\\0441'",
        "N'x'",
        "B'01'",
        "x'1F'",
        "$$it's $1$$",
        "$tag$ $$ $tagg$ $tag$",
        "$été$x$été$",
        "'one'\n 'two'",
        "'one' -- why\n'two'",
        "E'one'\n'\\' still'",
    ] {
        assert_eq!(only(sql), TokenKind::String, "{sql}");
    }
    assert_eq!(texts("'one' 'two'"), ["'one'", "'two'"]);
    assert_eq!(texts("'one' -- 'two'"), ["'one'", "-- 'two'"]);
}

#[test]
fn every_number_form_is_one_token() {
    for sql in [
        "42",
        "3.5",
        "4.",
        ".001",
        "5e2",
        "1.925e-3",
        "1_500_000",
        "0x1F",
        "0xFFFF_FFFF",
        "0o273",
        "0b1010_0101",
        "1.5E+10",
    ] {
        assert_eq!(only(sql), TokenKind::Number, "{sql}");
    }
    assert_eq!(texts("1..10"), ["1", "..", "10"]);
    assert_eq!(texts("1e"), ["1", "e"]);
    assert_eq!(texts("0x"), ["0", "x"]);
    assert_eq!(texts("1__0"), ["1", "__0"]);
}

#[test]
fn names_include_dollars_and_quotes() {
    assert_eq!(only("a$1$b"), TokenKind::Word);
    assert_eq!(only("naïve_1"), TokenKind::Word);
    assert_eq!(only("\"a \"\"b\"\" ; --\""), TokenKind::QuotedName);
    assert_eq!(only("u&\"d\\0061t\""), TokenKind::QuotedName);
    assert_eq!(texts("u&x"), ["u", "&", "x"]);
    assert_eq!(texts("t.\"C\""), ["t", ".", "\"C\""]);
}

#[test]
fn block_comments_nest_and_line_comments_stop_at_newline() {
    assert_eq!(only("/* a /* b */ c */"), TokenKind::Comment);
    assert_eq!(only("/* never closed /* "), TokenKind::Comment);
    assert_eq!(texts("1--x\n+2"), ["1", "--x", "+", "2"]);
    assert_eq!(texts("1--x\r2"), ["1", "--x", "2"]);
    assert_eq!(texts("/*/ */1"), ["/*/ */", "1"]);
}

#[test]
fn operator_boundaries_match_postgres() {
    assert_eq!(texts("a=-1"), ["a", "=", "-", "1"]);
    assert_eq!(texts("a@-1"), ["a", "@-", "1"]);
    assert_eq!(texts("a*-+1"), ["a", "*", "-", "+", "1"]);
    assert_eq!(texts("a<>b"), ["a", "<>", "b"]);
    assert_eq!(texts("a->>'k'"), ["a", "->>", "'k'"]);
    assert_eq!(texts("a+--b"), ["a", "+", "--b"]);
    assert_eq!(texts("a+/*b*/c"), ["a", "+", "/*b*/", "c"]);
    assert_eq!(texts("x::int"), ["x", "::", "int"]);
    assert_eq!(texts("f(a:=1)"), ["f", "(", "a", ":=", "1", ")"]);
}

#[test]
fn unmatched_dollars_are_stray() {
    assert_eq!(only("$"), TokenKind::Stray);
    assert_eq!(texts("$a"), ["$", "a"]);
    assert_eq!(tokens("$12x")[0], (TokenKind::Placeholder, "$12".to_owned()));
    assert_eq!(only("$$ never closed"), TokenKind::String);
}

#[test]
fn tokens_cover_all_bytes_in_any_encoding() {
    let sql = b"select \xe9t\xe9, '\xff', \"\xfe\" \x00 \\ { from t";
    let joined: Vec<u8> = Lexer::new(sql).flat_map(|token| token.text.to_vec()).collect();
    assert_eq!(joined, sql);
    assert_eq!(Lexer::new(b"\xe9t\xe9").next().map(|token| token.kind), Some(TokenKind::Word));
}
