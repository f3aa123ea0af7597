//! Classifies statements by PostgreSQL's own grammar, on which `--read-only` depends.

use howdah_sql::{
    Lexer, TokenKind,
    grammar::{Effect, EffectClassifier, classify},
    split_statements,
};

use super::Shape;

/// Fragments of statements that read, write, or hide a write.
pub const WORDS: &[&[u8]] = &[
    b"select ",
    b"select 1",
    b"with c as (",
    b"delete from t",
    b"insert into t values (1)",
    b"update t set a = 1",
    b"merge into t using s on true when matched then do nothing",
    b" returning 1",
    b" into t",
    b" for update",
    b" for share skip locked",
    b"lock t in access share mode",
    b"explain ",
    b"(analyze off) ",
    b"analyze ",
    b"prepare p as ",
    b"execute p",
    b"declare c cursor for ",
    b"fetch all from c",
    b"deallocate all",
    b"discard all",
    b"copy t to stdout",
    b"copy (",
    b") to program 'x'",
    b"begin",
    b"commit prepared 'x'",
    b"set local a.b = 1",
    b"call f()",
    b"do $$x$$",
    b"nextval('s')",
    b"pg_catalog.lower(",
    b"app.lower(",
    b"lower(",
    b"create table t (a int)",
    b"create function f() begin atomic ",
    b"end",
    b";",
    b"--",
    b"\n",
    b"/*",
    b"*/",
    b"'",
    b"\"",
    b"$$",
    b"E'\\'",
    b"(",
    b")",
    b"[",
    b"]",
    b" from t",
    b" where ",
    b" union all ",
    b"\xff",
    b"\xc3\xa9",
];

/// The parse tree, also as nested maps: fifty kilobytes for the smallest statement.
pub const MEMORY: (usize, usize) = (1 << 20, 40_000);

/// Classifies a text alone, then rewritten, and next to other statements.
pub fn run(sql: &[u8]) -> Shape {
    let alone = classify(sql);
    let mut judge_again = EffectClassifier::default();
    for _ in 0..2 {
        assert_eq!(*judge_again.classify(sql), alone, "with a memory");
    }
    if alone.effect == Effect::Unreadable {
        return Shape::of((alone.effect, first_words(sql, 2)));
    }
    let other = classify(&upper_case_and_commented(sql));
    assert_eq!(other, alone, "in upper case, with comments");
    // A neighbouring statement cannot hide a write.
    for (with_write, place) in [
        ([&b"delete from t;"[..], sql].concat(), "in front"),
        ([sql, b"\n;delete from t"].concat(), "behind"),
    ] {
        let together = classify(&with_write).effect;
        let is_kept = match alone.effect {
            // The effect is that of the first statement that is not read-only.
            Effect::ReadOnly => together == Effect::Writes,
            _ => !matches!(together, Effect::ReadOnly | Effect::Unreadable),
        };
        assert!(is_kept, "a write {place} makes {together:?} of {:?}", alone.effect);
    }
    if let [only] = split_statements(sql).collect::<Vec<_>>()[..] {
        within(only, alone.effect);
    }
    let uses: Vec<_> = alone.names.iter().map(std::mem::discriminant).take(3).collect();
    Shape::of((alone.effect, first_words(sql, 2))).and((alone.effect, uses))
}

/// Checks that EXPLAIN ANALYZE and PREPARE have the effect of the statement they contain.
fn within(sql: &[u8], effect: Effect) {
    let of = |before: &[u8]| classify(&[before, sql].concat()).effect;
    for before in [&b"explain (analyze) "[..], b"prepare another as "] {
        let within = of(before);
        // Not every statement can be explained or prepared.
        assert!(within == effect || within == Effect::Unreadable, "{within:?}, was {effect:?}");
    }
    let planned = of(b"explain ");
    let reads = matches!(planned, Effect::ReadOnly | Effect::Unreadable) || planned == effect;
    assert!(reads, "to explain it is {planned:?}, it is {effect:?}");
}

/// Rewrites a statement in upper case, with a comment in every space.
pub(super) fn upper_case_and_commented(sql: &[u8]) -> Vec<u8> {
    let mut other = Vec::with_capacity(sql.len() * 2);
    for token in Lexer::new(sql) {
        match token.kind {
            TokenKind::Word => other.extend(token.text.to_ascii_uppercase()),
            TokenKind::Space => {
                other.extend_from_slice(b" /* ; -- ' $$ */");
                other.extend_from_slice(token.text);
            }
            _ => other.extend_from_slice(token.text),
        }
    }
    other
}

/// The statement's first words, which mostly determine its kind.
fn first_words(sql: &[u8], count: usize) -> Vec<Vec<u8>> {
    let words = Lexer::new(sql).filter(|token| token.kind == TokenKind::Word);
    let known = |text: &[u8]| {
        let word = text.to_ascii_lowercase();
        let is_known = WORDS.iter().any(|known| known.windows(word.len()).any(|part| part == word));
        is_known.then_some(word)
    };
    words.filter_map(|token| known(token.text)).take(count).collect()
}
