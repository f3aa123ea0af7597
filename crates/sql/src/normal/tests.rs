use proptest::prelude::*;

use super::*;
use crate::fingerprint;

fn assert_equal_form(left: &str, right: &str) {
    assert_eq!(normalize(left.as_bytes()), normalize(right.as_bytes()));
}

fn assert_different_form(left: &str, right: &str) {
    assert_ne!(normalize(left.as_bytes()), normalize(right.as_bytes()));
}

#[test]
fn normal_form_reads_like_sql() {
    let cases = [
        ("SELECT  *\nFROM T WHERE id=42 ;", "select * from t where id = ?"),
        (
            "select count( * ),t.* from a.b \"T\" where t.x||'y'='z'",
            "select count(*), t.* from a.b \"T\" where t.x || ? = ?",
        ),
        ("select a /* x */ -- y\n + b", "select a + b"),
        (
            "select now() - interval '1 day', a-1, (-1), -x",
            "select now() - interval ?, a - ?, (?), - x",
        ),
        (
            "select x from t where a in (1,2) and b not in ('x')",
            "select x from t where a in (?, ...) and b not in (?, ...)",
        ),
        ("insert into t (a, b) values (1, 'x'), (2, 'y')", "insert into t(a, b) values (?, ...)"),
        ("insert into t values (1, now()), (2, now())", "insert into t values (?, now())"),
        (
            "insert into t values (1, 2, now(), default)",
            "insert into t values (?, ..., now(), default)",
        ),
        ("select array[1,2,3]::int[], a[1], a[1:2]", "select array[?, ...]::int[], a[?], a[? : ?]"),
        ("select array[[1,2],[3,4]]", "select array[[?, ...], ...]"),
        ("select 'x'::character varying(10)", "select ?::character varying(?)"),
        ("begin; select 1; ; commit;;", "begin; select ?; commit"),
        (
            "select case when a is null then null else true end",
            "select case when a is null then ? else ? end",
        ),
        (
            "create table t (a int not null default null, b int references x on delete set null)",
            "create table t(a int not null default null, b int references x on delete set null)",
        ),
        ("fetch 100 from c", "fetch ? from c"),
        ("do $$ begin end $$", "do ?"),
        ("select f(a => 1, b := 2)", "select f(a => ?, b := ?)"),
        ("", ""),
        (" ; -- nothing\n", ""),
    ];
    for (sql, form) in cases {
        assert_eq!(normalize(sql.as_bytes()), form, "{sql}");
    }
}

#[test]
fn literals_and_parameters_normalize_alike() {
    assert_equal_form("select * from t where a = 5", "select * from t where a = $1");
    assert_equal_form("select * from t where a = -5", "select * from t where a = $1");
    assert_equal_form("select * from t where a=-5", "select * from t where a = $1");
    assert_equal_form("update t set a = NULL where b = 'x'", "update t set a = $1 where b = $2");
    assert_equal_form("select 'x'::text", "select $1::text");
    assert_equal_form("select * from t limit 5 offset -1", "select * from t limit $1 offset $2");
    assert_equal_form(
        "select * from t where a between -1 and +1",
        "select * from t where a between $1 and $2",
    );
    assert_equal_form("insert into t values (1, null, true)", "insert into t values ($1, $2, $3)");
    assert_equal_form("select e'a\\'b', $q$x$q$, 1e9", "select $1, $2, $3");
    assert_equal_form("select * from t where a = ?", "select * from t where a = $1");
}

#[test]
fn constant_list_length_does_not_matter() {
    assert_equal_form("select 1 from t where a in (1)", "select 1 from t where a in (1, 2, 3, $4)");
    assert_equal_form("select 1 from t where a in (-1, 2)", "select 1 from t where a in ($1)");
    assert_equal_form("insert into t values (1,2)", "insert into t values (1,2),(3,4),(5,6)");
    assert_equal_form("select array['a'::text]", "select array['a'::text, 'b'::text]");
    assert_equal_form("where (a, b) in ((1, 2), (3, 4))", "where (a, b) in ((5, 6))");
    assert_equal_form(
        "where d in (date '2026-01-01', date '2026-01-02')",
        "where d in (date '2026-01-01')",
    );
    assert_equal_form(
        "where n in (1::numeric(10, 2), 2::numeric(10, 2))",
        "where n in (1::numeric(10, 2))",
    );
    assert_equal_form(
        "select 1 in (1, 2) from (values (1), (2)) v",
        "select 1 in (1) from (values (3)) v",
    );
}

#[test]
fn lists_of_non_constants_are_not_folded() {
    assert_eq!(normalize(b"where a in (b)"), "where a in (b)");
    assert_eq!(normalize(b"where a in (b, b)"), "where a in (b, b)");
    assert_eq!(normalize(b"where a in (1, b, 2, 3)"), "where a in (?, b, ?, ...)");
    assert_eq!(normalize(b"where a in (select 1)"), "where a in (select ?)");
    assert_eq!(normalize(b"where a in (1 + 2)"), "where a in (? + ?)");
    assert_eq!(normalize(b"select f(1, 2)"), "select f(?, ?)");
    assert_eq!(normalize(b"where a in ()"), "where a in ()");
    assert_different_form("insert into t values (1, now())", "insert into t values (1, 2)");
    assert_different_form("select f(1)", "select f(1, 2)");
}

#[test]
fn savepoint_and_statement_names_do_not_matter() {
    assert_equal_form("SAVEPOINT \"s140_x1\"", "savepoint sp2");
    assert_equal_form("release savepoint a", "release savepoint b");
    assert_equal_form("rollback to savepoint a", "rollback to savepoint \"b\"");
    assert_equal_form("deallocate s1", "deallocate s2");
    assert_eq!(normalize(b"rollback"), "rollback");
    assert_eq!(normalize(b"deallocate all"), "deallocate all");
    assert_different_form("select savepoint a", "select savepoint b");
}

#[test]
fn different_shapes_have_different_forms() {
    assert_different_form("select a from t", "select b from t");
    assert_different_form("select \"A\" from t", "select \"a\" from t");
    assert_different_form("select a - 1", "select a, - 1");
    assert_different_form("select 1::int", "select 1::text");
    assert_different_form("select 1; select 2", "select 1");
    assert_different_form("select a is null", "select a is not null");
}

#[test]
fn invalid_bytes_and_unterminated_text_are_normalized() {
    assert_eq!(normalize(b"select caf\xe9"), "select caf\u{fffd}");
    assert_eq!(normalize(b"select 'never closed"), "select ?");
    assert_eq!(normalize(b"select a in (1, 2"), "select a in (?, ...");
    assert_eq!(normalize(b"select )) 1"), "select)) ?");
}

#[test]
fn deep_nesting_is_copied() {
    let deep = NESTING_MAX * 4;
    let sql = format!("select {}1{} in (1, 2)", "(".repeat(deep), ")".repeat(deep));
    let form = normalize(sql.as_bytes());
    assert!(form.ends_with(") in (?, ...)"), "{}", &form[form.len() - 30..]);
    assert_eq!(normalize(form.as_bytes()), form);
}

/// Measures output instead of time: doubling the input at most doubles the output. The inputs would
/// make a careless lexer look ahead repeatedly.
#[test]
fn long_inputs_take_linear_time() {
    for piece in [
        "(",
        "in (1,1,",
        "'a'\n",
        "/*",
        "$a$b",
        "- ",
        "+",
        "=+",
        "values (1),",
        "--\n'a' ",
        "$a",
        "E'\\",
    ] {
        let sql = piece.repeat(200_000);
        let form = normalize(sql.as_bytes());
        assert!(form.len() <= 4 * sql.len(), "{piece}: {} for {}", form.len(), sql.len());
    }
}

/// Generates pieces of SQL. Joined at random, they reach more code of the lexer than random bytes.
fn piece() -> impl Strategy<Value = String> {
    prop::sample::select(vec![
        "select",
        "IN",
        "values",
        "array",
        "NULL",
        "not",
        "a",
        "B.c",
        "\"Q\"",
        "1",
        "-1",
        "'x'",
        "E'\\''",
        "$1",
        "$$b$$",
        "?",
        "...",
        "..",
        ".",
        ",",
        "(",
        ")",
        "[",
        "]",
        "::",
        ":",
        ":=",
        "int",
        "date",
        "-",
        "+",
        "*",
        "@-",
        ";",
        "--c\n",
        "/*c*/",
        "savepoint",
        "rollback",
        "to",
        "$",
        "\\",
        "\"",
        "'",
        "true",
        "limit",
        "\n",
    ])
    .prop_flat_map(|word| {
        prop::sample::select(vec!["", " "]).prop_map(move |gap| format!("{word}{gap}"))
    })
}

/// An unclosed quoted name must not swallow the output after it, as in `in (?::", ...`.
#[test]
fn unclosed_quoted_name_is_closed() {
    for (sql, normal) in [
        ("in(2::\"", "in (?::\"\", ..."),
        ("select \"a\"\"b", "select \"a\"\"b\""),
        ("select U&\"a", "select U&\"a\""),
        ("select \"a\"\"\"", "select \"a\"\"\""),
    ] {
        assert_eq!(normalize(sql.as_bytes()), normal);
        assert_eq!(normalize(normal.as_bytes()), normal);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn normalization_is_idempotent(pieces in prop::collection::vec(piece(), 0..24)) {
        let sql = pieces.concat();
        let once = normalize(sql.as_bytes());
        prop_assert_eq!(normalize(once.as_bytes()), once);
    }

    #[test]
    fn arbitrary_bytes_have_stable_form(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let once = normalize(&bytes);
        prop_assert_eq!(normalize(once.as_bytes()), once);
    }

    #[test]
    fn white_space_comments_and_case_change_nothing(
        pieces in prop::collection::vec(piece(), 0..24), gap in "[ \t]|/\\*;'\\*/",
    ) {
        let sql = pieces.concat();
        let mut spaced = String::new();
        for token in Lexer::new(sql.as_bytes()) {
            let text = std::str::from_utf8(token.text).expect("the pieces are ASCII");
            // The gap is inserted before tokens, not after them, because the last token may be an
            // unterminated string.
            match token.kind {
                TokenKind::Space if !text.contains('\n') => {}
                TokenKind::Word => spaced.extend([&gap, &*text.to_ascii_uppercase()]),
                _ => spaced.extend([&*gap, text]),
            }
        }
        prop_assert_eq!(normalize(spaced.as_bytes()), normalize(sql.as_bytes()));
    }

    #[test]
    fn literals_do_not_change_the_fingerprint(
        number in any::<i64>(), text in "[^'\\\\]{0,20}", real in any::<f32>(), list in 1..9_usize,
    ) {
        let constants = vec![number.to_string(); list].join(", ");
        let literal = format!(
            "select * from t where a = {number} and b <> '{text}' and c > {real:?}::real \
             and d in ({constants}) limit {number}",
            real = if real.is_finite() { real } else { 0.5 },
        );
        let bound = "SELECT * FROM t WHERE a = $1 AND b <> $2 AND c > $3::real AND d IN ($4) LIMIT $5";
        prop_assert_eq!(fingerprint(literal.as_bytes()), fingerprint(bound.as_bytes()));
    }
}

#[test]
fn unclosed_brackets_beyond_the_limit_keep_the_form_stable() {
    for depth in [255, 256, 257, 300, 1000] {
        let sql = format!("values(1,{}", "(".repeat(depth));
        let normal = normalize(sql.as_bytes());
        assert_eq!(normalize(normal.as_bytes()), normal, "{depth} brackets");
    }
}
